"""The small linear programs of the exact finish: a few columns in m + 1 rows, solved thousands of times.

    minimise Σ_j w_j c_j + cap · Σ_i t_i  subject to  Σ_j w_j v_ij − t_i ≤ r_i,  Σ_j w_j = 1,  w, t ≥ 0.

The excess t makes every basis that starts from one column feasible, and its price `cap` bounds the prices of the rows.
A dense simplex method on (m + 1) × (m + 1) bases takes some 0.1 ms where a general solver takes 1.5; what it finds is
checked, and HiGHS is asked where the check fails.
"""

from __future__ import annotations

import contextlib
import math
from functools import lru_cache
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, freeze

OPTIMAL = 1e-12
"""Reduced costs above minus this are rounding: rows and costs are scaled to about 1."""

CAP = 1e9
"""The price of excess in the master: larger prices of the limits are not told apart from infinity."""

LEVEL = 0.5
"""The next question lies where the model promises this part of the improvement it promises at most (measured)."""


ROOM = 32
"""Columns that a program has room for beyond the first ones."""

LISTS = 8
"""Up to this many rows plain lists of numbers are faster than arrays (measured)."""

FARTHEST = 1e150
"""A limit can be far away from what its cost can reach, but not by more than this in the units of the master."""


def row_scales(cmdp: Any) -> Array:
    """(rows + 1,) what a policy can change in each row at most: by these the rows of the master are divided.

    Costs that are all zero have no size, and the scale 1.
    """
    magnitude = cmdp.cost_sizes / cmdp.step_weight
    spans = cmdp.spans / cmdp.step_weight
    scales = np.where(spans > 1e-12 * magnitude, spans, np.where(magnitude > 0.0, magnitude, 1.0))
    scales[1:] = np.maximum(scales[1:], np.abs(cmdp.offsets) / FARTHEST)
    return np.asarray(scales)


class Mixture(NamedTuple):
    """Weights on the columns, and the prices of the rows that support them."""

    weights: Array
    prices: Array
    value: float  # of the linear program
    excess: float  # Σ t
    basis: Any = None  # to start from when columns have been added at the end


def best_mixture(
    costs: Array, rows: Array, relaxation: Array, cap: float = CAP, basis: Any = None, opposites: Any = ()
) -> Mixture:
    """The cheapest mixture of the columns (costs (n,), rows (m, n)) within the relaxed limits, or least outside.

    `opposites` are pairs of rows that bound the same quantity from both sides; at most one of a pair has a price.
    """
    if len(rows) == 1:
        return _on_one_line(costs, rows[0] - relaxation[0], cap)
    return Program(np.vstack([costs, rows]).T, relaxation, cap, basis, exact=True).mixture(opposites)


class Program:
    """The linear program above, to which columns are added one after another; every solve continues from the last.

    Args:
        columns: (n, m + 1) costs c_j and rows v_j of the first columns.
        relaxation: (m,) right-hand sides r.
        cap: price of the excess.
        basis: of a program with the first of these columns, to start from.
        exact: answers come from a basis that was inverted, not updated.
    """

    def __init__(
        self, columns: Array, relaxation: Array, cap: float = CAP, basis: Any = None, exact: bool = False
    ) -> None:
        n, m = len(columns), relaxation.size
        self.m, self.count, self.relaxation, self.cap, self.exact = m, n, relaxation, cap, exact
        # Variables: slacks s, excess t and weights w, with  s − t + rows·w = relaxation  and  Σ w = 1; last the costs
        self._system = np.zeros((m + 2, 2 * m + n + ROOM))
        self._system[:m, : 2 * m], self._system[m, 2 * m :], self._system[-1, m : 2 * m] = _slacks(m), 1.0, cap
        inside = slice(2 * m, 2 * m + n)
        self._system[-1, inside], self._system[:m, inside] = columns[:, 0], columns[:, 1:].T
        self._right = np.append(relaxation, 1.0)
        self._basis: Any = basis
        self._table: Any = None  # of the basis, once it is known
        self._priced = 0  # variables that the table is optimal for
        self._solved: tuple[Array, Array, Any] | None = None

    def add(self, column: Array) -> None:
        """Add a column (m + 1,)."""
        end = 2 * self.m + self.count
        if end == self._system.shape[1]:
            self._system = np.hstack([self._system, np.zeros_like(self._system)])
            self._system[self.m, end:] = 1.0
        self._system[-1, end], self._system[: self.m, end] = column[0], column[1:]
        self.count, self._solved = self.count + 1, None

    @property
    def columns(self) -> Array:
        """(n, m + 1) all columns."""
        inside = slice(2 * self.m, 2 * self.m + self.count)
        return np.column_stack([self._system[-1, inside], self._system[: self.m, inside].T])

    def solve(self) -> tuple[float, Array]:
        """The least value, and the prices of the rows."""
        if self.m > 1 and self._solved is None and self._optimise():
            last = self._table[-1]
            return -float(last[-1]), np.maximum(last[: self.m], 0.0)
        only = self.mixture()
        return only.value, only.prices

    def mixture(self, opposites: Any = ()) -> Mixture:
        """The weights of the columns, and the prices of the rows that support them."""
        m, n = self.m, self.count
        cost, matrix = self._system[-1, : 2 * m + n], self._system[:-1, : 2 * m + n]
        rows = matrix[:m, 2 * m :]
        if m == 0:
            j = int(cost.argmin())
            return Mixture(np.eye(n)[j], np.zeros(0), float(cost[j]), 0.0)
        if m == 1:
            return _on_one_line(cost[2:], rows[0] - self.relaxation[0], self.cap)
        found = self._solution()
        if found is None:
            return _best_column(cost[2 * m :], rows, self.relaxation, self.cap)
        x, y, basis = found
        weights = np.maximum(x[2 * m :], 0.0)
        weights /= weights.sum()
        excess = float(np.maximum(rows @ weights - self.relaxation, 0.0).sum())
        prices = _netted(np.maximum(-y[:m], 0.0), cost, matrix, basis, opposites)
        return Mixture(weights, prices, float(cost @ x), excess, basis)

    def _solution(self) -> tuple[Array, Array, Any] | None:
        if self._solved is None:
            system = self._system[:, : 2 * self.m + self.count]
            if self._optimise():
                x = np.zeros(system.shape[1])
                x[self._basis] = [row[-1] for row in self._table[:-1]]
                self._solved = x, -np.array(self._table[-1][:-2]), np.array(self._basis)
            else:
                self._solved = _highs(system[-1], system[:-1], self._right)
                self._basis = self._table = None
        return self._solved

    def _optimise(self) -> bool:
        """Find the best basis and its table; False if rounding spoils it."""
        system = self._system[:, : 2 * self.m + self.count]
        if self._basis is None:
            self._begin()
        if self._table is not None and self._priced == system.shape[1]:
            return True
        return self._simplex(system)

    def _begin(self) -> None:
        """Start from the best single column, with slacks or excess: the inverse of that basis is known."""
        m, inside = self.m, slice(2 * self.m, 2 * self.m + self.count)
        over = self._system[:m, inside] - self.relaxation[:, None]
        j = int((self._system[-1, inside] + self.cap * np.maximum(over, 0.0).sum(axis=0)).argmin())
        signs = np.where(over[:, j] <= 0.0, 1.0, -1.0)
        self._basis = [*(np.where(signs > 0.0, 0, m) + np.arange(m)).tolist(), 2 * m + j]
        table = np.zeros((m + 2, m + 3))
        table[range(m), range(m)], table[:m, m] = signs, -signs * self._system[:m, 2 * m + j]
        table[:m, -1] = -signs * over[:, j]
        table[m, m] = table[m, -1] = table[-1, m + 1] = 1.0
        table[-1] -= self._system[-1, self._basis] @ table[:-1]
        self._table = table.tolist() if m + 1 <= LISTS else table

    def _simplex(self, system: Array) -> bool:
        """From a feasible basis to the best one; False if rounding spoils it."""
        basis, table, m = list(self._basis), self._table, self.m
        degenerate, fresh = 0, table is not None  # the table is not one that was updated
        # After an optimum only what was added can enter
        added = system.shape[1] - 1 if table is not None and self._priced >= system.shape[1] - 1 else None
        for _ in range(50 + 10 * (m + 1)):  # HiGHS copes with what is more degenerate than that
            if table is None:
                try:
                    table, fresh = self._tableau(system, basis), True
                except np.linalg.LinAlgError:
                    return False
            prices = [*table[-1][:-1]]
            least = -OPTIMAL * (1.0 + max(map(abs, prices[:-1])))
            if added is None:
                reduced = np.array(prices) @ system
                enter = int(reduced.argmin())
                if enter in basis:  # by rounding
                    reduced[basis] = 0.0
                    enter = int(reduced.argmin())
                gain = reduced[enter]
            else:
                enter, added = added, None
                gain = sum(map(mul, prices, system[:, enter].tolist()))
            if not gain < least:
                if self.exact and not fresh:
                    table = None
                    continue
                return self._accept(system, basis, table)
            bland = degenerate > 2 * m + 2  # or steps without progress might go round in circles
            if bland:
                reduced[basis] = 0.0
                enter = int((reduced < least).argmax())
            direction = _direction(table, system[:, enter])
            leave, shortest = _leaving([row[-1] for row in table[:-1]], direction[:-1], basis if bland else None)
            if leave < 0:
                return False
            degenerate = degenerate + 1 if shortest <= 1e-14 else 0
            table, fresh = _pivoted(table, leave, direction), False
            basis[leave] = enter
        return False

    def _tableau(self, system: Array, basis: list[int]) -> Any:
        """The inverse of a basis; below it minus the dual and 1 for the costs, beside it x and minus the value."""
        k = self.m + 1
        table = np.zeros((k + 1, k + 2))
        table[:k, :k] = np.linalg.inv(system[:k, basis])
        table[:k, -1] = table[:k, :k] @ self._right
        table[k] = -system[k, basis] @ table[:k]
        table[k, k] = 1.0
        return table.tolist() if k <= LISTS else table

    def _accept(self, system: Array, basis: list[int], table: Any) -> bool:
        """Keep a tableau, if its solution is one; that of updates need not be exact."""
        x = [row[-1] for row in table[:-1]]
        if not min(x) >= -1e-9:
            return False
        if self.exact and not max(map(abs, (system[:-1, basis] @ x - self._right).tolist())) <= 1e-9:
            return False
        self._basis, self._table, self._priced = basis, table, system.shape[1]
        return True


def _direction(table: Any, column: Array) -> list[float]:
    """By how much the basic variables fall, and what is gained, where a column enters."""
    if isinstance(table, list):
        entries = column.tolist()
        return [sum(map(mul, row, entries)) for row in table]
    return list((table[:, :-1] @ column).tolist())


def _pivoted(table: Any, leave: int, direction: list[float]) -> Any:
    """The tableau after a pivot."""
    if isinstance(table, list):
        first = [entry / direction[leave] for entry in table[leave]]
        each = zip(table, direction, strict=True)
        rows = [[a - share * b for a, b in zip(row, first, strict=True)] for row, share in each]
        rows[leave] = first
        return rows
    first, share = table[leave] / direction[leave], np.array(direction)
    share[leave] -= 1.0
    return table - share[:, None] * first


def _leaving(x: list[float], direction: list[float], order: list[int] | None) -> tuple[int, float]:
    """Which variable of the basis is the first to fall to zero, and after how long a step; -1 if none does.

    Of several it is the one that falls fastest, or with Bland's rule the first in the `order` of all variables.
    """
    ratios = [max(value, 0.0) / d if d > 1e-11 else math.inf for value, d in zip(x, direction, strict=True)]
    shortest = min(ratios)
    if not shortest < math.inf:
        return -1, shortest
    ties = [j for j, ratio in enumerate(ratios) if ratio <= shortest + 1e-14]
    if len(ties) > 1:
        ties.sort(key=direction.__getitem__ if order is None else order.__getitem__, reverse=order is None)
    return ties[0], shortest


@lru_cache(maxsize=64)
def _slacks(m: int) -> Array:
    """(m, 2 m) the columns of slacks and excess."""
    return freeze(np.hstack([np.eye(m), -np.eye(m)]))


def _on_one_line(costs: Array, row: Array, cap: float) -> Mixture:
    """The best mixture of at most two columns within one limit: where their Lagrangians cross, no other is lower."""
    n, low = costs.size, int(costs.argmin())
    if row[low] <= 0.0:
        return _single(n, low, 0.0, costs[low], 0.0, slack=True)
    high, price = int((costs + cap * row).argmin()), cap
    if row[high] > 0.0:
        return _single(n, high, cap, costs[high] + cap * row[high], row[high], slack=False)
    for _ in range(n):
        price = (costs[high] - costs[low]) / (row[low] - row[high])
        lagrangian = costs + price * row
        j = int(lagrangian.argmin())
        if lagrangian[j] >= min(lagrangian[low], lagrangian[high]):
            break
        low, high = (j, high) if row[j] > 0.0 else (low, j)
    weights = np.zeros(n)
    weights[high] = row[low] / (row[low] - row[high])
    weights[low] = 1.0 - weights[high]
    excess = max(float(row @ weights), 0.0)
    return Mixture(weights, np.array([price]), float(costs @ weights), excess, np.array([2 + low, 2 + high]))


def _single(n: int, j: int, price: float, value: float, excess: float, slack: bool) -> Mixture:
    """One column, with the slack or the excess of the only row in the basis."""
    weights = np.zeros(n)
    weights[j] = 1.0
    return Mixture(weights, np.array([price]), float(value), float(excess), np.array([0 if slack else 1, 2 + j]))


def _netted(prices: Array, cost: Array, matrix: Array, basis: Any, opposites: Any) -> Array:
    """Prices of which none is positive for both rows of a pair.

    Where both are, the excess of one of the rows is in the basis, and its price `cap` hides the digits of their
    difference. The slack of the row with the smaller price takes its place, which is as good a basis.
    """
    m = len(prices)
    both = [pair for pair in opposites if prices[pair].min() > 0.0]
    if not both:
        return prices
    weaker = [int(pair[prices[pair].argmin()]) for pair in both]
    if basis is not None:
        swapped = np.array(basis)
        for (i, k), slack in zip(both, weaker, strict=True):
            swapped[np.isin(swapped, (m + i, m + k))] = slack
        with contextlib.suppress(np.linalg.LinAlgError):
            prices = np.maximum(-np.linalg.solve(matrix[:, swapped].T, cost[swapped])[:m], 0.0)
    net = prices.copy()
    for pair in both:
        net[pair] -= prices[pair].min()
    return net


def _best_column(costs: Array, rows: Array, relaxation: Array, cap: float) -> Mixture:
    """The best single column, without prices: where rounding defeats both LP solvers."""
    excess = np.maximum(rows - relaxation[:, None], 0.0).sum(axis=0)
    j = int((costs + cap * excess).argmin())
    weights = np.eye(costs.size)[j]
    return Mixture(weights, np.zeros(len(rows)), float(costs[j] + cap * excess[j]), float(excess[j]))


def _highs(cost: Array, matrix: Array, right: Array) -> tuple[Array, Array, None] | None:
    from scipy.optimize import linprog

    tolerances = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    answer = linprog(cost, A_eq=matrix, b_eq=right, bounds=(0.0, None), method="highs-ds", options=tolerances)
    if answer.status != 0 or not np.isfinite(answer.x).all():
        return None
    return answer.x, answer.eqlin.marginals, None


def least_violation(rows: Array) -> tuple[float, Mixture]:
    """The matrix game min_w max_i Σ_j w_j rows_ij: its value, the weights w, and as prices the mix y of the rows."""
    from scipy.optimize import linprog

    m, n = rows.shape
    # minimise t subject to rows·w − t ≤ 0; t is the last variable, and free
    answer = linprog(
        np.append(np.zeros(n), 1.0),
        A_ub=np.hstack([rows, -np.ones((m, 1))]),
        b_ub=np.zeros(m),
        A_eq=np.append(np.ones(n), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0.0, None)] * n + [(None, None)],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    y = np.maximum(-answer.ineqlin.marginals, 0.0) if answer.status == 0 else np.zeros(m)
    if y.sum() == 0.0:  # a game always has a value; only the LP solver can fail
        j = int(rows.max(axis=0).argmin())
        weights, y = np.eye(n)[j], np.eye(m)[rows[:, j].argmax()]
    else:
        weights = np.maximum(answer.x[:n], 0.0)
        weights /= weights.sum()
    worst = float((rows @ weights).max())
    return worst, Mixture(weights, y / y.sum(), worst, max(worst, 0.0))
