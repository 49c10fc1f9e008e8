"""The exact methods: columns (with PMD-PD in front, "auto") and the LP, each ended by a certificate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import Guess, certificate_of, exact_certificate, refutation
from cmdpkit.certificates.prover import best_bound
from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.evaluation.rational import is_small
from cmdpkit.evaluation.rational_averages import RationalAverages
from cmdpkit.evaluation.system import Plan
from cmdpkit.exact.answer import best_policy, may_round, proof_accuracy, rounded_policy, vertex_policy
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.feasibility import meet
from cmdpkit.exact.linprog import LPSolution, least_violation, solve_lp
from cmdpkit.exact.mdp import minimise, polished_bound
from cmdpkit.exact.memory import remember
from cmdpkit.exact.search import steps
from cmdpkit.exact.small import SmallSearch
from cmdpkit.exact.vertex import least_randomised
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import primal_dual
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.choice import Choice, choose
from cmdpkit.run.first_order import exact_learner, with_start
from cmdpkit.run.history import oracle_history, oracle_row
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.pivoted import as_good, solve_by_pivots
from cmdpkit.run.recorder import ExactRecorder
from cmdpkit.run.start import Start
from cmdpkit.run.status import Status
from cmdpkit.run.unlimited import SMALL, TO_THE_END, solve_without_limits
from cmdpkit.settings import TabularSettings

NEIGHBOURHOOD = 3
"""Macro steps of PMD-PD that `auto` takes before the exact finish (measured: docs/decisions.md)."""

LARGE = 20_000
"""Up to this many state-action pairs an LP is asked where the columns end without a proof."""


def solve_by_columns(cmdp: CMDP, method: str, tol: float, budget: Budget, start: Start | None = None) -> Outcome:
    """Columns to the end; "auto" lets PMD-PD find the neighbourhood first, where its steps are cheap.

    With a `start` the columns of an earlier result are the neighbourhood.
    """
    if start is None and (alone := solve_without_limits(cmdp, tol, budget)) is not None:
        return alone
    if method == "auto" and (vertex := solve_by_pivots(cmdp, tol, budget)) is not None:
        return vertex
    search = ColumnSearch(cmdp, tol, budget.exhausted)
    search.aim = 0.5 * (min(tol, TO_THE_END) if cmdp.states <= SMALL else tol)
    rows: list[tuple[Array, ...]] = []
    told = -1
    policy, certificate = None, None
    status = budget.spent(0)
    with contextlib.suppress(Stopped), until(budget.exhausted):
        question = None
        if start is not None:
            question = start.give(search)
        elif method == "auto" and status is None:
            question = _seek_neighbourhood(search, budget)
        for _ in steps(search, question) if status is None else ():
            if search.oracle_calls > told:
                snapshot, told = _snapshot(search, budget.elapsed), search.oracle_calls
                rows.append(oracle_row(snapshot))
                budget.tell(snapshot)
            if search.farkas is not None:
                status = Status.INFEASIBLE
            elif search.stuck or search.has_closed:
                policy, certificate = _answer(search, search.bound, tol)
                if certificate.optimal(tol):
                    status = Status.OPTIMAL
            status = status or budget.spent(search.oracle_calls)
            if status is not None:
                break
    status = status or (budget.spent(search.oracle_calls) if budget.exhausted() else None)
    if status is not Status.OPTIMAL or policy is None or certificate is None:
        policy = best_policy(search)
        certificate = _certificate(search, policy)
    if status is None and search.farkas is None:
        # Nothing could be improved any more, and `tol` was still not proved: rounding is in the way
        policy, certificate = _polished(search, policy, certificate, tol)
        status = Status.OPTIMAL if certificate.optimal(tol) else Status.NUMERICAL_ERROR
    assert status is not None
    return Outcome(status, policy, certificate, oracle_history(rows), search.oracle_calls, memory=remember(search))


def _seek_neighbourhood(search: ColumnSearch, budget: Budget) -> Array | None:
    """A few macro steps of PMD-PD: its last and average policies become columns, its multipliers the first question."""
    cmdp = search.cmdp
    if cmdp.num_rows < 2 or cmdp.states > SMALL:
        return None
    choice = growing_steps(cmdp)
    learner = exact_learner(cmdp, choice, 0.0)
    recorder = ExactRecorder(cmdp, learner)
    for iterate in islice(primal_dual(learner, choice.rule), NEIGHBOURHOOD):
        recorder.add(iterate, budget.elapsed)
        if budget.spent(0) is not None:
            break
    search.add(recorder.policy, np.append(iterate.objective, iterate.v))
    search.add(recorder.average_policy, recorder.values / iterate.k)
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
        multipliers=cmdp.stated_prices(search.multipliers).copy(),  # a callback must not reach into the proof
        time=elapsed,
    )


def _scaled(search: ColumnSearch, excess: Array) -> float:
    """An excess in the units of the master, as a violation relative to max(1, |limit|)."""
    return float((excess * search.scales[1:] / search.cmdp.tolerance_scales).max(initial=0.0))


def _certificate(search: ColumnSearch, policy: TabularPolicy) -> Certificate:
    if search.farkas is not None:
        return refutation(search.cmdp, policy, search.farkas, search.farkas_margin, search.plan)
    return certificate_of(search.cmdp, policy, search.multipliers, search.bound, search.plan)


def _answer(search: ColumnSearch, bound: float, tol: float) -> tuple[TabularPolicy, Certificate]:
    """The policy of the search with its certificate; one that randomises in fewer states, if it is proved as well."""
    cmdp, fewer = search.cmdp, None
    for find in (rounded_policy, vertex_policy) if may_round(search) else (vertex_policy,):
        fewer = None  # tables of large models are not kept together
        fewer = find(search)
        if fewer is not None:
            certificate = _checked(search, fewer, bound)
            allowed = tol * cmdp.fine_scales[1:] + search.relaxation * search.scales[1:]
            if certificate.optimal(tol) and as_good(cmdp, certificate, search.bound, allowed, tol):
                return fewer, certificate
    del fewer
    policy = best_policy(search)
    return policy, _checked(search, policy, bound)


def _checked(search: ColumnSearch, policy: TabularPolicy, bound: float) -> Certificate:
    """The certificate of a policy near the last one of the search."""
    near = search.nearest() if search.oracle.backs_up else None
    guess = None if near is None else Guess(near)
    return certificate_of(search.cmdp, policy, search.multipliers, bound, search.plan, proof_accuracy(search), guess)


def _polished(
    search: ColumnSearch, policy: TabularPolicy, certificate: Certificate, tol: float
) -> tuple[TabularPolicy, Certificate]:
    """With a bound whose rounding errors are counted state by state and, if need be, a policy that comes to meet it."""
    cmdp, multipliers = search.cmdp, search.multipliers
    bound = max(search.bound, polished_bound(cmdp, np.append(1.0, multipliers), search.stop))
    if bound > search.bound:
        policy, certificate = _answer(search, bound, tol)
    if certificate.optimal(tol) or not cmdp.num_constraints:
        return policy, certificate
    meet(search, bound)
    halfway, met = _answer(search, bound, tol)
    return (halfway, met) if _merit(met, tol) < _merit(certificate, tol) else (policy, certificate)


def solve_by_lp(cmdp: CMDP, tol: float, budget: Budget, start: Start | None = None) -> Outcome:
    """The occupancy LP, with its answer certified like any other. HiGHS is not started from a policy: a `start` is the
    answer where it finds none."""
    solution = solve_lp(cmdp, budget.left, budget.max_iterations, budget.exhausted, tol)
    known = start.policies[0] if start is not None else TabularPolicy.over(cmdp.pairs, cmdp.pairs.uniform())
    policy = solution.policy or known
    multipliers = np.zeros(cmdp.num_rows)
    if solution.multipliers is not None:
        multipliers = cmdp.netted(solution.multipliers)
    elif start is not None and start.multipliers is not None:
        multipliers = cmdp.row_prices(start.multipliers)
    certificate = None
    if solution.feasible is not True and not solution.out_of_budget:
        policy, certificate = _refuted_by_lp(cmdp, policy, budget)
    if certificate is None:
        policy, certificate = _proved_lp(cmdp, solution, policy, multipliers, tol, budget)
        if solution.feasible and not certificate.optimal(tol):
            certificate = _with_own_prices(cmdp, policy, certificate, tol, budget)
    if certificate.infeasibility is not None:
        status = Status.INFEASIBLE
    elif certificate.optimal(tol):  # whatever HiGHS thinks of it
        status = Status.OPTIMAL
    else:
        limit = budget.spent(0) or Status.ITERATION_LIMIT
        status = limit if solution.out_of_budget else Status.NUMERICAL_ERROR
    note = "" if status is Status.OPTIMAL else f"HiGHS: {solution.message}"
    violation, time = certificate.violation, budget.elapsed
    prices = certificate.multipliers.copy()
    news = Snapshot(solution.iterations, certificate.objective, violation, certificate.bound, prices, time)
    history = oracle_history([oracle_row(news)])
    budget.tell(news)
    return Outcome(status, policy, certificate, history, solution.iterations, note=note)


def _proved_lp(
    cmdp: CMDP, solution: LPSolution, policy: TabularPolicy, multipliers: Array, tol: float, budget: Budget
) -> tuple[TabularPolicy, Certificate]:
    """The LP's policy with its certificate, as far as the budget allows; deterministic where it need not randomise."""
    bound, pairs, given = -np.inf, cmdp.pairs, policy
    with contextlib.suppress(Stopped), until(budget.exhausted):
        greedy = minimise(cmdp, np.append(1.0, multipliers), stop=budget.exhausted)
        bound = greedy.bound
        if solution.visits is not None:
            seen = pairs.over(solution.visits) > 0.0
            policy = TabularPolicy.over(pairs, np.where(seen, policy.pi, pairs.one_hot(greedy.choice)))
            exact = np.zeros(cmdp.num_rows + 1)
            fewer = least_randomised(cmdp, policy, solution.visits, Plan(), exact)
            certificate = None if fewer is None else certificate_of(cmdp, fewer, multipliers, bound)
            if fewer is not None and certificate is not None and certificate.optimal(tol):
                return fewer, certificate
    certificate = certificate_of(cmdp, policy, multipliers, bound)
    if cmdp.criterion == "average" and not certificate.optimal(tol):
        # Where parts of the model were joined, all of the policy is needed for that
        joined = certificate_of(cmdp, given, multipliers, bound)
        return min([(policy, certificate), (given, joined)], key=lambda one: _merit(one[1], tol))
    return policy, certificate


def _with_own_prices(
    cmdp: CMDP, policy: TabularPolicy, certificate: Certificate, tol: float, budget: Budget
) -> Certificate:
    """HiGHS's prices are exact to its tolerance only; on a small model better ones may prove the same policy."""
    if cmdp.pairs.count > LARGE:
        return certificate
    with contextlib.suppress(Stopped), until(budget.exhausted):
        search = best_bound(cmdp, stop=budget.exhausted)
        weights = np.append(1.0, search.multipliers)
        bound = max(search.bound, polished_bound(cmdp, weights, budget.exhausted))
        better = certificate_of(cmdp, policy, search.multipliers, bound)
        return min(certificate, better, key=lambda one: _merit(one, tol))
    return certificate


def with_others_behind(cmdp: CMDP, outcome: Outcome, tol: float, budget: Budget) -> Outcome:
    """Where `auto` ends without a proof (limits that leave no room), other ways on a small model may have one.

    The columns without PMD-PD in front are tried first, then the LP. Where none has a proof, the best of the answers is
    returned.
    """
    small = cmdp.pairs.count <= LARGE
    if outcome.status is not Status.NUMERICAL_ERROR or not small:
        return outcome
    answers, quiet = [outcome], replace(budget, watch=None)
    ways: list[Callable[[], Outcome]] = [
        lambda: solve_by_columns(cmdp, "columns", tol, quiet),
        lambda: solve_by_lp(cmdp, tol, quiet),
    ]
    for solve in ways:
        if budget.exhausted():
            break
        answers.append(solve())
        if answers[-1].status in (Status.OPTIMAL, Status.INFEASIBLE):
            return answers[-1]
    return min(answers, key=lambda one: _merit(one.certificate, tol))


def with_columns_behind(cmdp: CMDP, outcome: Outcome, tol: float, budget: Budget) -> Outcome:
    """Where PMD-PD ends its default number of steps without a proof, the columns look for one from where it stands.

    They start from its policies and multipliers. What they find is the answer and its certificate; iterations, history,
    last and average policy are those of PMD-PD.
    """
    if outcome.status is not Status.ITERATION_LIMIT or budget.exhausted():
        return outcome
    ends = (outcome.policy, outcome.last_policy, outcome.average_policy)
    start = Start(tuple(p for p in ends if p is not None), outcome.policy, outcome.certificate.multipliers)
    quiet = replace(budget, max_iterations=None, watch=None)
    found = solve_by_columns(cmdp, "columns", tol, quiet, start)
    found = with_exact_arithmetic(cmdp, with_others_behind(cmdp, found, tol, quiet), tol, quiet)
    if found.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        return outcome
    note = "" if found.status is Status.INFEASIBLE else "The steps did not converge; the policy is from exact columns."
    return replace(outcome, status=found.status, policy=found.policy, certificate=found.certificate, note=note)


def with_exact_arithmetic(cmdp: CMDP, outcome: Outcome, tol: float, budget: Budget) -> Outcome:
    """A small model that double precision has left unproved: the last step in exact arithmetic."""
    if outcome.status is not Status.NUMERICAL_ERROR or not is_small(cmdp) or budget.exhausted():
        return outcome
    if cmdp.criterion == "average":
        return _with_exact_average(cmdp, outcome, tol, budget)
    search = SmallSearch(cmdp, tol, budget.exhausted)
    best = outcome
    for policy in search.solve():
        assert search.bound is not None
        certificate = exact_certificate(search.model, policy, search.multipliers, search.bound)
        if _merit(certificate, tol) < _merit(best.certificate, tol):
            status = Status.OPTIMAL if certificate.optimal(tol) else best.status
            best = replace(best, policy=policy, certificate=certificate, status=status, note="")
        if best.status is Status.OPTIMAL:
            break
    if search.refuted is not None:
        certificate = refutation(cmdp, outcome.policy, *search.refuted)
        return replace(outcome, status=Status.INFEASIBLE, certificate=certificate, note="")
    return best


def _with_exact_average(cmdp: CMDP, outcome: Outcome, tol: float, budget: Budget) -> Outcome:
    """The same policy and multipliers: where a part of the model is hardly ever left, Th − h is all rounding."""
    if outcome.certificate.infeasibility is not None:
        return outcome
    prices = cmdp.row_prices(outcome.certificate.multipliers)
    model = RationalAverages(cmdp)
    certificate = exact_certificate(model, outcome.policy, prices, model.bound([1.0, *prices], budget.exhausted))
    if _merit(certificate, tol) >= _merit(outcome.certificate, tol):
        return outcome
    status = Status.OPTIMAL if certificate.optimal(tol) else outcome.status
    return replace(outcome, certificate=certificate, status=status, note="")


def _merit(certificate: Certificate, tol: float) -> tuple[bool, float]:
    """Feasible first, then the smaller tolerance to which a policy is proved optimal."""
    return not certificate.feasible(tol), max(certificate.gap, certificate.violation)


def _refuted_by_lp(cmdp: CMDP, policy: TabularPolicy, budget: Budget) -> tuple[TabularPolicy, Certificate | None]:
    """HiGHS found no feasible policy: the prices of the least violation are a proof, if the oracle confirms them."""
    try:
        _, policy, y = least_violation(cmdp, time_limit=budget.left, stop=budget.exhausted)
    except ArithmeticError:
        return policy, None
    with contextlib.suppress(Stopped), until(budget.exhausted):
        margin = minimise(cmdp, np.append(0.0, y), stop=budget.exhausted).bound
        return policy, refutation(cmdp, policy, y, margin) if margin > 0.0 else None
    return policy, None
