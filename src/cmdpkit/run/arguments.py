"""The arguments of `solve`, checked alone and together before any work: methods, options, and what excludes what."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cmdpkit.certificates.rollouts import averaging
from cmdpkit.checks import check_count, check_flag, check_nonnegative
from cmdpkit.model import CMDP, ShardedCMDP, check_model, refuse_averages
from cmdpkit.options import options_of, validated
from cmdpkit.rules.registry import names
from cmdpkit.run.budget import check_run
from cmdpkit.run.choice import Choice, choose, takes_multipliers
from cmdpkit.run.deterministic import refuse_large
from cmdpkit.run.first_order import with_start
from cmdpkit.run.start import Start
from cmdpkit.settings import Sampling, TabularSettings, ZeroSettings
from cmdpkit.simulators import Simulator

EXACT = ("auto", "columns", "lp")
"""Exact methods. They take no options."""

ZERO = "pmd-pd-zero"
"""PMD-PD on a tightened model; it takes the options of pmd-pd and its own."""

GENERAL = " (besides tol, max_iterations, time_limit, seed, progress, callback, checkpoint, resume, start, cluster)"


def check_call(model: Any, tol: Any, max_iterations: Any, time_limit: Any, seed: Any, callback: Any) -> None:
    if not isinstance(model, (Simulator, ShardedCMDP)):
        check_model(model)
    check_nonnegative(tol, "tol")
    if max_iterations is not None:
        check_count(max_iterations, "max_iterations", least=0)
    check_run(time_limit, seed, callback)


def check_lowered_sampling(model: CMDP, sampling: Any) -> None:
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


def check_deterministic(model: Any, wanted: Any, method: Any, sampling: Any, options: dict[str, Any]) -> None:
    if wanted is not True:
        raise TypeError(f"deterministic must be True or False, not {wanted!r}")
    if isinstance(model, Simulator) or sampling is not None:
        raise ValueError("deterministic=True needs a model, and does not learn from samples")
    if not isinstance(method, str) or method != "auto" or options:
        other = f"option {next(iter(options))!r}" if options else f"method {method!r}"
        raise ValueError(f"deterministic=True is a method of its own; leave out {other}")
    refuse_large(model)


def with_start_options(start: Start, method: Any, sampled: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a first-order method, with the start that an earlier result gives."""
    if isinstance(method, str) and method in EXACT and not sampled:
        return options
    clash = [name for name in ("initial_policy", "initial_multipliers") if options.get(name) is not None]
    if clash:
        raise ValueError(f"start sets {clash[0]!r}; give one of the two")
    entry = "pmd-pd" if isinstance(method, str) and method in (ZERO, *EXACT) else method
    return options | start.options(takes_multipliers(entry))


def check_name(method: Any) -> None:
    """Refuse a name that no method for models has."""
    known = [*EXACT[:1], *names("exact"), ZERO, *EXACT[1:]]
    if isinstance(method, str) and method not in known:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(known)}, or pass a rule")


def exact_choice(cmdp: CMDP, method: Any, options: dict[str, Any]) -> tuple[Choice | None, float | None]:
    """The first-order method with its options (None for exact methods), and the margin given for pmd-pd-zero."""
    if isinstance(method, str) and method in EXACT:
        if options:
            raise ValueError(f"unknown option {next(iter(options))!r} for method {method!r}; it takes none{GENERAL}")
        return None, None
    check_name(method)
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
        sets = ("step", "alpha", "inner_steps", "initial_policy", "initial_multipliers")
        clash = [other for other in sets if rest.get(other) is not None]
        if clash:
            raise ValueError(f"schedule={schedule!r} sets {clash[0]!r} itself; leave it out")
        if np.size(choice.rule.eta_dual) > 1:
            raise ValueError(f"schedule={schedule!r} needs one eta_dual for all constraints: the theorems have one")
        refuse_averages(cmdp, f"schedule={schedule!r}, with the constants of the paper's theorems,")
    choice = with_start(choice, cmdp)
    return choice, validated(ZeroSettings, {n: v for n, v in options.items() if n in own}).xi if own else None


def refuse_units(cmdp: CMDP, choice: Choice | None, xi: float | None) -> None:
    """Models of extreme scale are solved in units of their own, in which the user's numbers mean nothing."""
    free = ("steps", "growth", "inner_steps", "initial_policy", "first")
    given = [name for name in (choice.given if choice else ()) if name not in free] + ["xi"] * (xi is not None)
    if given:
        sizes = f"{cmdp.cost_sizes.min():.3g} to {cmdp.cost_sizes.max():.3g}"
        raise ValueError(f"{given[0]} cannot be given for costs of sizes {sizes}; state the model in other units")


def check_checkpoint(checkpoint: Any, resume: bool | None, method: str, first_order: bool = True) -> None:
    if resume is not None:
        check_flag(resume, "resume")
    if not first_order and (checkpoint is not None or resume is not None):
        raise ValueError(f"method {method!r} keeps no checkpoint; only first-order methods do")
    if checkpoint is None:
        if resume is not None:
            raise ValueError("resume needs checkpoint, the file of the run")
        return
    if method == ZERO:
        raise ValueError(f"method {ZERO!r} keeps no checkpoint, because it consists of several runs of pmd-pd")
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be a path, not {type(checkpoint).__name__}")


def sampled_choice(model: CMDP | Simulator, method: Any, sampling: Any, options: dict[str, Any]) -> Choice:
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
    if isinstance(model, Simulator) and sampling.mixing is not None:  # refused now, not after learning
        averaging(model, sampling.mixing, sampling.confidence, sampling.certificate_rollouts)
