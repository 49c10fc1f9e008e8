"""The best deterministic policy: the occupancy LP with a yes or no for every pair, by HiGHS's branch and bound.

With the visits x(s, a) of linprog.py, and z(s, a) = 1 where the policy takes action a in state s:

    minimise ⟨x, c_0⟩  subject to  flow balance,  ⟨x, c_i⟩ ≤ offset_i,  0 ≤ x(s, a) ≤ M(s) z(s, a),  Σ_a z(s, a) = 1,

where M(s) is the largest number of discounted visits to s that any policy makes. Whether a deterministic policy meets
the limits is NP-hard to decide (Dolgov and Durfee 2005): the time can grow exponentially with the number of states.

HiGHS takes z = 1e-6 for 0, and 1e-6 of M(s) may be what a limit turns on. Its policies are therefore evaluated, and one
that misses a limit is excluded: any other policy differs from it in a state that it visits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import bellman
from cmdpkit.evaluation.patience import breathe
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact import highs
from cmdpkit.exact.linprog import cost_scales, flow
from cmdpkit.exact.mdp import Stop
from cmdpkit.model import CMDP

LARGEST = 2_000
"""State-action pairs of the largest model that is tried."""

TINY = 40
"""Up to this many pairs are solved at once, the others in a process that can be stopped."""

TRIES = 25
"""Policies that miss a limit and are excluded, at most."""


@dataclass(frozen=True)
class IntegerSolution:
    """What HiGHS found; `feasible` is None where it could not tell. Its `bound` on V_0 is a claim, not a proof."""

    feasible: bool | None
    choice: Any = None  # (S,) which of its actions each state takes
    bound: float = -np.inf
    message: str = ""
    stopped: bool = False


def solve_integer(cmdp: CMDP, allowed: Array, left: Callable[[], float | None], stop: Stop) -> IntegerSolution:
    """The best deterministic policy with V_i ≤ allowed_i; it is searched for until `stop`, or no time is left."""
    pairs, n = cmdp.pairs, cmdp.pairs.count
    scales, (leave, balance) = cost_scales(cmdp), flow(cmdp)
    most = most_visits(cmdp)[pairs.state]
    none, limits = sp.csr_array((cmdp.states, n)), sp.csr_array(cmdp.costs[1:] / scales[1:, None])
    matrix = sp.vstack([
        sp.hstack([balance, none]),
        sp.hstack([none, leave]),
        sp.hstack([sp.eye_array(n), -sp.diags_array(most)]),
        sp.hstack([limits, sp.csr_array(limits.shape)]),
    ])  # fmt: skip
    low = np.concatenate([cmdp.initial, np.ones(cmdp.states), np.full(n + cmdp.num_rows, -np.inf)])
    high = np.concatenate([cmdp.initial, np.ones(cmdp.states), np.zeros(n), cmdp.offsets / scales[1:]])
    cost, upper = np.append(cmdp.costs[0] / scales[0], np.zeros(n)), np.append(most, np.ones(n))
    whole = np.append(np.zeros(n), np.ones(n))
    for _ in range(TRIES):
        asked = None if n <= TINY else stop
        answer = highs.solve_mixed(cost, matrix, low, high, upper, whole, left(), asked)
        if answer.status == highs.NO_SOLUTION:
            return IntegerSolution(False, message=answer.message)
        bound, stopped = answer.bound * float(scales[0]), answer.status == highs.OUT_OF_BUDGET
        if answer.x is None:
            return IntegerSolution(None, None, bound, answer.message, stopped)
        choice = pairs.argmin(pairs.like(-answer.x[n:]))
        visits, v = _evaluate(cmdp, choice)
        if (v[1:] <= allowed).all():
            return IntegerSolution(True, choice, bound, answer.message, stopped)
        taken = pairs.rows(choice)[visits > 0.0]
        cut = sp.csr_array((np.ones(taken.size), (np.zeros(taken.size, int), n + taken)), shape=(1, 2 * n))
        matrix = sp.vstack([matrix, cut])
        low, high = np.append(low, -np.inf), np.append(high, taken.size - 1.0)
        if stopped or stop():
            return IntegerSolution(None, None, bound, answer.message, True)
    return IntegerSolution(None, None, bound, f"{TRIES} policies in a row missed a limit by rounding.")


def _evaluate(cmdp: CMDP, choice: Any) -> tuple[Array, Array]:
    """The visits and V_0..V_m of a deterministic policy."""
    system = PolicySystem(cmdp, choice=choice)
    v = np.asarray(cmdp.initial @ system.state_values(np.ascontiguousarray(cmdp.costs[:, cmdp.pairs.rows(choice)].T)))
    return system.state_occupancy(), v - np.append(0.0, cmdp.offsets)


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
