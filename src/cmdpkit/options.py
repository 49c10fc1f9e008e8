"""The door of `solve`: its methods, their options, and a clear refusal of everything else before any work starts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cmdpkit.checks import as_floats, check_count, check_multipliers, check_number
from cmdpkit.model import CMDP, check_model
from cmdpkit.policy import TabularPolicy, as_policy
from cmdpkit.sampling import METHODS as SAMPLED
from cmdpkit.sampling import Sampling
from cmdpkit.simulators import Simulator

_LEARNER_OPTIONS = ("step", "inner_steps", "alpha", "initial_policy")
OPTIONS: dict[str, tuple[str, ...]] = {
    "auto": (),
    "pmd-pd": (*_LEARNER_OPTIONS, "eta_dual", "initial_multipliers", "schedule"),
    "pmd-pd-zero": (*_LEARNER_OPTIONS, "eta_dual", "initial_multipliers", "schedule", "xi"),
    "npg-pd": (*_LEARNER_OPTIONS, "eta_dual", "dual_cap", "initial_multipliers"),
    "crpo": (*_LEARNER_OPTIONS, "tolerance"),
    "npg": _LEARNER_OPTIONS,
    "pg": _LEARNER_OPTIONS,
    "npg-entropy": _LEARNER_OPTIONS,
    "pg-entropy": _LEARNER_OPTIONS,
    "columns": (),
    "lp": (),
}
"""Every method with the options that it takes."""

EXACT = ("auto", "columns", "lp")
"""Methods that end at the optimum by themselves."""

UNCONSTRAINED = ("npg", "pg", "npg-entropy", "pg-entropy")
"""Methods that see no constraints."""


def check_call(
    cmdp: Any, method: Any, tol: Any, max_iterations: Any, time_limit: Any, seed: Any, callback: Any
) -> None:
    if not isinstance(cmdp, Simulator):
        check_model(cmdp)
    if not isinstance(method, str) or method not in OPTIONS:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(OPTIONS)}")
    if method in UNCONSTRAINED and cmdp.num_constraints:
        raise ValueError(
            f"method {method!r} sees no constraints and the model has {cmdp.num_constraints}; use 'pmd-pd' or 'auto'"
        )
    if check_number(tol, "tol") < 0.0:
        raise ValueError(f"tol must not be negative, got {tol}")
    if max_iterations is not None:
        check_count(max_iterations, "max_iterations", least=0)
    if time_limit is not None and check_number(time_limit, "time_limit") < 0.0:
        raise ValueError(f"time_limit must not be negative, got {time_limit}")
    check_count(seed, "seed", least=0)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")


def check_sampling(model: Any, method: str, sampling: Any, budget: Any, checkpoint: Any) -> None:
    """What belongs to learning from samples, and nothing of it elsewhere."""
    if sampling is not None and not isinstance(sampling, Sampling):
        raise TypeError(f"sampling must be a cmdpkit.Sampling, not {type(sampling).__name__}")
    if sampling is None and not isinstance(model, Simulator):
        for name, value in (("budget", budget), ("checkpoint", checkpoint)):
            if value is not None:
                raise ValueError(f"{name} belongs to learning from samples: sampling=cmdpkit.Sampling(...)")
        return
    if method not in ("auto", *SAMPLED):
        raise ValueError(f"method {method!r} needs a model; from samples learn {', '.join(SAMPLED)}")
    if sampling is not None and sampling.schedule == "theory" and method not in ("auto", "pmd-pd"):
        raise ValueError(f"schedule='theory' is Theorem 3, of pmd-pd, not of {method}")
    if budget is not None:
        check_count(budget, "budget", least=0)
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be a path, not {type(checkpoint).__name__}")


def check_options(
    model: CMDP | Simulator, method: str, options: dict[str, Any], sampling: Sampling | None = None
) -> None:
    sampled = sampling is not None
    taken = tuple(name for name in OPTIONS[method] if not (sampled and name == "schedule"))
    given = [name for name in OPTIONS[method] if options.get(name) is not None]
    if sampling is not None and sampling.schedule == "theory" and given:
        raise ValueError(f"Theorem 3 sets {given[0]!r} itself, or needs it as it is; leave it out")
    for name, value in options.items():
        if name not in taken:
            takes = f"it takes {', '.join(taken)}" if taken else "it takes none"
            if sampled and name == "schedule":
                raise ValueError("with samples the schedule is a matter of Sampling(schedule='theory', epsilon=...)")
            general = "besides tol, max_iterations, time_limit, seed, progress, callback"
            raise ValueError(f"unknown option {name!r} for method {method!r}; {takes} ({general})")
        if value is None:
            continue
        if name == "initial_policy":
            check_start(value, model)
        elif name == "initial_multipliers":
            check_multipliers(value, model.num_constraints, name)
        elif name == "schedule":
            if value != "theory":
                raise ValueError(f"schedule must be 'theory' (or None for practical steps), not {value!r}")
            clash = [other for other in ("step", "alpha", "inner_steps") if options.get(other) is not None]
            if clash:
                raise ValueError(f"schedule='theory' sets {clash[0]!r} itself; leave it out")
        elif name == "inner_steps":
            check_count(value, name, least=1)
        elif name == "eta_dual":
            eta_dual = as_floats(value, name)
            if eta_dual.shape not in ((), (model.num_constraints,)):
                raise ValueError(f"eta_dual must be one number, or one for each of {model.num_constraints} constraints")
            if not np.isfinite(eta_dual).all() or (eta_dual <= 0.0).any():
                raise ValueError(f"eta_dual must be positive and finite, got {value}")
        elif name == "dual_cap":
            if (
                not isinstance(value, (int, float, np.integer, np.floating))
                or isinstance(value, bool)
                or not value >= 0.0
            ):
                raise ValueError(f"dual_cap must be a number that is not negative (infinity is allowed), got {value!r}")
        else:
            number, strictly = check_number(value, name), name in ("step", "xi")
            if number < 0.0 or (strictly and number == 0.0):
                raise ValueError(f"{name} must {'be positive' if strictly else 'not be negative'}, got {value}")


def check_start(policy: Any, cmdp: CMDP | Simulator) -> TabularPolicy:
    start = as_policy(policy, cmdp.states, cmdp.actions, "initial_policy")
    if not np.isfinite(start.log_probabilities).all():
        s, a = np.argwhere(~np.isfinite(start.log_probabilities))[0]
        raise ValueError(
            f"initial_policy gives action {a} in state {s} probability zero, which mirror descent can never leave; "
            "mix it with the uniform policy"
        )
    return start
