"""Policy gradient without constraints, natural or plain, with or without entropy (Agarwal 2021, Cen 2021, et al.)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmdpkit.rules.base import State, View, Weights
from cmdpkit.rules.registry import register


@register("npg", constrained=False, multipliers=False, learners=("exact",))
@register("pg", constrained=False, multipliers=False, learners=("exact",), exact={"natural": False})
@register("npg-entropy", constrained=False, multipliers=False, learners=("exact",), exact={"entropy": True})
@register(
    "pg-entropy", constrained=False, multipliers=False, learners=("exact",), exact={"natural": False, "entropy": True}
)
@dataclass(frozen=True)
class NPG:
    """Steps on the objective alone; constraints are ignored. The learner's settings select the kind of gradient."""

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        return Weights(1.0, state.multipliers), state

    def observe(self, state: State, view: View) -> State:
        return state
