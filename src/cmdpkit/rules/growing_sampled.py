"""PMD-PD from samples without tuning: the implicit dual, and steps that grow as far as the estimates can be trusted.

The dual step is that of the exact default (implicit_dual.py), under the local model that samples give: estimates of
V_0..V_m, of the visits, and of all Q_i at once. Both steps grow geometrically until

    step · noise ≤ 1,

where `noise` is the standard error of Q̃ = Q_0 + Σ λ_i Q_i, averaged over the visited states: a mirror step multiplies
π by exp(−step · Q̃), so that beyond this errors would move probabilities as much as the costs do. Where transitions are
pooled the noise falls with every draw, and the steps go on growing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import ABOVE_ONE, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.growing import LARGEST_STEP
from cmdpkit.rules.implicit_dual import ImplicitDual
from cmdpkit.rules.registry import register

GROWTH = 3.0
"""Factor by which both steps grow (measured: docs/decisions.md)."""


class State(NamedTuple):
    """λ_k, and both steps."""

    multipliers: ConstraintArray
    step: float
    eta_dual: ConstraintArray


@register("pmd-pd", steps="growing", learners=("sampled",))
@dataclass(frozen=True)
class SampledPMDPD:
    """PMD-PD with an implicit dual, and steps that grow as far as the noise of the estimates allows."""

    growth: float = option(GROWTH, ABOVE_ONE, "Factor by which both steps grow at every macro step, at most.")

    def start(self, view: View) -> State:
        return State(np.zeros(view.values.size), 1.0 / view.known_scales[0], view.dual_step(1.0))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        if state.multipliers.size:
            lam = ImplicitDual(view, state.step, state.multipliers, state.eta_dual).maximise()
            state = state._replace(multipliers=lam)
        return Weights(1.0, state.multipliers, step=state.step), state

    def observe(self, state: State, view: View) -> State:
        unit = 1.0 / view.known_scales[0]
        largest = min(
            1.0 / max(view.noise(state.multipliers), 1e-300), unit * max(1.0, LARGEST_STEP * (1.0 - view.gamma))
        )
        factor = min(self.growth, largest / state.step)
        return state._replace(step=factor * state.step, eta_dual=factor * state.eta_dual)
