"""NPG-PD (Ding et al. 2020): natural policy gradient with projected dual ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import CAP, POSITIVE_EACH, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class State(NamedTuple):
    """λ_k, the dual step and cap in use, and the values of the policy before the improvement."""

    multipliers: ConstraintArray
    eta_dual: ConstraintArray
    dual_cap: float
    before: ConstraintArray


@register("npg-pd", neural={"eta_dual": 5e-4})
@dataclass(frozen=True)
class NPGPD:
    """Natural policy gradient primal-dual: projected dual ascent on [0, dual_cap]."""

    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale."
    )
    dual_cap: float | None = option(
        None, CAP, "Largest multiplier; by default 2 / ((1 - gamma) xi) if the Slater margin xi is known."
    )

    def start(self, view: View) -> State:
        eta_dual = np.asarray(view.dual_step(3.0) if self.eta_dual is None else self.eta_dual, dtype=float)
        cap = view.multiplier_bound() if self.dual_cap is None else self.dual_cap
        # λ₀ = 0
        return State(np.zeros_like(view.values), eta_dual, cap, view.values)

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        # c₀ + Σ λₖ cᵢ: the plain Lagrangian
        return Weights(1.0, state.multipliers), state._replace(before=view.values)

    def observe(self, state: State, view: View) -> State:
        # λₖ₊₁ = min(max(λₖ + η′ V(πₖ), 0), cap): the dual sees the policy before the step
        lam = np.clip(state.multipliers + state.eta_dual * state.before, 0.0, state.dual_cap)
        return state._replace(multipliers=lam)
