"""The view of a policy on a known model: what its advantages tell a rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, PairTable, StateArray
from cmdpkit.exact.slater import slater_margin
from cmdpkit.learners.response import MirrorResponse, by_action, tables_by_action
from cmdpkit.learners.tabular import above_floor
from cmdpkit.policy import TabularPolicy
from cmdpkit.rules.base import Response, View

if TYPE_CHECKING:
    from cmdpkit.learners.exact import ExactLearner


@dataclass(frozen=True)
class ExactView(View):
    """The view of a policy on a known model. Advantages are computed on first use."""

    learner: ExactLearner | None = None
    policy: TabularPolicy | None = None

    def forget(self) -> None:
        """Give up all tables; they would be computed again."""
        for name in ("_stacked", "_log_pi", "_from_anchor", "_logits"):
            self.__dict__.pop(name, None)

    @cached_property
    def _stacked(self) -> Array:
        """A_0..A_m as `tables_by_action`, in the units of a `Response`."""
        assert self.learner is not None
        if self.learner.policy is not self.policy:
            raise RuntimeError("this view is of an earlier policy; call look() again")
        return tables_by_action(self.learner.cmdp.pairs, self.learner.advantages(), np.append(1.0, self.units))

    @cached_property
    def _log_pi(self) -> PairTable:
        assert self.policy is not None
        assert self.learner is not None
        return above_floor(self.policy, self.learner.floor).log_pi

    @cached_property
    def _from_anchor(self) -> PairTable:
        """log π_k − γPK + K = log π − A_K, with K(s) the divergence from the anchor: where a step from it starts."""
        assert self.learner is not None
        return np.asarray(self._log_pi - self.learner.anchor_advantages())

    @cached_property
    def _logits(self) -> dict[tuple[float, bool], Array]:
        return {}  # log π − step · A_0 of the last step requested, as `by_action`

    @cached_property
    def _scaled_values(self) -> ConstraintArray:
        return np.asarray(self.units * self.values)

    def response(self, prices: ConstraintArray, step: float, keep_anchor: bool = False) -> Response:
        key = (step, keep_anchor)
        if key not in self._logits:
            self._logits.clear()
            start = self._from_anchor if keep_anchor else self._log_pi
            self._logits[key] = by_action(start) - step * self._stacked[0]
        assert self.learner is not None
        local = (self._logits[key], self._stacked[1:], self._scaled_values, self.learner.state_visits)
        if self.learner.is_large:
            self.__dict__.pop("_from_anchor", None)
        return MirrorResponse(self.learner.cmdp.pairs, *local, prices, step)

    def stepped(
        self, multipliers: ConstraintArray, step: float | None, keep_anchor: bool
    ) -> tuple[TabularPolicy, StateArray] | None:
        """The policy of the mirror step that the last `response` has predicted, at these weights, and its ℓ.

        None if there was none with this step. The tables of the view are used up.
        """
        assert self.learner is not None
        logits = None if step is None else self._logits.pop((step, keep_anchor), None)
        if logits is None or step is None:
            return None
        # log π′ = log π_k − step (c̃ + γPṼ) + step Ṽ − ℓ: what is in brackets are advantages, and any action tells ℓ
        for price, table in zip(multipliers / self.units, self._stacked[1:], strict=True):
            logits -= (step * price) * table
        self.forget()
        pairs = self.learner.cmdp.pairs
        policy = TabularPolicy.softmax(pairs, np.ascontiguousarray(logits.T))
        rows = pairs.rows(0)
        return policy, np.asarray((logits[0] if pairs.is_full else logits[rows]) - policy.log_pi.ravel()[rows])

    def metric(self, step: float, keep_anchor: bool = False) -> Array:
        assert self.learner is not None
        flat, visits = self._stacked.reshape(1 + self.values.size, -1), by_action(self.learner.occupancy).ravel()
        rows = np.empty((self.values.size, 1 + self.values.size))
        for row, table in zip(rows, flat[1:], strict=True):  # advantages have mean zero under π
            weighted = visits * table
            np.dot(flat, weighted, out=row)
            if keep_anchor:  # log π − step · A_0 becomes log π − A_K − step · A_0
                row[0] += np.dot(weighted, by_action(self._log_pi - self._from_anchor).ravel()) / step
        return rows

    @cached_property
    def visit_error(self) -> float:
        assert self.learner is not None
        level = self.learner.log_normaliser
        if level is None:
            return super().visit_error
        # max_s ℓ(s)/(1 − γ) − Σ_s x(s) ℓ(s), as Σ_s x(s) = 1/(1 − γ)
        return float(self.learner.state_visits @ (level.max() - level))

    @cached_property
    def divergence(self) -> float:
        assert self.learner is not None
        return self.learner.divergence_from_anchor()

    def greedy_gain(self, multipliers: ConstraintArray) -> float:
        assert self.learner is not None
        pairs = self.learner.cmdp.pairs
        weights, flat = np.append(1.0, multipliers / self.units), self._stacked.reshape(1 + multipliers.size, -1)
        lagrangian = np.dot(weights, flat).reshape(self._stacked.shape[1:])
        # −Σ_s x(s) min_a (A_0 + Σ λ_i A_i)(s, a)
        least = np.minimum.reduce(lagrangian) if pairs.is_full else pairs.min(lagrangian)
        return -float(np.dot(self.learner.state_visits, least))

    def multiplier_bound(self) -> float:
        """2 / ((1 − γ) ξ) for costs up to 1 in size (Lemma upper-dual); larger costs scale it."""
        assert self.learner is not None
        cmdp = self.learner.cmdp
        xi = slater_margin(cmdp)
        largest = max(1.0, float(np.abs(cmdp.costs[0]).max()))
        return 2.0 * largest / (cmdp.step_weight * xi) if xi > 0.0 else float(np.inf)
