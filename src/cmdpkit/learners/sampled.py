"""The sampled tabular learner: natural-gradient steps with values estimated from a simulator (Algorithm 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.learners.estimators import Pooled, Rollouts
from cmdpkit.learners.tabular import within_radius
from cmdpkit.policy import TabularPolicy
from cmdpkit.rules.base import View, Weights

ESTIMATOR = "estimator_"
"""Prefix of the estimator's entries in the learner's state."""


class SampledLearner:
    """Natural policy gradient from samples. See `ExactLearner` for `step`, `inner_steps` and `alpha`.

    Args:
        estimator: estimates the values of a policy.
        policy: π_0, without zero probabilities.
        step, inner_steps, alpha: as for `ExactLearner`.
        scales: (m + 1,) how much one step can change each cost; None if unknown.
    """

    def __init__(
        self,
        estimator: Rollouts | Pooled,
        policy: TabularPolicy,
        step: float = 1.0,
        inner_steps: int = 1,
        alpha: float | None = None,
        scales: Array | None = None,
    ) -> None:
        self.estimator = estimator
        self.policy = self._anchor = policy
        self.step, self.inner_steps, self.alpha = step, inner_steps, alpha
        self.scales = scales
        self.values: Array | None = None  # V̂_0..V̂_m of the current policy, once estimated

    @property
    def samples(self) -> int:
        """Transitions drawn so far."""
        return self.estimator.meter.samples

    def look(self) -> View:
        if self.values is None:
            self.values = self.estimator.values(self.policy)
        return View(float(self.values[0]), self.values[1:], self.scales, self.estimator.simulator.gamma)

    def improve(self, weights: Weights) -> int:
        """t_k steps of regularised natural gradient on c̃, each with a fresh estimate of Q̃ (Algorithm 2).

        A radius is enforced in every state, because visits are not known. The accuracy of estimates depends on the
        samples alone, whatever `weights.accuracy` is.
        """
        if weights.anchor == "return":
            self.policy = self._anchor
        elif weights.anchor is None:
            self._anchor = self.policy
        anchor = self._anchor.log_pi
        mix = np.append(weights.objective, weights.constraints)
        steps = self.inner_steps if weights.inner_steps is None else weights.inner_steps
        step = self.step if weights.step is None else weights.step
        alpha = (1.0 / step if step else 0.0) if self.alpha is None else self.alpha
        policy = self.policy
        for _ in range(steps):
            log_pi, pairs = policy.log_pi, policy.pairs
            to_anchor = alpha * (log_pi - anchor)
            # α KL(π || π_k) per state, from the policies alone
            divergence = pairs.sum(policy.pi * to_anchor)
            q = self.estimator.action_values(policy, mix, divergence, steps)
            # log π' = (1 − step·α) log π − step · (Q̂ + α log(1/π_k)) − log Z: the terms in α are combined
            moved = TabularPolicy.softmax(pairs, log_pi - step * (q + to_anchor))
            policy = moved if weights.radius is None else within_radius(policy, moved, weights.radius)
        self.policy, self.values = policy, None
        return steps

    def state(self) -> dict[str, Any]:
        meter = self.estimator.meter
        counters = {"draws": meter.draws, "samples": meter.samples}
        estimator = {f"{ESTIMATOR}{name}": value for name, value in self.estimator.state().items()}
        values = {} if self.values is None else {"values": self.values}
        policies = {"log_probabilities": self.policy.log_pi, "anchor": self._anchor.log_pi}
        return {**policies, **values, **counters, **estimator}

    def restore(self, state: dict[str, Any]) -> None:
        meter = self.estimator.meter
        meter.draws, meter.samples = int(state["draws"]), int(state["samples"])
        own = {n.removeprefix(ESTIMATOR): value for n, value in state.items() if n.startswith(ESTIMATOR)}
        self.estimator.restore(own)
        pairs = self.estimator.simulator.pairs
        self.policy, self.values = TabularPolicy.stored(pairs, state["log_probabilities"]), state.get("values")
        self._anchor = TabularPolicy.stored(pairs, state["anchor"])
