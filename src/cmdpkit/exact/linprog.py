"""Ground truth: the occupancy linear program of the paper (eq. LP-CMDP), solved by HiGHS.

The variables are x(s, a) = Σ_t γᵗ P(s_t = s, a_t = a), the paper's d divided by (1 − γ):

    minimise ⟨x, c_0⟩  subject to  Σ_a x(s', a) − γ Σ_{s,a} P(s'|s, a) x(s, a) = ρ(s'),  ⟨x, c_i⟩ ≤ offset_i,  x ≥ 0.

For long-run averages they are stationary occupancies: γ is 1, the right-hand side is 0, and Σ x = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.bounds import visited
from cmdpkit.exact import highs
from cmdpkit.exact.highs import Answer
from cmdpkit.exact.joined import stationary_policy
from cmdpkit.exact.mdp import Stop
from cmdpkit.model import CMDP, as_csr
from cmdpkit.policy import TabularPolicy

TINY = 2_000
"""Up to this many state-action pairs the dual simplex is at least as fast as the interior point (measured)."""


DUST = 1e-12
"""A stationary occupancy that is smaller than this is HiGHS's rounding."""


@dataclass(frozen=True)
class LPSolution:
    """Policy and prices of an occupancy LP. `feasible` is None when HiGHS could not tell."""

    feasible: bool | None
    policy: TabularPolicy | None = None
    multipliers: Array | None = None
    visits: Array | None = None  # (S,)
    message: str = ""
    iterations: int = 0
    out_of_budget: bool = False


def solve_lp(
    cmdp: CMDP,
    time_limit: float | None = None,
    max_iterations: int | None = None,
    stop: Stop | None = None,
    tol: float = 1e-6,
) -> LPSolution:
    """The optimal policy, met to `tol`, and multipliers of the constrained problem; `stop` ends the search for them."""
    scales = cost_scales(cmdp)
    rows = cmdp.costs[1:] / scales[1:, None]
    options = {"time_limit": time_limit and max(time_limit, 1e-3), "maxiter": max_iterations}
    limits = _limits(cmdp, scales[1:])
    answer = _highs(cmdp, cmdp.costs[0] / scales[0], rows, limits, options=options, stop=stop)
    if answer.status == 2:
        return LPSolution(False, message=answer.message, iterations=answer.iterations)
    if answer.x is None or answer.prices is None:
        stopped = answer.status == highs.OUT_OF_BUDGET
        return LPSolution(None, message=answer.message, iterations=answer.iterations, out_of_budget=stopped)
    multipliers = np.maximum(-answer.prices, 0.0) * scales[0] / scales[1:]
    visits = cmdp.pairs.sum(cmdp.pairs.like(np.maximum(answer.x, 0.0)))
    return LPSolution(True, _policy(cmdp, answer.x, tol), multipliers, visits, answer.message, answer.iterations)


def least_violation(
    cmdp: CMDP, units: Array | None = None, time_limit: float | None = None, stop: Stop | None = None
) -> tuple[float, TabularPolicy, Array]:
    """min_π max_i V_i(π) / unit_i, the policy that attains it, and the weights y ≥ 0 on V_i that prove it.

    y is the Farkas vector of an infeasible model: Σ y_i V_i(π) > 0 for every policy π. By default the unit of a
    constraint is the largest size of its cost.
    """
    scales = cost_scales(cmdp)[1:]
    excess = (scales if units is None else units) / scales  # of row i for each unit of the common excess t
    rows = cmdp.costs[1:] / scales[:, None]
    options = {"time_limit": time_limit}
    answer = _highs(cmdp, np.zeros(rows.shape[1]), rows, _limits(cmdp, scales), excess, options, stop)
    if answer.x is None or answer.prices is None:
        raise ArithmeticError(f"HiGHS did not solve the feasibility problem: {answer.message}")
    y = np.maximum(-answer.prices, 0.0) / scales
    return float(answer.x[-1]), _policy(cmdp, answer.x[:-1]), y / y.sum()


def cost_scales(cmdp: CMDP) -> Array:
    """The largest size of each cost, so that HiGHS's absolute tolerances mean the same for all units."""
    return np.where(cmdp.cost_sizes > 0.0, cmdp.cost_sizes, 1.0)


def _limits(cmdp: CMDP, scales: Array) -> Array:
    """The limits in units of the costs; one that dwarfs its cost is as good as infinite."""
    with np.errstate(over="ignore"):
        return np.clip(cmdp.offsets / scales, -1e18, 1e18)


def _policy(cmdp: CMDP, x: Array, tol: float = 1e-6) -> TabularPolicy:
    pairs = cmdp.pairs
    if cmdp.criterion == "average":
        return stationary_policy(cmdp, pairs.like(np.where(x > DUST, x, 0.0)), pairs.uniform(), tol)
    return TabularPolicy.from_occupancy(pairs, pairs.like(x), pairs.uniform())


def stationary_flow(cmdp: CMDP, leave: Any) -> tuple[Any, Array]:
    """Stationary occupancies: Σ_a x(s', a) − Σ_{s,a} P(s'|s, a) x(s, a) = 0, Σ x = 1, with rows that sum to one.

    States that cannot be visited have no occupancy.
    """
    matrix = as_csr(cmdp.transitions)
    drawn = sp.diags_array(1.0 / np.asarray(matrix.sum(axis=1)).ravel()) @ matrix
    seen = cmdp.pairs.over(visited(cmdp).astype(float)) * np.ones(cmdp.pairs.shape)
    sums = np.stack([seen.ravel(), 1.0 - seen.ravel()])
    # Balance in all states but one implies it there
    balance = sp.csr_array(leave - sp.csr_array(drawn).T)[1:]
    return sp.csr_array(sp.vstack([balance, sums])), np.append(np.zeros(cmdp.states - 1), [1.0, 0.0])


def flow(cmdp: CMDP) -> tuple[Any, Any]:
    """(S, N) matrices: Σ_a x(s', a), and Σ_a x(s', a) − γ Σ_{s,a} P(s'|s, a) x(s, a)."""
    pairs = cmdp.pairs.count
    leave = sp.csr_array((np.ones(pairs), np.arange(pairs), cmdp.pairs.first), shape=(cmdp.states, pairs))
    balance = leave - cmdp.gamma * as_csr(cmdp.transitions).T
    return leave, balance


def _highs(
    cmdp: CMDP,
    cost: Array,
    rows: Array,
    offsets: Array,
    excess: Array | None = None,
    options: dict[str, Any] | None = None,
    stop: Stop | None = None,
) -> Answer:
    """Solve over all occupancies; with `excess`, minimise the t for which row i is at most offset_i + excess_i t."""
    pairs, (leave, balance), right = cmdp.pairs.count, flow(cmdp), cmdp.initial
    if cmdp.criterion == "average":
        balance, right = stationary_flow(cmdp, leave)
    if excess is not None:
        cost = np.append(cost, 1.0)
        rows = np.hstack([rows, -excess[:, None]])
        balance = sp.hstack([balance, sp.csr_array((balance.shape[0], 1))])
    settings: dict[str, Any] = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    settings |= {name: value for name, value in (options or {}).items() if value is not None}
    tiny = pairs <= TINY  # solved in no time: not worth a process
    method, free = "highs-ds" if tiny else "highs-ipm", 0 if excess is None else 1
    return highs.solve(cost, rows, offsets, balance, right, free, method, settings, stop=None if tiny else stop)
