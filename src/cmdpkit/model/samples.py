"""Models estimated from logged transitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import refreeze
from cmdpkit.model.listing import Listing, Parts, assemble
from cmdpkit.model.reachability import settled
from cmdpkit.model.reading import read_table
from cmdpkit.model.references import indices_of, named_objective
from cmdpkit.model.tables import Own, listed, objective_column

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP

TRIES = "the number of tries"
"""The quantity that counts the rows of a pair."""


def from_samples(cls: type[CMDP], source: Any, options: Mapping[str, Any], own: Own) -> CMDP:
    """See `CMDP.from_samples`."""
    table = read_table(source, own["columns"])
    if "probability" in table.columns:
        raise ValueError(
            "the log has a column 'probability'; a table of probabilities is read by CMDP.from_table, and logged "
            "transitions have one row per step instead"
        )
    objective, maximise = objective_column(table, options, own)
    listing = _weighted(listed(table, objective, options, own))
    ends = indices_of(own["absorbing"], listing.state_labels, listing.states, "absorbing")
    parts = _with_frequencies(assemble(listing, merge=True, absorbing=ends))
    parts, distribution = settled(parts, own["initial"], own["unreachable"])
    counts = parts.table(TRIES).astype(np.int64)
    cmdp = cls(**parts.arguments(objective, maximise, distribution, named_objective(options, objective)))
    object.__setattr__(cmdp, "counts", refreeze(counts))
    return cmdp


def _weighted(listing: Listing) -> Listing:
    """Each of the n rows of a pair has probability 1/n; n is kept as a quantity."""
    key = listing.state * listing.actions + listing.action
    _, pair, counts = np.unique(key, return_inverse=True, return_counts=True)
    tries = counts[pair].astype(float)
    return replace(listing, probability=1.0 / tries, quantities={**listing.quantities, TRIES: tries})


def _with_frequencies(parts: Parts) -> Parts:
    """Sums of 1/n, which are rounded, become the quotient of the counts."""
    matrix = parts.transitions.copy()
    tries = np.repeat(np.maximum(parts.quantities[TRIES], 1.0), np.diff(matrix.indptr))
    matrix.data = np.rint(matrix.data * tries) / tries
    return replace(parts, transitions=matrix)
