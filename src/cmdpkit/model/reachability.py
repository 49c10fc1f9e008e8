"""States that cannot be reached from the initial ones, whatever the policy: found, and kept, dropped or refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order

from cmdpkit.checks import StateArray
from cmdpkit.model.listing import Parts
from cmdpkit.model.references import initial_distribution, name_of, some


def reached(parts: Parts, initial: StateArray) -> NDArray[np.bool_]:
    """Which states the process can be in, whatever the policy."""
    sources = np.flatnonzero(initial)
    if sources.size == parts.states:
        return np.ones(parts.states, dtype=bool)
    # The rows of a state follow one another: taken together they are the row of the state in the graph.
    matrix = parts.transitions
    first = np.searchsorted(parts.pair_state, np.arange(parts.states + 1))
    indptr = np.append(matrix.indptr[first], matrix.nnz + sources.size)
    indices = np.concatenate([matrix.indices, sources])
    size = parts.states + 1  # the last node leads to the initial states
    graph = sp.csr_array((np.ones(indices.size, dtype=np.int8), indices, indptr), shape=(size, size))
    found = np.zeros(size, dtype=bool)
    found[breadth_first_order(graph, parts.states, return_predecessors=False)] = True
    return found[:-1]


def without(parts: Parts, keep: NDArray[np.bool_]) -> Parts:
    """The model restricted to states that only lead to each other."""
    pairs = keep[parts.pair_state]
    number = np.cumsum(keep) - 1
    labels = parts.state_labels if parts.state_labels is not None else tuple(range(parts.states))
    return replace(
        parts,
        transitions=sp.csr_array(parts.transitions[pairs][:, np.flatnonzero(keep)]),
        pair_state=number[parts.pair_state[pairs]],
        pair_action=parts.pair_action[pairs],
        quantities={name: column[pairs] for name, column in parts.quantities.items()},
        states=int(keep.sum()),
        state_labels=tuple(labels[s] for s in np.flatnonzero(keep)),
    )


def settled(parts: Parts, initial: Any, unreachable: str) -> tuple[Parts, StateArray]:
    """The initial distribution, and the parts without the states that cannot be reached if they are to be dropped."""
    if unreachable not in ("warn", "keep", "drop", "refuse"):
        raise ValueError(f"unreachable must be 'warn', 'keep', 'drop' or 'refuse', not {unreachable!r}")
    distribution = initial_distribution(initial, parts.states, parts.state_labels)
    if unreachable == "keep":
        return parts, distribution
    found = reached(parts, distribution)
    if found.all():
        return parts, distribution
    if unreachable == "drop":
        return without(parts, found), distribution[found]
    lost = np.flatnonzero(~found)
    names = some((name_of(parts.state_labels, s) for s in lost), lost.size)
    text = (
        f"{lost.size} of {parts.states} states cannot be reached from the initial states: {names}; check their labels, "
        "or choose unreachable='keep' or 'drop'"
    )
    if unreachable == "refuse":
        raise ValueError(text)
    warnings.warn(text, UserWarning, stacklevel=4)
    return parts, distribution
