"""Accelerated dual descent with entropy (Ying, Ding and Lavaei 2022): Nesterov's momentum on a smooth dual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import POSITIVE, POSITIVE_EACH, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class Smooth(NamedTuple):
    """The weight τ of the entropy, and the dual step η′ = 1/L for the smoothness L of the dual function."""

    entropy: float
    eta_dual: ConstraintArray


def smooth(view: View, entropy: float | None, eta_dual: float | ConstraintArray | None) -> Smooth:
    """τ and η′, by default from the scales: a hundredth of the objective's, and 2 (1 − γ) τ / (m span(c_i)²)."""
    tau = 0.01 * float(view.known_scales[0]) if entropy is None else entropy
    if eta_dual is None:
        part = 2.0 * tau / float(view.known_scales[0])
        eta_dual = view.dual_step(part / max(1, view.values.size))
    return Smooth(tau, np.asarray(eta_dual, dtype=float))


def soft_optimum(multipliers: ConstraintArray, tau: float) -> Weights:
    """Steps of size 1/τ, the largest that contract, to the optimum of V_0 + Σ λ_i V_i + τ Σ_t γᵗ log π."""
    return Weights(1.0, multipliers, step=1.0 / tau, entropy=tau)


class State(NamedTuple):
    """λ_k, the point μ_k ahead of it whose policy is found next, τ and η′, and k."""

    multipliers: ConstraintArray
    ahead: ConstraintArray
    entropy: float
    eta_dual: ConstraintArray
    done: int = 0


@register(
    "accelerated-npg",
    learners=("exact", "sampled"),
    multipliers=False,
    sets=("step", "alpha"),
    exact={"inner_steps": 20},
    sampled={"inner_steps": 5},
)
@dataclass(frozen=True)
class AcceleratedNPG:
    """The dual of the problem with entropy is smooth: descent with momentum, natural gradients in an inner loop.

        λ_{k+1} = (μ_k + η′ V(π_k))₊,   μ_{k+1} = λ_{k+1} + k/(k + 3) (λ_{k+1} − λ_k)

    with π_k the policy that entropy-regularised natural gradients find for μ_k. Values end at the optimum with entropy,
    which is off by at most τ log|A| / (1 − γ).

    This is the accelerated dual descent of the paper, with its rate of Õ(1/T) for the problem with entropy.
    τ stays what it is, so that the problem without entropy is not reached; η′ follows the model's scale instead of the
    smoothness that the proof bounds, multipliers are projected on λ ≥ 0 only, and inner loops have a fixed length.
    """

    entropy: float | None = option(
        None, POSITIVE, "Weight tau of the entropy; the default is a hundredth of the objective's scale."
    )
    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale and the weight of the entropy."
    )

    def start(self, view: View) -> State:
        zero = np.zeros_like(view.values)
        return State(zero, zero, *smooth(view, self.entropy, self.eta_dual))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        return soft_optimum(state.ahead, state.entropy), state

    def observe(self, state: State, view: View) -> State:
        # λₖ₊₁ = (μₖ + η′ V(π_μ))₊,   μₖ₊₁ = λₖ₊₁ + k/(k + 3) (λₖ₊₁ − λₖ)
        lam = np.maximum(0.0, state.ahead + state.eta_dual * view.values)
        momentum = state.done / (state.done + 3.0)
        ahead = lam + momentum * (lam - state.multipliers)
        return state._replace(multipliers=lam, ahead=ahead, done=state.done + 1)
