"""AR-CPO (Li et al. 2021): entropy, a quadratic term in the multipliers, and Nesterov's gradients on their dual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import CAP, NONNEGATIVE_EACH, POSITIVE, POSITIVE_EACH, option
from cmdpkit.rules.accelerated_npg import smooth, soft_optimum
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class State(NamedTuple):
    """λ̄_k, the λ_k that gradients move, τ, η′, μ, κ, the cap, and α_{k+1}."""

    multipliers: ConstraintArray
    moved: ConstraintArray
    entropy: float
    eta_dual: ConstraintArray
    dual_weight: ConstraintArray
    concavity: float
    dual_cap: float
    share: float = 1.0


@register(
    "ar-cpo",
    learners=("exact", "sampled"),
    multipliers=False,
    sets=("step", "alpha"),
    exact={"inner_steps": 20},
    sampled={"inner_steps": 5},
)
@dataclass(frozen=True)
class ARCPO:
    """Accelerated ascent of the dual min_π (V_0 + Σ λ_i V_i + τ Σ_t γᵗ log π) − ½ Σ μ_i λ_i².

    Entropy makes it smooth and the quadratic term strongly concave, so that the last policy converges. Natural
    gradients find the policy π_k of λ̲_k; its values move λ_k, whose averages are λ̄_k:

        λ̲_k = ((1 − α_k) λ̄_{k−1} + (α_k − κ) λ_{k−1}) / (1 − κ)
        λ_k = P((1 − κ/α_k) λ_{k−1} + η′/α_k · V(π_k)),   λ̄_k = (1 − α_k) λ̄_{k−1} + α_k λ_k

    with κ = μ η′, η′ = 1/(L + μ) for a dual of smoothness L, and P the projection on [0, dual_cap]. Both terms are felt
    in the end: the objective is off by at most τ log|A| / (1 − γ), and V_i = μ_i λ_i > 0 where a limit binds.

    Entropy, quadratic term and acceleration are those of the paper, which proves O(log²(T)/T) in T natural gradient
    steps for τ and μ of the size of the error. The scheme of acceleration is Nesterov's, whose α_k falls from 1 to √κ;
    default steps and weights follow the model's scale instead of the constants of the proof.
    """

    entropy: float | None = option(
        None, POSITIVE, "Weight tau of the entropy; the default is a hundredth of the objective's scale."
    )
    dual_weight: float | ConstraintArray | None = option(
        None,
        NONNEGATIVE_EACH,
        "Weight mu of half the squared multipliers; the default is that of the entropy, in units of the multipliers.",
    )
    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale and the weight of the entropy."
    )
    dual_cap: float | None = option(
        None, CAP, "Largest multiplier; by default 2 / ((1 - gamma) xi) if the Slater margin xi is known."
    )

    def start(self, view: View) -> State:
        zero, cap = np.zeros_like(view.values), view.multiplier_bound() if self.dual_cap is None else self.dual_cap
        tau, eta_dual = smooth(view, self.entropy, self.eta_dual)
        mu = tau / view.units**2 if self.dual_weight is None else zero + self.dual_weight
        # 1/L in each multiplier becomes 1/(L + μ)
        eta_dual = (zero + eta_dual) / (1.0 + (mu * eta_dual).max(initial=0.0))
        return State(zero, zero, tau, eta_dual, mu, float((mu * eta_dual).min(initial=1.0)), cap)

    def _ahead(self, state: State) -> ConstraintArray:
        # λ̲ₖ = ((1 − αₖ) λ̄ₖ₋₁ + (αₖ − κ) λₖ₋₁) / (1 − κ)
        alpha, kappa = state.share, state.concavity
        if kappa == 1.0:  # by rounding, with a weight so large that α = 1 as well
            return state.moved
        return np.asarray(((1.0 - alpha) * state.multipliers + (alpha - kappa) * state.moved) / (1.0 - kappa))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        return soft_optimum(self._ahead(state), state.entropy), state

    def observe(self, state: State, view: View) -> State:
        alpha, kappa, eta_dual = state.share, state.concavity, state.eta_dual
        # the gradient V(πₖ) − μ λ̲ₖ, of which −κ λ̲ₖ/η′ cancels; nothing else is left if all μ η′ are the same
        rest = (kappa - eta_dual * state.dual_weight) * self._ahead(state)
        # λₖ = P((1 − κ/αₖ) λₖ₋₁ + η′/αₖ V(πₖ))
        moved = (1.0 - kappa / alpha) * state.moved + (rest + eta_dual * view.values) / alpha
        moved = np.clip(moved, 0.0, state.dual_cap)
        # λ̄ₖ = (1 − αₖ) λ̄ₖ₋₁ + αₖ λₖ
        average = (1.0 - alpha) * state.multipliers + alpha * moved
        # α = αₖ₊₁ is the positive root of α² = (1 − α) αₖ² + κ α
        half = 0.5 * (kappa - alpha**2)
        return state._replace(multipliers=average, moved=moved, share=float(half + np.hypot(half, alpha)))
