"""The predicted response to a mirror step, under the local model of a tabular policy."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, PairTable, StateArray
from cmdpkit.model import Pairs
from cmdpkit.policy.tabular import UNHEARD


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
        moved: Array = np.dot(step * prices, scaled.reshape(prices.size, -1)).reshape(logits.shape)
        np.subtract(logits, moved, out=moved)
        top = np.maximum.reduce(moved) if pairs.is_full else pairs.max(moved)
        moved -= self._over(top)
        np.maximum(moved, UNHEARD, out=moved)
        self._pi = np.exp(moved, out=moved)
        total = self._sum(self._pi)
        self._pi /= self._over(total)
        self.soft_minimum = float(visits @ (top + np.log(total))) / -step

    @property
    def policy(self) -> PairTable:
        return self._pi.T

    @cached_property
    def _occupancy(self) -> Array:
        occupancy: Array = self._over(self._visits) * self._pi
        return occupancy

    @cached_property
    def values(self) -> ConstraintArray:
        change: Array = np.dot(self._advantages.reshape(self._values.size, -1), self._occupancy.reshape(-1))
        change += self._values
        return change

    def release(self) -> None:
        """Give up a table that is quickly made again."""
        self.__dict__.pop("_occupancy", None)

    @property
    def gram(self) -> Array:
        centred = np.empty_like(self._advantages)
        for table, out in zip(self._advantages, centred, strict=True):
            np.subtract(table, self._over(self._sum(self._pi * table)), out=out)
        flat, visits = centred.reshape(len(centred), -1), self._occupancy.reshape(-1)
        gram = np.empty((len(flat), len(flat)))
        for row, out in zip(flat, gram, strict=True):
            np.dot(flat, row * visits, out=out)
        return gram

    def _sum(self, table: Array) -> Array:
        total: Array = np.add.reduce(table) if self._pairs.is_full else self._pairs.sum(table)
        return total

    def _over(self, values: Array) -> Array:
        spread: Array = values if self._pairs.is_full else self._pairs.over(values)
        return spread


def by_action(table: PairTable) -> Array:
    """(A, S) of a table (S, A); one of pairs (N,) stays as it is."""
    return np.ascontiguousarray(table.T)


def tables_by_action(pairs: Pairs, table: Array, scales: Array) -> Array:
    """(n, A, S) of a table (N, n), times a scale for each column; (n, N) where not all actions are available."""
    tables = np.empty((scales.size, *pairs.like(table[:, 0]).T.shape))
    for out, column, scale in zip(tables, table.T, scales, strict=False):  # there may be columns of padding
        np.multiply(pairs.like(column).T, scale, out=out)
    return tables
