"""What a rule is, what it sees, and what it asks for.

A rule knows nothing of policies, states or networks. It sees a `View` of the current policy, says with which `Weights`
the costs are to be mixed for the next improvement, and moves its multipliers when it has seen the new policy.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from cmdpkit.checks import Array


class Weights(NamedTuple):
    """With which weights, step and accuracy a policy is to be improved. Every learner honours every field.

    The mixed cost is c̃ = objective · c_0 + Σ constraints_i · c_i. None leaves a field to the learner's own setting.
    """

    objective: float
    constraints: Array  # (m,)
    inner_steps: int | None = None  # t_k: mirror steps, all anchored at the policy before the first
    step: float | None = None  # π is multiplied by exp(−step · Q̃) in each of them
    radius: float | None = None  # and moves no farther than this mean KL divergence
    accuracy: float | None = None  # relative error that evaluations may have; 0 is as exact as rounding allows
    anchor: str | None = (
        None  # None: the current policy; "keep": that of the step before; "return": go back to it first
    )


class State(NamedTuple):
    """What a rule remembers between two steps. Rules with more to remember have a NamedTuple of their own."""

    multipliers: Array  # (m,) λ_k


class Response(Protocol):
    """What a mirror step is predicted to lead to, under the local model of the current policy.

    All quantities are in the unit of the objective; a price u_i is the weight of constraint i in units of
    scales_0 / scales_i.
    """

    @property
    def soft_minimum(self) -> float:
        """−(1/step) Σ_s x(s) log Σ_a π(a|s) exp(−step (A_0 + Σ u_i A_i)(s, a))."""

    @property
    def values(self) -> Array:
        """(m,) predicted V_1..V_m: the derivative of Σ u_i V_i plus the soft minimum."""

    @property
    def gram(self) -> Array:
        """(m, m) Σ_s x(s) Cov_a(A_i, A_j): minus their derivative in u, divided by the step."""


class UnknownScale(ValueError):
    """A default follows from the scale of the costs, and nobody knows it."""

    def __init__(self) -> None:
        super().__init__("the scale of the costs is not known, so that steps must be given")


@dataclass(frozen=True)
class View:
    """What a rule may know of the current policy.

    Learners that can predict how the values respond to a step override `response`, `greedy_gain`, `visit_error` and
    `divergence`.
    """

    objective: float  # V_0, minimised
    values: Array  # (m,) V_1..V_m; feasible when ≤ 0
    scales: Array | None = None  # (m + 1,) how much a single step can matter in each cost, where it is known
    gamma: float = 0.0

    @property
    def known_scales(self) -> Array:
        """The scales, or `UnknownScale`."""
        if self.scales is None:
            raise UnknownScale
        return self.scales

    @property
    def units(self) -> Array:
        """(m,) scales_0 / scales_i: the natural unit of each multiplier."""
        scales = self.known_scales
        return np.asarray(scales[0] / scales[1:])

    def dual_step(self, factor: float) -> Array:
        """(m,) dual steps: `factor` 1 moves λ_i by its unit where V_i is as large as it can be."""
        scales = self.known_scales
        # factor · (1 − γ) span(c_0) / span(c_i)²
        return np.asarray(factor * (1.0 - self.gamma) * (scales[0] / scales[1:]) / scales[1:])

    def response(self, prices: Array, step: float, keep_anchor: bool = False) -> Response:
        """The predicted response to a mirror step of size `step` with these prices.

        With `keep_anchor` the step starts from the anchor of the step before instead of the current policy.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot predict the response to a step")

    @property
    def visit_error(self) -> float:
        """What the last step may have lost because it held the visits fixed; 0 for a proximal step (docs/theory.md)."""
        raise NotImplementedError(f"{type(self).__name__} cannot tell what held visits have cost")

    @property
    def divergence(self) -> float:
        """Discounted KL divergence of the current policy from the anchor of the last step."""
        raise NotImplementedError(f"{type(self).__name__} cannot tell how far the last step went")

    def greedy_gain(self, multipliers: Array) -> float:
        """How much a greedy step would gain in the Lagrangian, under the local model; 0 at the optimum."""
        raise NotImplementedError(f"{type(self).__name__} cannot predict the gain of a greedy step")

    def multiplier_bound(self) -> float:
        """A bound on the size of the optimal multipliers; infinite where none is known."""
        return float(np.inf)


class Rule(Protocol):
    """What the loop needs of a rule."""

    def start(self, view: Any) -> Any:
        """The state before the first step. It has a field `multipliers`."""

    def propose(self, state: Any, view: Any) -> tuple[Weights, Any]:
        """How to improve the policy that `view` shows, and the state in the meantime."""

    def observe(self, state: Any, view: Any) -> Any:
        """The state after the improvement; `view` shows the new policy."""


def with_multipliers(state: Any, multipliers: Array) -> Any:
    """The same state with other multipliers."""
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, multipliers=multipliers)
    return state._replace(multipliers=multipliers)
