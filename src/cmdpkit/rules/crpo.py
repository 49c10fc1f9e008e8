"""CRPO (Xu et al. 2021): constraint-rectified policy optimisation, without multipliers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmdpkit.options import FLAG, NUMBER, SIZES, option
from cmdpkit.rules.base import State, View, Weights
from cmdpkit.rules.registry import register


@register("crpo", multipliers=False, scale="largest")
@dataclass(frozen=True)
class CRPO:
    """Constraint-rectified policy optimisation: one cost at a time.

    A constraint counts as violated while V_i > −tolerance. Each step is on the most violated constraint (the first
    violated one, if `first`), or on the objective if none is violated.
    """

    tolerance: float = option(0.0, NUMBER, "Safety margin: a limit counts as violated while V_i > -tolerance.")
    first: bool = option(False, FLAG, "Step on the first violated limit instead of the most violated one.")
    radii: tuple[float, ...] | None = option(
        None, SIZES, "Largest mean KL divergence of a step with 0, 1, 2, ... limits violated."
    )

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        v = view.values
        violated = v > -self.tolerance
        radius = None if self.radii is None else self.radii[min(int(violated.sum()), len(self.radii) - 1)]
        if not violated.any():
            return Weights(1.0, np.zeros_like(v), radius=radius), state
        return Weights(0.0, np.eye(v.size)[violated.argmax() if self.first else v.argmax()], radius=radius), state

    def observe(self, state: State, view: View) -> State:
        return state
