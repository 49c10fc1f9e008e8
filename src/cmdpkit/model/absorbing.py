"""Total costs until a goal: where a process ends, and how long it can take at most.

A model with certain absorption is a discounted one in disguise. For any w > 0 and β < 1,

    V(s) = c_π(s) + Σ P_π(s'|s) V(s')   ⟺   V'(s) = c'_π(s) + β Σ P'_π(s'|s) V'(s')

with V' = W V / w, c' = W c / w and P'(s'|s, a) = P(s'|s, a) w(s') / (β w(s)) over the states that are not absorbed. If
w(s) ≥ 1 + max_a Σ P(s'|s, a) w(s') and β = 1 − 1/max w, the rows of P' sum to one at most, and the rest goes to an
absorbed state. Policies are the same, and with ρ' = ρ w / W, W = Σ ρ w, so are the values from the start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, CostTable, PairTable, StateArray
from cmdpkit.model.pairs import Pairs

LONGEST = 1e12
"""Longest expected time to absorption: beyond it nothing could be proved in double precision."""

ENOUGH = 0.1
"""A guess w with 1 + max P w − w ≤ this is good enough: divided by 1 − this, it satisfies the inequality."""

SWEEPS = 400
"""Sweeps before systems are solved instead."""

ROUNDS = 200
"""Policies tried in search of the longest time; a handful is usual."""

DENSE = 500
"""Up to this many states a dense solver is as fast as a sparse one."""

SMALLEST = 1e-290
"""Numbers below this are near the end of the range of floating point."""

SHOWN = 8
"""States named in a message."""


def absorbed_states(transitions: Any, pairs: Pairs, costs: CostTable) -> Any:
    """(S,) booleans: the largest set of states in which nothing costs and that no action leaves."""
    moves = _moves(transitions)
    costly = pairs.max(pairs.like((costs != 0.0).any(axis=0).astype(float))) > 0.0
    into = sp.csr_array(moves.T)  # (S, N): the pairs that lead to a state
    state, reached, front = pairs.state, costly.copy(), np.flatnonzero(costly)
    while front.size:
        before = np.unique(state[_entries(into, front)])
        front = before[~reached[before]]
        reached[front] = True
    return ~reached


def check_absorption(transitions: Any, pairs: Pairs, absorbed: Any) -> None:
    """Check that every policy is absorbed with certainty; otherwise name states in which one can stay for ever."""
    moves = _moves(transitions)
    into = sp.csr_array(moves.T)
    state, alive = pairs.state, np.ones(pairs.count, dtype=bool)  # pairs that may lead to states that remain only
    remaining, left = ~absorbed, np.diff(pairs.first)  # actions left in every state
    front = np.flatnonzero(absorbed)
    while front.size:
        dead = np.unique(_entries(into, front))
        dead = dead[alive[dead]]
        alive[dead] = False
        left = left - np.bincount(state[dead], minlength=left.size)
        front = np.flatnonzero(remaining & (left <= 0))
        remaining[front] = False
    if remaining.any():
        raise ValueError(_trap_message(moves, pairs, alive & remaining[state], absorbed))


def _trap_message(moves: Any, pairs: Pairs, alive: Any, absorbed: Any) -> str:
    """Name the states of a set in which the process can be kept for ever by one of the `alive` pairs in each."""
    from scipy.sparse.csgraph import connected_components

    rows = np.flatnonzero(alive)
    states, first = np.unique(pairs.state[rows], return_index=True)
    chain = sp.csr_array(moves[rows[first]])[:, states]
    count, component = connected_components(chain, directed=True, connection="strong")
    step = chain.tocoo()
    closed = np.ones(count, dtype=bool)
    closed[component[step.row[component[step.row] != component[step.col]]]] = False
    trap = states[component == np.flatnonzero(closed)[0]]
    goals = "" if absorbed.any() else "; there is no goal: no state that every action keeps at no cost"
    return (
        f"gamma = 1 needs an end that every policy reaches, but under some policy the process can stay in "
        f"{named_states(pairs, trap)} for ever{goals}. Make the goal a state that is never left and costs nothing, "
        "take away actions that lead nowhere (available=), or use gamma < 1"
    )


def named_states(pairs: Pairs, states: Any) -> str:
    names = ", ".join(pairs.state_name(s) for s in states[:SHOWN])
    more = f", ... ({states.size} states)" if states.size > SHOWN else ""
    return f"state{'s' if states.size > 1 else ''} {names}{more}"


def longest_times(transitions: Any, pairs: Pairs, absorbed: Any) -> Array:
    """(S,) w with w ≥ 1 + max_a Σ P w up to rounding, near the longest expected time to absorption; 1 if absorbed."""
    w = np.ones(absorbed.size)
    inside = np.flatnonzero(~absorbed)
    if not inside.size:
        return w
    rows = np.flatnonzero(~absorbed[pairs.state])
    matrix = transitions[rows][:, inside]
    heads = np.append(0, np.cumsum(np.diff(pairs.first)[inside]))[:-1]
    times = _swept(matrix, heads)
    if times is None:
        times = _by_policies(matrix, heads)
    if times is None or not np.isfinite(times).all() or times.max() > LONGEST:
        slow = int(inside[0 if times is None else np.nanargmax(times)])
        raise ValueError(
            f"from state {pairs.state_name(slow)} it can take more than {LONGEST:g} steps to reach an end, too many "
            "for values that can be trusted; make absorption more likely, or use gamma < 1"
        )
    w[inside] = times
    return w


def _swept(matrix: Any, heads: Any) -> Array | None:
    """The times by sweeps with extrapolation, if they mix fast enough."""
    w, change = np.zeros(heads.size), np.ones(heads.size)
    for k in range(SWEEPS):
        after = 1.0 + np.maximum.reduceat(matrix @ w, heads)
        before, change, w = change, after - w, after
        if change.max() <= ENOUGH:
            return np.asarray(w / (1.0 - float(change.max())))
        if k % 10 == 9:
            # If the changes go on to shrink by this factor at least, the guess lies above the limit of the sweeps
            moved = before > 0.0
            ratio = float((change[moved] / before[moved]).max())
            if ratio < 1.0:
                guess = w + change * (ratio / (1.0 - ratio))
                off = float((1.0 + np.maximum.reduceat(matrix @ guess, heads) - guess).max())
                if off <= ENOUGH:
                    return np.asarray(guess / (1.0 - max(off, 0.0)))
    return None


def _by_policies(matrix: Any, heads: Any) -> Array | None:
    """The times by policy iteration: solved for one policy after the other, each the slowest for the last times."""
    own, n = np.repeat(np.arange(heads.size), np.diff(np.append(heads, matrix.shape[0]))), heads.size
    w = np.ones(n)
    for _ in range(ROUNDS):
        ahead = matrix @ w
        most = np.maximum.reduceat(ahead, heads)
        off = float((1.0 + most - w).max())
        if w.min() > 0.0 and off <= ENOUGH:
            return np.asarray(w / (1.0 - max(off, 0.0)))
        slowest = np.flatnonzero(ahead == most[own])
        slowest = slowest[np.searchsorted(slowest, heads)]
        w = _solved(matrix[slowest], n)
        if not np.isfinite(w).all() or w.min() < 0.0:
            return None
    return None


def _solved(chain: Any, n: int) -> Array:
    """(I − P)⁻¹ 1; not finite where that does not exist."""
    from scipy.sparse.linalg import splu

    try:
        if n <= DENSE or not sp.issparse(chain):
            dense = chain.toarray() if sp.issparse(chain) else chain
            return np.linalg.solve(np.eye(n) - dense, np.ones(n))
        return np.asarray(splu(sp.csc_array(sp.eye_array(n) - chain)).solve(np.ones(n)))
    except (np.linalg.LinAlgError, RuntimeError):
        return np.full(n, np.inf)


def _moves(transitions: Any) -> Any:
    """(N, S) the successors of every pair, without zeros that are stored."""
    matrix = sp.csr_array(transitions, copy=True)
    matrix.eliminate_zeros()
    return matrix


def _entries(matrix: Any, rows: Any) -> Any:
    """The columns of all entries of some rows of a CSR matrix."""
    starts, ends = matrix.indptr[rows], matrix.indptr[rows + 1]
    counts = ends - starts
    offsets = np.repeat(starts - np.append(0, np.cumsum(counts)[:-1]), counts)
    return matrix.indices[np.arange(counts.sum()) + offsets]


def _scaled_transitions(transitions: Any, pairs: Pairs, absorbed: Any, w: Array, beta: float) -> Any:
    """P w(s') / (β w(s)) between states that are not absorbed; the rest of every row goes to one absorbed state."""
    end, own = int(np.flatnonzero(absorbed)[0]), (beta * w)[pairs.state]
    own[absorbed[pairs.state]] = np.inf
    after = np.where(absorbed, 0.0, w)
    if not sp.issparse(transitions):
        table = transitions * after / own[:, None]
        check_underflow(table, (transitions > 0.0) & (after > 0.0) & np.isfinite(own)[:, None], "probabilities")
        table[:, end] = np.maximum(1.0 - table.sum(axis=1), 0.0)
        return table if not pairs.is_full else table.reshape(pairs.states, pairs.actions, -1)
    matrix = sp.csr_array(transitions, copy=True)
    own = np.repeat(own, np.diff(matrix.indptr))
    given, matrix.data = matrix.data, matrix.data * after[matrix.indices] / own
    check_underflow(matrix.data, (given > 0.0) & (after[matrix.indices] > 0.0) & np.isfinite(own), "probabilities")
    matrix.eliminate_zeros()
    return with_rest(matrix, end)


def with_rest(matrix: Any, end: int) -> Any:
    """The sparse matrix with rows filled up to one by entries in the column `end`."""
    rest = np.maximum(1.0 - np.asarray(matrix.sum(axis=1)).ravel(), 0.0)
    rows = np.flatnonzero(rest)
    return matrix + sp.csr_array((rest[rows], (rows, np.full(rows.size, end))), shape=matrix.shape)


class Scaled(NamedTuple):
    """The arrays of the discounted model with the same values, and its states' w / W."""

    transitions: Any
    pairs: Pairs
    initial: StateArray
    beta: float
    sizes: StateArray  # w / W, 0 where the process has ended
    per_stage: int  # pairs of the model
    stages: int = 1

    def table(self, values: PairTable, stage: int | None = None) -> PairTable:
        """The costs or rewards that belong to those of the original: W c / w, one copy for each stage, or for one.

        Values may have the stage as their first axis.
        """
        per_state = np.divide(1.0, self.sizes, out=np.zeros_like(self.sizes), where=self.sizes > 0.0)
        flat, live = np.zeros(self.pairs.count), self.stages * self.per_stage
        rows = np.broadcast_to(values.reshape(-1, self.per_stage), (self.stages, self.per_stage))
        if stage is None:
            flat[:live] = rows.ravel()
        else:
            flat[:live].reshape(rows.shape)[stage] = rows[stage]
        scaled = self.pairs.like(flat) * self.pairs.over(per_state)
        check_underflow(scaled.ravel(), flat != 0.0, "costs or rewards")
        return np.asarray(scaled)


def check_underflow(values: Array, nonzero: Any, what: str) -> None:
    """Near the end of the range of floating point the error of a number is not relative to it any more."""
    if not np.isfinite(values).all() or (np.abs(values[nonzero]) < SMALLEST).any():
        raise ValueError(
            f"some {what} are too small or too large for this criterion; use another unit, or set them to 0"
        )


def until_absorbed(transitions: Any, pairs: Pairs, costs: CostTable, initial: StateArray) -> Scaled:
    """The discounted model of totals until absorption, which must be certain."""
    absorbed = absorbed_states(transitions, pairs, costs)
    check_absorption(transitions, pairs, absorbed)
    w = longest_times(transitions, pairs, absorbed)
    beta = 1.0 - 1.0 / max(2.0, float(w.max()))
    weighted = initial * w
    total = float(weighted.sum())
    check_underflow(weighted / total, initial > 0.0, "initial probabilities")
    matrix = _scaled_transitions(transitions, pairs, absorbed, w, beta)
    return Scaled(matrix, pairs, weighted / total, beta, np.where(absorbed, 0.0, w / total), pairs.count)
