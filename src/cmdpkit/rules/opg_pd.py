"""OPG-PD (Ding et al. 2023): optimistic gradients of policy and multipliers, whose last iterate converges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import CAP, POSITIVE_EACH, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class State(NamedTuple):
    """λ_k and λ̂_k, the dual step and cap in use, and the values of the policy before the improvement."""

    multipliers: ConstraintArray
    centre: ConstraintArray
    eta_dual: ConstraintArray
    dual_cap: float
    before: ConstraintArray


@register("opg-pd", learners=("exact", "sampled"), multipliers=False, sets=("alpha", "inner_steps"))
@dataclass(frozen=True)
class OPGPD:
    """Optimistic policy gradient primal-dual: each gradient is used twice, and the iterates do not oscillate.

    Second sequences π̂ and λ̂ take projected gradient steps, and π and λ are one more step ahead with the same gradient:

        π̂ ← P(π̂ − step · Q_k),   π_{k+1} = P(π̂ − step · Q_k),   λ̂ ← P(λ̂ + η′ V_k),   λ_{k+1} = P(λ̂ + η′ V_k)

    with Q_k and V_k of π_k and λ_k, and P the Euclidean projection on probabilities and on [0, dual_cap].

    This is the paper's equation (9), for several limits, with its two lines in the other order. It proves a linear rate
    of the last iterate for one small step η in place of both `step` and η′, which follow the model's scale here.
    """

    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale."
    )
    dual_cap: float | None = option(
        None, CAP, "Largest multiplier; by default 2 / ((1 - gamma) xi) if the Slater margin xi is known."
    )

    def start(self, view: View) -> State:
        eta_dual = np.asarray(view.dual_step(1.0) if self.eta_dual is None else self.eta_dual, dtype=float)
        cap = view.multiplier_bound() if self.dual_cap is None else self.dual_cap
        zero = np.zeros_like(view.values)
        return State(zero, zero, eta_dual, cap, view.values)

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        # c₀ + Σ λₖ cᵢ
        return Weights(1.0, state.multipliers, inner_steps=1, optimistic=True), state._replace(before=view.values)

    def observe(self, state: State, view: View) -> State:
        move = state.eta_dual * state.before
        # λ̂ ← P(λ̂ + η′ V(πₖ)),   λₖ₊₁ = P(λ̂ + η′ V(πₖ))
        centre = np.clip(state.centre + move, 0.0, state.dual_cap)
        return state._replace(multipliers=np.clip(centre + move, 0.0, state.dual_cap), centre=centre)
