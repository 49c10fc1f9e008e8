"""The chain of a policy: P_π(s'|s) = Σ_a π(a|s) P(s'|s, a), as an array or, for a sparse model, as a CSR matrix.

Over the stages of a finite horizon it is not put together (stages.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import is_compiled, parts
from cmdpkit.evaluation.stages import StagedChain
from cmdpkit.evaluation.threads import in_blocks
from cmdpkit.model import StagedTransitions

HUB = 8.0
"""A state with so many times the neighbours of an average one is a hub: the centre of a star, a common restart."""

SAMPLE, SHARED = 20, 0.7
"""States sampled for shared successors, and the fraction of entries below which those of all states are added up."""

BLOCKED = 32
"""From so many places below the diagonal on, LAPACK factorises bands in blocks."""

SINGLE = 1.2
"""Up to so many actions per state on average there are few successors to add up, whatever they are."""


def chosen_chain(cmdp: Any, choice: Any) -> Any:
    """The chain of a deterministic policy: rows are gathered."""
    if isinstance(cmdp.transitions, StagedTransitions):
        return StagedChain(cmdp.transitions, choice=choice)
    return cmdp.transitions[cmdp.pairs.rows(choice)]


def mixed_chain(cmdp: Any, probabilities: Array) -> Any:
    """The chain of a randomised policy, π(a|s) of all pairs."""
    states, pairs = cmdp.states, cmdp.pairs
    if isinstance(cmdp.transitions, StagedTransitions):
        return StagedChain(cmdp.transitions, probabilities)
    if not sp.issparse(cmdp.transitions):
        if pairs.is_full:  # one vector-matrix product per state: (S, 1, A) @ (S, A, S)
            return np.matmul(probabilities[:, None, :], pairs.like(cmdp.transitions))[:, 0, :]
        return pairs.sum(probabilities[:, None] * cmdp.transitions)
    matrix, weights = cmdp.transitions, probabilities.ravel()
    if is_compiled(matrix) and not _shares_successors(matrix, pairs.first, weights):
        return _gathered(matrix, pairs.heads, weights)
    taken = np.flatnonzero(weights)
    first = pairs.first if taken.size == weights.size else np.searchsorted(taken, pairs.first)
    kind = matrix.indices.dtype if pairs.count <= np.iinfo(matrix.indices.dtype).max else np.int64
    # Of another type of integers the product would convert those of the whole model
    selection = (weights[taken], taken.astype(kind), first.astype(kind))
    return sp.csr_array(selection, shape=(states, pairs.count)) @ matrix


def _gathered(matrix: Any, heads: Any, weights: Array) -> Any:
    """The same, compiled: rows of the actions that are taken, concatenated, and nothing is stored but the chain.

    A successor of two actions may appear twice; its entries add up.
    """
    from cmdpkit.evaluation import chain_kernels

    indptr, indices, data = parts(matrix)
    starts = np.empty(heads.size, dtype=matrix.indptr.dtype)
    chain_kernels.count_mixed(heads, indptr, weights, starts)
    to, values = np.empty(starts[-1], dtype=indices.dtype), np.empty(starts[-1])

    def fill(first: int, last: int) -> None:
        chain_kernels.fill_mixed(heads, indptr, indices, data, weights, starts, to, values, first, last)

    in_blocks(fill, heads.size - 1, int(starts[-1]))
    return sp.csr_array((values, to.view(matrix.indices.dtype), starts), shape=(heads.size - 1, matrix.shape[1]))


def _shares_successors(matrix: Any, first: Any, weights: Array) -> bool:
    """Whether the actions that are taken lead to the same states, in a sample: then adding them up pays off."""
    if np.count_nonzero(weights) <= SINGLE * (first.size - 1):
        return False
    states = np.arange(0, first.size - 1, max(1, (first.size - 1) // SAMPLE))
    counts = first[states + 1] - first[states]
    rows = np.repeat(first[states] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    played = weights[rows] > 0.0
    some, owner = matrix[rows[played]], np.repeat(states.astype(np.int64), counts)[played]
    successors = np.repeat(owner, np.diff(some.indptr)) * matrix.shape[1] + some.indices
    return bool(np.unique(successors).size < SHARED * successors.size)


def is_flipped(below: int, above: int) -> bool:
    """Whether the transposed band is factorised, with `above` places below the diagonal.

    The fewer the better, but LAPACK is slow where they are too few for blocks.
    """
    return above <= below and (above >= BLOCKED or below < BLOCKED)


def band_of(cmdp: Any, probabilities: Any, chain: Any = None) -> Array:
    """I − γ P_π as LAPACK factorises bands: with (s, t) at (t, width + s − t), or at (s, width + t − s) if flipped.

    Given are π(a|s) of all pairs, whose chain need not be known then, or a chain.
    """
    flipped, width = is_flipped(*cmdp.band), sum(cmdp.band)
    shape = (cmdp.states, cmdp.band[flipped] + width + 1)  # pivoting needs more places than the band has
    down, across = (shape[1] - 1, 1) if flipped else (1, shape[1] - 1)
    if chain is None and is_compiled(cmdp.transitions):
        from cmdpkit.evaluation import chain_kernels

        band = np.zeros(shape)
        given = (*parts(cmdp.transitions), probabilities.ravel(), cmdp.gamma, down, across, width, band.reshape(-1))
        in_blocks(partial(chain_kernels.fill_band, cmdp.pairs.heads, *given), cmdp.states, cmdp.transitions.nnz)
        return band
    if chain is not None:
        owner, counts, indices, data = np.arange(cmdp.states), np.diff(chain.indptr), chain.indices, chain.data
    else:
        weights, matrix = probabilities.ravel(), cmdp.transitions
        taken = np.flatnonzero(weights)
        entries, counts = _entries(matrix, taken)
        owner, indices = cmdp.pairs.of(taken)[0], matrix.indices.take(entries)
        data = matrix.data.take(entries) * np.repeat(weights[taken], counts)
    # Entries of the same place, of several actions or twice in a chain, are added up
    places = indices * np.int64(across) + np.repeat(owner * np.int64(down) + width, counts)
    band = np.bincount(places, -cmdp.gamma * data, shape[0] * shape[1]).astype(float, copy=False)
    band[width :: shape[1]] += 1.0
    return band.reshape(shape)


def _entries(matrix: Any, rows: Any) -> tuple[Any, Any]:
    """Where the entries of some rows of a CSR matrix are, one row after the other, and how many there are in each."""
    starts = matrix.indptr[rows]
    counts = matrix.indptr[rows + 1] - starts
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(ends[-1] if ends.size else 0), counts


def separator_width(chain: Any) -> int:
    """Size of a separator: a level of a breadth-first search that leaves at least a quarter of the states on each side.

    For a lattice it is the side, for a random graph most of the states. The factors of I − γ P_π have at least its
    square as their size. States to which many others lead are taken out first: a row of the factors for each of them
    takes as much room as a separator of the root of the number of states.
    """
    graph = sp.csr_matrix(chain + chain.T)
    neighbours = np.diff(graph.indptr)
    others = np.flatnonzero(neighbours <= HUB * neighbours.mean())
    hubs = chain.shape[0] - others.size
    width = _narrowest_level(graph[others][:, others] if hubs else graph)
    return width + math.ceil(math.sqrt(hubs * chain.shape[0]))


def _narrowest_level(graph: Any) -> int:
    """The narrowest level in the middle of a breadth-first search through the largest component."""
    from scipy.sparse.csgraph import connected_components

    _, component = connected_components(graph, directed=False)
    size = np.bincount(component)
    if size.max() < graph.shape[0]:
        inside = np.flatnonzero(component == size.argmax())
        graph = graph[inside][:, inside]
    start = 0
    for _ in range(3):  # a search from the boundary has the narrowest levels
        width, start = _levels(graph, start)
    below = np.cumsum(width)
    middle = (below >= below[-1] / 4) & (below - width <= 3 * below[-1] / 4)
    return int(width[middle].min())


def _levels(graph: Any, start: int) -> tuple[Any, int]:
    """How many states are 0, 1, ... steps away from one of them in a connected graph, and a state farthest away."""
    from scipy.sparse.csgraph import breadth_first_order

    order, before = breadth_first_order(graph, start)
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    # Where in the order each one was found from: never earlier than the one before. A line has as many levels as states
    came = place[before[order[1:]]].tolist()
    ends = [0, 1]
    while ends[-1] < order.size:
        ends.append(1 + bisect_left(came, ends[-1], ends[-1] - 1))
    return np.diff(ends), int(order[-1])
