"""The best deterministic policy: the occupancy LP with a yes or no for every pair, by HiGHS's branch and bound.

With the visits x(s, a) of linprog.py, and z(s, a) = 1 where the policy takes action a in state s:

    minimise ⟨x, c_0⟩  subject to  flow balance,  ⟨x, c_i⟩ ≤ offset_i,  0 ≤ x(s, a) ≤ M(s) z(s, a),  Σ_a z(s, a) = 1,

where M(s) is the largest number of discounted visits to s that any policy makes. Whether a deterministic policy meets
the limits is NP-hard to decide (Dolgov and Durfee 2005): the time can grow exponentially with the number of states.

HiGHS takes z = 1e-6 for 0, and 1e-6 of M(s) may be what a limit turns on. Its policies are therefore evaluated, and one
that misses a limit is excluded: any other policy differs from it in a state that it visits.

In a model of long-run averages x is any stationary occupancy of the policy, M is 1, and states without occupancy take
actions that lead to the others. Where the chain of a policy has several classes, x may be that of a class which the
start does not lead to. The program then promises too much, never too little: its bound holds, and policies that do not
keep the promise are noted and excluded in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.average import reachable
from cmdpkit.evaluation.backup import bellman
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.patience import breathe
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact import highs
from cmdpkit.exact.linprog import cost_scales, flow, stationary_flow
from cmdpkit.exact.mdp import Stop
from cmdpkit.model import CMDP, as_csr

LARGEST = 2_000
"""State-action pairs of the largest model that is tried."""

TINY = 40
"""Up to this many pairs are solved at once, the others in a process that can be stopped."""

TRIES = 25
"""Policies that are excluded, at most."""

DUST = 1e-9
"""Smaller stationary occupancies are rounding."""


@dataclass(frozen=True)
class IntegerSolution:
    """What HiGHS found; `feasible` is None where it could not tell. Its `bound` on V_0 is a claim, not a proof."""

    feasible: bool | None
    choice: Any = None  # (S,) which of its actions each state takes
    bound: float = -np.inf
    message: str = ""
    stopped: bool = False


class Program(NamedTuple):
    """minimise cost·(x, z) subject to low ≤ matrix·(x, z) ≤ high and (x, z) ≤ upper, with whole z."""

    cost: Array
    matrix: Any
    low: Array
    high: Array
    upper: Array

    def without(self, taken: Any) -> Program:
        """The program without the policies that take all of these pairs."""
        n = self.cost.size // 2
        cut = sp.csr_array((np.ones(taken.size), (np.zeros(taken.size, int), n + taken)), shape=(1, 2 * n))
        low, high = np.append(self.low, -np.inf), np.append(self.high, taken.size - 1.0)
        return self._replace(matrix=sp.vstack([self.matrix, cut]), low=low, high=high)


def solve_integer(cmdp: CMDP, tol: float, left: Callable[[], float | None], stop: Stop) -> IntegerSolution:
    """The best deterministic policy, with violations up to `tol`; searched for until `stop`, or no time is left."""
    pairs, n, scales = cmdp.pairs, cmdp.pairs.count, cost_scales(cmdp)
    allowed, average = tol * cmdp.fine_scales[1:], cmdp.criterion == "average"
    program, whole, asked = _program(cmdp, scales), np.append(np.zeros(n), np.ones(n)), None if n <= TINY else stop
    best, least = IntegerSolution(None, message=f"{TRIES} policies in a row were not what HiGHS took them for."), np.inf
    for _ in range(TRIES):
        answer = highs.solve_mixed(*program, whole, left(), asked)
        if answer.status == highs.NO_SOLUTION:
            return replace(best, feasible=bool(np.isfinite(least)), bound=least, message=answer.message)
        bound, stopped = min(answer.bound * float(scales[0]), least), answer.status == highs.OUT_OF_BUDGET
        best = replace(best, bound=bound, stopped=stopped)
        if answer.x is None:
            return replace(best, message=answer.message)
        choice = pairs.argmin(pairs.like(-answer.x[n:]))
        if average:
            choice = _towards(cmdp, choice, pairs.sum(pairs.like(answer.x[:n])) > DUST)
        visited, v = _evaluate(cmdp, choice)
        if (v[1:] <= allowed).all() and v[0] < least:
            best, least = replace(best, feasible=True, choice=choice, message=answer.message), float(v[0])
        if best.feasible and (not average or least - bound <= tol * max(1.0, abs(least))):
            return best
        if stopped or stop():
            return replace(best, stopped=True)
        program = program.without(pairs.rows(choice)[visited])
    return best


def _program(cmdp: CMDP, scales: Array) -> Program:
    n, states, (leave, balance), right = cmdp.pairs.count, cmdp.states, flow(cmdp), cmdp.initial
    most = np.ones(n)
    if cmdp.criterion == "average":
        balance, right = stationary_flow(cmdp, leave)
    else:
        most = most_visits(cmdp)[cmdp.pairs.state]
    limits = sp.csr_array(cmdp.costs[1:] / scales[1:, None])
    matrix = sp.vstack([
        sp.hstack([balance, sp.csr_array(balance.shape)]),
        sp.hstack([sp.csr_array(leave.shape), leave]),
        sp.hstack([sp.eye_array(n), -sp.diags_array(most)]),
        sp.hstack([limits, sp.csr_array(limits.shape)]),
    ])  # fmt: skip
    low = np.concatenate([right, np.ones(states), np.full(n + cmdp.num_rows, -np.inf)])
    high = np.concatenate([right, np.ones(states), np.zeros(n), cmdp.offsets / scales[1:]])
    return Program(np.append(cmdp.costs[0] / scales[0], np.zeros(n)), matrix, low, high, np.append(most, np.ones(n)))


def _towards(cmdp: CMDP, choice: Any, goal: Any) -> Any:
    """The choice in the states of `goal`, and elsewhere actions that may lead there."""
    pairs, matrix, choice, found = cmdp.pairs, as_csr(cmdp.transitions), choice.copy(), goal.copy()
    while True:
        misses = pairs.like(np.where(matrix @ found.astype(float) > 0.0, 0.0, 1.0))
        new = ~found & (pairs.min(misses) == 0.0)
        if not new.any():
            return choice
        choice[new] = pairs.argmin(misses)[new]
        found |= new


def _evaluate(cmdp: CMDP, choice: Any) -> tuple[Any, Array]:
    """The states that a deterministic policy can visit, and its V_0..V_m."""
    system = policy_system(cmdp, choice=choice)
    v = np.asarray(cmdp.initial @ system.state_values(np.ascontiguousarray(cmdp.costs[:, cmdp.pairs.rows(choice)].T)))
    chain = as_csr(cmdp.transitions)[cmdp.pairs.rows(choice)]
    return reachable(chain, cmdp.initial), v - np.append(0.0, cmdp.offsets)


def most_visits(cmdp: CMDP) -> Array:
    """(S,) no policy visits a state more often than this, discounted and from the start."""
    plan, choice, most = Plan(), np.zeros(cmdp.states, dtype=np.int32), np.zeros(cmdp.states)
    for s in range(cmdp.states):
        breathe()
        visit = np.where(cmdp.pairs.state == s, -1.0, 0.0)
        while True:  # policy iteration; ties keep the action
            value = PolicySystem(cmdp, choice=choice, plan=plan).solve(visit[cmdp.pairs.rows(choice)])
            backup = bellman(cmdp, visit, value, choice, 1e-12 / (1.0 - cmdp.gamma))
            if not backup.moved:
                break
            choice = backup.choice
        # What one more backup could still add, and rounding
        most[s] = -float(cmdp.initial @ value) + (max(-backup.lowest, 0.0) + 1e-9) / (1.0 - cmdp.gamma)
    return np.minimum(most, 1.0 / (1.0 - cmdp.gamma))
