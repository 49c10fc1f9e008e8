"""By how much all limits can be met at once, or are missed at least: min_π max_i V_i(π), from both sides.

It is a constrained MDP itself: minimise t subject to V_i(π) ≤ t. The number t becomes a decision of the policy in one
more state, which no transition enters or leaves: with probability q of its first action it adds
t = low + q (high − low) to the objective, and takes as much off every constraint. The columns solve it like any model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, check_nonnegative
from cmdpkit.evaluation.bounds import down, up
from cmdpkit.evaluation.gain_bounds import averages_with_errors
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact.answer import best_policy, mixed_policy
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.master import least_violation
from cmdpkit.exact.mdp import Oracle, Stop, minimise, never
from cmdpkit.exact.search import steps
from cmdpkit.model import CMDP, AtMost, as_csr, check_model
from cmdpkit.policy import TabularPolicy

ROUNDS = 3
"""The range of t is narrowed to what is known at most this often; each time the answer gains digits."""

GAME_ROUNDS = 200
"""Oracle calls at most of the game for long-run averages; a few per limit are usual."""

MIXED = 1e-12
"""Rounding of a mixture's averages, as a part of their size."""

DUST = 1e-50
"""In models of extreme scale, costs smaller than this part of the largest are left out; bounds account for it."""


class LeastMiss(NamedTuple):
    """min_π max_i V_i(π) lies in [lower, upper]; `policy` attains `upper` to rounding, the weights y prove `lower`."""

    lower: float
    upper: float
    policy: TabularPolicy
    weights: Array  # (m,) y ≥ 0 with Σ y = 1


def slater_margin(cmdp: CMDP, tol: float = 1e-9) -> float:
    """ξ of Assumption 1: the largest margin by which all limits can be met at once, in the user's units.

    Zero means that the limits can be met, but only just; negative means that they cannot, and by how much they miss.
    Without constraints it is infinite.

    Args:
        cmdp: the model.
        tol: accuracy, relative to the size of the constraints' values.

    Example:
        >>> import cmdpkit as ck
        >>> round(ck.slater_margin(ck.problems.paper()), 6)
        1.525027
    """
    check_model(cmdp)
    if not cmdp.num_rows:
        return float("inf")
    if cmdp.lowering is not None:
        cmdp = cmdp.lowering.model
    tol = check_nonnegative(tol, "tol")
    if cmdp.criterion == "average" and not cmdp.is_extreme:
        return _average_margin(cmdp, tol)
    found = least_miss(cmdp, tol)
    if found.lower <= 0.0 < found.upper:  # neither sign is proved: rounding cannot tell the margin from zero
        return 0.0
    return 0.0 - found.upper


def _average_margin(cmdp: CMDP, tol: float) -> float:
    """The margin of a mixture of policies: where a model has several classes, no stationary policy may have it."""
    search, lower, _, weights = _game(cmdp, tol, never)
    used = np.flatnonzero(weights > 0.0)
    parts = [averages_with_errors(cmdp, search.probabilities(search.columns[j]), Plan()) for j in used]
    values, errors = (weights[used] @ np.array(column) for column in zip(*parts, strict=True))
    rounding = errors[1:] + MIXED * _size(cmdp)
    upper = float((values[1:] - cmdp.offsets + rounding).max())
    unknown = lower <= 0.0 < upper <= 2.0 * float(rounding.max())  # rounding cannot tell the margin from zero
    return 0.0 if unknown else 0.0 - upper


def least_miss(cmdp: CMDP, tol: float = 1e-9, stop: Stop = never) -> LeastMiss:
    """min_π max_i V_i(π) in the user's units, from both sides, with the policy that attains it."""
    if cmdp.is_extreme:
        with np.errstate(all="ignore"):
            return _in_common_units(cmdp, tol, stop)
    if cmdp.criterion == "average":
        return _by_columns(cmdp, tol, stop)
    m, size = cmdp.num_rows, _size(cmdp)
    best = LeastMiss(-size, size, TabularPolicy.over(cmdp.pairs, cmdp.pairs.uniform()), np.full(m, 1.0 / m))
    low, high = -1.1 * size, 1.1 * size
    for _ in range(ROUNDS):
        if size == 0.0 or stop():
            break
        found = _between(cmdp, low, high, tol, stop)
        upper, policy = (found.upper, found.policy) if found.upper <= best.upper else (best.upper, best.policy)
        lower, y = (found.lower, found.weights) if found.lower >= best.lower else (best.lower, best.weights)
        best = LeastMiss(lower, upper, policy, y)
        width = upper - lower
        if width <= tol * size or width > 0.3 * (high - low):
            break
        low, high = lower - width, upper + width
    return best


def _in_common_units(cmdp: CMDP, tol: float, stop: Stop) -> LeastMiss:
    """The same where quotients of the costs would overflow: all divided by one power of two, and dust left out."""
    exponent = int(np.frexp(_size(cmdp) * cmdp.step_weight)[1])
    costs, offsets = np.ldexp(cmdp.costs[1:], -exponent), np.ldexp(cmdp.offsets, -exponent)
    costs, offsets = (np.where(np.abs(x) < DUST, 0.0, x) for x in (costs, offsets))
    even = type(cmdp)(
        as_csr(cmdp.transitions),
        cost=np.zeros(cmdp.pairs.shape),
        constraints=[AtMost(cmdp.pairs.like(c), float(b)) for c, b in zip(costs, offsets, strict=True)],
        **({"average": True} if cmdp.criterion == "average" else {"gamma": cmdp.gamma}),
        initial=cmdp.initial,
        available=None if cmdp.pairs.is_full else cmdp.pairs.sparse_mask,
    )
    found, slack = least_miss(even, tol, stop), 3.0 * DUST / cmdp.step_weight
    lower, upper = np.ldexp(found.lower - slack, exponent), np.ldexp(found.upper + slack, exponent)
    return LeastMiss(down(float(lower)), up(float(upper)), found.policy, found.weights)


def _size(cmdp: CMDP) -> float:
    """No V_i is larger."""
    return float((cmdp.cost_sizes[1:] / cmdp.step_weight + np.abs(cmdp.offsets)).max())


def _between(cmdp: CMDP, low: float, high: float, tol: float, stop: Stop) -> LeastMiss:
    """The answer when t is looked for in [low, high]."""
    search = ColumnSearch(_with_slack_state(cmdp, low, high), tol, stop)
    for _ in steps(search):
        closed = search.upper - search.bound <= 0.1 * tol * (high - low)
        # A search that is stuck goes on with relaxed limits: the answer is evaluated on the model itself
        if closed or search.farkas is not None or stop():
            break
    pairs = cmdp.pairs
    policy = TabularPolicy.over(pairs, pairs.like(best_policy(search).pi.ravel()[: pairs.count]))
    visits = PolicySystem(cmdp, policy.pi).state_occupancy()
    v = cmdp.costs[1:] @ (pairs.over(visits) * policy.pi).ravel() - cmdp.offsets
    total = float(search.multipliers.sum())
    y = search.multipliers / total if total > 0.0 else np.full(v.size, 1.0 / v.size)
    return LeastMiss(_lower_bound(cmdp, y, stop), float(v.max()), policy, y)


def _by_columns(cmdp: CMDP, tol: float, stop: Stop) -> LeastMiss:
    """The answer for long-run averages, where a state of its own for t would be a second class: the game itself.

    Policies against limits: the prices y of the best mixture so far ask the oracle for a policy that does better.
    """
    search, lower, y, weights = _game(cmdp, tol, stop)
    policy = mixed_policy(search, weights)
    values, errors = averages_with_errors(cmdp, policy.pi, Plan())
    return LeastMiss(lower, float((values[1:] + errors[1:] - cmdp.offsets).max()), policy, y)


def _game(cmdp: CMDP, tol: float, stop: Stop) -> tuple[ColumnSearch, float, Array, Array]:
    """Policies against limits: the columns, the lower bound with its weights on the limits, the mixture of columns."""
    size, oracle, search = _size(cmdp), Oracle(cmdp, stop), ColumnSearch(cmdp, tol, stop)
    m = cmdp.num_rows
    lower, y, weights, ask = -size, np.full(m, 1.0 / m), np.ones(1), np.full(m, 1.0 / m)
    for _ in range(GAME_ROUNDS):
        answer = oracle.minimise(np.append(0.0, ask))
        fresh = search.add(answer.choice, answer.values)
        bound = _over_sum(answer.bound, ask)
        lower, y = (bound, ask) if bound > lower else (lower, y)
        worst, game = least_violation(np.array(search.values).T[1:])
        weights, ask = game.weights, game.prices
        if worst - lower <= 0.1 * tol * size or not fresh or stop():
            break
    return search, lower, y, weights


def _lower_bound(cmdp: CMDP, y: Array, stop: Stop) -> float:
    """max_i V_i ≥ Σ y_i V_i / Σ y_i for every policy, with Σ y known up to rounding."""
    return _over_sum(minimise(cmdp, np.append(0.0, y), stop=stop).bound, y)


def _over_sum(bound: float, y: Array) -> float:
    """A lower bound on Σ y_i V_i, divided by Σ y and rounded down."""
    total, slack = float(y.sum()), 1e-15 * y.size
    return down(bound / (up(total * (1.0 + slack)) if bound >= 0.0 else down(total * (1.0 - slack))))


def _with_slack_state(cmdp: CMDP, low: float, high: float) -> CMDP:
    """The model of min t subject to V_i ≤ t, with t in [low, high] decided in a state of its own."""
    pairs = cmdp.pairs
    transitions: Any = sp.csr_array(sp.block_array([[as_csr(cmdp.transitions), None], [None, np.ones((2, 1))]]))
    first = np.append(pairs.first, pairs.count + 2)
    available = sp.csr_array((np.ones(pairs.count + 2), np.append(pairs.action, [0, 1]), first))
    # Half of the start is in that state, so that all costs count twice.
    t = 2.0 * (1.0 - cmdp.gamma) * np.array([high, low])
    costs = [np.append(2.0 * c, -t) for c in cmdp.costs[1:]]
    return type(cmdp)(
        transitions,
        cost=np.append(np.zeros(pairs.count), t),
        constraints=[AtMost(c, float(b)) for c, b in zip(costs, cmdp.offsets, strict=True)],
        gamma=cmdp.gamma,
        initial=np.append(0.5 * cmdp.initial, 0.5),
        available=available,
    )
