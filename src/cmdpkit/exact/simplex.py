"""The master problem in exact arithmetic: a simplex method in Fractions, two phases, Bland's rule.

    minimise Σ_j w_j c_j  subject to  Σ_j w_j v_ij ≤ r_i,  Σ_j w_j = 1,  w ≥ 0

for a few columns. Columns are added one by one, and the last basis is where the next solution starts.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

Vector = list[Fraction]

ZERO, ONE = Fraction(0), Fraction(1)

PIVOTS = 2_000
"""Bland's rule ends; this is for patience."""


class Mixed(NamedTuple):
    """Weights on the columns with the prices of the rows, and by how much the limits are missed in all."""

    weights: Vector
    prices: Vector
    value: Fraction
    excess: Fraction


class ExactMaster:
    """Columns (c_j, v_1j, ..., v_mj), and a basis among slacks (0..m − 1), excesses (m..2m − 1) and columns."""

    def __init__(self, rows: int, scales: Vector) -> None:
        self.m, self.scales = rows, scales  # of the rows: excess is measured in these
        self.columns: list[Vector] = []
        self._basis: list[int] | None = None

    def add(self, column: Vector) -> None:
        self.columns.append(column)

    def solve(self, relaxation: Vector) -> Mixed:
        """The cheapest mixture within the relaxed limits; where there is none, the one that misses them least."""
        m, right = self.m, [*relaxation, ONE]
        basis = self._start(right)
        phase_one = [ZERO] * m + [ONE / s for s in self.scales] + [ZERO] * len(self.columns)
        basis = self._pivots(phase_one, right, basis, allowed=range(m, 2 * m))
        x = _solve(self._matrix(basis), right)
        excess = sum((phase_one[j] * v for j, v in zip(basis, x, strict=True)), ZERO)
        cost = phase_one
        if excess == 0:
            basis = self._without_excess(basis)
            cost = [ZERO] * (2 * m) + [column[0] for column in self.columns]
            basis = self._pivots(cost, right, basis)
            x = _solve(self._matrix(basis), right)
        self._basis = basis
        y = _solve(_transposed(self._matrix(basis)), [cost[j] for j in basis])
        weights = [ZERO] * len(self.columns)
        for j, v in zip(basis, x, strict=True):
            if j >= 2 * m:
                weights[j - 2 * m] = v
        value = sum((w * column[0] for w, column in zip(weights, self.columns, strict=True)), ZERO)
        return Mixed(weights, [max(-p, ZERO) for p in y[:m]], value, excess)

    def _start(self, right: Vector) -> list[int]:
        """The last basis where it is feasible for these limits, or one column with slacks and excesses."""
        m = self.m
        if self._basis is not None and min(_solve(self._matrix(self._basis), right)) >= 0:
            return self._basis
        first = self.columns[-1]
        return [i if first[i + 1] <= right[i] else m + i for i in range(m)] + [2 * m + len(self.columns) - 1]

    def _column(self, j: int) -> Vector:
        m = self.m
        if j < 2 * m:
            return [(ONE if j < m else -ONE) if i == j % m else ZERO for i in range(m)] + [ZERO]
        return [*self.columns[j - 2 * m][1:], ONE]

    def _matrix(self, basis: list[int]) -> list[Vector]:
        return _transposed([self._column(j) for j in basis])

    def _pivots(self, cost: Vector, right: Vector, basis: list[int], allowed: range = range(0)) -> list[int]:
        """Bland's rule until no reduced cost is negative; of the excesses only those in `allowed` may enter."""
        m, basis = self.m, list(basis)
        candidates = [*range(m), *allowed, *range(2 * m, len(cost))]
        for _ in range(PIVOTS):
            matrix = self._matrix(basis)
            y = _solve(_transposed(matrix), [cost[j] for j in basis])
            inside = set(basis)
            reduced = (
                (j, cost[j] - sum((p * a for p, a in zip(y, self._column(j), strict=True)), ZERO))
                for j in candidates
                if j not in inside
            )
            enter = next((j for j, r in reduced if r < 0), None)
            if enter is None:
                break
            x, direction = _solve(matrix, right), _solve(matrix, self._column(enter))
            ratios = [(v / d, basis[i], i) for i, (v, d) in enumerate(zip(x, direction, strict=True)) if d > 0]
            basis[min(ratios)[2]] = enter
        return basis

    def _without_excess(self, basis: list[int]) -> list[int]:
        """The same vertex with a basis in which no excess is left: the slack of its row is as good."""
        return [j - self.m if self.m <= j < 2 * self.m else j for j in basis]


def _transposed(matrix: list[Vector]) -> list[Vector]:
    return [list(row) for row in zip(*matrix, strict=True)]


def _solve(matrix: list[Vector], right: Vector) -> Vector:
    """Gaussian elimination."""
    table = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    n = len(table)
    for k in range(n):
        pivot = next(i for i in range(k, n) if table[i][k])
        table[k], table[pivot] = table[pivot], table[k]
        head = table[k]
        for i in range(n):
            factor = table[i][k]
            if i != k and factor:
                factor /= head[k]
                table[i] = [a - factor * b if b else a for a, b in zip(table[i], head, strict=True)]
    return [table[k][n] / table[k][k] for k in range(n)]
