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

from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.least_squares import nonnegative_least_squares
from cmdpkit.rules.base import Response, View

ROUNDING = 1e-12
"""Added to the Hessian, relative to its diagonal: in the limit it has no more rank than randomised states."""

NEWTON_STEPS, LINE_SEARCH = 100, 30
"""At most; three to six Newton steps are usual, and one or two points on the way of each."""

FLAT, EXTENSION = 0.25, 4.0
"""Where this part of the slope is left after a Newton step, one so much longer is tried."""

EPSILON = 1e-15
"""Relative rounding error of Ψ."""


class Point(NamedTuple):
    """Ψ at the scaled prices u, up to a constant."""

    u: Array
    response: Response
    value: float
    slope: Array
    rounding: float  # what the value may be off by


Tangent = tuple[float, float, float]
"""Where on a line, and value and slope there."""


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

    def maximise(self, left: float = 0.0) -> Array:
        """λ⁺, found to where no more than the part `left` of what complementarity lacks now is left."""
        return np.asarray(self._climb(self._first(), left).u * self.units)

    def _climb(self, first: Point, left: float) -> Point:
        """The maximum, by Newton's method with a line search, and w ≥ 0 kept by a small quadratic program.

        It ends where the slope is rounding, or no more than the part `left` of how far the values are from being
        complementary to λ now.
        """
        here: Point | None = first
        negligible = max(1e-12 * float(np.abs(self.values).max()), left * _uphill(self.start, self.values))
        for _ in range(NEWTON_STEPS):
            if here is None or _uphill(here.u, here.slope) <= negligible:
                break
            last = here
            aim = self._newton(here.u, here.slope, here.response.gram)
            here = self._along(here, aim - here.u)
        return here or last

    def _first(self) -> Point:
        """Where Newton's method starts: the maximum of Ψ to second order in the step, where that is known.

        With large steps the policy of the old prices is all but deterministic, and curvature there says nothing.
        """
        metric = self.view.metric(self.step, self.keep_anchor)
        if metric is None:
            return self._at(self.start)
        # Ψ ≈ Σ w_i V_i − ½ step Σ_s x(s) Var_{a~π}(A_0 + Σ w_i A_i) − Σ (w_i − λ_i)² / (2 η′_i)
        slope = self.values - self.step * (metric[:, 0] + metric[:, 1:] @ self.start)
        return self._at(self._newton(self.start, slope, metric[:, 1:]))

    def _at(self, u: Array) -> Point:
        """Ψ, up to a constant, and its slope."""
        response, away = self._respond(u), u - self.start
        pull = self.stiffness * away
        terms = (float(u @ self.values), response.soft_minimum, -0.5 * float(pull @ away))
        # ∇Ψ = V(π_w) − (w − λ)/η′, with V as predicted
        slope = response.values - pull
        return Point(u, response, sum(terms), slope, EPSILON * max(map(abs, terms)))

    def _respond(self, u: Array) -> Response:
        return self.view.response(u, self.step, self.keep_anchor)

    def _newton(self, u: Array, slope: Array, gram: Array) -> Array:
        """The maximum of the quadratic model at u."""
        # −∇²Ψ = step · G + 1/η′
        hessian = self.step * gram
        diagonal = hessian.reshape(-1)[:: u.size + 1]
        diagonal += self.stiffness
        diagonal *= 1.0 + ROUNDING
        return maximum_of_quadratic(u, slope, hessian)

    def _along(self, here: Point, move: Array) -> Point | None:
        """A better point on the way from `here` to `here + move` or beyond; None if only rounding is left.

        With large steps Ψ is nearly made of planes, and the quadratic model may be off by orders of magnitude. But the
        two tangents at points on either side of the maximum meet close to it, and above all that can be gained.
        """
        rise, start, moves = float(here.slope @ move), here.u.tolist(), move.tolist()
        if max(map(abs, moves)) <= 1e-14 * max(1.0, *start):
            return None
        t, longest = 1.0, min((-u / d for u, d in zip(start, moves, strict=True) if d < 0.0), default=np.inf)
        low, high, best = (0.0, here.value, rise), None, here
        for _ in range(LINE_SEARCH):
            there = self._at(np.maximum(here.u + t * move, 0.0))
            slope = float(there.slope @ move)
            if rise * t <= here.rounding:  # values tell nothing any more, slopes do
                return there if abs(slope) <= 0.5 * rise else None
            if there.value > best.value:
                best = there
            if slope > 0.0:
                low = (t, there.value, slope)
            else:
                high = (t, there.value, slope)
            if high is None:
                if slope <= FLAT * rise or t >= longest:
                    return there
                t = min(EXTENSION * t, longest)
                continue
            meet = _meet(low, high)
            if best.value - here.value >= 0.5 * (low[1] + low[2] * (meet - low[0]) - here.value) - here.rounding:
                break
            t = meet
        return best if best is not here else None


def _uphill(u: Array, slope: Array) -> float:
    """The largest slope along which u ≥ 0 may move."""
    return float(max(abs(g) if x > 0.0 else g for x, g in zip(u.tolist(), slope.tolist(), strict=True)))


def _meet(low: Tangent, high: Tangent) -> float:
    """Where two tangents of a concave function meet, the first rising and the second falling."""
    (left, value, slope), (right, other, fall) = low, high
    meet = left + (other - value - fall * (right - left)) / (slope - fall)
    return meet if left < meet < right else 0.5 * (left + right)


def maximum_of_quadratic(u: Array, slope: Array, hessian: Array) -> Array:
    """argmax over u⁺ ≥ 0 of slope·(u⁺ − u) − ½ (u⁺ − u)ᵀ hessian (u⁺ − u).

    Prices that are 0 and should fall stay 0, in most cases; otherwise it is non-negative least squares.
    """
    if u.size == 1:
        return np.asarray(np.maximum(u + slope / hessian[0], 0.0))
    free = (u > 0.0) | (slope > 0.0)
    if free.all():
        new, left = u + np.linalg.solve(hessian, slope), np.zeros(0)
    else:
        move = np.zeros(u.size)
        move[free] = np.linalg.solve(hessian[np.ix_(free, free)], slope[free])
        new, left = u + move, (slope - hessian @ move)[~free]
    if new.min() >= 0.0 and left.max(initial=0.0) <= 0.0:
        return np.asarray(new)
    sizes = np.sqrt(np.diag(hessian))
    root = np.asarray(np.linalg.cholesky(hessian / np.outer(sizes, sizes)).T, dtype=float)
    target = np.linalg.solve(root.T, (hessian @ u + slope) / sizes)
    return nonnegative_least_squares(root, np.asarray(target, dtype=float)) / sizes
