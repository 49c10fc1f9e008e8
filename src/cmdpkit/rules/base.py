"""The interface of a rule: what it sees, and what it returns.

A rule does not depend on policies, states or networks. It receives a `View` of the current policy, returns the
`Weights` of the costs for the next improvement, and updates its multipliers when it sees the new policy.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, CostArray


class Weights(NamedTuple):
    """Weights, step and accuracy of a policy improvement. Every learner honours every field, or refuses it.

    The mixed cost is c̃ = objective · c_0 + Σ constraints_i · c_i. None leaves a field to the learner's settings.
    """

    objective: float
    constraints: ConstraintArray
    inner_steps: int | None = None  # t_k: mirror steps, all anchored at the policy before the first
    step: float | None = None  # π is multiplied by exp(−step · Q̃) in each of them
    radius: float | None = None  # largest mean KL divergence of the improvement
    accuracy: float | None = None  # relative error allowed in evaluations; 0 means up to rounding
    anchor: str | None = None  # None: the current policy; "keep": that of the last step; "return": go back to it first
    visit_error: float | None = None  # a learner that knows the model lowers it to this, as far as it can
    entropy: float | None = None  # τ: the mixed cost is c̃ + τ log π, and the anchor is the uniform policy
    allowed_growth: ConstraintArray | None = None  # by how much each V_i may grow, as samples of the old policy predict
    optimistic: bool = False  # two projected steps with one gradient: of a second policy, and from there of this one


def refuse(learner: Any, weights: Weights, *unsupported: str) -> None:
    """Raise an error if a field is set that this learner cannot honour, or one that contradicts another."""
    if weights.anchor not in (None, "keep", "return"):
        raise ValueError(f"weights.anchor must be None, 'keep' or 'return', not {weights.anchor!r}")
    given = {name for name, value in weights._asdict().items() if value is not None and value is not False}
    for name in unsupported:
        if name in given:
            raise NotImplementedError(f"{type(learner).__name__} cannot take steps with weights.{name}")
    # a projected step has the size that it has, and starts from a policy of its own
    for name in ("radius", "anchor", "visit_error", "entropy"):
        if weights.optimistic and name in given:
            raise NotImplementedError(f"an optimistic step cannot be combined with weights.{name}")


class State(NamedTuple):
    """The state of a rule between two iterations. Rules with a larger state define their own NamedTuple."""

    multipliers: ConstraintArray  # λ_k


class Response(Protocol):
    """The predicted outcome of a mirror step, under the local model of the current policy.

    All quantities are in units of the objective; a price u_i is the weight of constraint i in units of
    scales_0 / scales_i.
    """

    @property
    def soft_minimum(self) -> float:
        """−(1/step) Σ_s x(s) log Σ_a π(a|s) exp(−step (A_0 + Σ u_i A_i)(s, a))."""

    @property
    def values(self) -> ConstraintArray:
        """Predicted V_1..V_m: the derivative of Σ u_i V_i plus the soft minimum."""

    @property
    def gram(self) -> Array:
        """(m, m) Σ_s x(s) Cov_a(A_i, A_j): minus their derivative in u, divided by the step."""


class Prediction(NamedTuple):
    """What a natural-gradient step within a trust region does, to first order.

    Weights w_0..w_m are in units of 1/deviations: the step is along −Σ w_i g_i, the natural gradients of the
    standardised advantages.
    """

    deviations: CostArray  # of the advantages of −reward and the costs; 0 where one does not vary
    metric: Array  # (m + 1, m + 1): a step of size t diverges by ½ t² wᵀ metric w, as the samples see it
    response: Array  # (m + 1, m + 1): it changes the mean advantages, standardised, by −t · response · w; an estimate
    radius: float  # largest divergence of a step
    length: float  # a change of the mean advantage changes V_i by so much: steps per episode, for example


class UnknownScale(ValueError):
    """A default depends on the scale of the costs, which is unknown."""

    def __init__(self) -> None:
        super().__init__("the scale of the costs is unknown; give the steps explicitly")


@dataclass(frozen=True)
class View:
    """What a rule may know of the current policy.

    Learners that can predict the effect of a step override `response`, `greedy_gain`, `visit_error` and
    `divergence`.
    """

    objective: float  # V_0, minimised
    values: ConstraintArray  # V_1..V_m; feasible when ≤ 0
    scales: CostArray | None = None  # how much one step can change each cost, if known
    gamma: float = 0.0

    @property
    def known_scales(self) -> CostArray:
        """The scales; raises `UnknownScale` if there are none."""
        if self.scales is None:
            raise UnknownScale
        return self.scales

    @property
    def units(self) -> ConstraintArray:
        """scales_0 / scales_i: the natural unit of each multiplier."""
        scales = self.known_scales
        return np.asarray(scales[0] / scales[1:])

    def dual_step(self, factor: float) -> ConstraintArray:
        """Dual steps; with `factor` 1, λ_i moves by one unit when V_i is as large as possible."""
        scales = self.known_scales
        # factor · (1 − γ) span(c_0) / span(c_i)²
        return np.asarray(factor * (1.0 - self.gamma) * (scales[0] / scales[1:]) / scales[1:])

    def response(self, prices: ConstraintArray, step: float, keep_anchor: bool = False) -> Response:
        """The predicted response to a mirror step of size `step` with these prices.

        With `keep_anchor` the step starts from the anchor of the step before instead of the current policy.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot predict the response to a step")

    def metric(self, step: float, keep_anchor: bool = False) -> Array | None:
        """(m, m + 1) Σ_s x(s) Cov_a(A_i, A_j) for i ≥ 1 and j ≥ 0 at the current policy, in the units of `Response`.

        None if it is not known. With `keep_anchor` A_0 contains what leads back to the anchor, so that a step of size
        `step` starts from there.
        """
        return None

    @property
    def deviations(self) -> CostArray:
        """Standard deviations of the advantages of −reward and the costs, over the samples; 0 where one is constant."""
        raise NotImplementedError(f"{type(self).__name__} has no samples of the advantages")

    @property
    def prediction(self) -> Prediction:
        """What a step within a trust region does, estimated from samples."""
        raise NotImplementedError(f"{type(self).__name__} cannot predict a step within a trust region")

    @property
    def visit_error(self) -> float:
        """What the last step may have lost because it held the visits fixed; 0 for a proximal step (docs/theory.md)."""
        raise NotImplementedError(f"{type(self).__name__} cannot tell what held visits have cost")

    @property
    def divergence(self) -> float:
        """Discounted KL divergence of the current policy from the anchor of the last step."""
        raise NotImplementedError(f"{type(self).__name__} cannot tell how far the last step went")

    def noise(self, multipliers: ConstraintArray) -> float:
        """Standard error of the estimated Q_0 + Σ λ_i Q_i, averaged over visited states and available actions."""
        raise NotImplementedError(f"{type(self).__name__} does not know the errors of its estimates")

    def greedy_gain(self, multipliers: ConstraintArray) -> float:
        """Decrease of the Lagrangian by a greedy step, under the local model; 0 at the optimum."""
        raise NotImplementedError(f"{type(self).__name__} cannot predict the gain of a greedy step")

    def multiplier_bound(self) -> float:
        """An upper bound on the optimal multipliers; infinite if none is known."""
        return float(np.inf)


class Rule(Protocol):
    """The interface of a rule, as the loop uses it."""

    def start(self, view: Any) -> Any:
        """Return the initial state, which has a field `multipliers`."""

    def propose(self, state: Any, view: Any) -> tuple[Weights, Any]:
        """Return the weights with which to improve the current policy, and the updated state."""

    def observe(self, state: Any, view: Any) -> Any:
        """Return the state after the improvement; `view` is that of the new policy."""


def with_multipliers(state: Any, multipliers: ConstraintArray) -> Any:
    """A copy of the state with other multipliers."""
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, multipliers=multipliers)
    return state._replace(multipliers=multipliers)
