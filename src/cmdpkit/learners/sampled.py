"""The sampled tabular learner: natural-gradient steps with values estimated from a simulator (Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cmdpkit.checks import Array, ConstraintArray
from cmdpkit.learners.estimators import Outlook, Pooled, Rollouts
from cmdpkit.learners.response import MirrorResponse, by_action
from cmdpkit.learners.tabular import above_floor, projected, within_radius
from cmdpkit.policy import TabularPolicy
from cmdpkit.rules.base import View, Weights, refuse

ESTIMATOR = "estimator_"
"""Prefix of the estimator's entries in the learner's state."""

OUTLOOK = "outlook_"
"""Prefix of the entries of the estimates for predictions."""


class SampledLearner:
    """Natural policy gradient from samples. See `ExactLearner` for `step`, `inner_steps` and `alpha`.

    Args:
        estimator: estimates the values of a policy.
        policy: π_0, without zero probabilities.
        step, inner_steps, alpha: as for `ExactLearner`.
        scales: (m + 1,) how much one step can change each cost; None if unknown.
        predicts: estimate all Q_i in every look, for rules that predict the response to a step.
    """

    def __init__(
        self,
        estimator: Rollouts | Pooled,
        policy: TabularPolicy,
        step: float = 1.0,
        inner_steps: int = 1,
        alpha: float | None = None,
        scales: Array | None = None,
        predicts: bool = False,
    ) -> None:
        self.estimator = estimator
        self.policy = self._anchor = policy
        self._centre: TabularPolicy | None = None  # π̂, the second policy of optimistic steps
        self.step, self.inner_steps, self.alpha = step, inner_steps, alpha
        self.scales = scales
        self.predicts = predicts
        self.values: Array | None = None  # V̂_0..V̂_m of the current policy, once estimated
        self.outlook: Outlook | None = None  # with all Q̂_i, if it predicts

    @property
    def samples(self) -> int:
        """Transitions drawn so far."""
        return self.estimator.meter.samples

    def look(self) -> View:
        simulator = self.estimator.simulator
        gamma = 0.0 if simulator.criterion == "average" else simulator.gamma  # 1 − gamma: a step's weight
        if self.predicts:
            self.outlook = self.outlook or self.estimator.outlook(self.policy)
            values = self.outlook.values
            return SampledView(float(values[0]), values[1:], self.scales, gamma, self.policy, self.outlook)
        if self.values is None:
            self.values = self.estimator.values(self.policy)
        return View(float(self.values[0]), self.values[1:], self.scales, gamma)

    def improve(self, weights: Weights) -> int:
        """t_k steps of regularised natural gradient on c̃, each with a fresh estimate of Q̃ (Algorithm 2).

        Where all Q_i of the current policy have been estimated for a prediction, the first step uses these.
        A radius is enforced in every state, because visits are not known. The accuracy of estimates depends on the
        samples alone, whatever `weights.accuracy` is.
        """
        refuse(self, weights, "allowed_growth")  # it is judged on samples of the old policy
        if self.predicts:
            self.policy = above_floor(self.policy)
        if weights.anchor == "return":
            self.policy, self.values, self.outlook = self._anchor, None, None
        elif weights.anchor is None:
            self._anchor = self.policy
        anchor = self._anchor.log_pi
        mix = np.append(weights.objective, weights.constraints)
        steps = self.inner_steps if weights.inner_steps is None else weights.inner_steps
        step = self.step if weights.step is None else weights.step
        alpha = (1.0 / step if step else 0.0) if self.alpha is None else self.alpha
        if weights.entropy is not None:
            anchor, alpha = np.log(self.policy.pairs.uniform()), weights.entropy
        policy = self.policy
        for t in range(steps):
            log_pi, pairs = policy.log_pi, policy.pairs
            if weights.optimistic:
                q = self.estimator.action_values(policy, mix, np.zeros(pairs.states), steps)
                # π̂ ← P(π̂ − step · Q̂),   π ← P(π̂ − step · Q̂)
                self._centre = projected(pairs, (self._centre or policy).pi - step * q)
                policy = projected(pairs, self._centre.pi - step * q)
                continue
            to_anchor = alpha * (log_pi - anchor)
            # α KL(π || π_k) per state, from the policies alone
            divergence = pairs.sum(policy.pi * to_anchor)
            if t == 0 and self.outlook is not None and not divergence.any():
                q = pairs.like(self.outlook.q @ mix)
            else:
                q = self.estimator.action_values(policy, mix, divergence, steps)
            # log π' = (1 − step·α) log π − step · (Q̂ + α log(1/π_k)) − log Z: the terms in α are combined
            moved = TabularPolicy.softmax(pairs, log_pi - step * (q + to_anchor))
            policy = moved if weights.radius is None else within_radius(policy, moved, weights.radius)
        if steps:
            self.policy, self.values, self.outlook = policy, None, None
        return steps

    def state(self) -> dict[str, Any]:
        meter = self.estimator.meter
        counters = {"draws": meter.draws, "samples": meter.samples}
        estimator = {f"{ESTIMATOR}{name}": value for name, value in self.estimator.state().items()}
        values = {} if self.values is None else {"values": self.values}
        if self.outlook is not None:
            values = {f"{OUTLOOK}{name}": value for name, value in self.outlook._asdict().items()}
        policies = {"log_probabilities": self.policy.log_pi, "anchor": self._anchor.log_pi}
        if self._centre is not None:
            policies |= {"centre": self._centre.log_pi}
        return {**policies, **values, **counters, **estimator}

    def restore(self, state: dict[str, Any]) -> None:
        meter = self.estimator.meter
        meter.draws, meter.samples = int(state["draws"]), int(state["samples"])
        own = {n.removeprefix(ESTIMATOR): value for n, value in state.items() if n.startswith(ESTIMATOR)}
        self.estimator.restore(own)
        pairs = self.estimator.simulator.pairs
        self.policy, self.values = TabularPolicy.stored(pairs, state["log_probabilities"]), state.get("values")
        self._anchor = TabularPolicy.stored(pairs, state["anchor"])
        self._centre = TabularPolicy.stored(pairs, state["centre"]) if "centre" in state else None
        known = {n.removeprefix(OUTLOOK): value for n, value in state.items() if n.startswith(OUTLOOK)}
        self.outlook = Outlook(**known) if known else None


@dataclass(frozen=True)
class SampledView(View):
    """The view of a policy whose action values are all estimated."""

    policy: TabularPolicy | None = None
    outlook: Outlook | None = None

    @cached_property
    def _local(self) -> tuple[TabularPolicy, Outlook, Array]:
        """The policy, what is known of it, and the advantages (N, m + 1)."""
        assert self.policy is not None
        assert self.outlook is not None
        policy, pairs = above_floor(self.policy), self.policy.pairs
        q = pairs.like(self.outlook.q)
        weights = policy.pi[..., None]
        return policy, self.outlook, (q - pairs.over(pairs.sum(weights * q))).reshape(-1, q.shape[-1])

    @cached_property
    def _scaled(self) -> Array:
        policy, _, table = self._local
        return np.stack([by_action(policy.pairs.like(column)) for column in (table[:, 1:] * self.units).T])

    def response(self, prices: ConstraintArray, step: float, keep_anchor: bool = False) -> MirrorResponse:
        if keep_anchor:
            raise NotImplementedError("a prediction from samples starts from the current policy")
        policy, outlook, table = self._local
        logits = by_action(policy.log_pi - step * policy.pairs.like(table[:, 0]))
        values = np.asarray(self.units * self.values)
        return MirrorResponse(policy.pairs, logits, self._scaled, values, outlook.visits, prices, step)

    def noise(self, multipliers: ConstraintArray) -> float:
        policy, outlook, _ = self._local
        pairs = policy.pairs
        # Σ_s x(s) mean_a Var(Q_0 + Σ λ_i Q_i), with the errors of different costs taken as independent
        variance = pairs.like(outlook.variances @ np.append(1.0, multipliers) ** 2)
        mean = pairs.sum(variance) / pairs.sum(np.ones(pairs.shape))
        return float(np.sqrt(outlook.visits @ mean / outlook.visits.sum()))
