"""CPO (Achiam et al. 2017): constrained policy optimisation, a quadratic program within the trust region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmdpkit.checks import Array, ConstraintArray, CostArray
from cmdpkit.rules.base import Prediction, State, View, Weights
from cmdpkit.rules.implicit_dual import maximum_of_quadratic
from cmdpkit.rules.registry import register

RIDGE = 1e-6
"""Added to the diagonal of the products, relative to it: gradients of few samples may be parallel."""

CONSTANT = 1e-12
"""An objective whose product with itself is no larger does not vary."""

BISECTIONS, WIDEST = 60, 1e8
"""Of the search for the price of the divergence, and by how much it may fall below that without limits."""


class Linearised(NamedTuple):
    """The costs that vary, to first order: a step s changes V_i by length · σ_i g_iᵀs and diverges by ½ sᵀFs.

    Steps are s = −Σ a_j F⁻¹g_j, with g of the standardised advantages: V_i becomes proportional to c_i − (M a)_i.
    """

    varies: NDArray[np.bool_]  # (m,): which costs a step can change
    excess: ConstraintArray  # c_i = V_i / (length · σ_i) of these
    products: Array  # M = g_iᵀF⁻¹g_j, the objective first
    deviations: CostArray  # σ of the objective and of these costs
    radius: float

    @classmethod
    def of(cls, view: View) -> Linearised:
        step: Prediction = view.prediction
        sizes, varies = step.deviations, step.deviations[1:] > 0.0
        chosen = np.append(True, varies)
        products = step.metric[np.ix_(chosen, chosen)]
        ridge = RIDGE * np.maximum(np.diag(products), np.finfo(float).tiny)
        deviations = np.where(sizes > 0.0, sizes, 1.0)[chosen]
        excess = view.values[varies] / (step.length * deviations[1:])
        return cls(varies, excess, products + np.diag(ridge), deviations, step.radius)

    def nearest(self, start: float = 0.0) -> Array:
        """ν ≥ 0 with which the step of a = (start, ν) meets all limits, and is nearest to that of (start, 0)."""
        if not self.excess.size:
            return np.zeros(0)
        # max νᵀ(c − start · M_c0) − ½ νᵀM_cc ν
        slope = self.excess - start * self.products[1:, 0]
        return maximum_of_quadratic(np.zeros(self.excess.size), slope, self.products[1:, 1:])

    def divergence(self, a: Array) -> float:
        """½ aᵀMa."""
        return 0.5 * float(a @ self.products @ a)

    def priced(self, price: float) -> Array:
        """a of the best step that meets all limits and pays `price` for its divergence."""
        return np.append(1.0, self.nearest(1.0 / price) * price) / price

    def best(self) -> Array | None:
        """a of the best step within the trust region that meets all limits; None if there is no step that does."""
        nearest = np.append(0.0, self.nearest())
        if self.divergence(nearest) > self.radius:
            return None
        if self.products[0, 0] <= CONSTANT:
            return nearest
        # the divergence falls as its price λ rises, and without limits is the radius at √(M_00 / 2δ)
        high = float(np.sqrt(self.products[0, 0] / (2.0 * self.radius)))
        while self.divergence(self.priced(high)) > self.radius:
            if high > WIDEST * np.sqrt(self.products[0, 0] / self.radius):  # the nearest step is on the boundary
                return self.priced(high)
            high *= 2.0
        low = high / WIDEST
        if self.divergence(self.priced(low)) <= self.radius:  # the limits alone keep the step short
            return self.priced(low)
        for _ in range(BISECTIONS):
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if self.divergence(self.priced(middle)) <= self.radius else (middle, high)
        return self.priced(high)

    def weights(self, a: Array, allowed: ConstraintArray | None = None) -> Weights:
        """The weights and the step of the improvement −Σ a_j F⁻¹g_j, in units of the costs themselves."""
        constraints = np.zeros(self.varies.size)
        if a[0] == 0.0:
            constraints[self.varies] = a[1:] / self.deviations[1:]
            return Weights(0.0, constraints)
        constraints[self.varies] = a[1:] / a[0] * self.deviations[0] / self.deviations[1:]
        step = float(a[0] / self.deviations[0])
        return Weights(1.0, constraints, step=step, allowed_growth=allowed)


@register("cpo", learners=("neural",), multipliers=False, sets=("surrogate",))
@dataclass(frozen=True)
class CPO:
    """The step that lowers the objective most among those that meet every limit to first order, within the radius.

        minimise g_0ᵀs subject to V_i/length + g_iᵀs ≤ 0 for all i, ½ sᵀFs ≤ δ:   s = −F⁻¹(g_0 + Σ ν_i g_i)/λ

    Where there is no such step, the next one is on the costs alone and leads towards the nearest. The line search
    refuses steps after which the samples predict that a limit is exceeded, or exceeded by more than before.

    This is the paper's practical algorithm: its dual in closed form for one limit is solved numerically for any number,
    and the recovery for one limit, −√(2δ/g_1ᵀF⁻¹g_1) F⁻¹g_1, becomes a step along Σ ν_i F⁻¹g_i. V_i is the measure of
    the run, by default the undiscounted sum of an episode, and length its mean number of steps.
    """

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        local = Linearised.of(view)
        a = local.best()
        if a is None:
            weights = local.weights(np.append(0.0, local.nearest()))
        else:
            weights = local.weights(a, np.maximum(0.0, -view.values))
        return weights, State(weights.constraints)

    def observe(self, state: State, view: View) -> State:
        return state
