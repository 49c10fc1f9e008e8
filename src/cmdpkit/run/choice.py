"""From the arguments of a call to a rule and settings: names, instances, options and presets, all validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from cmdpkit.checks import digest
from cmdpkit.options import options_of, revalidated, validated
from cmdpkit.rules.registry import LEARNERS, Method, method_of, names, variants

SELECTOR = {"exact": "steps", "sampled": "steps", "neural": "dual"}
"""The option that selects a variant of a method, per learner: `steps` is a setting of the neural one."""

FIXED_ONLY = ("step", "eta_dual", "schedule")
"""Options of fixed steps: giving one of them selects fixed steps, unless `steps` says otherwise."""


@dataclass(frozen=True)
class Choice:
    """A method with its options."""

    method: Method
    rule: Any  # a Rule
    settings: Any  # TabularSettings or NeuralSettings
    given: Mapping[str, Any]  # the options as given, for the identity of a run

    @property
    def name(self) -> str:
        return self.method.name

    def identity(self) -> dict[str, Any]:
        """The method and its options, as plain data, to recognise checkpoints of the same run."""
        options = {name: _plain(value) for name, value in sorted(self.given.items())}
        names: list[str] = [f.name for f in fields(self.rule)] if is_dataclass(self.rule) else []
        own = {name: getattr(self.rule, name) for name in names}
        rule = {name: _plain(value) for name, value in own.items() if not callable(value)}
        return {"method": self.name, "rule": {"class": type(self.rule).__name__} | rule, "options": options}


def choose(
    method: Any, options: Mapping[str, Any], learner: str, settings: type, constraints: int, general: str = ""
) -> Choice:
    """Check a method and its options.

    Args:
        method: a registered name, or an instance of a rule, also of the user's own class.
        options: options as given; None means not given.
        learner: "exact", "sampled" or "neural".
        settings: the class of the learner's settings.
        constraints: number of constraints.
        general: other arguments of the caller, for messages.
    """
    given = {name: value for name, value in options.items() if value is not None}
    entry = _entry(method, given, learner)
    if _has_variants(method, learner):
        given.pop(SELECTOR[learner], None)  # it has selected the variant
    own = {n: o for n, o in entry.options.items() if o.serves(learner)} if isinstance(method, str) else {}
    shared = _taken(settings, entry)
    known = [*own, *shared]
    for name in given:
        if name not in known:
            _refuse(name, entry, known, learner, general)
    presets = entry.presets.get(learner, {})
    if isinstance(method, str):
        rule = validated(entry.rule, {n: v for n, v in given.items() if n in own}, constraints)
    else:
        rule = revalidated(method, constraints) if is_dataclass(method) else method
    rule = _with_presets(rule, presets)
    wanted = {n: v for n, v in presets.items() if n in options_of(settings)}
    wanted |= {n: v for n, v in given.items() if n in shared and n not in own}
    return Choice(entry, rule, validated(settings, wanted, constraints), given)


def _has_variants(method: Any, learner: str) -> bool:
    return isinstance(method, str) and len([m for m in variants(method) if learner in m.learners]) > 1


def _refuse(name: str, entry: Method, known: list[str], learner: str, general: str) -> None:
    """Raise an error: the option is unknown, or belongs to another variant of the method."""
    others = [m for m in variants(entry.name) if m is not entry and learner in m.learners]
    for other in others:
        if name in other.options:
            raise ValueError(f"option {name!r} of method {entry.name!r} needs {SELECTOR[learner]}={other.steps!r}")
    all_known = dict.fromkeys([*known, *(option for other in others for option in other.options)])
    takes = (
        f"it takes {', '.join([*all_known, *([SELECTOR[learner]] if others else [])])}" if known else "it takes none"
    )
    raise ValueError(f"unknown option {name!r} for method {entry.name!r}; {takes}{general}")


def _entry(method: Any, given: Mapping[str, Any], learner: str) -> Method:
    """The registered method, or its variant, that was asked for."""
    if not isinstance(method, str):
        return _of_instance(method, given, learner)
    found = variants(method)
    usable = [m for m in found if learner in m.learners]
    if not found:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(names(learner))}, or pass a rule")
    if not usable:
        raise ValueError(_elsewhere(f"method {method!r}", found, learner))
    if not _has_variants(method, learner):
        return usable[0]
    fixed = [name for name in FIXED_ONLY if name in given]
    default = next(m.steps for m in usable if m.steps != "fixed")
    selector = SELECTOR[learner]
    steps = given.get(selector, "fixed" if fixed else default)
    if steps not in [m.steps for m in usable]:
        raise ValueError(f"{selector} must be {' or '.join(repr(m.steps) for m in usable)}, got {steps!r}")
    entry = next(m for m in usable if m.steps == steps)
    _refuse_unfit(entry, given, learner, f"pass {selector}='fixed'")
    return entry


def _elsewhere(what: str, found: list[Method], learner: str) -> str:
    """The message for a method that runs with other learners only."""
    others = [other for other in LEARNERS if any(other in entry.learners for entry in found)]
    return (
        f"{what} does not run with the {learner} learner, only with: {', '.join(others)}. "
        f"Choose one of {', '.join(names(learner))}"
    )


def _refuse_unfit(entry: Method, given: Mapping[str, Any], learner: str, instead: str) -> None:
    """Raise an error if an option of fixed steps is given to a method that sets its steps itself."""
    by_learner = SELECTOR[learner] == "steps"
    unfit = [name for name in (*FIXED_ONLY, *(["alpha"] if by_learner else [])) if name in given]
    if entry.steps not in (None, "fixed") and unfit:
        kind = f"{entry.steps} steps" if by_learner else f"{entry.steps} dual steps"
        raise ValueError(f"{kind} set {unfit[0]!r} themselves; leave it out, or {instead}")


def _of_instance(rule: Any, given: Mapping[str, Any], learner: str) -> Method:
    lacking = [name for name in ("start", "propose", "observe") if not callable(getattr(rule, name, None))]
    if isinstance(rule, type) or lacking:
        what = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
        why = (
            "make an instance of it"
            if isinstance(rule, type) and not lacking
            else "a rule has start, propose and observe"
        )
        raise TypeError(f"method must be a name or a rule, not {what}; {why}")
    entry = method_of(rule)
    own = [f.name for f in fields(rule)] if is_dataclass(rule) else []
    twice = [name for name in given if name in own and name not in ("inner_steps",)]
    if twice:
        raise ValueError(f"{twice[0]!r} belongs to the rule: {type(rule).__name__}({twice[0]}=...)")
    if learner not in entry.learners:
        raise ValueError(_elsewhere(f"the rule {type(rule).__name__}", [entry], learner))
    _refuse_unfit(entry, given, learner, "pass a rule with fixed steps")
    return entry


def takes_multipliers(method: Any) -> bool:
    """Whether a method, by name or as a rule, can start from given multipliers; False if there is no such method."""
    found = variants(method) if isinstance(method, str) else [method_of(method)]
    return bool(found) and all(entry.multipliers for entry in found)


def _taken(settings: type, entry: Method) -> list[str]:
    """The learner's settings that a method takes."""
    without = (*entry.sets, *(() if entry.multipliers else ("initial_multipliers",)))
    return [name for name in options_of(settings) if name not in without]


def _with_presets(rule: Any, presets: Mapping[str, Any]) -> Any:
    """The rule with the learner's presets for options that were not given."""
    if not is_dataclass(rule) or isinstance(rule, type):
        return rule
    open_fields = {f.name for f in fields(rule) if getattr(rule, f.name) is None}
    return replace(rule, **{n: v for n, v in presets.items() if n in open_fields and n in options_of(type(rule))})


def _plain(value: Any) -> Any:
    """A value as plain JSON; large arrays as a hash."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    table = np.asarray(getattr(value, "log_pi", value))
    return table.tolist() if table.size <= 100 else digest(table)
