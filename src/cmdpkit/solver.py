"""The facade: `solve()` checks what was asked, picks the method, stops, certifies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cmdpkit import first_order
from cmdpkit.budget import Budget, Callback
from cmdpkit.exact_methods import solve_by_columns, solve_by_lp, with_least_violation
from cmdpkit.methods import build
from cmdpkit.model import CMDP
from cmdpkit.options import EXACT, check_call, check_options
from cmdpkit.result import Outcome, Result, Status
from cmdpkit.zero import run_zero

FIRST_ORDER_ITERATIONS = 10_000
"""max_iterations of the first-order methods when none is given."""


def solve(
    cmdp: CMDP,
    method: str = "auto",
    tol: float = 1e-6,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    progress: bool = False,
    callback: Callback | None = None,
    **options: Any,
) -> Result:
    """Solve a constrained MDP and prove the answer.

    Args:
        cmdp: the model.
        method: "auto" (the certified optimum of any model), "pmd-pd", "pmd-pd-zero" (no violation at all), "npg-pd",
            "crpo", "columns" or "lp"; without constraints also "npg", "pg", "npg-entropy", "pg-entropy".
        tol: relative gap |objective − bound| / max(1, |objective|), and violation of each limit relative to
            max(1, |limit|). With 0.0 a first-order method runs for exactly `max_iterations` macro steps.
        max_iterations: macro steps of a first-order method (default 10,000), or oracle calls of "auto" and "columns".
        time_limit: seconds.
        seed: of the random generator; exact methods draw nothing.
        progress: show a progress bar.
        callback: called after every iteration with a `Snapshot` (iteration, objective, violation, bound, multipliers,
            time); the run stops when it returns True.
        **options: of the first-order methods, in the user's units: `step` (π is multiplied by exp(−step · Q̃); the
            paper's η is step · (1 − γ); by default it follows the model's scale, for pmd-pd also the progress),
            `eta_dual` (likewise), `inner_steps` (t_k, default 1), `alpha` (default 1/step), `dual_cap` (npg-pd),
            `tolerance` (crpo, default 0), `initial_policy` (default uniform), `initial_multipliers`,
            `schedule="theory"` (pmd-pd and pmd-pd-zero: the parameters of the theorems for `max_iterations` macro
            steps), `xi` (pmd-pd-zero: the Slater margin, else computed).

    Example:
        >>> import cmdpkit as ck
        >>> result = ck.solve(ck.problems.paper())
        >>> result.status.name, round(result.objective, 6), round(float(result.multipliers[0]), 6)
        ('OPTIMAL', 4.462444, 0.24267)
    """
    check_call(cmdp, method, tol, max_iterations, time_limit, seed, callback)
    check_options(cmdp, method, options)
    if max_iterations is None and method not in EXACT:
        max_iterations = FIRST_ORDER_ITERATIONS
    with _progress_bar(progress, method, max_iterations, callback) as watch:
        budget = Budget(max_iterations, time_limit, watch)
        with budget.catching_ctrl_c():
            outcome = _run(cmdp, method, tol, budget, options)
            if outcome.status is Status.INFEASIBLE:
                outcome = with_least_violation(cmdp, outcome)
    return _result(cmdp, method, outcome, budget.elapsed)


def _run(cmdp: CMDP, method: str, tol: float, budget: Budget, options: dict[str, Any]) -> Outcome:
    if method == "lp":
        return solve_by_lp(cmdp, tol, budget)
    if method in EXACT:
        return solve_by_columns(cmdp, method, tol, budget)
    if method == "pmd-pd-zero":
        return run_zero(cmdp, options, budget, tol)
    learner, iterates = build(cmdp, method, options, budget.max_iterations or 0, tol)
    return first_order.run(cmdp, learner, iterates, budget, tol)


def _result(cmdp: CMDP, method: str, outcome: Outcome, time: float) -> Result:
    certificate = outcome.certificate
    return Result(
        status=outcome.status,
        policy=outcome.policy,
        objective=certificate.objective,
        constraint_values=certificate.constraint_values,
        violations=certificate.violations,
        multipliers=certificate.multipliers,
        certificate=certificate,
        history=outcome.history,
        iterations=outcome.iterations,
        time=time,
        method=method,
        message=" ".join(part for part in (outcome.status.advice, outcome.note) if part),
        model=cmdp,
        last_policy=outcome.last_policy,
        average_policy=outcome.average_policy,
    )


@contextlib.contextmanager
def _progress_bar(show: bool, method: str, total: int | None, callback: Callback | None) -> Iterator[Callback | None]:
    """A watcher that also moves a progress bar, when one is wanted."""
    if not show:
        yield callback
        return
    from cmdpkit.report import progress_watcher

    with progress_watcher(method, total, callback) as watch:
        yield watch
