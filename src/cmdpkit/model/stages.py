"""Finite horizons: one copy of the states for each of T stages, and an end.

State s at stage t is number t·S + s, the end is T·S. The discounted model with the same values has weights w that are
known: w_t ≥ 1 + γ w_(t+1), the (discounted) number of steps that are left. See absorbing.py for how it is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import StateArray
from cmdpkit.model.absorbing import Scaled, check_underflow, with_rest
from cmdpkit.model.pairs import Pairs


def over_stages(transitions: Any, pairs: Pairs, initial: StateArray, gamma: float, horizon: int) -> Scaled:
    """The discounted model of sums over `horizon` steps."""
    matrix = sp.csr_array(transitions, copy=True)
    matrix.eliminate_zeros()
    largest = max(1.0, float(np.asarray(matrix.sum(axis=1)).max()))
    w = np.ones(horizon)
    for t in range(horizon - 2, -1, -1):
        w[t] = 1.0 + gamma * largest * w[t + 1]
    beta = 1.0 - 1.0 / max(2.0, float(w[0]))
    states, end = pairs.states, horizon * pairs.states
    blocks = staged_pairs(pairs, horizon)
    factors = gamma * w[1:] / (beta * w[:-1])
    data = (factors[:, None] * matrix.data).ravel()
    check_underflow(data, data != 0.0, "probabilities")
    check_underflow(factors, factors > 0.0, "discount factors")
    shifts = states * np.arange(1, horizon)
    indices = (shifts[:, None] + matrix.indices).ravel()
    counts = np.append(
        np.tile(np.diff(matrix.indptr), horizon - 1), np.zeros(blocks.count - (horizon - 1) * pairs.count)
    )
    indptr = np.append(0, np.cumsum(counts.astype(np.int64)))
    big = with_rest(sp.csr_array((data, indices, indptr), shape=(blocks.count, end + 1)), end)
    start = np.zeros(end + 1)
    start[:states] = initial
    sizes = np.append(np.repeat(w / w[0], states), 0.0)
    return Scaled(big, blocks, start, beta, sizes, horizon)


def staged_pairs(pairs: Pairs, horizon: int) -> Pairs:
    """The pairs of all stages, and those of the end, which keep it there."""
    states = horizon * pairs.states + 1
    if pairs.is_full:
        return Pairs(states, pairs.actions)
    first = np.append((pairs.count * np.arange(horizon))[:, None] + pairs.first[:-1], horizon * pairs.count)
    return Pairs(
        states,
        pairs.actions,
        np.append(first, horizon * pairs.count + 1).astype(np.int64),
        np.append(np.tile(pairs.action, horizon), 0).astype(np.int32),
    )


FEWEST = 8
"""Blocks of states must have at least this size on average to be worth it."""


def forward_blocks(transitions: Any, pairs: Pairs) -> tuple[int, ...] | None:
    """Where blocks of states begin, and the last one ends, such that no state leads to others of its block or before.

    A system with such blocks is solved by one pass over them. None if there are no such blocks, or too many small ones.
    """
    if not sp.issparse(transitions) or not transitions.has_sorted_indices or not np.diff(transitions.indptr).all():
        return None
    begin, state = transitions.indptr[:-1], pairs.state
    column = transitions.indices[begin]
    if (column < state).any():
        return None
    stays = np.flatnonzero(column == state)
    more = np.diff(transitions.indptr)[stays] > 1
    column = column.astype(np.int64)
    column[stays] = pairs.states
    column[stays[more]] = transitions.indices[begin[stays[more]] + 1]
    following = pairs.min(pairs.like(column))  # the first other state that can follow each
    bounds, looked = [0], 0
    while bounds[-1] < pairs.states:
        first = bounds[-1]
        last = int(following[first])
        while (least := int(following[first:last].min())) < last:
            looked, last = looked + last - first, least
        bounds.append(last)
        looked += last - first
        if len(bounds) > 1 + pairs.states / FEWEST or looked > 10 * pairs.states:
            return None
    return tuple(bounds)
