"""One step ahead, over all state-action pairs: Bellman backups, advantages, greedy choices.

Small and dense models use NumPy, SciPy and BLAS; large sparse ones the compiled kernels, in blocks of states that are
shared by threads where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.threads import in_blocks
from cmdpkit.model import CMDP, Pairs, Part, StagedTransitions

COMPILED = 100_000
"""From this many nonzeros the compiled kernels pay for their import (measured: docs/decisions.md)."""


class Backup(NamedTuple):
    """The Bellman backup TV of a guess V, and what it tells."""

    values: Array  # (S,) TV
    choice: Any  # (S,) greedy actions; the old ones where nothing is gained
    lowest: float  # min of TV − V
    highest: float  # max of TV − V
    moved: int  # states whose action changed


def is_compiled(matrix: Any) -> bool:
    """Whether sweeps over this matrix (the model's, for all of its policies) use the compiled kernels."""
    is_sparse = matrix.is_sparse if isinstance(matrix, StagedTransitions) else sp.issparse(matrix)
    return bool(is_sparse and matrix.nnz >= COMPILED)


def parts(matrix: Any) -> tuple[Any, Any, Any]:
    """indptr, indices and data of a CSR matrix, as the kernels want them: unsigned, without a copy."""
    unsigned = np.dtype(f"u{matrix.indices.dtype.itemsize}")
    return (
        matrix.indptr.astype(matrix.indices.dtype, copy=False).view(unsigned),
        matrix.indices.view(unsigned),
        matrix.data,
    )


def look_ahead(cmdp: CMDP, state_values: Array) -> Array:
    """γ Σ_s' P(s'|s, a) V(s') for every pair, as (N,) or (N, n)."""
    ahead: Array = cmdp.transitions @ state_values
    ahead *= cmdp.gamma
    return ahead


def action_values(cmdp: CMDP, tables: Array, values: Array) -> Array:
    """Q_i(s, a) = c_i(s, a) + γ Σ P V_i of costs (n, N) with the values (S, n) of a policy, as (n, N)."""
    if not (is_compiled(cmdp.transitions) and sp.issparse(cmdp.transitions)):
        return np.asarray(tables + look_ahead(cmdp, values).T)
    table, wide = padded(tables.T), padded(values)
    looking_ahead(cmdp.transitions, cmdp.gamma, table, 0.0, cmdp.pairs.heads)(wide, wide, table)
    return np.ascontiguousarray(table[:, : len(tables)].T)


def bellman(cmdp: CMDP, cost: Array, value: Array, choice: Any, noise: float = 0.0) -> Backup:
    """TV(s) = min_a c(s, a) + γ Σ P V, and a greedy choice: ties, and gains within `noise`, keep the action."""
    if is_compiled(cmdp.transitions) and sp.issparse(cmdp.transitions):
        return _bellman_compiled(cmdp, cost, value, choice, noise)
    q, pairs = look_ahead(cmdp, value), cmdp.pairs
    q += cost
    best = pairs.argmin(pairs.like(q))
    backup = q[pairs.rows(best)]
    better = backup < q[pairs.rows(choice)] - noise
    change = backup - value
    low, high = float(np.minimum.reduce(change)), float(np.maximum.reduce(change))  # without NumPy's detours
    return Backup(backup, np.where(better, best, choice), low, high, int(np.count_nonzero(better)))


def _bellman_kernel(cmdp: CMDP, cost: Array) -> Any:
    from cmdpkit.evaluation import kernels

    return partial(kernels.bellman, cmdp.pairs.heads, cmdp.pairs.largest, *parts(cmdp.transitions), cost, cmdp.gamma)


def _bellman_compiled(cmdp: CMDP, cost: Array, value: Array, choice: Any, noise: float) -> Backup:
    kernel, backup, chosen = _bellman_kernel(cmdp, cost), np.empty(cmdp.states), np.array(choice, dtype=np.int32)
    value = np.ascontiguousarray(value)

    def block(first: int, last: int) -> tuple[float, float, int]:
        found: tuple[float, float, int] = kernel(value, value, noise, backup, chosen, first, last)
        return found

    low, high, moved = zip(*in_blocks(block, cmdp.states, cmdp.transitions.nnz), strict=True)
    return Backup(backup, chosen, min(low), max(high), sum(moved))


def follow(cmdp: CMDP, cost: Array, value: Array, choice: Any, sweeps: int) -> Array:
    """V ← c_π + γ P_π V so many times, for a deterministic choice on a sparse model; a large one without its chain.

    `value` is working space, and overwritten.
    """
    if not is_compiled(cmdp.transitions):
        rows = cmdp.pairs.rows(choice)
        chain, own = cmdp.transitions[rows], cost[rows]
        for _ in range(sweeps):
            value = own + cmdp.gamma * (chain @ value)
        return value
    from cmdpkit.evaluation import kernels

    kernel = partial(kernels.follow, cmdp.pairs.heads, choice, *parts(cmdp.transitions), cost, cmdp.gamma)
    spare = np.empty_like(value)
    work = cmdp.transitions.nnz * cmdp.states // cmdp.pairs.count
    for _ in range(sweeps):
        in_blocks(partial(kernel, value, spare), cmdp.states, work)
        value, spare = spare, value
    return value


def improve_in_place(cmdp: CMDP, cost: Array, value: Array, choice: Any, backwards: bool, sweeps: int) -> float:
    """A Bellman backup of a sparse model and so many sweeps of its policy that use new values at once (Gauss-Seidel).

    States are taken in the order of their numbers, or `backwards`. `value` and `choice` are overwritten. Returns the
    span of what the backup changed.
    """
    from cmdpkit.evaluation import kernels

    heads, model = cmdp.pairs.heads, (*parts(cmdp.transitions), cost, cmdp.gamma)
    low, high = kernels.bellman_in_place(heads, *model, value, choice, backwards)
    kernels.follow_in_place(heads, choice, *model, value, backwards, sweeps)
    return float(high - low)


def induction(cmdp: CMDP, cost: Array, blocks: Sequence[int]) -> Any:
    """(S,) the best choice, by backward induction: one pass from the last of the model's blocks to the first."""
    matrix, heads = cmdp.transitions, cmdp.pairs.heads
    value, choice = np.zeros(cmdp.states), np.zeros(cmdp.states, dtype=np.int32)
    kernel = _bellman_kernel(cmdp, cost) if is_compiled(matrix) else None
    for first, last in list(pairwise(blocks))[::-1]:
        begin, end = int(heads[first]), int(heads[last])
        inside = matrix.indices[matrix.indptr[begin:end]] < last  # in its block a state can only stay
        if kernel is not None and not inside.any():
            kernel(value, value, 0.0, value, choice, first, last)
            continue
        stay = np.where(inside, matrix.data[matrix.indptr[begin:end]], 0.0)
        ahead = cmdp.gamma * (rows_of(matrix, begin, end) @ value)
        q = (cost[begin:end] + ahead) / (1.0 - cmdp.gamma * stay)
        value[first:last] = np.minimum.reduceat(q, heads[first:last] - begin)
        least = np.flatnonzero(q == np.repeat(value[first:last], np.diff(heads[first : last + 1])))
        rows = least[np.searchsorted(least, heads[first:last] - begin)]
        choice[first:last] = rows - (heads[first:last] - begin)
    return choice


class Induced(NamedTuple):
    """What one pass over the stages of a horizon finds."""

    backup: Backup  # the least values, which are their own backup as computed, and the best choice
    state_values: Array  # (S, m + 1) of all costs under that choice


def induction_over_stages(cmdp: CMDP, weights: Array) -> Induced:
    """Minimise w·c of a model with stages by one pass from the last stage to the first, with V_0..V_m on the way."""
    staged: StagedTransitions = cmdp.transitions
    own, costs, weights = staged.own, cmdp.costs, np.asarray(weights, dtype=float)
    value, choice = np.zeros(cmdp.states), np.zeros(cmdp.states, dtype=np.int32)
    values, last = np.zeros((cmdp.states, weights.size)), staged.last_states
    value[last], choice[last] = _least(own, weights @ costs[:, staged.last_pairs])
    values[last] = costs[:, staged.last_pairs.start + own.rows(choice[last])].T
    if is_compiled(staged):
        from cmdpkit.evaluation.stage_kernels import induct

        discounts, (table, scales) = cmdp.gamma * staged.factors, _stage_costs(cmdp)
        for begin, end, matrix in reversed(staged.runs):
            arrays = (own.heads, *parts(matrix), table, scales, weights, discounts)
            induct(*arrays, value, values, choice, begin, end)
    else:
        for stage in reversed(list(staged.stages())):
            now, discount = stage.states, cmdp.gamma * stage.factor
            q = weights @ costs[:, stage.pairs] + discount * (stage.matrix @ value[stage.after])
            value[now], choice[now] = _least(own, q)
            rows = own.rows(choice[now])
            values[now] = costs[:, stage.pairs.start + rows].T + discount * (stage.matrix[rows] @ values[stage.after])
    return Induced(Backup(value, choice, 0.0, 0.0, 0), values)


_STAGE_COSTS: WeakKeyDictionary[CMDP, tuple[Array, Array]] = WeakKeyDictionary()


def _stage_costs(cmdp: CMDP) -> tuple[Array, Array]:
    """Costs (m + 1, N) of the first stage and their multiples (T,) at every stage, if these are exactly all costs.

    Then a sweep need not read T times as many numbers. Otherwise all costs, and ones.
    """
    if cmdp not in _STAGE_COSTS:
        staged: StagedTransitions = cmdp.transitions
        scales, count = staged.scales, staged.own.count
        found = cmdp.costs, np.ones(staged.horizon)
        if scales is not None:
            first = np.ascontiguousarray(cmdp.costs[:, :count])
            each = (cmdp.costs[:, t * count : (t + 1) * count] for t in range(staged.horizon))
            if all(np.array_equal(first * scale, costs) for scale, costs in zip(scales.tolist(), each, strict=True)):
                found = first, scales
        _STAGE_COSTS[cmdp] = found
    return _STAGE_COSTS[cmdp]


def _least(pairs: Pairs, q: Array) -> tuple[Array, Any]:
    """(S,) the least of the pairs of every state, and which it is."""
    choice = pairs.argmin(pairs.like(q))
    return q[pairs.rows(choice)], choice


def rows_of(matrix: Any, first: int, last: int) -> Any:
    """Some rows of a CSR matrix, without a copy of their entries."""
    begin, end = matrix.indptr[first], matrix.indptr[last]
    rows = sp.csr_array((last - first, matrix.shape[1]), dtype=matrix.dtype)
    # set one by one: the constructor copies slices of much longer arrays, even with copy=False
    rows.data, rows.indices = matrix.data[begin:end], matrix.indices[begin:end]
    rows.indptr = matrix.indptr[first : last + 1] - begin
    return rows


def advantages(cmdp: CMDP, values: Array) -> Array:
    """A_i(s, a) = c_i(s, a) + γ Σ P V_i − V_i(s) of all costs i, as (N, m + 1), from V as (S, m + 1).

    For long-run averages, less the average of each cost.
    """
    if isinstance(cmdp.transitions, StagedTransitions):
        return _advantages_over_stages(cmdp, values)
    cost = cmdp.costs.T
    if cmdp.criterion == "average":
        cost = cmdp.costs.T - gain(cmdp, values)
    if not is_compiled(cmdp.transitions):
        table, pairs = look_ahead(cmdp, values), cmdp.pairs
        by_pair = pairs.like(table)  # a view
        for i in range(values.shape[1]):  # NumPy is slow on short rows
            by_pair[..., i] += pairs.like(cost[:, i]) - pairs.over(values[:, i])
        return table
    table, wide = padded(cost), padded(values)
    looking_ahead(cmdp.transitions, cmdp.gamma, table, 1.0, cmdp.pairs.heads)(wide, wide, table)
    return table[:, : values.shape[1]]


def add_ahead(cmdp: CMDP, part: Part, table: Array, values: Array) -> Array:
    """Add γ Σ P V − V to costs (n, k) of the pairs of some states, in place, given V as (S, k). Both are `padded`.

    For a large sparse model. For long-run averages, less the average of each cost.
    """
    if cmdp.criterion == "average":
        table -= gain(cmdp, values)
    indptr, indices, data = parts(cmdp.transitions)
    own = indptr[part.rows.start : part.rows.stop + 1]
    ends = (np.empty(table.shape[1]), np.empty(table.shape[1]), 0, part.pairs.states)
    kernel, here = _ahead_kernel(table.shape[1]), values[part.states]
    kernel(part.pairs.heads, own, indices, data, table, cmdp.gamma, values, here, 1.0, table, *ends)
    return table


def _advantages_over_stages(cmdp: CMDP, values: Array) -> Array:
    """The same, stage by stage."""
    staged: StagedTransitions = cmdp.transitions
    own, compiled, n = staged.own, is_compiled(staged), values.shape[1]
    table = padded(cmdp.costs.T) if compiled else np.array(cmdp.costs.T, order="C")
    wide = padded(values) if compiled else values
    for stage in staged.stages():
        part, after, before = table[stage.pairs], wide[stage.after], wide[stage.states]
        discount = cmdp.gamma * stage.factor
        if compiled:
            looking_ahead(stage.matrix, discount, part, 1.0, own.heads)(after, before, part)
        else:
            part += discount * (stage.matrix @ after)
            own.like(part)[...] -= own.over(before)
        if wide[staged.end].any():
            part += np.multiply.outer(cmdp.gamma * stage.rest(slice(None)), wide[staged.end])
    rest = slice(staged.last_pairs.start, None)
    table[rest] += cmdp.gamma * wide[staged.end] - wide[cmdp.pairs.state[rest]]
    return table[:, :n]


def gain(cmdp: CMDP, values: Array) -> Any:
    """What a step costs in the long run, from values (S,) or (S, n): ρ · V for an average model, else 0."""
    return cmdp.initial @ values if cmdp.criterion == "average" else 0.0


def padded(table: Array) -> Array:
    """A C-ordered copy, with three columns padded to four, which is what the kernels like best."""
    n = table.shape[1]
    wide = np.zeros((table.shape[0], padded_width(n)))
    for i in range(n):  # NumPy is slow on short rows
        wide[:, i] = table[:, i]
    return wide


def padded_width(columns: int) -> int:
    return 4 if columns == 3 else columns


Ahead = Callable[[Array, Array, Array], tuple[Array, Array]]
"""Of the values V′ of the states that follow, V of the states, and the table to fill. Returns the extremes."""


def looking_ahead(matrix: Any, gamma: float, cost: Array, minus: float = 0.0, heads: Any = None) -> Ahead:
    """c + γ P V′ − minus · V for all columns (compiled), and the extremes of c + γ P V′ − V in each of them.

    `matrix` is the model's, with a row for every pair (those of a state begin at `heads`), or a chain's with one row
    for every state. Tables of values are `padded`; that of the costs need not be.
    """
    columns, nnz = padded_width(cost.shape[1]), matrix.nnz
    kernel = _ahead_kernel(columns)
    states = matrix.shape[0] if heads is None else heads.size - 1
    arrays = (np.arange(states + 1) if heads is None else heads, *parts(matrix), cost, gamma)

    def look(after: Array, values: Array, out: Array) -> tuple[Array, Array]:
        def block(first: int, last: int) -> tuple[Array, Array]:
            low, high = np.empty(columns), np.empty(columns)
            kernel(*arrays, after, values, minus, out, low, high, first, last)
            return low, high

        found = in_blocks(block, states, columns * nnz)
        if len(found) == 1:
            return found[0]
        return np.min([low for low, _ in found], axis=0), np.max([high for _, high in found], axis=0)

    return look


def _ahead_kernel(columns: int) -> Any:
    from cmdpkit.evaluation import kernels

    return {1: kernels.ahead_one, 2: kernels.ahead_two, 4: kernels.ahead_four}.get(columns, kernels.ahead_many)


def greedy(pairs: Pairs, table: Array, weights: Array, visits: Array, compiled: bool) -> tuple[Any, Array]:
    """argmin_a Σ_i w_i table((s, a), i) in every state, and Σ_s visits(s) table((s, argmin), ·)."""
    if not compiled:
        choice = pairs.argmin(pairs.like(table @ weights))
        return choice, visits @ table.take(pairs.rows(choice), axis=0)  # four times as fast as table[...]
    from cmdpkit.evaluation import kernels

    whole = table if table.base is None else table.base  # with the columns that `padded` added
    kernel = {2: kernels.greedy_two, 4: kernels.greedy_four}.get(whole.shape[1], kernels.greedy_many)
    scales = np.append(weights, np.zeros(whole.shape[1] - weights.size))
    chosen, heads = np.empty(visits.size, dtype=np.int32), pairs.heads

    def block(first: int, last: int) -> Array:
        total = np.empty(scales.size)
        kernel(heads, whole, scales, visits, chosen, total, first, last)
        return total

    return chosen, np.sum(in_blocks(block, visits.size, whole.size), axis=0)[: weights.size]
