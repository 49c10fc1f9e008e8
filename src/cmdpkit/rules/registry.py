"""The registry: which methods there are, and what each of them takes.

A decorator above a rule registers it under the name that users type. Everything else that must know of a method
derives it from here: the options of `solve` and `train`, command-line flags, and the table in docs/methods.md.
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
        name: what users type.
        rule: the rule's class.
        steps: which of several variants of the name this is ("growing" or "fixed"), or None where there is only one.
        learners: that it runs with.
        constrained: False for methods that see no constraints.
        multipliers: whether `initial_multipliers` mean anything to it.
        scale: whose span the default step is measured with: the "objective", or the "largest" of all costs.
        presets: defaults of options that depend on the learner, by learner.
    """

    name: str
    rule: type
    steps: str | None = None
    learners: tuple[str, ...] = LEARNERS
    constrained: bool = True
    multipliers: bool = True
    scale: str = "objective"
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
    **presets: Mapping[str, Any],
) -> Callable[[AnyRule], AnyRule]:
    """Register a rule under `name`; `exact=`, `sampled=` and `neural=` are presets for those learners."""
    unknown = sorted({*presets, *learners} - set(LEARNERS))
    if unknown:
        raise ValueError(f"there is no learner {unknown[0]!r}; there are {', '.join(LEARNERS)}")

    def add(rule: AnyRule) -> AnyRule:
        entry = Method(name, rule, steps, learners, constrained, multipliers, scale, presets)
        others = [m for m in _REGISTERED.get(name, []) if m.steps != steps]
        _REGISTERED[name] = [*others, entry]
        return rule

    return add


def variants(name: str) -> list[Method]:
    """All variants of a method; none when the name is not registered."""
    return list(_REGISTERED.get(name, []))


def methods() -> list[Method]:
    """Every registered method."""
    return [method for entries in _REGISTERED.values() for method in entries]


def names(learner: str) -> list[str]:
    """The names of the methods that run with a learner, the paper's own first."""
    found = {method.name for method in methods() if learner in method.learners}
    return sorted(found, key=lambda name: (name != "pmd-pd", name))


def method_of(rule: Any) -> Method:
    """The method that an instance of a rule belongs to; a rule that is not registered is one of its own."""
    for method in methods():
        if method.rule is type(rule):
            return method
    return Method(type(rule).__name__, type(rule))
