"""PCPO (Yang et al. 2020): a step on the objective, then the projection on the limits in the metric of the policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmdpkit.rules.base import State, View, Weights
from cmdpkit.rules.cpo import CONSTANT, Linearised
from cmdpkit.rules.registry import register


@register("pcpo", learners=("neural",), multipliers=False, sets=("surrogate",))
@dataclass(frozen=True)
class PCPO:
    """Projection-based constrained policy optimisation, with the projection by the KL divergence.

    Both steps are one here, −F⁻¹(t g_0 + Σ ν_i g_i): t = √(2δ/g_0ᵀF⁻¹g_0) leads to the boundary of the trust region,
    and ν is that of the nearest policy within the limits, to first order: for one limit the paper's

        ν = (V/length − t g_0ᵀF⁻¹g_1)₊ / g_1ᵀF⁻¹g_1

    and for several a quadratic program. Unlike in the paper, a line search follows: a step that is longer than the
    radius allows, or after which the samples predict that a limit is exceeded by more than before, is shortened.
    """

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        local = Linearised.of(view)
        size = local.products[0, 0]
        # t = √(2δ / g_0ᵀF⁻¹g_0); an objective that does not vary leaves the projection alone
        t = float(np.sqrt(2.0 * local.radius / size)) if size > CONSTANT else 0.0
        weights = local.weights(np.append(t, local.nearest(t)), np.maximum(0.0, -view.values))
        return weights, State(weights.constraints)

    def observe(self, state: State, view: View) -> State:
        return state
