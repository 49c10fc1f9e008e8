"""Rules of the user's own: what they return is checked, so that a mistake is reported where it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import as_floats
from cmdpkit.rules.base import Rule, View, Weights


def checked(rule: Rule) -> Rule:
    """The rule, with checks of what it returns unless it belongs to the package, whose rules are tested."""
    return rule if type(rule).__module__.partition(".")[0] == "cmdpkit" else Checked(rule)


@dataclass(frozen=True)
class Checked:
    """A rule whose weights and multipliers must be finite numbers, one per constraint."""

    rule: Rule

    def start(self, view: View) -> Any:
        return self._state(self.rule.start(view), view, "start")

    def propose(self, state: Any, view: View) -> tuple[Weights, Any]:
        answer: Any = self.rule.propose(state, view)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Weights):
            raise TypeError(f"{self._name('propose')} must return a pair, Weights and the state, not {answer!r}")
        weights, state = answer
        self._numbers(weights.objective, (), "propose", "the weight of the objective")
        self._numbers(weights.constraints, view.values.shape, "propose", "the weights of the constraints")
        return weights, self._state(state, view, "propose")

    def observe(self, state: Any, view: View) -> Any:
        return self._state(self.rule.observe(state, view), view, "observe")

    def _state(self, state: Any, view: View, function: str) -> Any:
        if not hasattr(state, "multipliers"):
            raise TypeError(f"{self._name(function)} must return a state with a field 'multipliers', not {state!r}")
        self._numbers(state.multipliers, view.values.shape, function, "multipliers")
        return state

    def _numbers(self, values: Any, shape: tuple[int, ...], function: str, what: str) -> None:
        place = f"{self._name(function)} returned {what}"
        numbers = as_floats(values, what)
        if numbers.shape != shape:
            raise ValueError(f"{place} of shape {numbers.shape}; shape {shape} is needed")
        if not np.isfinite(numbers).all():
            raise ValueError(f"{place} with an entry that is not finite: {numbers}")

    def _name(self, function: str) -> str:
        return f"{type(self.rule).__name__}.{function}"
