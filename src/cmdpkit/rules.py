"""Primal-dual rules: frozen data and three pure functions each.

`v` holds the constraint values V_1..V_m of a policy (feasible: ≤ 0), `lam` the multipliers. A rule knows nothing of
policies, states or networks: it says with which weights the costs are to be mixed for the next policy improvement,
and how the multipliers move. `eta_dual` may be one number or one per constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Weights(NamedTuple):
    """The mixed cost c̃ = objective · c_0 + Σ constraints_i · c_i, and how many steps to take on it."""

    objective: float
    constraints: Array
    inner_steps: int | None = None  # t_k; None leaves it to the learner
    step: float | None = None  # size of each, or radius of its trust region; None leaves it to the learner


class Rule(Protocol):
    """What the loop needs of a rule."""

    def start(self, v: Array) -> Array: ...
    def weights(self, lam: Array, v: Array) -> Weights: ...
    def update(self, lam: Array, v: Array, v_next: Array) -> Array: ...


@dataclass(frozen=True)
class PMDPD:
    """Policy mirror descent-primal dual (Algorithm 1). Invariants (Lemma 1): λ ≥ 0 and λ + η′ V ≥ 0."""

    eta_dual: float | Array = 1.0
    inner_steps: Callable[[Array], int] | None = None  # t_k as a function of λ_k, for the schedule of Theorem 1

    def start(self, v: Array) -> Array:
        # λ₀ = max(0, −η′ V(π₀))
        return np.maximum(0.0, -self.eta_dual * v)

    def weights(self, lam: Array, v: Array) -> Weights:
        # c̃ₖ = c₀ + Σ (λₖ + η′ V(πₖ)) cᵢ                                        (eq. tilde-c)
        t_k = None if self.inner_steps is None else self.inner_steps(lam)
        return Weights(1.0, lam + self.eta_dual * v, t_k)

    def update(self, lam: Array, v: Array, v_next: Array) -> Array:
        # λₖ₊₁ = max(−η′ V(πₖ₊₁), λₖ + η′ V(πₖ₊₁)): the dual sees the new policy  (eq. dual-update-equation)
        return np.maximum(-self.eta_dual * v_next, lam + self.eta_dual * v_next)


@dataclass(frozen=True)
class NPGPD:
    """Natural policy gradient primal-dual (Ding et al. 2020): projected dual ascent on [0, dual_cap]."""

    eta_dual: float | Array = 1.0
    dual_cap: float = np.inf

    def start(self, v: Array) -> Array:
        # λ₀ = 0
        return np.zeros_like(v)

    def weights(self, lam: Array, v: Array) -> Weights:
        # c₀ + Σ λₖ cᵢ: the plain Lagrangian
        return Weights(1.0, lam)

    def update(self, lam: Array, v: Array, v_next: Array) -> Array:
        # λₖ₊₁ = min(max(λₖ + η′ V(πₖ), 0), cap): the dual sees the policy before the step
        return np.clip(lam + self.eta_dual * v, 0.0, self.dual_cap)


@dataclass(frozen=True)
class CRPO:
    """Constraint-rectified policy optimisation (Xu et al. 2021): no multipliers, one cost at a time.

    A constraint counts as violated while V_i > −tolerance; the most violated one is stepped on (the first of them, if
    `first`), else the objective. `steps` are the sizes of the step with 0, 1, 2, ... constraints violated.
    """

    tolerance: float = 0.0
    first: bool = False
    steps: tuple[float, ...] | None = None

    def start(self, v: Array) -> Array:
        return np.zeros_like(v)

    def weights(self, lam: Array, v: Array) -> Weights:
        violated = v > -self.tolerance
        step = None if self.steps is None else self.steps[min(int(violated.sum()), len(self.steps) - 1)]
        if not violated.any():
            return Weights(1.0, np.zeros_like(v), step=step)
        return Weights(0.0, np.eye(v.size)[violated.argmax() if self.first else v.argmax()], step=step)

    def update(self, lam: Array, v: Array, v_next: Array) -> Array:
        return lam


@dataclass(frozen=True)
class NPG:
    """Natural policy gradient on the objective alone (Agarwal et al. 2021): constraints are not seen."""

    def start(self, v: Array) -> Array:
        return np.zeros_like(v)

    def weights(self, lam: Array, v: Array) -> Weights:
        return Weights(1.0, lam)

    def update(self, lam: Array, v: Array, v_next: Array) -> Array:
        return lam
