"""The implicit dual step, kept below what is known of the true dual function.

For the anchor π_k, the dual step chooses the price w at which the proximal problem has its largest value,

    g(w) = min_x L(x, w) + D(x, x_k)/step − ‖w − λ_k‖²/(2η′).

Ψ of implicit_dual.py predicts g with the visits of one policy. Where another policy takes over it may be off by far,
and candidates then alternate between prices that are far too low and far too high. But g lies below the line of every
policy that has been evaluated,

    h_j(w) = V_0(π_j) + D(x_j, x_k)/step + Σ w_i V_i(π_j) − ‖w − λ_k‖²/(2η′),

so that prices at which Ψ promises clearly more than a line allows are not taken: then their minimum is maximised.

A table of known policies has a row (V_0, a bound on D(x_j, x_k), V_1..V_m) for each, the policy in view last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array, ConstraintArray
from cmdpkit.rules.base import Response, View
from cmdpkit.rules.implicit_dual import ImplicitDual

KEPT = 50
"""Policies that are remembered, the latest ones."""

EXCESS = 0.1
"""What Ψ may promise above a line, in units of 1/((1 − γ) step): near the optimum it knows more than lines do."""

LEAST_EXPONENT = -700.0
"""Of smaller numbers the exponential underflows."""


def with_policy(known: Array, view: View, divergence: float) -> Array:
    """The table of known policies with the one in view, at this distance from the anchor."""
    row = [view.objective, divergence, *view.values]
    return np.vstack([known[-KEPT:], row])


def re_anchored(known: Array, view: View, multipliers: ConstraintArray, step: float) -> Array:
    """The same when the policy in view becomes the anchor x⁺, to which these multipliers w and a step from x_k led."""
    weights = np.array([1.0, 0.0, *multipliers])
    now = view.objective + float(multipliers @ view.values)
    # D(x_j, x⁺) = D(x_j, x_k) − D(x⁺, x_k) + step (L(x_j, w) − L(x⁺, w)) + Σ_s (x_j − x⁺)(s) ℓ(s)    (docs/theory.md)
    moved = known[:, 1] - view.divergence + step * (known @ weights - now) + view.visit_error
    known = np.column_stack([known[:, 0], np.maximum(moved, 0.0), known[:, 2:]])
    return with_policy(known, view, 0.0)


class BoundedDual(ImplicitDual):
    """`ImplicitDual` with its maximum below the lines of all known policies.

    Args:
        known: the table of known policies; the others are the arguments of `ImplicitDual`.
    """

    def __init__(self, known: Array, view: View, step: float, *given: Any, **more: Any) -> None:
        super().__init__(view, step, *given, **more)
        heights = known[:, 0] + known[:, 1] / step
        self.heights = heights[:-1] - heights[-1]  # Ψ leaves out the constant of the policy in view
        self.slopes = known[:-1, 2:] * self.units
        self._is_bounded = False

    def maximise(self, left: float = 0.0) -> Array:
        found = self._climb(self._first(), left)
        promised = float(found.u @ self.values) + found.response.soft_minimum
        excess = promised - (self.heights + self.slopes @ found.u).min(initial=np.inf)
        if excess > EXCESS / ((1.0 - self.view.gamma) * self.step):
            self._is_bounded = True
            found = self._climb(self._at(found.u), left)
        return np.asarray(found.u * self.units)

    def _respond(self, u: Array) -> Response:
        response = super()._respond(u)
        return LeastResponse(self, response, u) if self._is_bounded else response


class LeastResponse:
    """The least of a predicted response and of known lines at the prices u, smoothed like the step itself.

    See `Response`: values and Gram matrix are its derivatives.
    """

    def __init__(self, dual: BoundedDual, response: Response, u: Array) -> None:
        now = float(u @ dual.values)
        each = np.append(now + response.soft_minimum, dual.heights + dual.slopes @ u)
        parts = np.exp(np.maximum(-dual.step * (each - each.min()), LEAST_EXPONENT))
        total = float(parts.sum())
        self._response, self._shares = response, parts / total
        self._slopes = np.vstack([response.values, dual.slopes])
        # −(1/step) log(exp(−step Ψ(w)) + Σ_j exp(−step h_j(w))), less Σ w_i V_i
        self.soft_minimum = float(each.min()) - np.log(total) / dual.step - now
        self.values: ConstraintArray = self._shares @ self._slopes

    @property
    def gram(self) -> Array:
        centred = self._slopes - self.values
        return np.asarray(self._shares[0] * self._response.gram + (self._shares * centred.T) @ centred)
