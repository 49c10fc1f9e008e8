"""The small linear programs of the exact finish: a few columns in m + 1 rows, solved thousands of times.

    minimise Σ_j w_j c_j + cap · Σ_i t_i  subject to  Σ_j w_j v_ij − t_i ≤ r_i,  Σ_j w_j = 1,  w, t ≥ 0.

The excess t makes every basis that starts from one column feasible, and its price `cap` bounds the prices of the rows.
A dense simplex method on (m + 1) × (m + 1) bases takes some 0.1 ms where a general solver takes 1.5; what it finds is
checked, and HiGHS is asked where the check fails.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, freeze
from cmdpkit.exact.least_squares import nonnegative_least_squares

OPTIMAL = 1e-12
"""Reduced costs above minus this are rounding: rows and costs are scaled to about 1."""

CAP = 1e9
"""The price of excess in the master: larger prices of the limits are not told apart from infinity."""

LEVEL = 0.5
"""The next question lies where the model promises this part of the improvement it promises at most (measured)."""


ROOM = 32
"""Columns that a program has room for beyond the first ones."""

FARTHEST = 1e150
"""A limit can be far away from what its cost can reach, but not by more than this in the units of the master."""


def row_scales(cmdp: Any) -> Array:
    """(rows + 1,) what a policy can change in each row at most: by these the rows of the master are divided."""
    magnitude = cmdp.cost_sizes / cmdp.step_weight
    spans = cmdp.spans / cmdp.step_weight
    scales = np.where(spans > 1e-12 * magnitude, spans, magnitude)
    scales[1:] = np.maximum(scales[1:], np.abs(cmdp.offsets) / FARTHEST)
    return np.where(scales > 0.0, scales, 1.0)


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
    return Program(np.vstack([costs, rows]).T, relaxation, cap, basis).mixture(opposites)


class Program:
    """The linear program above, to which columns are added one after another; every solve continues from the last.

    Args:
        columns: (n, m + 1) costs c_j and rows v_j of the first columns.
        relaxation: (m,) right-hand sides r.
        cap: price of the excess.
        basis: of a program with the first of these columns, to start from.
    """

    def __init__(self, columns: Array, relaxation: Array, cap: float = CAP, basis: Any = None) -> None:
        n, m = len(columns), relaxation.size
        self.m, self.count, self.relaxation, self.cap = m, n, relaxation, cap
        # Variables: slacks s, excess t and weights w, with  s − t + rows·w = relaxation  and  Σ w = 1
        self._matrix = np.zeros((m + 1, 2 * m + n + ROOM))
        self._matrix[:m, : 2 * m], self._matrix[m, 2 * m :] = _slacks(m), 1.0
        self._cost = np.zeros(self._matrix.shape[1])
        self._cost[m : 2 * m] = cap
        self._cost[2 * m : 2 * m + n], self._matrix[:m, 2 * m : 2 * m + n] = columns[:, 0], columns[:, 1:].T
        self._right = np.append(relaxation, 1.0)
        self._basis: Any = basis
        self._inverse: Any = None  # of the basis, once it is known
        self._solved: tuple[Array, Array, Any] | None = None

    def add(self, column: Array) -> None:
        """Add a column (m + 1,)."""
        end = 2 * self.m + self.count
        if end == self._cost.size:
            self._matrix = np.hstack([self._matrix, np.zeros_like(self._matrix)])
            self._matrix[self.m, end:] = 1.0
            self._cost = np.append(self._cost, np.zeros_like(self._cost))
        self._cost[end], self._matrix[: self.m, end] = column[0], column[1:]
        self.count, self._solved = self.count + 1, None

    @property
    def columns(self) -> Array:
        """(n, m + 1) all columns."""
        inside = slice(2 * self.m, 2 * self.m + self.count)
        return np.column_stack([self._cost[inside], self._matrix[: self.m, inside].T])

    def solve(self) -> tuple[float, Array]:
        """The least value, and the prices of the rows."""
        found = self._solution()
        if found is None:
            only = self.mixture()
            return only.value, only.prices
        x, y, _ = found
        return float(self._cost[: x.size] @ x), np.maximum(-y[: self.m], 0.0)

    def mixture(self, opposites: Any = ()) -> Mixture:
        """The weights of the columns, and the prices of the rows that support them."""
        m, n = self.m, self.count
        cost, matrix = self._cost[: 2 * m + n], self._matrix[:, : 2 * m + n]
        rows = matrix[:m, 2 * m :]
        if m == 0:
            j = int(cost.argmin())
            return Mixture(np.eye(n)[j], np.zeros(0), float(cost[j]), 0.0)
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
            end = 2 * self.m + self.count
            cost, matrix = self._cost[:end], self._matrix[:, :end]
            if self._basis is None:
                self._basis, self._inverse = self._first_basis(), None
            self._solved = self._simplex(cost, matrix)
            if self._solved is None:
                self._solved = _highs(cost, matrix, self._right)
                self._basis = self._inverse = None
        return self._solved

    def _first_basis(self) -> Any:
        """The best single column, with slacks or excess."""
        m, inside = self.m, slice(2 * self.m, 2 * self.m + self.count)
        over = self._matrix[:m, inside] - self.relaxation[:, None]
        j = int((self._cost[inside] + self.cap * np.maximum(over, 0.0).sum(axis=0)).argmin())
        return np.append(np.where(over[:, j] <= 0.0, 0, m) + np.arange(m), 2 * m + j)

    def _simplex(self, cost: Array, matrix: Array) -> tuple[Array, Array, Any] | None:
        """From a feasible basis to x, the dual and the basis of the optimum; None if rounding spoils it."""
        basis, inverse, right, m = np.array(self._basis), self._inverse, self._right, self.m
        degenerate, fresh = 0, inverse is not None  # the inverse is not one that was updated
        for _ in range(50 + 10 * (m + 1)):  # HiGHS copes with what is more degenerate than that
            if inverse is None:
                try:
                    inverse, fresh = np.linalg.inv(matrix[:, basis]), True
                except np.linalg.LinAlgError:
                    return None
            x_basis = inverse @ right
            y = cost[basis] @ inverse
            reduced = cost - y @ matrix
            reduced[basis] = 0.0
            enter, least = int(reduced.argmin()), -OPTIMAL * (1.0 + max(y.max(), -y.min()))
            if not reduced[enter] < least:
                if not fresh:
                    inverse = None
                    continue
                x = np.zeros(cost.size)
                x[basis] = x_basis
                if not (x_basis.min() >= -1e-9 and np.abs(matrix @ x - right).max() <= 1e-9):
                    return None
                self._basis, self._inverse = basis, inverse
                return x, y, basis
            if degenerate > 2 * m + 2:  # Bland's rule, or steps without progress might go round in circles
                enter = int((reduced < least).argmax())
            direction = inverse @ matrix[:, enter]
            usable = np.flatnonzero(direction > 1e-11)
            if not usable.size:
                return None
            ratios = np.maximum(x_basis[usable], 0.0) / direction[usable]
            shortest = ratios.min()
            ties = usable[ratios <= shortest + 1e-14]
            leave = int(ties[basis[ties].argmin()] if degenerate > 2 * m + 2 else ties[direction[ties].argmax()])
            degenerate = degenerate + 1 if shortest <= 1e-14 else 0
            basis[leave] = enter
            row = inverse[leave] / direction[leave]
            inverse = inverse - direction[:, None] * row
            inverse[leave], fresh = row, False
        return None


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


def level_point(center: Array, costs: Array, rows: Array, level: float, cap: float) -> Array | None:
    """The point y in [0, cap] nearest to `center` at which every cut c_j + y·v_j is at least `level`; None if none is.

    A least-distance problem, solved as non-negative least squares (Lawson and Hanson 1974, chapter 23).
    """
    m = len(center)
    if m == 1:
        return _on_level(float(center[0]), costs, rows[0], level, cap)
    cuts = np.vstack([rows.T, np.eye(m), -np.eye(m)])
    need = np.concatenate([level - costs - center @ rows, -center, center - cap])
    if need.max() <= 0.0:
        return center
    system, target = np.vstack([cuts.T, need]), np.append(np.zeros(m), 1.0)
    residual = system @ nonnegative_least_squares(system, target) - target
    if -residual[-1] < 1e-12:
        return None
    return np.asarray(np.clip(center - residual[:-1] / residual[-1], 0.0, cap))


def _on_level(center: float, costs: Array, row: Array, level: float, cap: float) -> Array | None:
    """The same for one price: the points at or above the level are an interval."""
    rising, falling = row > 0.0, row < 0.0
    low = float(((level - costs[rising]) / row[rising]).max(initial=0.0))
    high = float(((level - costs[falling]) / row[falling]).min(initial=cap))
    if low > high or (costs[row == 0.0] < level).any():
        return None
    return np.array([min(max(center, low), high)])
