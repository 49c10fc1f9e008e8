"""Ground truth: the occupancy linear program of the paper (eq. LP-CMDP), solved by HiGHS.

The variables are x(s, a) = Σ_t γᵗ P(s_t = s, a_t = a), the paper's d divided by (1 − γ):

    minimise ⟨x, c_0⟩  subject to  Σ_a x(s', a) − γ Σ_{s,a} P(s'|s, a) x(s, a) = ρ(s'),  ⟨x, c_i⟩ ≤ offset_i,  x ≥ 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy

TINY = 2_000
"""Up to this many state-action pairs the dual simplex is at least as fast as the interior point (measured)."""


@dataclass(frozen=True)
class LPSolution:
    """Policy and prices of an occupancy LP. `feasible` is None when HiGHS could not tell."""

    feasible: bool | None
    policy: TabularPolicy | None = None
    multipliers: Array | None = None
    message: str = ""
    iterations: int = 0
    out_of_budget: bool = False


def solve_lp(cmdp: CMDP, time_limit: float | None = None, max_iterations: int | None = None) -> LPSolution:
    """The optimal policy and multipliers of the constrained problem."""
    scales = _scales(cmdp)
    rows = cmdp.costs[1:] / scales[1:, None]
    limits = {"time_limit": time_limit and max(time_limit, 1e-3), "maxiter": max_iterations}
    answer = _highs(cmdp, cmdp.costs[0] / scales[0], rows, cmdp.offsets / scales[1:], limits=limits)
    if answer.status == 2:
        return LPSolution(False, message=answer.message, iterations=int(answer.nit))
    if answer.status != 0:
        return LPSolution(
            None, message=answer.message, iterations=int(answer.nit or 0), out_of_budget=answer.status == 1
        )
    multipliers = (
        np.maximum(-answer.ineqlin.marginals, 0.0) * scales[0] / scales[1:] if cmdp.num_constraints else np.zeros(0)
    )
    return LPSolution(True, _policy(cmdp, answer.x), multipliers, answer.message, int(answer.nit))


def least_violation(
    cmdp: CMDP, units: Array | None = None, time_limit: float | None = None
) -> tuple[float, TabularPolicy, Array]:
    """min_π max_i V_i(π) / unit_i, the policy that attains it, and the weights y ≥ 0 on V_i that prove it.

    y is the Farkas vector of an infeasible model: Σ y_i V_i(π) > 0 for every policy π. By default the unit of a
    constraint is the largest size of its cost.
    """
    scales = _scales(cmdp)[1:]
    excess = (scales if units is None else units) / scales  # of row i for each unit of the common excess t
    rows = cmdp.costs[1:] / scales[:, None]
    limits = {"time_limit": time_limit}
    answer = _highs(cmdp, np.zeros(rows.shape[1]), rows, cmdp.offsets / scales, excess=excess, limits=limits)
    if answer.status != 0:
        raise ArithmeticError(f"HiGHS did not solve the feasibility problem: {answer.message}")
    y = np.maximum(-answer.ineqlin.marginals, 0.0) / scales
    return float(answer.x[-1]), _policy(cmdp, answer.x[:-1]), y / y.sum()


def _scales(cmdp: CMDP) -> Array:
    """The largest size of each cost, so that HiGHS's absolute tolerances mean the same for all units."""
    return np.where(cmdp.cost_sizes > 0.0, cmdp.cost_sizes, 1.0)


def _policy(cmdp: CMDP, x: Array) -> TabularPolicy:
    occupancy = x.reshape(cmdp.states, cmdp.actions)
    return TabularPolicy.from_occupancy(occupancy, np.full(occupancy.shape, 1.0 / cmdp.actions))


def _highs(
    cmdp: CMDP,
    cost: Array,
    rows: Array,
    offsets: Array,
    excess: Array | None = None,
    limits: dict[str, Any] | None = None,
) -> Any:
    """Solve over all occupancies; with `excess`, minimise the t for which row i is at most offset_i + excess_i t."""
    from scipy.optimize import linprog

    pairs = cmdp.states * cmdp.actions
    leave = sp.csr_array(
        (np.ones(pairs), (np.repeat(np.arange(cmdp.states), cmdp.actions), np.arange(pairs))),
        shape=(cmdp.states, pairs),
    )
    balance = leave - cmdp.gamma * sp.csr_array(cmdp.transitions).T
    bounds: list[tuple[float | None, float | None]] = [(0.0, None)]
    if excess is not None:
        cost = np.append(cost, 1.0)
        rows = np.hstack([rows, -excess[:, None]])
        balance = sp.hstack([balance, sp.csr_array((cmdp.states, 1))])
        bounds = [(0.0, None)] * pairs + [(None, None)]
    options: dict[str, Any] = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    options |= {name: value for name, value in (limits or {}).items() if value is not None}
    has_rows = len(rows) > 0
    return linprog(
        cost,
        A_ub=sp.csr_array(rows) if has_rows else None,
        b_ub=offsets if has_rows else None,
        A_eq=sp.csr_array(balance),
        b_eq=cmdp.initial,
        bounds=bounds[0] if len(bounds) == 1 else bounds,
        method="highs-ds" if pairs <= TINY else "highs-ipm",
        options=options,
    )
