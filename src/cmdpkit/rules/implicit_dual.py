"""The implicit dual step: multipliers that already agree with the policy that they lead to.

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
the matrix (step · G + 1/η′)⁻¹.
"""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.least_squares import nonnegative_least_squares
from cmdpkit.rules.base import View

ROUNDING = 1e-12
"""Added to the Hessian, relative to its diagonal: in the limit it has no more rank than randomised states."""

NEWTON_STEPS = 100
"""At most; four to ten are usual, more with many constraints that cannot be met together."""


class ImplicitDual:
    """Ψ(w), and w ≥ 0 that maximises it. Prices u = w / unit and values are scaled to the objective's unit.

    Args:
        view: of the policy around which the values are predicted.
        step, eta_dual: of the mirror step and of the dual step.
        lam: λ, which the dual step starts from.
        keep_anchor: whether the mirror step starts from the anchor of the step before.
    """

    def __init__(self, view: View, step: float, lam: Array, eta_dual: Array, keep_anchor: bool = False) -> None:
        self.view, self.step, self.units, self.keep_anchor = view, step, view.units, keep_anchor
        self.values = self.units * view.values
        self.start = lam / self.units
        self.stiffness = self.units**2 / eta_dual  # 1/η′, scaled

    def maximise(self) -> tuple[Array, Array]:
        """λ⁺, and the values V̂(λ⁺) that are predicted for it.

        Newton's method, safeguarded as by Levenberg and Marquardt, with w ≥ 0 kept by a small quadratic program.
        """
        u, damping = self.start, 0.0
        response = self.view.response(u, self.step, self.keep_anchor)
        value = self._value(u, response.soft_minimum)
        slope, hessian = self._slopes(u, response.values, response.gram)
        negligible = 1e-12 * np.abs(self.values).max()
        for _ in range(NEWTON_STEPS):
            if np.where(u > 0.0, np.abs(slope), slope).max() <= negligible:
                break
            new = maximum_of_quadratic(u, slope, hessian + (damping + ROUNDING) * np.diag(np.diag(hessian)))
            move = new - u
            promised = slope @ move - 0.5 * move @ hessian @ move
            response = self.view.response(new, self.step, self.keep_anchor)
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
        return np.asarray(u * self.units), np.asarray(response.values / self.units)

    def _value(self, u: Array, soft_minimum: float) -> float:
        """Ψ, up to a constant."""
        return float(u @ self.values + soft_minimum - 0.5 * self.stiffness @ (u - self.start) ** 2)

    def _slopes(self, u: Array, predicted: Array, gram: Array) -> tuple[Array, Array]:
        """∇Ψ = V(π_w) − (w − λ)/η′, with V as predicted, and −∇²Ψ = step · G + 1/η′."""
        slope = predicted - self.stiffness * (u - self.start)
        return slope, self.step * gram + np.diag(self.stiffness)


def maximum_of_quadratic(u: Array, slope: Array, hessian: Array) -> Array:
    """argmax over u⁺ ≥ 0 of slope·(u⁺ − u) − ½ (u⁺ − u)ᵀ hessian (u⁺ − u), as non-negative least squares."""
    free = u + np.linalg.solve(hessian, slope)
    if free.min() >= 0.0:
        return np.asarray(free)
    sizes = np.sqrt(np.diag(hessian))
    root = np.asarray(np.linalg.cholesky(hessian / np.outer(sizes, sizes)).T, dtype=float)
    target = np.linalg.solve(root.T, (hessian @ u + slope) / sizes)
    return nonnegative_least_squares(root, np.asarray(target, dtype=float)) / sizes
