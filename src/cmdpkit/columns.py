"""The exact finish: policies as columns of a small LP, priced by exact MDP solves.

Occupancies of finitely many policies can be mixed, and the mixture is again a stationary policy. So the best mixture of
the policies found so far is an LP with one column a policy and m + 1 rows (the master):

    minimise Σ_j w_j V_0(π_j)  subject to  Σ_j w_j V_i(π_j) ≤ 0 (i = 1..m),  Σ_j w_j = 1,  w ≥ 0.

Its dual prices λ ask an oracle, the unconstrained MDP min_π L(π, λ) (mdp.py), for a policy that would improve the
mixture. The oracle also bounds the optimum from below: G(λ) ≤ V*. The two meet after finitely many steps, because
there are finitely many deterministic policies. While the columns found so far cannot meet the limits, the same is
done for the largest violation; its prices y become a Farkas proof when no policy meets the limits:
y ≥ 0 and min_π Σ y_i V_i(π) > 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.mdp import Minimum, Stop, minimise, never
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy

IN_OUT = 0.5
"""The oracle is asked between the best multipliers so far and the master's: fewer, deeper cuts (measured)."""


class Mixture(NamedTuple):
    """Weights on the columns, and the prices of the limits that support them."""

    weights: Array
    prices: Array


@dataclass
class ColumnSearch:
    """Columns and bounds found so far; `steps()` improves them one oracle call at a time."""

    cmdp: CMDP
    tol: float = 0.0  # relative violation that is allowed where the limits touch what is possible
    stop: Stop = never
    columns: list[Any] = field(default_factory=list)  # (S,) choices or (S, A) probabilities
    values: list[Array] = field(default_factory=list)  # V_0..V_m of each
    multipliers: Array = field(init=False)  # the best found: largest G(λ)
    bound: float = -np.inf  # G(multipliers)
    mixture: Mixture | None = None  # best feasible mixture
    upper: float = np.inf  # its V_0
    farkas: Array | None = None  # proof of infeasibility
    farkas_margin: float = 0.0
    relaxation: Array = field(init=False)  # scaled; positive only where the limits are met no better than to rounding
    oracle_calls: int = 0
    stuck: bool = False  # no column improves the mixture any more, within rounding

    def __post_init__(self) -> None:
        cmdp = self.cmdp
        self.multipliers = np.zeros(cmdp.num_constraints)
        self.relaxation = np.zeros(cmdp.num_constraints)
        # Rows of the master are scaled by what a policy can change in them at most.
        magnitude = np.abs(cmdp.costs).max(axis=1) / (1.0 - cmdp.gamma)
        spans = cmdp.spans / (1.0 - cmdp.gamma)
        scales = np.where(spans > 1e-12 * magnitude, spans, magnitude)
        self.scales: Array = np.where(scales > 0.0, scales, 1.0)
        self._choice: Any = None

    # -- columns ------------------------------------------------------------------------------------------------

    def add(self, policy: Any, values: Array) -> bool:
        """Take a policy as a column, unless one with the same values is there."""
        tolerance = 1e-13 * self.scales
        if any((np.abs(values - other) <= tolerance).all() for other in self.values):
            return False
        self.columns.append(policy)
        self.values.append(values)
        return True

    def _ask(self, weights: Array) -> Minimum:
        """The oracle: min_π w·V(π), warm-started from its last answer."""
        answer = minimise(self.cmdp, weights, self._choice, self.stop)
        self._choice = answer.choice
        self.oracle_calls += 1
        return answer

    def ask_bound(self, multipliers: Array) -> bool:
        """Query G(λ); keep the bound and the column. True when the column is new."""
        answer = self._ask(np.concatenate([[1.0], multipliers]))
        if answer.bound > self.bound:
            self.bound, self.multipliers = answer.bound, multipliers
        return self.add(answer.choice, answer.values)

    # -- the two phases -----------------------------------------------------------------------------------------

    def steps(self, start: Array | None = None) -> Iterator[ColumnSearch]:
        """Improve until nothing can be improved, yielding after every oracle call.

        `stuck` says that the answer is as good as it gets; whoever still goes on is given relaxed limits.
        """
        self.ask_bound(self.multipliers if start is None else start)
        feasible = self._price()
        self.stuck = not self.cmdp.num_constraints
        yield self
        if self.stuck:
            return
        if not feasible:
            yield from self._seek_feasible()
            # The master may miss by its own tolerance what the game has just shown; then there is no answer to give.
            self.stuck = self.farkas is None and not self._price()
            yield self
            if self.farkas is not None or (self.stuck and not self._relax()):
                return
        while True:
            assert self.mixture is not None
            prices = self.mixture.prices
            between = IN_OUT * self.multipliers + (1.0 - IN_OUT) * prices
            fresh = self.ask_bound(between)
            if not fresh:  # the cut was already known there: ask at the master's own prices
                yield self
                fresh = self.ask_bound(prices)
            if fresh:
                self._price()
            self.stuck = not fresh or self.upper - self.bound <= 1e-13 * self.scales[0]
            if not fresh and self.upper - self.bound > 1e-9 * self.scales[0]:
                # The bounds have not met: where all limits are slack, rounding may have hidden that λ = 0 is best.
                self.ask_bound(np.zeros_like(prices))
            yield self
            if self.stuck and not self._relax():
                return

    def _relax(self) -> bool:
        """Limits that are met only up to rounding may hide the answer: allow half of `tol` in each, once."""
        if self.tol == 0.0 or self.relaxation.any():
            return False
        self.relaxation = 0.5 * self.tol * self.cmdp.fine_scales[1:] / self.scales[1:]
        self.stuck = not self._price()
        return not self.stuck

    def _price(self) -> bool:
        """Solve the master; False when the columns found so far cannot meet the limits."""
        table = np.array(self.values).T / self.scales[:, None]
        mixture = _solve_master(table[0], table[1:], self.relaxation)
        if mixture is None:
            return False
        self.mixture = Mixture(mixture.weights, mixture.prices * self.scales[0] / self.scales[1:])
        self.upper = float(np.array(self.values)[:, 0] @ mixture.weights)
        return True

    def _seek_feasible(self) -> Iterator[ColumnSearch]:
        """Minimise the largest scaled violation until the limits are met, or proved impossible to meet."""
        while True:
            worst, game = _least_violation(self._scaled_rows())
            if worst <= 0.0:
                return
            y = game.prices / self.scales[1:]
            answer = self._ask(np.concatenate([[0.0], y]))
            fresh = self.add(answer.choice, answer.values)
            if answer.bound > 0.0:
                self.farkas, self.farkas_margin = y / y.sum(), answer.bound / y.sum()
                return
            if not fresh or float(y @ answer.values[1:]) >= worst - 1e-13:
                self._settle(worst)
                return
            yield self

    def _settle(self, worst: float) -> None:
        """Neither met nor refuted together: a single limit may be refuted, else they touch what is possible."""
        for i, single in enumerate(np.eye(self.cmdp.num_constraints)):
            answer = self._ask(np.append(0.0, single))
            self.add(answer.choice, answer.values)
            if answer.bound > 0.0:
                self.farkas, self.farkas_margin = np.eye(len(single))[i], answer.bound
                return
        self.relaxation = np.full(self.cmdp.num_constraints, worst)

    def _scaled_rows(self) -> Array:
        return np.array(self.values).T[1:] / self.scales[1:, None]

    # -- the answer ---------------------------------------------------------------------------------------------

    def policy(self) -> TabularPolicy:
        """The stationary policy of the best mixture: π(a|s) = d(s, a) / Σ_a d(s, a), with d the mixed occupancy.

        While no mixture meets the limits, the mixture that misses them least; before any column, the uniform policy.
        """
        if not self.columns:
            return TabularPolicy.uniform(self.cmdp.states, self.cmdp.actions)
        weights = (self.mixture or _least_violation(self._scaled_rows())[1]).weights
        states, actions = self.cmdp.states, self.cmdp.actions
        fallback = np.full((states, actions), 1.0 / actions) if self._choice is None else np.eye(actions)[self._choice]
        occupancy = np.zeros((states, actions))
        for j in np.flatnonzero(weights > 0.0):
            column = self.columns[j]
            pi = np.eye(actions)[column] if column.ndim == 1 else column
            visits = PolicySystem(self.cmdp, pi).state_occupancy()
            occupancy += weights[j] * visits[:, None] * pi
        return TabularPolicy.from_occupancy(occupancy, fallback)


def _solve_master(objective: Array, rows: Array, relaxation: Array) -> Mixture | None:
    """The best mixture of the columns, or None when no mixture meets the limits."""
    m, n = rows.shape
    if m == 0:
        return Mixture(np.eye(n)[objective.argmin()], np.zeros(0))
    answer = _linprog(objective, rows, relaxation, np.ones(n), (0.0, None))
    return None if answer is None else Mixture(*answer)


def _least_violation(rows: Array) -> tuple[float, Mixture]:
    """The matrix game min_w max_i Σ_j w_j rows_ij: its value, the weights w, and as prices the mix y of the rows."""
    m, n = rows.shape
    # minimise t subject to rows·w − t ≤ 0; t is the last variable, and free
    bounds = [(0.0, None)] * n + [(None, None)]
    extended = np.hstack([rows, -np.ones((m, 1))])
    answer = _linprog(np.append(np.zeros(n), 1.0), extended, np.zeros(m), np.append(np.ones(n), 0.0), bounds)
    if answer is None or answer[1].sum() == 0.0:  # a game always has a value; only the LP solver can fail
        j = int(rows.max(axis=0).argmin())
        return float(rows[:, j].max()), Mixture(np.eye(n)[j], np.eye(m)[rows[:, j].argmax()])
    weights, y = answer
    return float((rows @ weights[:n]).max()), Mixture(weights[:n], y / y.sum())


def _linprog(cost: Array, rows: Array, limits: Array, simplex: Array, bounds: Any) -> tuple[Array, Array] | None:
    """min cost·x subject to rows·x ≤ limits, simplex·x = 1: x and the prices of the rows; None when infeasible."""
    from scipy.optimize import linprog

    answer = linprog(
        cost,
        A_ub=rows,
        b_ub=limits,
        A_eq=simplex[None, :],
        b_eq=[1.0],
        bounds=bounds,
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if answer.status != 0:
        return None
    x = np.where(simplex > 0.0, np.maximum(answer.x, 0.0), answer.x)
    x /= np.where(simplex > 0.0, x @ simplex, 1.0)
    return x, np.maximum(-answer.ineqlin.marginals, 0.0)
