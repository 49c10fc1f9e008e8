"""FOCOPS (Zhang, Vuong and Ross 2020): first-order constrained optimisation in policy space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import CAP, POSITIVE_EACH, option
from cmdpkit.rules.base import State, View, Weights
from cmdpkit.rules.registry import register


@register("focops", learners=("neural",), multipliers=False, sets=("surrogate",), neural={"surrogate": "penalty"})
@dataclass(frozen=True)
class FOCOPS:
    """The best policy of every state is known up to its normaliser, and the network follows it by plain gradients.

    The multipliers ν are in units of the deviations of the advantages, and move before the policy does:

        ν ← P(ν + η′ V(π_k)),   minimise the mean of KL(π_θ ‖ π_k) + (ρ/λ)(A_0 + Σ ν_i A_i) where KL ≤ δ

    with ρ = π_θ/π_k, A_0 the advantage of −reward, and temperature λ and radius δ of the learner. This is Algorithm 1
    of the paper, with its η′ = 0.01, ν at most 2 and λ = 1.5. The sum of advantages is standardised as a whole, a step
    that ends beyond the radius is shortened to it, and limits are on the measure of the run.
    """

    eta_dual: float | ConstraintArray = option(0.01, POSITIVE_EACH, "Dual step, per unit of violation.")
    dual_cap: float = option(2.0, CAP, "Largest multiplier, in units of the deviations of the advantages.")

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        # ν ← P(ν + η′ V(πₖ))
        nu = np.clip(state.multipliers + self.eta_dual * view.values, 0.0, self.dual_cap)
        sizes = view.deviations
        # Â_0/σ_0 + Σ νᵢ Âᵢ/σᵢ, times σ_0 (where Â_0 varies)
        scale = sizes[0] if sizes[0] > 0.0 else 1.0
        units = np.divide(scale, sizes[1:], out=np.zeros_like(nu), where=sizes[1:] > 0.0)
        return Weights(1.0, nu * units), State(nu)

    def observe(self, state: State, view: View) -> State:
        return state
