"""An augmented Lagrangian (Hestenes 1969, Rockafellar 1973; for policies Dai et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import POSITIVE_EACH, option
from cmdpkit.rules.base import State, View, Weights
from cmdpkit.rules.registry import register


@register("augmented-lagrangian", neural={"penalty": 5e-3, "eta_dual": 5e-4, "inner_steps": 2})
@dataclass(frozen=True)
class AugmentedLagrangian:
    """Descent on V_0 + (1/2ρ) Σ ((λ_i + ρ V_i)₊² − λ_i²), whose gradient mixes the costs with (λ_i + ρ V_i)₊.

    The classical method minimises it before every dual step η′ = ρ. Here the dual moves after every improvement, by a
    step η′ that is smaller than the penalty ρ.
    """

    penalty: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Weight of the quadratic penalty; the default follows the model's scale."
    )
    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale."
    )

    def start(self, view: View) -> State:
        # λ₀ = 0
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        penalty = view.dual_step(6.0) if self.penalty is None else self.penalty
        # c₀ + Σ (λᵢ + ρ Vᵢ)₊ cᵢ
        return Weights(1.0, np.maximum(0.0, state.multipliers + penalty * view.values)), state

    def observe(self, state: State, view: View) -> State:
        eta_dual = view.dual_step(1.0) if self.eta_dual is None else self.eta_dual
        # λ ← (λ + η′ V)₊
        return State(np.maximum(0.0, state.multipliers + eta_dual * view.values))
