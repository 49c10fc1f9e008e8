"""Models estimated from logged transitions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import refreeze
from cmdpkit.model.listing import Listing, Parts, assemble, indices_of, limit_columns, limit_list, settled
from cmdpkit.model.reading import read_table
from cmdpkit.model.tables import listed, objective_column

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP

TRIES = "the number of tries"
"""The quantity that counts the rows of a pair."""


def from_samples(
    cls: type[CMDP],
    source: Any,
    *,
    reward: str | None,
    cost: str | None,
    constraints: Iterable[Any],
    gamma: float,
    initial: Any,
    state_labels: Iterable[Hashable] | None,
    action_labels: Iterable[Hashable] | None,
    absorbing: Any,
    unreachable: str,
    columns: Mapping[str, str] | None,
) -> CMDP:
    """See `CMDP.from_samples`."""
    constraints = limit_list(constraints)
    table = read_table(source, columns)
    if "probability" in table.columns:
        raise ValueError(
            "the log has a column 'probability'; a table of probabilities is read by CMDP.from_table, and logged "
            "transitions have one row per step instead"
        )
    objective, maximise = objective_column(table, reward, cost, constraints)
    listing = listed(table, [objective, *limit_columns(constraints)], state_labels, action_labels)
    ends = indices_of(absorbing, listing.state_labels, listing.states, "absorbing")
    parts = assemble(_weighted(listing), merge=True, absorbing=ends)
    parts = _with_frequencies(parts)
    parts, distribution = settled(parts, initial, unreachable)
    counts = parts.table(TRIES).astype(np.int64)
    known = parts.arguments(
        objective=objective, maximise=maximise, constraints=constraints, gamma=gamma, initial=distribution
    )
    cmdp = cls(**known)
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
