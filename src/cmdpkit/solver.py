"""The facade of the tabular learners: `solve()` checks its arguments, runs the method and certifies the result."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cmdpkit.certificates.rollouts import averaging
from cmdpkit.checks import check_count, check_nonnegative, digest
from cmdpkit.cluster import check_cluster, using
from cmdpkit.evaluation.patience import hurrying
from cmdpkit.exact.slater import slater_margin
from cmdpkit.files import PathLike
from cmdpkit.model import CMDP, ShardedCMDP, StagedTransitions, check_model, refuse_averages
from cmdpkit.options import options_of, validated
from cmdpkit.policy import lowered_policy, raised_policy
from cmdpkit.rules.base import Rule
from cmdpkit.rules.registry import names
from cmdpkit.run.balanced import run_balanced
from cmdpkit.run.budget import Budget, Callback
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.choice import Choice, choose, takes_multipliers
from cmdpkit.run.deterministic import refuse_large, solve_deterministic
from cmdpkit.run.finish import (
    solve_by_columns,
    solve_by_lp,
    with_classes,
    with_columns_behind,
    with_exact_arithmetic,
    with_least_violation,
    with_others_behind,
)
from cmdpkit.run.first_order import run_first_order, with_start
from cmdpkit.run.judged import judged
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.result import Result
from cmdpkit.run.sampled import learn
from cmdpkit.run.start import Start, lowered_start, start_from
from cmdpkit.run.zero import run_zero
from cmdpkit.settings import Sampling, TabularSettings, ZeroSettings
from cmdpkit.simulators import ModelSimulator, Simulator

LOG = logging.getLogger("cmdpkit")
LOG.addHandler(logging.NullHandler())  # silent, unless the program that uses the package wants to hear

EXACT = ("auto", "columns", "lp")
"""Exact methods. They take no options."""

ZERO = "pmd-pd-zero"
"""PMD-PD on a tightened model; it takes the options of pmd-pd and its own."""

FIRST_ORDER_ITERATIONS = 10_000
GROWING_ITERATIONS = 300
SAMPLED_ITERATIONS = 300
"""Defaults of max_iterations for first-order methods, with exact values and with samples."""

GENERAL = " (besides tol, max_iterations, time_limit, seed, progress, callback, checkpoint, resume, start, cluster)"


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
            oracle calls of "auto" and "columns". Where 300 growing steps by default prove nothing, "columns" continues
            from there; where so many were asked for, the best policy so far is returned.
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
    _check_call(model, tol, max_iterations, time_limit, seed, callback)
    if isinstance(model, ShardedCMDP):
        others = {"sampling": sampling, "budget": budget, "start": start, "deterministic": deterministic or None}
        options |= {"checkpoint": checkpoint, "resume": resume, "cluster": check_cluster(cluster)}
        return _solve_blocks(model, method, tol, max_iterations, time_limit, progress, callback, others, options)
    if isinstance(model, CMDP) and model.lowering is not None:
        _check_lowered_sampling(model, sampling)
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
        _check_deterministic(model, deterministic, method, sampling, options)
    if isinstance(model, Simulator) and sampling is None:
        sampling = Sampling(estimator="pooled" if model.criterion == "average" else "truncated")
    if check_cluster(cluster) is not None and sampling is None:
        raise ValueError(
            "cluster= is for learning from samples; exact methods run in this process. Learn from samples with "
            "sampling=cmdpkit.Sampling(...), or leave out cluster"
        )
    begin = None if start is None else start_from(start, model)
    if begin is not None:
        options = _started(begin, method, sampling is not None, options)
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
    choice, xi = _choice(model, method, options)
    if choice is None and (checkpoint is not None or resume is not None):
        raise ValueError(f"method {method!r} keeps no checkpoint; only first-order methods do")
    name = method if isinstance(method, str) else choice.name if choice else ""
    to_the_end = max_iterations is None and tol > 0.0 and choice is not None and choice.method.steps == "growing"
    if max_iterations is None and choice is not None:
        max_iterations = GROWING_ITERATIONS if choice.method.steps == "growing" else FIRST_ORDER_ITERATIONS
    store = _store(model, name, choice, checkpoint, resume, tol, max_iterations)
    LOG.info("solving %r by %s, tol=%g", model, name, tol)
    with _progress_bar(progress, name, max_iterations, callback) as watch:
        allowed = Budget(max_iterations, time_limit, watch)
        with allowed.catching_ctrl_c(), hurrying(allowed.exhausted):
            if deterministic:
                outcome = solve_deterministic(model, tol, allowed, begin)
            elif model.is_extreme:
                _refuse_units(model, choice, xi)
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


def _check_call(model: Any, tol: Any, max_iterations: Any, time_limit: Any, seed: Any, callback: Any) -> None:
    if not isinstance(model, (Simulator, ShardedCMDP)):
        check_model(model)
    check_nonnegative(tol, "tol")
    if max_iterations is not None:
        check_count(max_iterations, "max_iterations", least=0)
    if time_limit is not None:
        check_nonnegative(time_limit, "time_limit")
    check_count(seed, "seed", least=0)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")


def _check_lowered_sampling(model: CMDP, sampling: Any) -> None:
    """Settings of the sampled learner that mean something for discounted models only."""
    if not isinstance(sampling, Sampling):
        return  # none, or refused later
    if sampling.schedule:
        raise ValueError(
            f"schedule={sampling.schedule!r} has the constants of discounted models; the criterion of this one is the "
            f"{model.value_name}. Leave out the schedule"
        )
    if sampling.horizon is not None and model.horizon is not None:
        raise ValueError(f"the rollouts of this model have {model.horizon} steps; leave out Sampling(horizon=...)")


def _check_deterministic(model: Any, wanted: Any, method: Any, sampling: Any, options: dict[str, Any]) -> None:
    if wanted is not True:
        raise TypeError(f"deterministic must be True or False, not {wanted!r}")
    if isinstance(model, Simulator) or sampling is not None:
        raise ValueError("deterministic=True needs a model, and does not learn from samples")
    if not isinstance(method, str) or method != "auto" or options:
        other = f"option {next(iter(options))!r}" if options else f"method {method!r}"
        raise ValueError(f"deterministic=True is a method of its own; leave out {other}")
    refuse_large(model)


def _started(start: Start, method: Any, sampled: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a first-order method, with the start that an earlier result gives."""
    if isinstance(method, str) and method in EXACT and not sampled:
        return options
    clash = [name for name in ("initial_policy", "initial_multipliers") if options.get(name) is not None]
    if clash:
        raise ValueError(f"start sets {clash[0]!r}; give one of the two")
    entry = "pmd-pd" if isinstance(method, str) and method in (ZERO, *EXACT) else method
    return options | start.options(takes_multipliers(entry))


def _choice(cmdp: CMDP, method: Any, options: dict[str, Any]) -> tuple[Choice | None, float | None]:
    """The first-order method with its options (None for exact methods), and the margin given for pmd-pd-zero."""
    if isinstance(method, str) and method in EXACT:
        if options:
            raise ValueError(f"unknown option {next(iter(options))!r} for method {method!r}; it takes none{GENERAL}")
        return None, None
    if isinstance(method, str) and method != ZERO and method not in names("exact"):
        known = [*EXACT[:1], *names("exact"), ZERO, *EXACT[1:]]
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(known)}, or pass a rule")
    own = options_of(ZeroSettings) if method == ZERO else {}
    rest = {name: value for name, value in options.items() if name not in own}
    name = "pmd-pd" if method == ZERO else method
    choice = choose(name, rest, "exact", TabularSettings, cmdp.num_constraints, GENERAL)
    if not choice.method.constrained and cmdp.num_constraints:
        raise ValueError(
            f"method {method!r} ignores constraints, but the model has {cmdp.num_constraints}; use 'pmd-pd' or 'auto'"
        )
    schedule = getattr(choice.rule, "schedule", None)
    if schedule is not None:
        clash = [other for other in ("step", "alpha", "inner_steps") if rest.get(other) is not None]
        if clash:
            raise ValueError(f"schedule={schedule!r} sets {clash[0]!r} itself; leave it out")
        refuse_averages(cmdp, f"schedule={schedule!r}, with the constants of the paper's theorems,")
    choice = with_start(choice, cmdp)
    return choice, validated(ZeroSettings, {n: v for n, v in options.items() if n in own}).xi if own else None


def _refuse_units(cmdp: CMDP, choice: Choice | None, xi: float | None) -> None:
    """Models of extreme scale are solved in units of their own, in which the user's numbers mean nothing."""
    free = ("steps", "growth", "inner_steps", "initial_policy", "first")
    given = [name for name in (choice.given if choice else ()) if name not in free] + ["xi"] * (xi is not None)
    if given:
        sizes = f"{cmdp.cost_sizes.min():.3g} to {cmdp.cost_sizes.max():.3g}"
        raise ValueError(f"{given[0]} cannot be given for costs of sizes {sizes}; state the model in other units")


def _store(
    cmdp: CMDP,
    name: str,
    choice: Choice | None,
    checkpoint: PathLike | None,
    resume: bool | None,
    tol: float,
    max_iterations: int | None,
) -> Checkpoint | None:
    if checkpoint is None:
        if resume is not None:
            raise ValueError("resume needs checkpoint, the file of the run")
        return None
    assert choice is not None
    if name == ZERO:
        raise ValueError(f"method {ZERO!r} keeps no checkpoint, because it consists of several runs of pmd-pd")
    _check_path(checkpoint)
    fixed = {"tol": tol} | ({"max_iterations": max_iterations} if getattr(choice.rule, "schedule", None) else {})
    store = Checkpoint(checkpoint, choice.identity() | fixed | {"model": _fingerprint(cmdp)})
    store.must(resume)
    return store


def _fingerprint(cmdp: CMDP) -> str:
    matrix = cmdp.transitions
    if isinstance(matrix, StagedTransitions):
        parts = matrix.parts()
    else:
        parts = (matrix.data, matrix.indices, matrix.indptr) if hasattr(matrix, "indptr") else (matrix,)
    discount = -1.0 if cmdp.criterion == "average" else cmdp.gamma
    return digest(*parts, cmdp.costs, cmdp.offsets, cmdp.initial, np.array(discount))


def _check_path(checkpoint: Any) -> None:
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be a path, not {type(checkpoint).__name__}")


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
    choice = _sampled_choice(model, method, sampling, options)
    if transitions is not None:
        check_count(transitions, "budget", least=0)
    if checkpoint is not None:
        _check_path(checkpoint)
    elif resume is not None:
        raise ValueError("resume needs checkpoint, the file of the run")
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


def _sampled_choice(model: CMDP | Simulator, method: Any, sampling: Any, options: dict[str, Any]) -> Choice:
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling must be a cmdpkit.Sampling, not {type(sampling).__name__}")
    method = "pmd-pd" if isinstance(method, str) and method == "auto" else method
    if isinstance(method, str) and (method in EXACT or method == ZERO):
        raise ValueError(f"method {method!r} needs a model; from samples learn {', '.join(names('sampled'))}")
    if options.get("schedule") is not None:
        raise ValueError("with samples the schedule is set by Sampling(schedule='theory', epsilon=...)")
    _check_averages(model, sampling)
    choice = choose(method, options, "sampled", TabularSettings, model.num_constraints, GENERAL)
    if sampling.schedule:
        if choice.name != "pmd-pd":
            raise ValueError(f"schedule={sampling.schedule!r} is Theorem 3, of pmd-pd, not of {choice.name}")
        if choice.given:
            raise ValueError(f"Theorem 3 sets {next(iter(choice.given))!r} itself or fixes it; leave it out")
    return with_start(choice, model)


def _check_averages(model: CMDP | Simulator, sampling: Sampling) -> None:
    """Settings of the sampled learner that mean something for some criteria only."""
    if model.criterion != "average":
        if sampling.mixing is not None:
            raise ValueError(f"mixing is for long-run averages; the criterion here is the {model.value_name}")
        return
    if sampling.schedule:
        refuse_averages(model, f"schedule={sampling.schedule!r}, with the constants of the paper's theorems,")
    if sampling.estimator != "pooled":
        raise ValueError(
            f"estimator={sampling.estimator!r} adds up discounted rollouts, and no rollout is long enough for a "
            'long-run average; learn it with Sampling(estimator="pooled")'
        )
    if isinstance(model, Simulator) and sampling.mixing is not None:  # what is learned must not be lost
        averaging(model, sampling.mixing, sampling.confidence, sampling.certificate_rollouts)


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
