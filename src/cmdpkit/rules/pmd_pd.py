"""PMD-PD (Algorithm 1 of the paper), with fixed steps or with the schedule of Theorem 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import POSITIVE_EACH, choice, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class State(NamedTuple):
    """λ_k, and the dual step in use."""

    multipliers: ConstraintArray
    eta_dual: ConstraintArray


@register("pmd-pd", steps="fixed", neural={"eta_dual": 5e-4, "inner_steps": 2})
@dataclass(frozen=True)
class PMDPD:
    """Policy mirror descent-primal dual (Algorithm 1). Invariants (Lemma 1): λ ≥ 0 and λ + η′ V ≥ 0."""

    eta_dual: float | ConstraintArray | None = option(
        None, POSITIVE_EACH, "Dual step; the default follows the model's scale."
    )
    schedule: str | None = option(
        None,
        choice("theory", "paper"),
        "Use the parameters of the theorems, as corrected or as the paper prints them.",
        learners=("exact",),
    )
    inner_steps: Callable[[ConstraintArray], int] | None = None  # t_k as a function of λ_k: Theorem 1

    def start(self, view: View) -> State:
        eta_dual = np.asarray(view.dual_step(3.0) if self.eta_dual is None else self.eta_dual, dtype=float)
        # λ₀ = max(0, −η′ V(π₀))
        return State(np.maximum(0.0, -eta_dual * view.values), eta_dual)

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        t_k = None if self.inner_steps is None else self.inner_steps(state.multipliers)
        # c̃ₖ = c₀ + Σ (λₖ + η′ V(πₖ)) cᵢ                                        (eq. tilde-c)
        return Weights(1.0, state.multipliers + state.eta_dual * view.values, t_k), state

    def observe(self, state: State, view: View) -> State:
        eta_dual, v = state.eta_dual, view.values
        # λₖ₊₁ = max(−η′ V(πₖ₊₁), λₖ + η′ V(πₖ₊₁)): the dual sees the new policy  (eq. dual-update-equation)
        return state._replace(multipliers=np.maximum(-eta_dual * v, state.multipliers + eta_dual * v))
