"""The predicted response to a mirror step, under the local model of a tabular policy."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, PairTable, StateArray
from cmdpkit.model import Pairs


class MirrorResponse:
    """The policy π_u ∝ π exp(−step (A_0 + Σ u_i A_i)) under the local model. See `Response`."""

    def __init__(
        self,
        pairs: Pairs,
        logits: PairTable,
        scaled: Array,  # (N, m)
        values: ConstraintArray,
        visits: StateArray,
        prices: ConstraintArray,
        step: float,
    ) -> None:
        self._pairs, self._advantages, self._values, self._visits = pairs, scaled, values, visits
        moved = logits - step * (scaled @ prices).reshape(logits.shape)
        top = pairs.max(moved)
        pi = np.exp(moved - pairs.over(top))
        total = pairs.sum(pi)
        pi /= pairs.over(total)
        self.policy: PairTable = pi
        self.soft_minimum = float(-visits @ (top + np.log(total)) / step)

    @cached_property
    def _means(self) -> tuple[Array, Array]:
        """The advantages as (S, A, m) or (N, m), and their means under the policy as (S, m)."""
        table = self._pairs.like(self._advantages)
        if self._pairs.is_full:
            return table, np.einsum("sa,sai->si", self.policy, table)
        return table, self._pairs.sum(self.policy[:, None] * table)

    @property
    def values(self) -> ConstraintArray:
        return np.asarray(self._values + self._visits @ self._means[1])

    @property
    def gram(self) -> Array:
        table, mean = self._means
        centred = (table - self._pairs.over(mean)).reshape(-1, table.shape[-1])
        occupancy = (self._pairs.over(self._visits) * self.policy).reshape(-1, 1)
        return np.asarray(centred.T @ (occupancy * centred))
