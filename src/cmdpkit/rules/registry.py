"""The registry of methods and their options.

A decorator registers a rule under the name that users type. The options of `solve` and `train`, the command-line flags
and docs/methods.md are derived from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cmdpkit.options import Option, options_of

LEARNERS = ("exact", "sampled", "neural")

AnyRule = TypeVar("AnyRule", bound=type)


@dataclass(frozen=True)
class Method:
    """A registered method.

    Attributes:
        name: the name that users type.
        rule: the class of the rule.
        steps: the variant ("growing" or "fixed") if several share the name, or None.
        learners: learners that it runs with.
        constrained: False for methods that ignore constraints.
        multipliers: whether it takes `initial_multipliers`.
        scale: the cost whose span sets the default step: the "objective", or the "largest" of all.
        sets: the learner's settings that it sets itself, which are not options.
        presets: per learner, defaults that differ from the declared ones.
    """

    name: str
    rule: type
    steps: str | None = None
    learners: tuple[str, ...] = LEARNERS
    constrained: bool = True
    multipliers: bool = True
    scale: str = "objective"
    sets: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Option]:
        """The rule's own options, by name."""
        return options_of(self.rule)


_REGISTERED: dict[str, list[Method]] = {}


def register(
    name: str,
    *,
    steps: str | None = None,
    learners: tuple[str, ...] = LEARNERS,
    constrained: bool = True,
    multipliers: bool = True,
    scale: str = "objective",
    sets: tuple[str, ...] = (),
    **presets: Mapping[str, Any],
) -> Callable[[AnyRule], AnyRule]:
    """Register a rule under `name`; `exact=`, `sampled=` and `neural=` are presets for these learners."""
    unknown = sorted({*presets, *learners} - set(LEARNERS))
    if unknown:
        raise ValueError(f"there is no learner {unknown[0]!r}; choose from {', '.join(LEARNERS)}")

    def add(rule: AnyRule) -> AnyRule:
        entry = Method(name, rule, steps, learners, constrained, multipliers, scale, sets, presets)
        others = [m for m in _REGISTERED.get(name, []) if m.steps != steps or not {*m.learners} & {*learners}]
        _REGISTERED[name] = [*others, entry]
        return rule

    return add


def variants(name: str) -> list[Method]:
    """All variants of a method; an empty list if the name is not registered."""
    return list(_REGISTERED.get(name, []))


def methods() -> list[Method]:
    """Every registered method."""
    return [method for entries in _REGISTERED.values() for method in entries]


def names(learner: str) -> list[str]:
    """The names of the methods that run with a learner, "pmd-pd" first."""
    found = {method.name for method in methods() if learner in method.learners}
    return sorted(found, key=lambda name: (name != "pmd-pd", name))


def method_of(rule: Any) -> Method:
    """The method of an instance of a rule; a rule that is not registered is a method of its own.

    Of several methods with the same rule it is the one with the declared defaults: `NPG()` is "npg", not "pg".
    """
    found = [method for method in methods() if method.rule is type(rule)]
    return min(found, key=lambda method: len(method.presets), default=Method(type(rule).__name__, type(rule)))
