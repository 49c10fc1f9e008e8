"""The facade of the tabular learners: `solve()` checks its arguments, runs the method and certifies the result."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
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
    limits = (tol, max_iterations, time_limit, seed, progress, callback)
    return _solve(
        model, Call(method, *limits, sampling, budget, checkpoint, resume, start, deterministic, cluster, options)
    )


@dataclass(frozen=True)
class Call:
    """The arguments of `solve` apart from the model."""

    method: Any
    tol: float
    max_iterations: int | None
    time_limit: float | None
    seed: int
    progress: bool
    callback: Callback | None
    sampling: Any
    transitions: Any  # budget=
    checkpoint: Any
    resume: bool | None
    start: Any
    deterministic: Any
    cluster: str | None
    options: dict[str, Any]

    def progress_bar(
        self, name: str, total: int | None, time_left: bool = False
    ) -> contextlib.AbstractContextManager[Callback | None]:
        """The callback, which also updates a progress bar if one was asked for."""
        if not self.progress:
            return contextlib.nullcontext(self.callback)
        from cmdpkit.report import progress_watcher

        return progress_watcher(name, total, self.callback, time_left)


def _solve(model: CMDP | Simulator | ShardedCMDP, call: Call) -> Result:
    if isinstance(model, ShardedCMDP):
        return _solve_blocks(model, call)
    if isinstance(model, CMDP) and model.lowering is not None:
        return _solve_lowered(model, model.lowering.model, call)
    if call.deterministic is not False:
        check_deterministic(model, call.deterministic, call.method, call.sampling, call.options)
    if isinstance(model, Simulator) and call.sampling is None:
        call = replace(call, sampling=Sampling(estimator="pooled" if model.criterion == "average" else "truncated"))
    if check_cluster(call.cluster) is not None and call.sampling is None:
        raise ValueError(
            "cluster= is for learning from samples; exact methods run in this process. Learn from samples with "
            "sampling=cmdpkit.Sampling(...), or leave out cluster"
        )
    begin = None if call.start is None else start_from(call.start, model)
    if begin is not None:
        call = replace(call, options=with_start_options(begin, call.method, call.sampling is not None, call.options))
    if call.sampling is not None:
        return _solve_by_samples(model, call)
    assert isinstance(model, CMDP)
    return _solve_exactly(model, call, begin)


def _solve_lowered(cmdp: CMDP, discounted: CMDP, call: Call) -> Result:
    """Solve the discounted model with the same values, and state the result as one of the model itself."""
    check_lowered_sampling(cmdp, call.sampling)
    options = dict(call.options)
    if options.get("initial_policy") is not None:
        options["initial_policy"] = lowered_policy(cmdp, options["initial_policy"], "initial_policy")
    start = None if call.start is None else lowered_start(call.start, cmdp)
    LOG.info("%r is solved as a discounted model with %d states", cmdp, discounted.states)
    result = _solve(discounted, replace(call, start=start, options=options))
    policies = ("policy", "last_policy", "average_policy")
    own = {name: raised_policy(cmdp, getattr(result, name)) for name in policies}
    return replace(result, model=cmdp, **own)


# -- exact values ----------------------------------------------------------------------------------------------------


def _solve_exactly(model: CMDP, call: Call, begin: Start | None) -> Result:
    if call.transitions is not None:
        raise ValueError("budget is for learning from samples: sampling=cmdpkit.Sampling(...)")
    tol, max_iterations = call.tol, call.max_iterations
    choice, xi = exact_choice(model, call.method, call.options)
    name = call.method if isinstance(call.method, str) else choice.name if choice else ""
    check_checkpoint(call.checkpoint, call.resume, name, choice is not None)
    to_the_end = max_iterations is None and tol > 0.0 and choice is not None and choice.method.steps == "growing"
    if max_iterations is None and choice is not None:
        max_iterations = GROWING_ITERATIONS if choice.method.steps == "growing" else FIRST_ORDER_ITERATIONS
    store = None
    if choice is not None and call.checkpoint is not None:
        store = checkpoint_of(model, choice, call.checkpoint, call.resume, tol, max_iterations)
    LOG.info("solving %r by %s, tol=%g", model, name, tol)
    with call.progress_bar(name, max_iterations) as watch:
        allowed = Budget(max_iterations, call.time_limit, watch)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted), OneBlasThread(model):
            if call.deterministic:
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
            if name == "auto" and not call.deterministic:
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


# -- models in blocks ------------------------------------------------------------------------------------------------


def _solve_blocks(model: ShardedCMDP, call: Call) -> Result:
    from cmdpkit.sharded.facade import ARGUMENTS, solve_sharded

    cluster = check_cluster(call.cluster)
    others = {"sampling": call.sampling, "budget": call.transitions, "start": call.start}
    wrong = [name for name, value in others.items() if value is not None] + ["deterministic"] * bool(call.deterministic)
    if wrong:
        raise ValueError(f"{wrong[0]} is not for a ShardedCMDP, which takes {ARGUMENTS}")
    general = {"checkpoint": call.checkpoint, "resume": call.resume, "cluster": cluster}
    LOG.info("solving %r in %d blocks, tol=%g", model, model.blocks, call.tol)
    with call.progress_bar(str(call.method), call.max_iterations) as watch:
        allowed = Budget(call.max_iterations, call.time_limit, watch)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted):
            return solve_sharded(model, call.method, call.tol, allowed, **call.options, **general)


# -- learning from samples -------------------------------------------------------------------------------------------


def _solve_by_samples(model: CMDP | Simulator, call: Call) -> Result:
    """Learn from samples, then certify policy and mixture: with the model if there is one, or by rollouts."""
    sampling, max_iterations, seed = call.sampling, call.max_iterations, int(call.seed)
    choice = sampled_choice(model, call.method, sampling, call.options)
    if call.transitions is not None:
        check_count(call.transitions, "budget", least=0)
    check_checkpoint(call.checkpoint, call.resume, choice.name)
    if max_iterations is None and not sampling.schedule:
        max_iterations = SAMPLED_ITERATIONS
    slater = sampling.slater
    if sampling.schedule and slater is None and isinstance(model, CMDP) and model.num_constraints:
        slater = slater_margin(model)
    # Learning needs no more of a model than its samples.
    simulator = ModelSimulator(model) if isinstance(model, CMDP) else model
    with using(call.cluster), call.progress_bar(choice.name, max_iterations, time_left=True) as watch:
        allowed = Budget(max_iterations, call.time_limit, watch, call.transitions)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted):
            learned = learn(simulator, choice, sampling, allowed, seed, call.checkpoint, call.resume, slater)
            return judged(model, choice.name, sampling, learned, allowed, seed)
