"""Long-run averages of small models in exact arithmetic.

Whatever h is, averages lie between the least and the largest of c + P h − h (theory.md, "Long-run averages"). Where a
part of the model is left with probability 1e-12, h is 1e12 and that difference rounding; here it is exact. Rows of P
and the probabilities of a policy are divided by their exact sums.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from cmdpkit.checks import PairTable
from cmdpkit.evaluation.average import reachable, recurrent_classes
from cmdpkit.evaluation.bounds import visited
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.rational import BITS, POLICIES, RationalModel, solved

ZERO = Fraction(0)

FINE = 1024
"""Bits of the probabilities with which h is found; errors of h cost accuracy, not validity."""


class RationalAverages(RationalModel):
    """Averages of policies, and bounds on those of all policies."""

    def averages(self, pi: PairTable) -> tuple[list[Fraction], list[Fraction]] | None:
        """V_0..V_m of a policy, and bounds on their errors; None if the start can end in several classes."""
        moves = mixed_chain(self.cmdp, (pi > 0.0).astype(float))
        _, label = recurrent_classes(moves)
        classes = np.unique(label[reachable(moves, self.cmdp.initial) & (label >= 0)])
        if classes.size != 1:
            return None
        inside = np.flatnonzero(label == classes[0])
        played = [self._played(pi, int(s)) for s in inside]
        chain = [
            [sum((p * int(self.ahead[j, t]) / int(self.sums[j]) for j, p in row), ZERO) for t in inside]
            for row in played
        ]
        values, errors = [], []
        for table, offset in zip(self.costs, self.offsets, strict=True):
            cost = [sum((p * int(table.numbers[j]) for j, p in row), ZERO) / (1 << table.shift) for row in played]
            change = _changes(chain, cost, _bias(chain, cost))
            low, high = min(change), max(change)
            values.append((low + high) / 2 - offset)
            errors.append((high - low) / 2)
        return values, errors

    def _played(self, pi: PairTable, state: int) -> list[tuple[int, Fraction]]:
        """The pairs that a policy plays in a state, with their probabilities."""
        flat, (first, last) = np.ravel(pi), self.pairs.first[state : state + 2]
        shares = [(j, Fraction(float(flat[j]))) for j in range(first, last) if flat[j] > 0.0]
        total = sum((p for _, p in shares), ZERO)
        return [(j, p / total) for j, p in shares]

    def bound(self, weights: Any, stop: Callable[[], bool] = bool) -> Fraction:
        """A lower bound on Σ w_i V_i of all policies: the least of Th − h over the states that can be visited.

        Policy iteration finds h. Where a policy has several recurrent classes its system is singular, and the bound as
        poor as the h that comes of it.
        """
        pairs, exact, seen = self.pairs, [Fraction(float(w)) for w in weights], visited(self.cmdp)[self.pairs.state]
        cost, best = self.weighted(exact), None
        choice = np.zeros(pairs.states, dtype=np.int64)
        for _ in range(POLICIES):
            rows = pairs.rows(choice)
            # g + h(s) − Σ P h / r = c(s) with h = 0 in the last state; times r, and with g in the place of that h
            matrix = np.diag(self.sums[rows]) - self.ahead[rows]
            matrix[:, -1] = self.sums[rows]
            value, bits, _ = solved(matrix, self.shift, self.sums[rows] * cost.numbers[rows])
            average, value = int(value[-1]), np.append(value[:-1], 0)
            # r (c + P h / r − h) of every pair; h and g are in units of 2**-(bits + self.shift + cost.shift)
            change = self.sums * ((cost.numbers << (bits + self.shift)) - value[pairs.state]) + self.ahead @ value
            unit = 1 << (bits + self.shift + cost.shift)
            least = min(Fraction(int(c), int(r) * unit) for c, r, s in zip(change, self.sums, seen, strict=True) if s)
            best = least if best is None else max(best, least)
            gain = change - self.sums * average
            lowest = np.minimum.reduceat(gain, pairs.first[:-1])
            better = lowest < -(int(abs(value).max() << self.shift) >> (BITS // 2))
            if not better.any() or stop():
                break
            choice = np.where(better, self.first_least(gain, lowest), choice)
        assert best is not None
        return best - sum(w * o for w, o in zip(exact, self.offsets, strict=True))


def _bias(chain: list[list[Fraction]], cost: list[Fraction]) -> list[Fraction]:
    """h with g + h = c + P h nearly, and h = 0 in the last state; from probabilities and costs of FINE bits."""
    n = len(cost)
    matrix, scale = np.empty((n, n), dtype=object), max(map(abs, cost)) or Fraction(1)
    for s, row in enumerate(chain):
        matrix[s] = [int((int(s == t) - p) * (1 << FINE)) for t, p in enumerate(row)]
    matrix[:, -1] = 1 << FINE
    rhs = np.array([int(c / scale * (1 << FINE)) for c in cost], dtype=object)
    x, bits, _ = solved(matrix, FINE, rhs)
    return [Fraction(int(v), 1 << (bits + FINE)) * scale for v in x[:-1]] + [ZERO]


def _changes(chain: list[list[Fraction]], cost: list[Fraction], h: list[Fraction]) -> list[Fraction]:
    """c + P h − h"""
    return [
        c + sum((p * x for p, x in zip(row, h, strict=True)), ZERO) - own
        for c, row, own in zip(cost, chain, h, strict=True)
    ]
