"""From an optimal policy to one that randomises in as few states as a vertex does: at most one per limit.

Let A_i be the advantages of a policy π. Every policy π′ with discounted visits x′(s, a) has, exactly,

    V_i(π′) = V_i(π) + Σ x′(s, a) A_i(s, a),

and the same holds for the number of visits to a state, the value of a cost that is 1 there. If π′ differs from π only
in the states R where π randomises, and only in the actions that π takes there, then its x′ ≥ 0 are the solutions of
one equation per state of R. With the limits these are |R| + m equations, however large the model is. From the solution
that belongs to π one walks to a vertex, whose positive entries are at most as many as the equations: all but m of the
states take a single action. The objective never gets worse on the way.

A state costs one more right-hand side of the policy's linear system. Where π randomises in many states of a large model
most of them are rounded first, with the visits held fixed: what that misses is of second order, and corrected after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import gain
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.stages import ahead_of
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.model import CMDP, StagedTransitions
from cmdpkit.policy import TabularPolicy

DIRECT_STATES = 40
"""Up to this many randomised states are treated exactly where right-hand sides are cheap, that is, after an LU."""

SPARE = 1
"""Elsewhere so many more states than limits are, and the others are rounded first. Over the stages of a horizon, where
right-hand sides are not dear either, more are treated exactly where that has failed."""

ROUGH = 1e-4
"""States are rounded with advantages that are exact to this part of the costs: it is of second order anyway."""

ROUNDED = 10.0
"""Share of the states, in units of the root of `tol`, up to which they are rounded in one go on a large model. Rounding
7 % of 200,000 states misses values by 1e-5 of them (measured)."""

NEVER = 1e-14
"""States with a smaller part of all visits than this count as never visited."""

DEPENDENT = 1e-12
"""Singular values below this part of the largest are zero."""


def least_randomised(
    cmdp: CMDP, policy: TabularPolicy, visits: Array, plan: Plan, accuracy: Array, guess: Array | None = None
) -> TabularPolicy | None:
    """A policy with the values of `policy` or better that randomises in at most m visited states, and in no other.

    Args:
        cmdp: the model.
        policy: a policy that is optimal, or nearly so.
        visits: (S,) its expected discounted visits.
        plan: how to solve the model's linear systems.
        accuracy: (rows + 1,) error that is allowed in the values.
        guess: (S, m + 1) values of a similar policy, to start from.

    Returns:
        None where rounding is in the way, or where `policy` is such a policy itself. What is returned is not proved:
        the caller has it certified.
    """
    pairs, m = cmdp.pairs, cmdp.num_constraints  # two rows of one quantity are dependent
    pi = policy.pi.reshape(-1).copy()
    del policy  # a large table that the caller need not keep
    seen = visits > NEVER * visits.sum()
    rounded = _settle(cmdp, pi, np.flatnonzero(~seen))
    if _randomised(cmdp, pi).size > m:
        if plan.method is None:
            _system(cmdp, pi, plan)  # which may settle the plan
        rooms = [DIRECT_STATES] if plan.has_factors else [m + SPARE]
        if plan.method == "stages":
            rooms.append(max(DIRECT_STATES, 3 * m))
        for at_most in rooms:
            new = pi if at_most == rooms[-1] else pi.copy()
            if _round(cmdp, new, plan, visits, accuracy, guess, at_most):
                return TabularPolicy.over(pairs, pairs.like(new))
        return None
    if not rounded:
        return None
    return TabularPolicy.over(pairs, pairs.like(pi))


def most_rounded(cmdp: CMDP, tol: float) -> float:
    """The number of randomised states up to which `rounded()` is worth a try."""
    return ROUNDED * float(np.sqrt(tol)) * cmdp.states


def rounded(cmdp: CMDP, pi: Array, visits: Array, values: Array, tol: float) -> TabularPolicy | None:
    """A policy of a large model that randomises in at most m states, rounded in one go by the values of a similar one.

    What that misses is of second order, in the share of the states that are rounded. It is not corrected: a state of
    a large model is visited too rarely for that. None where it may miss too much for `tol`, or where π is such a policy
    itself. The probabilities `pi` (N,) are changed. The caller has the policy certified.
    """
    pairs, m = cmdp.pairs, cmdp.num_constraints
    states = _randomised(cmdp, pi).size
    if not m < states <= most_rounded(cmdp, tol):
        return None
    _settle(cmdp, pi, np.flatnonzero(visits <= NEVER * visits.sum()))
    _round_most(cmdp, pi, visits, values, m)
    return TabularPolicy.over(pairs, pairs.like(pi))


def _round(
    cmdp: CMDP, pi: Array, plan: Plan, visits: Array, accuracy: Array, values: Array | None, at_most: int
) -> bool:
    """Change π to a vertex, exactly in at most so many states; False if rounding the others missed by too much.

    `values` (S, m + 1) are those of a similar policy. Of a large model one chain exists at a time.
    """
    pairs, target = cmdp.pairs, None
    if _randomised(cmdp, pi).size > at_most:
        target = visits @ pairs.expect(pairs.like(pi), cmdp.costs[1:]) - cmdp.offsets
        values = _values(_system(cmdp, pi, plan), pi, np.maximum(accuracy, ROUGH * cmdp.cost_sizes), values)
        _round_most(cmdp, pi, visits, values, at_most)
    states = _randomised(cmdp, pi)
    if not states.size:
        return True
    system = _system(cmdp, pi, plan)
    values = _values(system, pi, accuracy, values)
    return _walk_to_vertex(cmdp, pi, states, values, _counts(system, states, accuracy), target)


def _settle(cmdp: CMDP, pi: Array, states: Any) -> bool:
    """Take the most probable action in some states; False if that changes nothing."""
    first, states = cmdp.pairs.heads, np.intersect1d(_randomised(cmdp, pi), states)
    for s in states:
        own = slice(*first[s : s + 2])
        best = int(pi[own].argmax())
        pi[own] = 0.0
        pi[own.start + best] = 1.0
    return bool(states.size)


def _randomised(cmdp: CMDP, pi: Array) -> Any:
    """The states with more than one action that is played."""
    played = cmdp.pairs.like((pi > 0.0).astype(np.int32))
    return np.flatnonzero(cmdp.pairs.sum(played) > 1)


def _support(cmdp: CMDP, pi: Array, states: Any) -> tuple[Any, Any]:
    """The pairs that are played in some states, and which of these states each belongs to."""
    first = cmdp.pairs.heads
    rows = np.concatenate([np.arange(first[s], first[s + 1]) for s in states])
    rows = rows[pi[rows] > 0.0]
    return rows, np.searchsorted(states, cmdp.pairs.of(rows)[0])


def _after(cmdp: CMDP, rows: Any, values: Array) -> Array:
    """γ Σ_s' P(s'|s, a) v(s') of some pairs."""
    if isinstance(cmdp.transitions, StagedTransitions):
        return cmdp.gamma * ahead_of(cmdp.transitions, rows, values)
    return np.asarray(cmdp.gamma * (cmdp.transitions[rows] @ values))


def _advantages(cmdp: CMDP, rows: Any, values: Array, states: Any) -> Array:
    """A_0..A_m of some pairs, of these states."""
    return np.asarray(cmdp.costs[:, rows].T + _after(cmdp, rows, values) - values[states] - gain(cmdp, values))


def _system(cmdp: CMDP, pi: Array, plan: Plan) -> PolicySystem:
    return policy_system(cmdp, cmdp.pairs.like(pi), plan=plan)


def _values(system: PolicySystem, pi: Array, accuracy: Array, guess: Array | None) -> Array:
    """(S, m + 1) V_0..V_m of every state."""
    cmdp = system.cmdp
    return system.state_values(cmdp.pairs.expect(cmdp.pairs.like(pi), cmdp.costs), guess, accuracy)


def _counts(system: PolicySystem, states: Any, accuracy: Array) -> Array:
    """(S, n) discounted visits to each of n states, from every state: the values of costs that are 1 there."""
    cmdp, n = system.cmdp, len(states)
    once = np.zeros((cmdp.states, n))
    once[states, np.arange(n)] = 1.0
    return system.state_values(once, accuracy=float(accuracy.min()) / max(float(cmdp.cost_sizes.max()), 1e-300))


def _round_most(cmdp: CMDP, pi: Array, visits: Array, values: Array, at_most: int) -> None:
    """Leave at most `at_most` states randomised, such that no value changes to first order."""
    states = _randomised(cmdp, pi)
    rows, block = _support(cmdp, pi, states)
    advantages = _advantages(cmdp, rows, values, states[block])
    advantages *= visits[states][block][:, None]
    advantages /= np.maximum(np.abs(advantages).max(axis=0), 1e-300)
    begins = np.searchsorted(block, np.arange(states.size + 1))
    _round_between_two(pi, rows, begins, advantages, cmdp.num_constraints, at_most)
    active: list[int] = []
    for state in range(states.size):
        if not 0.0 < pi[rows[begins[state]]] < 1.0:  # settled
            continue
        active.append(state)
        if len(active) <= at_most:
            continue
        some = np.concatenate([np.arange(begins[j], begins[j + 1]) for j in active])
        some = some[pi[rows[some]] > 0.0]
        # Σ_a π(a|s) = 1 in every state, and all m values as they are
        sums = (block[some] == np.array(active)[:, None]).astype(float)
        pi[rows[some]] = _vertex(np.vstack([sums, advantages[some, 1:].T]), advantages[some, 0], pi[rows[some]])
        active = [j for j in active if (pi[rows[begins[j] : begins[j + 1]]] > 0.0).sum() > 1]


def _round_between_two(pi: Array, rows: Any, begins: Any, advantages: Array, m: int, at_most: int) -> None:
    """The same for the states that take two actions, which are most.

    With p the probability of the first action, values change by (A(first) − A(second)) dp: among m + 1 states there is
    a direction in which no limited value changes, and it is followed until a state is settled. Groups of m + 1 states
    are treated at once.
    """
    two = np.flatnonzero(np.diff(begins) == 2)
    if not m or two.size <= at_most:
        return
    first, second = rows[begins[two]], rows[begins[two] + 1]
    effect, p = advantages[begins[two]] - advantages[begins[two] + 1], pi[first].copy()
    active = np.argsort(np.abs(effect).max(axis=1))  # those with the largest effect stay, and can be corrected
    while active.size > at_most:
        groups = active[: active.size // (m + 1) * (m + 1)].reshape(-1, m + 1)
        direction = np.linalg.svd(effect[groups, 1:].transpose(0, 2, 1))[2][:, -1]
        direction[(effect[groups, 0] * direction).sum(axis=1) > 0.0] *= -1.0
        now, each = p[groups], np.arange(len(groups))
        room = np.where(direction > 0.0, 1.0 - now, now) / np.maximum(np.abs(direction), 1e-300)
        nearest = room.argmin(axis=1)
        moved = np.clip(now + room[each, nearest, None] * direction, 0.0, 1.0)
        moved[each, nearest] = direction[each, nearest] > 0.0
        p[groups] = moved
        active = active[(p[active] > 0.0) & (p[active] < 1.0)]
    pi[first], pi[second] = p, 1.0 - p


def _walk_to_vertex(cmdp: CMDP, pi: Array, states: Any, values: Array, counts: Array, target: Array | None) -> bool:
    """Change π in its randomised states to a vertex with V_i = target_i or, where a limit is not reached, below it.

    `values` (S, m + 1) are those of π, and `counts` (S, n) the visits to its n randomised states.
    """
    m = cmdp.num_rows
    rows, block = _support(cmdp, pi, states)
    x = pi[rows] * (cmdp.initial @ counts)[block]
    # Σ_a x′(r, a) − Σ x′ A_r = visits to r,   Σ x′ A_i + slack_i = −V_i
    advantages = _advantages(cmdp, rows, values, states[block])
    flow = counts[states][block] - _after(cmdp, rows, counts) + gain(cmdp, counts)
    v = np.asarray(cmdp.initial @ values)[1:] - cmdp.offsets
    units = np.maximum(np.abs(advantages[:, 1:]).max(axis=0), 1e-300)
    limits = advantages[:, 1:] / units
    slack = np.maximum(-(v if target is None else target), 0.0)
    if target is not None:
        corrected = _corrected(np.vstack([flow.T, limits.T]), x, np.append(np.zeros(states.size), (target - v) / units))
        if corrected is None:
            return False
        x = corrected
    zero = np.zeros((states.size, m))
    matrix = np.vstack([np.hstack([flow.T, zero]), np.hstack([limits.T, np.eye(m)])])
    cost = np.append(advantages[:, 0], np.zeros(m))
    x = _vertex(matrix, cost, np.append(x, slack / units))[: rows.size]
    total = np.bincount(block, x, states.size)
    left = total[block] > 0.0
    pi[rows[left]] = (x / np.where(total > 0.0, total, 1.0)[block])[left]
    _settle(cmdp, pi, states[total == 0.0])  # no longer visited
    return True


def _corrected(matrix: Array, x: Array, change: Array) -> Array | None:
    """x′ > 0 with matrix·x′ = matrix·x + change, near x relative to its size; None if there is none so near."""
    relative, *_ = np.linalg.lstsq(matrix * x, change, rcond=DEPENDENT)
    return x * (1.0 + relative) if relative.min() > -1.0 else None


def _vertex(matrix: Array, cost: Array, x: Array) -> Array:
    """x′ ≥ 0 with matrix·x′ = matrix·x, cost·x′ ≤ cost·x, and positive entries at independent columns only."""
    x, rows = x.copy(), len(matrix)
    while True:
        some = np.flatnonzero(x > 0.0)[: rows + 1]  # one more than can be independent
        if not some.size:
            return x
        _, sizes, right = np.linalg.svd(matrix[:, some])
        if some.size <= rows and sizes[-1] > DEPENDENT * sizes[0]:
            return x
        direction = right[-1] if cost[some] @ right[-1] <= 0.0 else -right[-1]
        falls = direction < -DEPENDENT
        if not falls.any():
            return x
        step = np.full(some.size, np.inf)
        step[falls] = x[some][falls] / -direction[falls]
        x[some] = np.maximum(x[some] + step.min() * direction, 0.0)
        x[some[step.argmin()]] = 0.0
