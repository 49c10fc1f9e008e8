"""AR-CPO (Li et al. 2021): accelerated and regularised, by averages of the multipliers on a smooth dual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import CAP, POSITIVE, POSITIVE_EACH, option
from cmdpkit.rules.accelerated_npg import smooth, soft_optimum
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class State(NamedTuple):
    """The average λ̄_k, the point λ_k that gradients move, τ and η′, the cap, and k."""

    multipliers: ConstraintArray
    moved: ConstraintArray
    entropy: float
    eta_dual: ConstraintArray
    dual_cap: float
    done: int = 1


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
    """Accelerated dual descent with entropy, in three sequences: gradients at λ̲_k move λ_k, whose average is λ̄_k.

    The steps on λ_k grow with k. Values end at the optimum with entropy, which is off by at most τ log|A| / (1 − γ).
    """

    entropy: float | None = option(
        None, POSITIVE, "Weight tau of the entropy; the default is a hundredth of the objective's scale."
    )
    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale and the weight of the entropy."
    )
    dual_cap: float | None = option(
        None, CAP, "Largest multiplier; by default 2 / ((1 - gamma) xi) if the Slater margin xi is known."
    )

    def start(self, view: View) -> State:
        zero, cap = np.zeros_like(view.values), view.multiplier_bound() if self.dual_cap is None else self.dual_cap
        return State(zero, zero, *smooth(view, self.entropy, self.eta_dual), cap)

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        weight = 2.0 / (state.done + 1.0)
        # λ̲ₖ = (1 − αₖ) λ̄ₖ₋₁ + αₖ λₖ₋₁,   αₖ = 2/(k + 1)
        return soft_optimum((1.0 - weight) * state.multipliers + weight * state.moved, state.entropy), state

    def observe(self, state: State, view: View) -> State:
        weight, step = 2.0 / (state.done + 1.0), 0.5 * state.done * state.eta_dual
        # λₖ = P(λₖ₋₁ + (k/2) η′ V(πₖ)),   λ̄ₖ = (1 − αₖ) λ̄ₖ₋₁ + αₖ λₖ
        moved = np.clip(state.moved + step * view.values, 0.0, state.dual_cap)
        average = (1.0 - weight) * state.multipliers + weight * moved
        return state._replace(multipliers=average, moved=moved, done=state.done + 1)
