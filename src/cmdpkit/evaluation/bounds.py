"""Rigorous bounds in floating point, from one Bellman backup and from one residual: valid for any guess of the values.

Every bound is that of exact arithmetic on the numbers of the model as they are stored, widened by the largest rounding
error that the computation can have made. docs/theory.md ("Rounding") derives each line. Two rules cover all of it:

- a sum of n products, in any order, is off by at most n · EPS · Σ |products| + n · TINY (EPS is twice the unit
  roundoff, so that n · EPS also covers the second order);
- scalars are combined with `math.fsum`, or rounded outwards by `down` and `up` after every operation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.average import reachable
from cmdpkit.evaluation.backup import Backup, bellman, look_ahead
from cmdpkit.model import CMDP, as_csr

EPS = float(np.finfo(float).eps)
TINY = float(np.nextafter(0.0, 1.0))
"""Largest error of an operation that underflows."""


def down(x: float) -> float:
    """The next double below: at most the exact result of the operation that gave x."""
    return math.nextafter(x, -math.inf)


def up(x: float) -> float:
    """The next double above: at least the exact result of the operation that gave x."""
    return math.nextafter(x, math.inf)


def row_sum_range(cmdp: Any) -> tuple[float, float]:
    """Bounds on the exact sums of all rows of P: their floating-point sums, widened by the error of summation."""
    low, high = cmdp.row_sums
    slack = (cmdp.longest_row + cmdp.entry_error) * EPS
    return down(low * down(1.0 - slack)), up(high * up(1.0 + slack))


_VISITED: WeakKeyDictionary[Any, tuple[Any, Any, Any, bool]] = WeakKeyDictionary()
"""Of the pairs of a model, which models with other limits share: their transitions, start, and what is visited."""


def visited(cmdp: CMDP) -> Any:
    """(S,) booleans: the states that some policy can visit."""
    return _visited(cmdp)[2]


def everywhere(cmdp: CMDP) -> bool:
    """Whether every state can be visited."""
    return _visited(cmdp)[3]


def _visited(cmdp: CMDP) -> tuple[Any, Any, Any, bool]:
    known = _VISITED.get(cmdp.pairs)
    if known is None or known[0] is not cmdp.transitions or known[1] is not cmdp.initial:
        matrix = as_csr(cmdp.transitions)
        graph = sp.csr_array((matrix.data, matrix.indices, matrix.indptr[cmdp.pairs.first]), shape=(cmdp.states,) * 2)
        found = reachable(graph, cmdp.initial)
        known = _VISITED[cmdp.pairs] = cmdp.transitions, cmdp.initial, found, bool(found.all())
    return known


def row_slack(cmdp: CMDP) -> float:
    """How far the sum of a row of P can be from one: an average is that of rows which are divided by their sums."""
    low, high = row_sum_range(cmdp)
    return up(max(1.0 - low, high - 1.0, 0.0))


def horizon_bound(cmdp: Any, policy_slack: float = 0.0) -> float:
    """An upper bound on Σ_k (γ P_π)ᵏ 1 for every policy whose probabilities sum to at most 1 + policy_slack."""
    g = up(up(cmdp.gamma * row_sum_range(cmdp)[1]) * up(1.0 + policy_slack))
    return math.inf if g >= 1.0 else up(1.0 / down(1.0 - g))


def tail(cmdp: Any, least: float) -> float:
    """A lower bound on Σ_{k≥1} (γ P_π)ᵏ d over all policies π, for a constant d = least."""
    if not math.isfinite(least):
        return -math.inf
    low, high = row_sum_range(cmdp)
    # d · g/(1 − g) with the g = γ · (row sum) that makes it smallest: the least one for d ≥ 0, else the largest
    if least >= 0.0:
        g = max(down(cmdp.gamma * low), 0.0)
        return max(down(least * down(g / up(1.0 - g))), 0.0)
    g = up(cmdp.gamma * high)
    return -math.inf if g >= 1.0 else down(least * up(g / down(1.0 - g)))


def macqueen_bound(cmdp: CMDP, weights: Array, value: Array) -> float:
    """A lower bound on min_π Σ w_i V_i(π), from any guess `value` of the optimal values (MacQueen 1966).

    With TV the Bellman backup of V and d ≤ min (TV − V), the values of every policy are at least
    TV + Σ_{k≥1} (γP_π)ᵏ d.
    """
    backup = bellman(cmdp, weights @ cmdp.costs, value, np.zeros(cmdp.states, dtype=np.int32))
    return bound_from_backup(cmdp, weights, value, backup)


def bound_from_backup(cmdp: CMDP, weights: Array, value: Array, backup: Backup) -> float:
    """`macqueen_bound` from a backup that has been made already."""
    # |computed − exact| of TV, and of TV − V: a sum over successors, one over costs, and a few operations more
    largest = float(np.abs(value).max())
    rounding = backup_rounding(cmdp, weights, largest)
    if cmdp.criterion == "average":
        lowest = backup.lowest if everywhere(cmdp) else float((backup.values - value)[visited(cmdp)].min())
        return _of_average(cmdp, weights, down(lowest - up(rounding + up(row_slack(cmdp) * largest))))
    return _from_start(cmdp, weights, backup.values, backup.lowest, np.full(1, rounding))


def backup_rounding(cmdp: Any, weights: Array, largest: float) -> float:
    """A bound on |computed − exact| of TV and TV − V in every state, where no |V| exceeds `largest`."""
    terms = _terms(cmdp, weights)
    return up(terms * EPS * float(np.abs(weights) @ cmdp.cost_sizes + largest) + terms * TINY)


def local_bound(cmdp: CMDP, weights: Array, value: Array) -> float:
    """`macqueen_bound` with the rounding error of every state counted by itself.

    It costs twice as much, and is far tighter where some states have much larger values than others.
    """
    backup, rounding = _local_backup(cmdp, weights, value)
    if cmdp.criterion == "average":
        change = backup - value - rounding - 1.01 * row_slack(cmdp) * float(np.abs(value).max())
        return _of_average(cmdp, weights, down(float(change[visited(cmdp)].min())))
    return _from_start(cmdp, weights, backup, float((backup - value - rounding).min()), rounding, reduced=True)


def backup_errors(cmdp: CMDP, weights: Array, value: Array) -> tuple[Array, Array]:
    """(S,) by how much the Bellman backup falls below `value`, and how large its rounding error can be."""
    backup, rounding = _local_backup(cmdp, weights, value)
    return np.maximum(value - backup, 0.0), rounding


def _local_backup(cmdp: CMDP, weights: Array, value: Array) -> tuple[Array, Array]:
    """TV, and a bound on the rounding error of TV − V in every state."""
    pairs = cmdp.pairs
    size = pairs.max(pairs.like(np.abs(weights) @ np.abs(cmdp.costs) + look_ahead(cmdp, np.abs(value))))
    terms = _terms(cmdp, weights)
    rounding = 1.01 * (terms * EPS * (size + np.abs(value)) + terms * TINY)
    return pairs.min(pairs.like(weights @ cmdp.costs + look_ahead(cmdp, value))), rounding


def _from_start(
    cmdp: CMDP, weights: Array, backup: Array, lowest: float, rounding: Array, reduced: bool = False
) -> float:
    """ρ · TV + (Σρ) tail − Σ w_i offset_i, with everything that rounding can have added taken off."""
    initial = cmdp.initial
    start, size = float(initial @ backup), float(initial @ np.abs(backup))
    own = float((initial @ rounding if rounding.size == cmdp.states else rounding[0] * initial.sum()) * 1.01)
    least = down(lowest if reduced else lowest - float(rounding[0]))
    return start_bound(cmdp, weights, StartSums(start, size, float(initial.sum())), least, own)


class StartSums(NamedTuple):
    """Sums over the states, in any order: ρ · TV, ρ · |TV| and Σ ρ."""

    value: float
    size: float
    mass: float


def start_bound(cmdp: Any, weights: Array, sums: StartSums, least: float, rounding: float) -> float:
    """A lower bound on ρ · V of every policy, less the limits, from sums over the states.

    Args:
        cmdp: the model, of which only numbers are needed: a `CMDP`, or one that no process holds.
        weights: w of the costs that were backed up.
        sums: of the computed backup.
        least: no state has less of TV − V, rounding included.
        rounding: by how much ρ · TV may be off because TV is.
    """
    terms, mass = cmdp.states + cmdp.entry_error, sums.mass
    start_error = terms * EPS * sums.size + cmdp.states * TINY + rounding
    rest, slack = tail(cmdp, least), terms * EPS
    mass = up(mass * up(1.0 + slack)) if rest < 0.0 else down(mass * down(1.0 - slack))
    rest_at_start = down(rest * mass)
    return _less_offsets(cmdp, weights, [sums.value, -start_error, rest_at_start])


def value_interval(cmdp: Any, sums: StartSums, extremes: tuple[float, float], rounding: float) -> tuple[float, float]:
    """Bounds on ρ · V^π from one sweep TV = c_π + γ P_π V of any V (MacQueen 1966).

    `extremes` are those of TV − V as computed, and `rounding` bounds the error of TV and TV − V in every state.
    """
    only = np.zeros(cmdp.num_rows + 1)  # no limit is subtracted
    own, opposite = 1.01 * rounding * sums.mass, sums._replace(value=-sums.value)
    lower = start_bound(cmdp, only, sums, down(extremes[0] - rounding), own)
    return lower, -start_bound(cmdp, only, opposite, down(-extremes[1] - rounding), own)


def _of_average(cmdp: CMDP, weights: Array, least: float) -> float:
    """No average is smaller than the least of Th − h, for any h: what h gains in one step it loses in others."""
    return _less_offsets(cmdp, weights, [least])


def _less_offsets(cmdp: Any, weights: Array, parts: list[float]) -> float:
    """Σ parts − Σ w_i offset_i, rounded down."""
    offsets = weights[1:] * cmdp.offsets
    offset_error = EPS * float(np.abs(offsets).sum()) + offsets.size * TINY
    parts = [*parts, -offset_error, *(-offsets).tolist()]
    if not math.isfinite(sum(map(abs, parts))):  # an overflow proves nothing
        return -math.inf
    return down(math.fsum(parts))


def _terms(cmdp: Any, weights: Array) -> Any:
    # successors, costs (with the conversion of the user's quantities), γ, the sum, and TV − V
    return cmdp.longest_row + weights.size + 10 + cmdp.entry_error


def largest_error(cmdp: CMDP, local: Array, policy_slack: float) -> Array:
    """(n,) bounds on |ρ · (V − V^π)| from bounds (S, n) on the residuals: Σ_s x(s) r(s) ≤ (Σ_s x(s)) max_s r(s).

    The mass of the visits is at most Σ_k (γP_π)ᵏ 1, as the start has a mass of one.
    """
    return np.asarray(1.01 * horizon_bound(cmdp, policy_slack) * local.max(axis=0, initial=0.0))


def values_error(cmdp: CMDP, chain: Any, visits: Array, local: Array, policy_slack: float) -> Array:
    """(n,) bounds on |ρ · (V − V^π)|, from bounds on the residuals of V in every state.

    As ρ · (V^π − V) = Σ_s x(s) r(s) with the exact visits x, each residual counts as often as its state is visited.
    Computed visits x̂ are off by at most ‖ρ + γ P_πᵀ x̂ − x̂‖₁ · Σ_k (γP_π)ᵏ1 in the 1-norm.

    Args:
        cmdp: the model.
        chain: P_π.
        visits: x̂ ≥ 0.
        local: (S, n) bounds on |c_π + γ P_π V − V|, rounding included.
        policy_slack: by how much the probabilities of a row may exceed one.
    """
    states, horizon = cmdp.states, horizon_bound(cmdp, policy_slack)
    rest = float(np.abs(cmdp.initial + cmdp.gamma * (chain.T @ visits) - visits).sum())
    terms = states + 10 + cmdp.entry_error
    rest += terms * EPS * (1.0 + 3.0 * float(visits.sum())) + policy_slack * float(visits.sum())
    off = 1.01 * rest * horizon
    return np.asarray(1.01 * (visits @ local + off * local.max(axis=0, initial=0.0)))
