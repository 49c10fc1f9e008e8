"""The facade of the tabular learners: `solve()` checks its arguments, runs the method and certifies the result."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from cmdpkit.checks import check_count
from cmdpkit.cluster import check_cluster, using
from cmdpkit.evaluation.patience import hurrying
from cmdpkit.evaluation.threads import OneBlasThread
from cmdpkit.exact.slater import slater_margin
from cmdpkit.files import PathLike
from cmdpkit.model import CMDP, ShardedCMDP
from cmdpkit.policy import lowered_policy, raised_policy
from cmdpkit.rules.base import Rule
from cmdpkit.run.arguments import (
    ZERO,
    check_call,
    check_checkpoint,
    check_deterministic,
    check_lowered_sampling,
    exact_choice,
    refuse_units,
    sampled_choice,
    with_start_options,
)
from cmdpkit.run.balanced import run_balanced
from cmdpkit.run.budget import Budget, Callback
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.choice import Choice
from cmdpkit.run.deterministic import solve_deterministic
from cmdpkit.run.explained import with_classes, with_least_violation
from cmdpkit.run.finish import (
    solve_by_columns,
    solve_by_lp,
    with_columns_behind,
    with_exact_arithmetic,
    with_others_behind,
)
from cmdpkit.run.first_order import checkpoint_of, run_first_order
from cmdpkit.run.judged import judged
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.result import Result
from cmdpkit.run.sampled import learn
from cmdpkit.run.start import Start, lowered_start, start_from
from cmdpkit.run.zero import run_zero
from cmdpkit.settings import Sampling
from cmdpkit.simulators import ModelSimulator, Simulator

LOG = logging.getLogger("cmdpkit")
LOG.addHandler(logging.NullHandler())  # silent unless the application configures logging

FIRST_ORDER_ITERATIONS = 10_000
GROWING_ITERATIONS = 300
SAMPLED_ITERATIONS = 300
"""Defaults of max_iterations for first-order methods, with exact values and with samples."""


def solve(
    model: CMDP | Simulator | ShardedCMDP,
    method: str | Rule = "auto",
    tol: float = 1e-6,
    max_iterations: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    progress: bool = False,
    callback: Callback | None = None,
    sampling: Sampling | None = None,
    budget: int | None = None,
    checkpoint: PathLike | None = None,
    resume: bool | None = None,
    start: Result | None = None,
    deterministic: bool = False,
    cluster: str | None = None,
    **options: Any,
) -> Result:
    """Solve a constrained MDP and certify the result.

    Args:
        model: a `CMDP`, a `Simulator` to learn from, or a `ShardedCMDP` that no process holds as a whole.
        method: "auto" (the certified optimum of any model), "columns" or "lp"; "pmd-pd-zero" (no violation at all); a
            registered first-order method such as "pmd-pd", "npg-pd" or "crpo" (docs/methods.md lists them with their
            options); or an instance of a rule, as in `cmdpkit.rules.PMDPD(eta_dual=1.0)`, also of a class of your own.
        tol: relative gap |objective − bound| / max(1, |objective|), and violation of each limit relative to
            max(1, |limit|). With 0.0 a first-order method runs for exactly `max_iterations` macro steps.
        max_iterations: macro steps of a first-order method (default 10,000; 300 with growing steps or samples), or
            oracle calls of "auto" and "columns". Where the default of 300 growing steps proves nothing, "columns"
            continues from there; a number that was given is kept, and the best policy so far is returned.
        time_limit: seconds. After that the best policy so far is evaluated and certified: about a second for 100,000
            states, and more for more.
        seed: seed of all random numbers; exact methods use none.
        progress: show a progress bar.
        callback: called after every iteration with a `Snapshot` (iteration, objective, violation, bound, multipliers,
            time, samples, constraint_values); the run stops when it returns True.
        sampling: learn from samples only, as is always the case for a `Simulator`. "auto" then means "pmd-pd".
            `result.average_policy` is the mixture of all iterates (with growing steps that of the second half, weighted
            by the steps); `result.policy` is the last iterate, or with growing steps and fresh rollouts a table with
            the visits of that mixture. Both have certificates: exact for a `CMDP`, statistical for a `Simulator`. `tol`
            is not used.
        budget: maximum number of transitions drawn for learning.
        checkpoint: a file to which a first-order run writes its state, or a folder for a `ShardedCMDP`. If it holds a
            state of the same run, the run continues from it, to the same result bit for bit.
        resume: True requires a state to continue from, False requires that there is none; None continues if there is
            one.
        start: the result of an earlier call, for a model of the same size, as after `cmdp.with_limits(...)` or
            `cmdp.with_objective(...)`. "auto" and "columns" start from its policies and multipliers; first-order
            methods and learners continue from its last policy (mixed with a little of the uniform one) and its
            multipliers; "lp" returns its policy where HiGHS finds none. What is proved never depends on it.
        deterministic: look for the best policy that takes one action per state, on small models only (the problem is
            NP-hard), by HiGHS's branch and bound. OPTIMAL then means that the policy is within `tol` of
            `result.deterministic_bound`, HiGHS's own bound; the certificate's bound holds for randomised policies too.
        cluster: learn from samples that the workers of a Ray cluster draw, or solve a `ShardedCMDP` whose blocks they
            hold, to the same result bit for bit: "local", on all processors of this machine; "auto", on the cluster
            that is running; or an address. See docs/cluster.md.
        **options: options of the method and its learner, in the user's units. All first-order methods take `step` (π is
            multiplied by exp(−step · Q̃); the paper's η is step · (1 − γ); the default follows the model's scale),
            `inner_steps` (t_k, default 1), `alpha` (default 1/step) and `initial_policy` (default uniform); those with
            multipliers also `initial_multipliers`. pmd-pd takes `steps`: "growing" (the default: both steps grow,
            nothing to tune) or "fixed" (Algorithm 1, and the default when `step`, `eta_dual` or
            `schedule` is given). docs/methods.md lists the options of every method.

    Example:
        >>> import cmdpkit as ck
        >>> result = ck.solve(ck.problems.paper())
        >>> result.status.name, round(result.objective, 6), round(float(result.multipliers[0]), 6)
        ('OPTIMAL', 4.462444, 0.24267)
    """
    check_call(model, tol, max_iterations, time_limit, seed, callback)
    if isinstance(model, ShardedCMDP):
        others = {"sampling": sampling, "budget": budget, "start": start, "deterministic": deterministic or None}
        options |= {"checkpoint": checkpoint, "resume": resume, "cluster": check_cluster(cluster)}
        return _solve_blocks(model, method, tol, max_iterations, time_limit, progress, callback, others, options)
    if isinstance(model, CMDP) and model.lowering is not None:
        check_lowered_sampling(model, sampling)
        if options.get("initial_policy") is not None:
            options["initial_policy"] = lowered_policy(model, options["initial_policy"], "initial_policy")
        begun = None if start is None else lowered_start(start, model)
        general = (
            tol,
            max_iterations,
            time_limit,
            seed,
            progress,
            callback,
            sampling,
            budget,
            checkpoint,
            resume,
            begun,
            deterministic,
            cluster,
        )
        LOG.info("%r is solved as a discounted model with %d states", model, model.lowering.model.states)
        return _raised(model, solve(model.lowering.model, method, *general, **options))
    if deterministic is not False:
        check_deterministic(model, deterministic, method, sampling, options)
    if isinstance(model, Simulator) and sampling is None:
        sampling = Sampling(estimator="pooled" if model.criterion == "average" else "truncated")
    if check_cluster(cluster) is not None and sampling is None:
        raise ValueError(
            "cluster= is for learning from samples; exact methods run in this process. Learn from samples with "
            "sampling=cmdpkit.Sampling(...), or leave out cluster"
        )
    begin = None if start is None else start_from(start, model)
    if begin is not None:
        options = with_start_options(begin, method, sampling is not None, options)
    if sampling is not None:
        return _solve_by_samples(
            model,
            method,
            sampling,
            max_iterations,
            time_limit,
            seed,
            progress,
            callback,
            budget,
            checkpoint,
            resume,
            cluster,
            options,
        )
    assert isinstance(model, CMDP)
    if budget is not None:
        raise ValueError("budget is for learning from samples: sampling=cmdpkit.Sampling(...)")
    choice, xi = exact_choice(model, method, options)
    name = method if isinstance(method, str) else choice.name if choice else ""
    check_checkpoint(checkpoint, resume, name, choice is not None)
    to_the_end = max_iterations is None and tol > 0.0 and choice is not None and choice.method.steps == "growing"
    if max_iterations is None and choice is not None:
        max_iterations = GROWING_ITERATIONS if choice.method.steps == "growing" else FIRST_ORDER_ITERATIONS
    store = None
    if choice is not None and checkpoint is not None:
        store = checkpoint_of(model, choice, checkpoint, resume, tol, max_iterations)
    LOG.info("solving %r by %s, tol=%g", model, name, tol)
    with _progress_bar(progress, name, max_iterations, callback) as watch:
        allowed = Budget(max_iterations, time_limit, watch)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted), OneBlasThread(model):
            if deterministic:
                outcome = solve_deterministic(model, tol, allowed, begin)
            elif model.is_extreme:
                refuse_units(model, choice, xi)
                LOG.info("costs are of extreme size (%.3g): solved in other units", model.cost_sizes.max())
                plain = None if begin is None else begin.without_units()
                solver = partial(
                    _run, method=name, choice=choice, xi=xi, tol=tol, store=store, start=plain, to_the_end=to_the_end
                )
                outcome = run_balanced(model, solver, allowed, tol)
            else:
                outcome = _run(model, allowed, name, choice, xi, tol, store, begin, to_the_end)
            if method == "auto" and not deterministic:
                outcome = with_exact_arithmetic(model, outcome, tol, allowed)
            if outcome.certificate.infeasibility is not None:
                outcome = with_least_violation(model, outcome, allowed)
    result = with_classes(model, outcome, choice is not None).result(model, name, allowed.elapsed)
    LOG.info(
        "%s after %d iterations and %.3g s: objective %.9g, gap %.1e, violation %.1e",
        *(result.status.value, result.iterations, result.time),
        *(result.objective, result.certificate.gap, result.certificate.violation),
    )
    return result


def _run(
    cmdp: CMDP,
    budget: Budget,
    method: str,
    choice: Choice | None,
    xi: float | None,
    tol: float,
    store: Checkpoint | None,
    start: Start | None,
    to_the_end: bool,
) -> Outcome:
    if choice is not None:
        if method == ZERO:
            return run_zero(cmdp, choice, xi, budget, tol)
        outcome = run_first_order(cmdp, choice, budget, tol, store=store)
        return with_columns_behind(cmdp, outcome, tol, budget) if to_the_end else outcome
    if method == "lp":
        return solve_by_lp(cmdp, tol, budget, start)
    outcome = solve_by_columns(cmdp, method, tol, budget, start)
    return with_others_behind(cmdp, outcome, tol, budget) if method == "auto" else outcome


def _raised(cmdp: CMDP, result: Result) -> Result:
    """The result of the discounted model with the same values, as one of the model itself."""
    policies = ("policy", "last_policy", "average_policy")
    own = {name: raised_policy(cmdp, getattr(result, name)) for name in policies}
    return replace(result, model=cmdp, **own)


# -- models in blocks ------------------------------------------------------------------------------------------------


def _solve_blocks(
    model: ShardedCMDP,
    method: Any,
    tol: float,
    max_iterations: int | None,
    time_limit: float | None,
    progress: bool,
    callback: Callback | None,
    others: dict[str, Any],
    options: dict[str, Any],
) -> Result:
    from cmdpkit.sharded.facade import ARGUMENTS, solve_sharded

    wrong = [name for name, value in others.items() if value is not None]
    if wrong:
        raise ValueError(f"{wrong[0]} is not for a ShardedCMDP, which takes {ARGUMENTS}")
    LOG.info("solving %r in %d blocks, tol=%g", model, model.blocks, tol)
    with _progress_bar(progress, str(method), max_iterations, callback) as watch:
        allowed = Budget(max_iterations, time_limit, watch)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted):
            return solve_sharded(model, method, tol, allowed, **options)


# -- learning from samples -------------------------------------------------------------------------------------------


def _solve_by_samples(
    model: CMDP | Simulator,
    method: Any,
    sampling: Any,
    max_iterations: int | None,
    time_limit: float | None,
    seed: int,
    progress: bool,
    callback: Callback | None,
    transitions: Any,
    checkpoint: Any,
    resume: bool | None,
    cluster: str | None,
    options: dict[str, Any],
) -> Result:
    """Learn from samples, then certify policy and mixture: with the model if there is one, or by rollouts."""
    choice = sampled_choice(model, method, sampling, options)
    if transitions is not None:
        check_count(transitions, "budget", least=0)
    check_checkpoint(checkpoint, resume, choice.name)
    if max_iterations is None and not sampling.schedule:
        max_iterations = SAMPLED_ITERATIONS
    slater = sampling.slater
    if sampling.schedule and slater is None and isinstance(model, CMDP) and model.num_constraints:
        slater = slater_margin(model)
    bar = _progress_bar(progress, choice.name, max_iterations, callback, time_left=True)
    with using(cluster), bar as watch:
        allowed = Budget(max_iterations, time_limit, watch, transitions)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted):
            learned = learn(_simulator(model), choice, sampling, allowed, int(seed), checkpoint, resume, slater)
            return judged(model, choice.name, sampling, learned, allowed, int(seed))


def _simulator(model: CMDP | Simulator) -> Simulator:
    """Of a discounted model, perhaps one that stands for a horizon: learning needs no more."""
    return ModelSimulator(model) if isinstance(model, CMDP) else model


@contextlib.contextmanager
def _progress_bar(
    show: bool, method: str, total: int | None, callback: Callback | None, time_left: bool = False
) -> Iterator[Callback | None]:
    """The callback, which also updates a progress bar if `show` is True."""
    if not show:
        yield callback
        return
    from cmdpkit.report import progress_watcher

    with progress_watcher(method, total, callback, time_left) as watch:
        yield watch
