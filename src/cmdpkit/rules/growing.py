"""PMD-PD without tuning: both steps grow geometrically, and the dual step is taken implicitly.

Algorithm 1 mixes the costs with λ + η′V, where V is known of the policy before the step. A large η′ needs to know
more: how V responds to the step. To first order that is known, because a policy π′ near π has

    V_i(π′) ≈ V_i(π) + Σ_s x(s) Σ_a π′(a|s) A_i(s, a)          (x: discounted state visits, A_i: advantages of π)

and the mirror step for the weights w is π_w ∝ π exp(−step · (A_0 + Σ w_i A_i)). So the dual update, in which the dual
sees the new policy, λ⁺ = max(0, λ + η′ V(π⁺)), can be solved for λ⁺ before the new policy is evaluated, and λ⁺ itself
is the weights of its step. (The paper's max(−η′V, ·) keeps its weights λ + η′V non-negative; these are so anyway.) The
solution is the maximum over w ≥ 0 of a concave function of m numbers,

    Ψ(w) = Σ w_i V_i − (1/step) Σ_s x(s) log Σ_a π(a|s) exp(−step (A_0 + Σ w_i A_i)(s, a)) − Σ (w_i − λ_i)² / (2 η′_i),

found by Newton's method without any evaluation. Its Hessian is −(step · G + 1/η′), with the Fisher metric of the
policy seen through the constraints, G_ij = Σ_s x(s) Cov_{a~π_w}(A_i, A_j): Newton's steps are dual steps whose size is
the matrix (step · G + 1/η′)⁻¹. Both steps triple at every macro step. For a given w, π_w improves on π with any step;
what is left of the error is of second order in the change of the visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.least_squares import nonnegative_least_squares
from cmdpkit.options import ABOVE_ONE, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register

GROWTH = 3.0
"""Factor by which both steps grow at every macro step (measured: docs/decisions.md)."""

LARGEST_STEP = 1e10
"""In units of (1 − γ) / span(c_0): beyond, rounding in the advantages would move probabilities."""

ARRIVED = 1e-10
"""At this distance from the optimum, relative to the largest value, steps need not grow any more."""

INEXACT, ROUGHEST = 1e-2, 1e-3
"""Evaluations may have this part of the distance from optimality as their error, and no more than the second."""

ROUNDING = 1e-12
"""Added to the Hessian, relative to its diagonal: in the limit it has no more rank than randomised states."""

NEWTON_STEPS = 100
"""At most; four to ten are usual, more with many constraints that cannot be met together."""


class State(NamedTuple):
    """λ_k, both steps, the accuracy that evaluations need, and the distance from the optimality conditions."""

    multipliers: Array
    step: float
    eta_dual: Array
    accuracy: float = 0.0
    distance: float = np.inf  # in units of V_0


@register("pmd-pd", steps="growing", learners=("exact",), exact={"floor": -700.0})
@dataclass(frozen=True)
class GrowingPMDPD:
    """PMD-PD with growing steps and an implicit dual: the default, without anything to tune."""

    growth: float = option(GROWTH, ABOVE_ONE, "Factor by which both steps grow at every macro step.")

    def start(self, view: View) -> State:
        # The first dual step moves λ_i by its unit, span(c_0)/span(c_i), where V_i is as large as possible
        return State(np.zeros(view.values.size), 1.0 / view.known_scales[0], view.dual_step(1.0))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        lam = state.multipliers
        if lam.size:
            lam = ImplicitDual(view, state.step, lam, state.eta_dual).maximise()
        return Weights(1.0, lam, step=state.step, accuracy=state.accuracy), state._replace(multipliers=lam)

    def observe(self, state: State, view: View) -> State:
        unit = 1.0 / view.known_scales[0]
        distance = kkt_residual(view, state.multipliers)
        accuracy = min(ROUGHEST, INEXACT * distance * (1.0 - view.gamma) * unit)
        state = state._replace(distance=distance, accuracy=accuracy)
        largest = unit * max(1.0, LARGEST_STEP * (1.0 - view.gamma))
        if state.step < largest and distance > ARRIVED * view.known_scales[0] / (1.0 - view.gamma):
            state = state._replace(step=self.growth * state.step, eta_dual=self.growth * state.eta_dual)
        return state


def kkt_residual(view: View, lam: Array) -> float:
    """How far (π, λ) is from the optimality conditions, in units of the objective.

    Greedy improvement left in the Lagrangian, plus complementarity Σ λ_i |V_i|, plus violation.
    """
    scales, v = view.known_scales, view.values
    violation = float(scales[0] * (np.maximum(v, 0.0) / scales[1:]).sum())
    return view.greedy_gain(lam) + float(np.abs(lam * v).sum()) + violation


class ImplicitDual:
    """Ψ(w), and w ≥ 0 that maximises it. Prices u = w / unit and values are scaled to the objective's unit."""

    def __init__(self, view: View, step: float, lam: Array, eta_dual: Array) -> None:
        self.view, self.step, self.units = view, step, view.units
        self.values = self.units * view.values
        self.start = lam / self.units
        self.stiffness = self.units**2 / eta_dual  # 1/η′, scaled

    def maximise(self) -> Array:
        """Newton's method, safeguarded as by Levenberg and Marquardt, with w ≥ 0 kept by a small quadratic program."""
        u, damping = self.start, 0.0
        response = self.view.response(u, self.step)
        value = self._value(u, response.soft_minimum)
        slope, hessian = self._slopes(u, response.values, response.gram)
        negligible = 1e-12 * np.abs(self.values).max()
        for _ in range(NEWTON_STEPS):
            if np.where(u > 0.0, np.abs(slope), slope).max() <= negligible:
                break
            new = _maximum_of_quadratic(u, slope, hessian + (damping + ROUNDING) * np.diag(np.diag(hessian)))
            move = new - u
            promised = slope @ move - 0.5 * move @ hessian @ move
            response = self.view.response(new, self.step)
            new_value = self._value(new, response.soft_minimum)
            if new_value - value >= 1e-4 * promised - 1e-14 * abs(value):
                if new_value - value >= 0.5 * promised:
                    damping = 0.1 * damping if damping > 1e-6 else 0.0
                u, value = new, new_value
                slope, hessian = self._slopes(u, response.values, response.gram)
                if np.abs(move).max() <= 1e-14 * max(1.0, u.max()):
                    break
            else:
                damping = max(10.0 * damping, 1e-3)
        return np.asarray(u * self.units)

    def _value(self, u: Array, soft_minimum: float) -> float:
        """Ψ, up to a constant."""
        return float(u @ self.values + soft_minimum - 0.5 * self.stiffness @ (u - self.start) ** 2)

    def _slopes(self, u: Array, predicted: Array, gram: Array) -> tuple[Array, Array]:
        """∇Ψ = V(π_w) − (w − λ)/η′, with V as predicted, and −∇²Ψ = step · G + 1/η′."""
        slope = predicted - self.stiffness * (u - self.start)
        return slope, self.step * gram + np.diag(self.stiffness)


def _maximum_of_quadratic(u: Array, slope: Array, hessian: Array) -> Array:
    """argmax over u⁺ ≥ 0 of slope·(u⁺ − u) − ½ (u⁺ − u)ᵀ hessian (u⁺ − u), as non-negative least squares."""
    free = u + np.linalg.solve(hessian, slope)
    if free.min() >= 0.0:
        return np.asarray(free)
    sizes = np.sqrt(np.diag(hessian))
    root = np.asarray(np.linalg.cholesky(hessian / np.outer(sizes, sizes)).T, dtype=float)
    target = np.linalg.solve(root.T, (hessian @ u + slope) / sizes)
    return nonnegative_least_squares(root, np.asarray(target, dtype=float)) / sizes
