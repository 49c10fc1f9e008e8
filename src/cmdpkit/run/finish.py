"""The exact methods: columns (with PMD-PD in front, "auto") and the LP, each ended by a certificate."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import certificate_of, refutation
from cmdpkit.certificates.prover import certify
from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.linprog import least_miss, least_violation, solve_lp
from cmdpkit.exact.mdp import minimise
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import primal_dual
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.choice import Choice, choose
from cmdpkit.run.first_order import exact_learner, with_start
from cmdpkit.run.history import History
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.recorder import ExactRecorder
from cmdpkit.run.status import Status
from cmdpkit.settings import TabularSettings

NEIGHBOURHOOD = 3
"""Macro steps of PMD-PD that `auto` takes before the exact finish (measured: docs/design.md)."""

SMALL, TO_THE_END = 200, 1e-10
"""Up to this many states PMD-PD comes first, and the columns go on to this relative gap, which costs hardly more."""

LARGE = 20_000
"""Up to this many state-action pairs an infeasible model gets the policy that misses its limits least, by an LP."""

COLUMNS = ("objective", "violation", "bound", "multipliers", "time")
"""The history of an exact method, one row an oracle call."""


def solve_by_columns(cmdp: CMDP, method: str, tol: float, budget: Budget) -> Outcome:
    """Columns to the end; "auto" lets PMD-PD find the neighbourhood first, where its steps are cheap."""
    search = ColumnSearch(cmdp, tol, budget.exhausted)
    rows: list[tuple[Any, ...]] = []
    certificate = None
    status = budget.spent(0)
    start = _seek_neighbourhood(search, budget) if method == "auto" and status is None else None
    for _ in search.steps(start) if status is None else ():
        snapshot = _snapshot(search, budget.elapsed)
        rows.append(tuple(getattr(snapshot, name) for name in COLUMNS))
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
        certificate = refutation(cmdp, policy, search.farkas, search.farkas_margin)
    elif status is not Status.OPTIMAL or certificate is None:
        certificate = _certificate(search)
    status = status or Status.NUMERICAL_ERROR  # nothing could be improved any more, and `tol` was still not proved
    return Outcome(status, policy, certificate, _history(rows), search.oracle_calls)


def _history(rows: list[tuple[Any, ...]]) -> History:
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    return History(dict(zip(COLUMNS, columns, strict=True)))


def _seek_neighbourhood(search: ColumnSearch, budget: Budget) -> Array | None:
    """A few macro steps of PMD-PD: its last and average policies become columns, its multipliers the first question."""
    cmdp = search.cmdp
    if not cmdp.num_constraints or cmdp.states > SMALL:
        return None
    learner, choice = exact_learner(cmdp, growing_steps(cmdp), 0.0)
    recorder = ExactRecorder(cmdp, learner)
    for iterate in islice(primal_dual(learner, choice.rule), NEIGHBOURHOOD):
        recorder.add(iterate, budget.elapsed)
        if budget.spent(0) is not None:
            break
    search.add(recorder.policy.probabilities, np.append(iterate.objective, iterate.v))
    search.add(recorder.average_policy.probabilities, recorder.values / iterate.k)
    return recorder.candidate_multipliers()[0]


def growing_steps(cmdp: CMDP) -> Choice:
    """PMD-PD at its defaults."""
    return with_start(choose("pmd-pd", {}, "exact", TabularSettings, cmdp.num_constraints), cmdp)


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
    aim = min(tol, TO_THE_END) if search.cmdp.states <= SMALL else tol
    return search.upper - search.bound <= 0.5 * aim * max(float(search.cmdp.fine_scales[0]), abs(search.upper))


def _certificate(search: ColumnSearch) -> Certificate:
    return certificate_of(search.cmdp, search.policy(), search.multipliers, search.bound)


def solve_by_lp(cmdp: CMDP, tol: float, budget: Budget) -> Outcome:
    """The occupancy LP, with its answer certified like any other."""
    solution = solve_lp(cmdp, budget.time_limit, budget.max_iterations)
    policy = solution.policy or TabularPolicy.uniform(cmdp.states, cmdp.actions)
    multipliers = np.zeros(cmdp.num_constraints) if solution.multipliers is None else solution.multipliers
    certificate = None
    if solution.feasible is not True and not solution.out_of_budget:
        policy, certificate = _refuted_by_lp(cmdp, policy, budget)
    if certificate is None:
        certificate = certify(cmdp, policy, multipliers)
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
    history = _history([tuple(getattr(news, name) for name in COLUMNS)])
    return Outcome(status, policy, certificate, history, solution.iterations, note=note)


def with_lp_behind(cmdp: CMDP, outcome: Outcome, tol: float, budget: Budget) -> Outcome:
    """Where the columns end without a proof (limits that leave no room), the LP of a small model may have one."""
    if outcome.status is not Status.NUMERICAL_ERROR or cmdp.states * cmdp.actions > LARGE:
        return outcome
    other = solve_by_lp(cmdp, tol, budget)
    return other if other.status in (Status.OPTIMAL, Status.INFEASIBLE) else outcome


def _refuted_by_lp(cmdp: CMDP, policy: TabularPolicy, budget: Budget) -> tuple[TabularPolicy, Certificate | None]:
    """HiGHS found no feasible policy: the prices of the least violation are a proof, if the oracle confirms them."""
    try:
        _, policy, y = least_violation(cmdp, time_limit=budget.left)
    except ArithmeticError:
        return policy, None
    margin = minimise(cmdp, np.append(0.0, y), stop=budget.exhausted).bound
    return policy, refutation(cmdp, policy, y, margin) if margin > 0.0 else None


def with_least_violation(cmdp: CMDP, outcome: Outcome) -> Outcome:
    """An infeasible model: give the policy that misses the limits least, and say by how much."""
    if cmdp.states * cmdp.actions > LARGE:
        return replace(outcome, note=f"{outcome.note} slater_margin(model) tells by how much they are missed.".strip())
    try:
        margin, policy = least_miss(cmdp)
    except ArithmeticError:
        return outcome
    proved = outcome.certificate
    assert proved.infeasibility is not None
    assert proved.infeasibility_margin is not None
    certificate = refutation(cmdp, policy, proved.infeasibility, proved.infeasibility_margin)
    note = f"The best policy still misses a limit by {margin:.6g}."
    return replace(outcome, policy=policy, certificate=certificate, note=note)
