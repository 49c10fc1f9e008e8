"""The facade: `solve()` checks what was asked, picks the method, stops, certifies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from cmdpkit import certificate as proof
from cmdpkit import first_order
from cmdpkit.budget import Budget, Callback, Snapshot
from cmdpkit.certificate import Certificate
from cmdpkit.checks import Array
from cmdpkit.columns import ColumnSearch
from cmdpkit.linprog import least_violation, slater_margin, solve_lp
from cmdpkit.mdp import minimise
from cmdpkit.methods import build
from cmdpkit.model import CMDP
from cmdpkit.options import check_call, check_options
from cmdpkit.policy import TabularPolicy
from cmdpkit.recorder import Recorder
from cmdpkit.result import History, Result, Status
from cmdpkit.zero import run_zero

FIRST_ORDER_ITERATIONS = 10_000
"""max_iterations of the first-order methods when none is given."""

EXACT_HISTORY = ("objective", "violation", "bound", "multipliers", "time")
"""Columns of the history of the exact methods, one row an oracle call."""

NEIGHBOURHOOD = 20
"""Macro steps of PMD-PD that `auto` takes before the exact finish (measured: docs/design.md)."""


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
        callback: called after every iteration; the run stops when it returns True.
        **options: of the first-order methods, in the user's units: `step` (π is multiplied by exp(−step · Q̃); the
            paper's η is step · (1 − γ)), `eta_dual`, `inner_steps` (t_k), `alpha`, `dual_cap` (npg-pd), `tolerance`
            (crpo), `initial_policy`, `initial_multipliers`, `schedule="theory"` (pmd-pd and pmd-pd-zero: the parameters
            of the theorems for `max_iterations` macro steps), `xi` (pmd-pd-zero: the Slater margin, else computed).

    Example:
        >>> import cmdpkit as ck
        >>> result = ck.solve(ck.problems.paper())
        >>> result.status.name, round(result.objective, 6), round(float(result.multipliers[0]), 6)
        ('OPTIMAL', 4.462444, 0.24267)
    """
    check_call(cmdp, method, tol, max_iterations, time_limit, seed, callback)
    check_options(cmdp, method, options)
    if max_iterations is None and method not in ("auto", "columns", "lp"):
        max_iterations = FIRST_ORDER_ITERATIONS
    with _progress_bar(progress, method, max_iterations, callback) as watch:
        budget = Budget(max_iterations, time_limit, watch)
        with budget.catching_ctrl_c():
            if method == "lp":
                return _solve_by_lp(cmdp, tol, budget)
            if method in ("auto", "columns"):
                return _solve_exactly(cmdp, method, tol, budget)
            return _solve_first_order(cmdp, method, tol, budget, options)


# -- first-order methods ---------------------------------------------------------------------------------------------


def _solve_first_order(cmdp: CMDP, method: str, tol: float, budget: Budget, options: dict[str, Any]) -> Result:
    note = ""
    if method == "pmd-pd-zero":
        xi = options.get("xi") or _slater_margin(cmdp)
        if cmdp.num_constraints and xi <= 1e-9 * float(cmdp.fine_scales[1:].min()):
            return _without_slater_point(cmdp, xi, tol, budget)
        outcome, margins = run_zero(cmdp, options, xi, budget, tol)
        tightened = ", ".join(f"{margin:.3g}" for margin in margins)
        note = f"The limits were tightened by {tightened} (Slater margin {xi:.6g})."
    else:
        learner, iterates = build(cmdp, method, options, budget.max_iterations or 0, tol)
        outcome = first_order.run(cmdp, learner, iterates, budget, tol)
    recorder = outcome.recorder
    return _result(
        cmdp,
        outcome.status,
        outcome.policy,
        outcome.certificate,
        budget,
        method,
        history=recorder.history(),
        iterations=len(recorder.rows),
        last_policy=recorder.policy,
        average_policy=recorder.average_policy,
        note=note,
    )


def _slater_margin(cmdp: CMDP) -> float:
    """ξ, or minus infinity where the LP fails for bad scaling: the exact methods then tell what can be told."""
    try:
        return slater_margin(cmdp)
    except ArithmeticError:
        return -np.inf


def _without_slater_point(cmdp: CMDP, xi: float, tol: float, budget: Budget) -> Result:
    """PMD-PD-Zero cannot start: say by how much the limits miss a Slater point; prove it where they cannot be met."""
    exact = _solve_exactly(cmdp, "auto", tol, replace(budget, max_iterations=None, watch=None))
    status = Status.NO_SLATER_POINT if exact.status is Status.OPTIMAL else exact.status
    how_far = f"The best policy misses the limits by {-xi:.6g}." if xi < 0.0 else f"The largest margin is {xi:.3g}."
    return replace(exact, status=status, method="pmd-pd-zero", message=f"{status.advice} {how_far}")


# -- exact methods ---------------------------------------------------------------------------------------------------


def _solve_exactly(cmdp: CMDP, method: str, tol: float, budget: Budget) -> Result:
    """Columns to the end; "auto" lets PMD-PD find the neighbourhood first."""
    search = ColumnSearch(cmdp, tol, budget.exhausted)
    rows: list[tuple[Any, ...]] = []
    certificate = None
    status = budget.spent(0)
    start = _seek_neighbourhood(search, budget) if method == "auto" and status is None else None
    for _ in search.steps(start) if status is None else ():
        snapshot = _snapshot(search, budget.elapsed)
        rows.append(tuple(getattr(snapshot, name) for name in EXACT_HISTORY))
        budget.tell(snapshot)
        if search.farkas is not None:
            status = Status.INFEASIBLE
        elif search.stuck or _close_enough(search, tol):
            certificate = _certificate(search)
            if certificate.optimal(tol):
                status = Status.OPTIMAL
        status = status or budget.spent(search.oracle_calls)
        if status is not None:
            break
    policy = search.policy()
    if search.farkas is not None:
        certificate = proof.build_infeasible(cmdp, policy, search.farkas, search.farkas_margin)
    elif status is not Status.OPTIMAL or certificate is None:
        certificate = _certificate(search)
    status = status or Status.NUMERICAL_ERROR  # nothing could be improved any more, and `tol` was still not proved
    return _result(cmdp, status, policy, certificate, budget, method, _exact_history(rows), search.oracle_calls)


def _exact_history(rows: list[tuple[Any, ...]]) -> History:
    columns = zip(*rows, strict=True) if rows else ((),) * len(EXACT_HISTORY)
    return History(dict(zip(EXACT_HISTORY, columns, strict=True)))


def _seek_neighbourhood(search: ColumnSearch, budget: Budget) -> Array | None:
    """A few macro steps of PMD-PD: its last and average policies become columns, its multipliers the first question."""
    cmdp = search.cmdp
    if not cmdp.num_constraints:
        return None
    learner, iterates = build(cmdp, "pmd-pd", {}, NEIGHBOURHOOD, 0.0)
    recorder = Recorder(cmdp, learner)
    for iterate in islice(iterates, NEIGHBOURHOOD):
        recorder.add(iterate, budget.elapsed)
        if budget.spent(0) is not None:
            break
    search.add(recorder.policy.probabilities, np.append(iterate.objective, iterate.v))
    search.add(recorder.average_policy.probabilities, recorder.values / iterate.k)
    return recorder.candidate_multipliers()[0]


def _snapshot(search: ColumnSearch, elapsed: float) -> Snapshot:
    cmdp, found = search.cmdp, np.isfinite(search.upper)
    return Snapshot(
        iteration=search.oracle_calls,
        objective=float(cmdp.user_objective(search.upper)),
        violation=_scaled(search, search.relaxation) if found else np.inf,
        bound=float(cmdp.user_objective(search.bound)),
        multipliers=search.multipliers,
        time=elapsed,
    )


def _scaled(search: ColumnSearch, excess: Array) -> float:
    """An excess in the units of the master, as a violation relative to max(1, |limit|)."""
    return float((excess * search.scales[1:] / search.cmdp.tolerance_scales).max(initial=0.0))


def _close_enough(search: ColumnSearch, tol: float) -> bool:
    """The bounds have met: to `tol` in the user's definition, and no worse relative to the size of the costs."""
    if not np.isfinite(search.upper):
        return False
    return search.upper - search.bound <= 0.5 * tol * max(float(search.cmdp.fine_scales[0]), abs(search.upper))


def _certificate(search: ColumnSearch) -> Certificate:
    return proof.build(search.cmdp, search.policy(), search.multipliers, search.bound)


def _solve_by_lp(cmdp: CMDP, tol: float, budget: Budget) -> Result:
    solution = solve_lp(cmdp, budget.time_limit, budget.max_iterations)
    policy = solution.policy or TabularPolicy.uniform(cmdp.states, cmdp.actions)
    multipliers = np.zeros(cmdp.num_constraints) if solution.multipliers is None else solution.multipliers
    certificate = None
    if solution.feasible is not True and not solution.out_of_budget:
        policy, certificate = _refuted_by_lp(cmdp, policy)
    if certificate is None:
        certificate = proof.certify(cmdp, policy, multipliers)
    if certificate.infeasibility is not None:
        status = Status.INFEASIBLE
    elif solution.feasible and certificate.optimal(tol):
        status = Status.OPTIMAL
    else:
        out_of_time = budget.time_limit is not None and budget.elapsed >= budget.time_limit
        limit = Status.TIME_LIMIT if out_of_time else Status.ITERATION_LIMIT
        status = limit if solution.out_of_budget else Status.NUMERICAL_ERROR
    note = "" if status is Status.OPTIMAL else f"HiGHS: {solution.message}"
    violation, time = certificate.violation, budget.elapsed
    news = Snapshot(solution.iterations, certificate.objective, violation, certificate.bound, multipliers, time)
    budget.tell(news)
    history = _exact_history([tuple(getattr(news, name) for name in EXACT_HISTORY)])
    return _result(cmdp, status, policy, certificate, budget, "lp", history, solution.iterations, note=note)


def _refuted_by_lp(cmdp: CMDP, policy: TabularPolicy) -> tuple[TabularPolicy, Certificate | None]:
    """HiGHS found no feasible policy: the prices of the least violation are a proof, if the oracle confirms them."""
    try:
        _, policy, y = least_violation(cmdp)
    except ArithmeticError:
        return policy, None
    margin = minimise(cmdp, np.append(0.0, y)).bound
    return policy, proof.build_infeasible(cmdp, policy, y, margin) if margin > 0.0 else None


# -- the result ------------------------------------------------------------------------------------------------------


def _result(
    cmdp: CMDP,
    status: Status,
    policy: TabularPolicy,
    certificate: Certificate,
    budget: Budget,
    method: str,
    history: History,
    iterations: int,
    last_policy: TabularPolicy | None = None,
    average_policy: TabularPolicy | None = None,
    note: str = "",
) -> Result:
    return Result(
        status=status,
        policy=policy,
        objective=certificate.objective,
        constraint_values=certificate.constraint_values,
        violations=certificate.violations,
        multipliers=certificate.multipliers,
        certificate=certificate,
        history=history,
        iterations=iterations,
        time=budget.elapsed,
        method=method,
        message=" ".join(part for part in (status.advice, note) if part),
        last_policy=last_policy,
        average_policy=average_policy,
        model=cmdp,
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
