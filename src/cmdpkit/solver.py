"""The facade: `solve()` checks what was asked, picks the method, stops, certifies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cmdpkit import first_order
from cmdpkit.budget import Budget, Callback
from cmdpkit.certificate import certify
from cmdpkit.exact_methods import solve_by_columns, solve_by_lp, with_least_violation, with_lp_behind
from cmdpkit.files import PathLike
from cmdpkit.linprog import slater_margin
from cmdpkit.methods import build
from cmdpkit.model import CMDP
from cmdpkit.options import EXACT, check_call, check_options, check_sampling, check_start
from cmdpkit.policy import MixturePolicy
from cmdpkit.result import Outcome, Result, Status
from cmdpkit.sampling import Learned, Sampling, learn
from cmdpkit.simulation import SimulationCertificate, certify_by_simulation
from cmdpkit.simulators import Simulator, as_simulator
from cmdpkit.zero import run_zero

FIRST_ORDER_ITERATIONS = 10_000
SAMPLED_ITERATIONS = 300
"""max_iterations of the first-order methods when none is given, with exact values and with samples."""

LEARNED = "All iterations are done; the policy is as good as its certificate says. More iterations or rollouts help."
NO_BOUNDS = "There is no certificate, because the simulator has no bounds; the values are estimates of the run itself."
NO_TIME = "There is no certificate, because it was interrupted; the values are estimates of the run itself."


def solve(
    model: CMDP | Simulator,
    method: str = "auto",
    tol: float = 1e-6,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    progress: bool = False,
    callback: Callback | None = None,
    sampling: Sampling | None = None,
    budget: int | None = None,
    checkpoint: PathLike | None = None,
    **options: Any,
) -> Result:
    """Solve a constrained MDP and prove the answer.

    Args:
        model: a `CMDP`, or a `Simulator` to learn from.
        method: "auto" (the certified optimum of any model), "pmd-pd", "pmd-pd-zero" (no violation at all), "npg-pd",
            "crpo", "columns" or "lp"; without constraints also "npg", "pg", "npg-entropy", "pg-entropy".
        tol: relative gap |objective − bound| / max(1, |objective|), and violation of each limit relative to
            max(1, |limit|). With 0.0 a first-order method runs for exactly `max_iterations` macro steps.
        max_iterations: macro steps of a first-order method (default 10,000; 300 when it samples), or oracle calls of
            "auto" and "columns".
        time_limit: seconds.
        seed: of the random generator; exact methods draw nothing.
        progress: show a progress bar.
        callback: called after every iteration with a `Snapshot` (iteration, objective, violation, bound, multipliers,
            time, samples); the run stops when it returns True.
        sampling: learn from samples alone, with "pmd-pd" (also the meaning of "auto" then), "npg-pd" or "crpo"; always
            so for a `Simulator`. `result.policy` is the last iterate, `result.average_policy` the mixture of all, both
            with certificates: exact ones for a `CMDP`, statistical ones for a `Simulator`. `tol` plays no part.
        budget: transitions that may be drawn while learning.
        checkpoint: a file in which a run that samples keeps its state; a run that finds its own state there continues
            from it, to the same result bit for bit.
        **options: of the first-order methods, in the user's units: `step` (π is multiplied by exp(−step · Q̃); the
            paper's η is step · (1 − γ); by default it follows the model's scale, and for pmd-pd it grows by itself
            unless one of step, eta_dual, inner_steps and alpha is named),
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
    check_call(model, method, tol, max_iterations, time_limit, seed, callback)
    check_sampling(model, method, sampling, budget, checkpoint)
    if isinstance(model, Simulator):
        sampling = sampling or Sampling()
    if sampling is not None:
        method = "pmd-pd" if method == "auto" else method
        max_iterations = SAMPLED_ITERATIONS if max_iterations is None and not sampling.schedule else max_iterations
    elif max_iterations is None and method not in EXACT:
        max_iterations = FIRST_ORDER_ITERATIONS
    check_options(model, method, options, sampling)
    with _progress_bar(progress, method, max_iterations, callback, sampling is not None) as watch:
        limits = Budget(max_iterations, time_limit, watch)
        with limits.catching_ctrl_c():
            if sampling is not None:
                given = {name: value for name, value in options.items() if value is not None}
                return _learn(model, method, sampling, given, limits, budget, seed, checkpoint)
            assert isinstance(model, CMDP)
            outcome = _run(model, method, tol, limits, options)
            if outcome.status is Status.INFEASIBLE:
                outcome = with_least_violation(model, outcome)
    return _result(model, method, outcome, limits.elapsed)


def _learn(
    model: CMDP | Simulator,
    method: str,
    sampling: Sampling,
    given: dict[str, Any],
    limits: Budget,
    budget: int | None,
    seed: int,
    checkpoint: PathLike | None,
) -> Result:
    """Learn from samples, then judge last iterate and mixture: by the model if there is one, else by rollouts."""
    if "initial_policy" in given:
        given["initial_policy"] = check_start(given["initial_policy"], model)
    slater = sampling.slater
    if sampling.schedule == "theory" and slater is None and isinstance(model, CMDP) and model.num_constraints:
        slater = slater_margin(model)
    learned = learn(as_simulator(model), method, sampling, given, limits, budget, seed, checkpoint, slater)
    status, mixture = learned.status, learned.mixture or MixturePolicy([learned.last])
    proof: Any
    average: Any
    if isinstance(model, CMDP):
        proof = certify(model, learned.last)
        status = Status.INFEASIBLE if proof.infeasibility is not None else status
        average = certify(model, mixture, None if proof.infeasibility is not None else proof.multipliers)
        objective, values, multipliers = proof.objective, proof.constraint_values, proof.multipliers
    else:
        proof = _judge(model, learned.last, sampling, seed)
        average = _judge(model, mixture, sampling, seed)
        objective, values = (proof.objective, proof.constraint_values) if proof else _estimates(learned)
        multipliers = learned.multipliers
    return Result(
        status=status,
        policy=learned.last,
        objective=objective,
        constraint_values=values,
        violations=np.maximum(model.signs * (values - model.limits), 0.0),
        multipliers=multipliers,
        certificate=proof,
        history=learned.history,
        iterations=learned.iterations,
        time=limits.elapsed,
        method=method,
        message=_advice(learned, status) + ("" if proof else f" {NO_BOUNDS if model.bounds is None else NO_TIME}"),  # type: ignore[union-attr]
        model=model,
        last_policy=learned.last,
        average_policy=mixture,
        average_certificate=average,
        samples=learned.samples,
    )


def _advice(learned: Learned, status: Status) -> str:
    if status is Status.SAMPLE_LIMIT and not learned.iterations:
        return "Not one iteration fits into the budget of transitions: the policy is the one it would have begun with."
    return LEARNED if status is Status.ITERATION_LIMIT else status.advice


def _judge(simulator: Simulator, policy: Any, sampling: Sampling, seed: int) -> SimulationCertificate | None:
    if simulator.bounds is None:
        return None
    try:
        return certify_by_simulation(simulator, policy, sampling.confidence, sampling.certificate_rollouts, seed=seed)
    except KeyboardInterrupt:  # the second Ctrl-C: what was learned must not be lost
        return None


def _estimates(learned: Learned) -> tuple[float, Any]:
    """The last estimates of the run itself, where nothing better is known."""
    if not learned.iterations:
        return float("nan"), np.full(learned.multipliers.shape, np.nan)
    return float(learned.history["objective"][-1]), learned.history["constraint_values"][-1]


def _run(cmdp: CMDP, method: str, tol: float, budget: Budget, options: dict[str, Any]) -> Outcome:
    if method == "lp":
        return solve_by_lp(cmdp, tol, budget)
    if method in EXACT:
        outcome = solve_by_columns(cmdp, method, tol, budget)
        return with_lp_behind(cmdp, outcome, tol, budget) if method == "auto" else outcome
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
def _progress_bar(
    show: bool, method: str, total: int | None, callback: Callback | None, time_left: bool
) -> Iterator[Callback | None]:
    """A watcher that also moves a progress bar, when one is wanted."""
    if not show:
        yield callback
        return
    from cmdpkit.report import progress_watcher

    with progress_watcher(method, total, callback, time_left) as watch:
        yield watch
