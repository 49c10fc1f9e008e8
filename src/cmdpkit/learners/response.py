"""The predicted response to a mirror step, under the local model of a tabular policy."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, PairTable, StateArray
from cmdpkit.model import Pairs


class MirrorResponse:
    """The policy π_u ∝ π exp(−step (A_0 + Σ u_i A_i)) under the local model. See `Response`.

    Tables are (A, S) here where all actions are available: sums over many short rows would take twice the time.
    """

    def __init__(
        self,
        pairs: Pairs,
        logits: Array,  # (A, S), or (N,) where not all actions are available
        scaled: Array,  # (m, A, S) or (m, N)
        values: ConstraintArray,
        visits: StateArray,
        prices: ConstraintArray,
        step: float,
    ) -> None:
        self._pairs, self._advantages, self._values, self._visits = pairs, scaled, values, visits
        moved = logits - ((step * prices) @ scaled.reshape(prices.size, -1)).reshape(logits.shape)
        top = np.maximum.reduce(moved) if pairs.is_full else pairs.max(moved)
        moved -= self._over(top)
        self._pi = np.exp(moved, out=moved)
        total = self._sum(self._pi)
        self._pi /= self._over(total)
        self.soft_minimum = float(-visits @ (top + np.log(total)) / step)

    @property
    def policy(self) -> PairTable:
        return self._pi.T

    @cached_property
    def _occupancy(self) -> Array:
        return np.asarray(self._over(self._visits) * self._pi)

    @property
    def values(self) -> ConstraintArray:
        change = self._advantages.reshape(self._values.size, -1) @ self._occupancy.ravel()
        return np.asarray(self._values + change)

    @property
    def gram(self) -> Array:
        centred = np.empty_like(self._advantages)
        for table, out in zip(self._advantages, centred, strict=True):
            np.subtract(table, self._over(self._sum(self._pi * table)), out=out)
        flat, visits = centred.reshape(len(centred), -1), self._occupancy.ravel()
        return np.array([flat @ (row * visits) for row in flat])

    def _sum(self, table: Array) -> Array:
        return np.asarray(np.add.reduce(table) if self._pairs.is_full else self._pairs.sum(table))

    def _over(self, values: Array) -> Array:
        return values if self._pairs.is_full else np.asarray(self._pairs.over(values))


def by_action(table: PairTable) -> Array:
    """(A, S) of a table (S, A); one of pairs (N,) stays as it is."""
    return np.ascontiguousarray(table.T)
