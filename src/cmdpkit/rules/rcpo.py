"""RCPO (Tessler, Mankowitz and Mannor 2019): the costs as a penalty of the reward; TRPO-Lagrangian in `train`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import CAP, POSITIVE_EACH, option
from cmdpkit.rules.base import State, View, Weights
from cmdpkit.rules.registry import register


@register("rcpo", neural={"eta_dual": 5e-4})
@dataclass(frozen=True)
class RCPO:
    """Reward constrained policy optimisation: slow projected ascent of the multipliers on the values just measured.

        λ ← P(λ + η′ V(π_{k+1})),   P the projection on [0, dual_cap]

    The policy is improved for the reward r − Σ λ_i c_i. The paper has one critic of this penalised reward, and step
    sizes that fall on three time scales; here every cost has its own critic, and η′ is fixed. With the trust region of
    `train` it is TRPO-Lagrangian (Ray, Achiam and Amodei 2019), with the surrogate "clip" PPO-Lagrangian.
    """

    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale."
    )
    dual_cap: float = option(1e6, CAP, "Largest multiplier.")

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        # r − Σ λᵢ cᵢ
        return Weights(1.0, state.multipliers), state

    def observe(self, state: State, view: View) -> State:
        eta_dual = view.dual_step(1.0) if self.eta_dual is None else self.eta_dual
        # λ ← P(λ + η′ V(πₖ₊₁))
        return State(np.clip(state.multipliers + eta_dual * view.values, 0.0, self.dual_cap))
