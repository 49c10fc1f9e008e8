"""Small models: the dual simplex method on occupancies, from the best policy without limits.

In the occupancy LP (linprog.py) a basis is one pair for every state, and one pair or slack more for every limit. The
best policy without limits, found by policy iteration, is such a basis with the slacks of all limits: no pair would
improve it, but slacks are negative where limits are missed. Each pivot removes a negative variable. On a model of a
hundred states, where the inverse of the basis is cheap to keep, this ends before a general method has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, PairTable
from cmdpkit.exact.mdp import Stop
from cmdpkit.model import CMDP, StagedTransitions
from cmdpkit.policy import TabularPolicy

SMALL_STATES, SMALL_TABLE = 200, 400_000
"""The most states, and the most entries of P, for which pivots are faster than the column search (measured)."""

FEASIBLE = 1e-12
"""Occupancies and slacks above minus this, of a total of one, count as positive."""

PIVOT = 1e-9
"""The least size of a pivot element."""

TIES = 1e-12
"""Of pairs whose reduced costs reach zero together, up to this, the one with the largest pivot element enters."""

ROUNDS = 100
"""Policies at most until the best one without limits; a dozen are usual."""

UPDATES = 100
"""After so many pivots the inverse is computed anew before others follow."""


class Vertex(NamedTuple):
    """A basic solution of the occupancy LP and of its dual."""

    policy: TabularPolicy  # randomised in as many states as there are limits at most
    choice: Any  # (S,) its most frequent action
    multipliers: Array  # (rows,)
    values: Array  # (S,) of the dual: the Lagrangian from every state


def is_pivotable(cmdp: CMDP) -> bool:
    """Whether a model is small enough, and has sums as its values."""
    staged = isinstance(cmdp.transitions, StagedTransitions)
    fits = cmdp.states <= SMALL_STATES and cmdp.states * cmdp.pairs.count <= SMALL_TABLE
    return fits and not staged and cmdp.criterion != "average"


def optimal_vertex(cmdp: CMDP, stop: Stop) -> Vertex | None:
    """The best vertex; None where there is none, where rounding is in the way, or if `stop` says so.

    What it is worth is for the caller to prove.
    """
    return Walk(cmdp).at(cmdp.offsets, stop)


class Walk:
    """The best vertex for one set of limits after another, each from the basis of the last.

    Other limits are another right-hand side, for which the basis still has no pair that would improve it.
    """

    def __init__(self, cmdp: CMDP) -> None:
        self._program = _Program(cmdp)
        self._begun, self._failed = False, False

    def at(self, offsets: Array, stop: Stop) -> Vertex | None:
        """The best vertex for these limits (rows,); None as for `optimal_vertex`."""
        program = self._program
        with np.errstate(all="ignore"):  # what is not finite is refused
            if not self._begun:
                self._begun, self._failed = True, not program.begin()
            if self._failed or program.lost:
                return None
            program.limit(offsets)
            return program.vertex() if program.pivot(stop) else None

    def chain(self, pi: PairTable) -> Array:
        """P_π as a dense matrix, from the rows of the pairs that are played."""
        pairs, chances, weights = self._program.pairs, self._program.chances, pi.ravel()
        played = np.flatnonzero(weights)
        rows = weights[played, None] * chances[played]
        return rows if played.size == pairs.states else np.add.reduceat(rows, np.searchsorted(played, pairs.heads[:-1]))

    def piece(self, axis: int, wanted: Callable[[Array], bool]) -> list[TabularPolicy]:
        """The last vertex where one limit is as tight, and as loose, as its basis allows: in between both are mixed.

        Only those with sums (m + 1,) that are `wanted`.
        """
        with np.errstate(all="ignore"):
            return self._program.piece(axis, wanted)


class _Program:
    """min c·x subject to x·table = right, x ≥ 0, in units in which occupancies sum to one and costs span one."""

    def __init__(self, cmdp: CMDP) -> None:
        self.cmdp, self.pairs = cmdp, cmdp.pairs
        states, pairs, m = cmdp.states, cmdp.pairs.count, cmdp.num_rows
        self.units: Array = np.where(cmdp.spans > 0.0, cmdp.spans, 1.0)
        self.costs: Array = np.zeros((m + 1, pairs + m))
        np.divide(cmdp.costs, self.units[:, None], out=self.costs[:, :pairs])
        # One row for every pair, (1 at its state − γ P, its limited costs), and for every slack
        self.table: Array = np.zeros((pairs + m, states + m))
        flow = self.table[:pairs, :states]
        self.chances: Array = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else cmdp.transitions
        np.multiply(self.chances, -cmdp.gamma, out=flow)
        flow[np.arange(pairs), cmdp.pairs.state] += 1.0
        self.table[:pairs, states:] = self.costs[1:, :pairs].T
        self.table[pairs:, states:] = np.eye(m)
        self.limit(cmdp.offsets)
        self.basis: Any = None
        self.inverse: Array = np.zeros((0, 0))  # of the basis; its columns belong to it
        self.reduced: Array = np.zeros(0)  # costs of all variables
        self.updates = 0
        self.lost = False  # pivots came to no end
        self.x: Array = np.zeros(0)  # of the last vertex
        self.solved: Any = None  # with its basis

    def limit(self, offsets: Array) -> None:
        """Take these limits (m,)."""
        cmdp = self.cmdp
        self.right: Array = cmdp.step_weight * np.append(cmdp.initial, offsets / self.units[1:])

    def begin(self) -> bool:
        """Start from the best choice without limits; False if it cannot be found."""
        choice = self.best_alone()
        if choice is None:
            return False
        pairs, m = self.pairs.count, self.cmdp.num_rows
        self.basis = np.append(self.pairs.rows(choice), np.arange(pairs, pairs + m))
        return self._invert()

    def _invert(self) -> bool:
        try:
            self.inverse = np.asfortranarray(np.linalg.inv(self.table[self.basis]))
        except np.linalg.LinAlgError:
            return False
        self.reduced = self.costs[0] - self.table @ (self.inverse @ self.costs[0, self.basis])
        self.updates = 0
        return True

    def best_alone(self) -> Any:
        """(S,) the best choice without limits, by policy iteration from a far-sighted policy."""
        from scipy.linalg import lapack

        pairs, states = self.pairs, self.cmdp.states
        flow, cost = self.table[: pairs.count, :states], self.costs[0, : pairs.count]
        shares = pairs.uniform().reshape(-1)
        mean_cost = np.add.reduceat(shares * cost, pairs.first[:-1])
        mean_flow = np.add.reduceat(shares[:, None] * flow, pairs.first[:-1], axis=0)
        value, choice = lapack.dgesv(mean_flow, mean_cost)[2], None
        for _ in range(ROUNDS):
            advantage = cost - flow @ value
            best = pairs.argmin(pairs.like(advantage))
            if choice is not None:
                noise = 1e-14 * (float(np.abs(value).max()) + 1.0)
                better = advantage[pairs.rows(best)] < -noise
                if not better.any():
                    return choice
                best = np.where(better, best, choice)
            choice = best
            rows = pairs.rows(choice)
            value = lapack.dgesv(flow[rows], cost[rows])[2]
        return None

    def pivot(self, stop: Stop) -> bool:
        """Dual simplex steps until no variable is negative. False if rounding or `stop` ends them, or nothing can."""
        from scipy.linalg.blas import dger

        if self.updates > UPDATES and not self._invert():
            return False
        basis, inverse, reduced = self.basis, self.inverse, self.reduced
        x = self.right @ inverse
        for _ in range(3 * basis.size + 50):
            leave = int(x.argmin())
            if not x[leave] < -FEASIBLE:
                return bool(np.isfinite(x).all())
            row = self.table @ inverse[:, leave]
            enter = _entering(row, reduced)
            if enter is None or stop():
                return False  # nothing can enter: the limits cannot be met
            column = self.table[enter] @ inverse
            reduced -= reduced[enter] / row[enter] * row
            step = x[leave] / column[leave]
            x -= step * column
            x[leave] = step
            pivot = inverse[:, leave] / column[leave]
            column[leave] -= 1.0
            inverse = self.inverse = dger(-1.0, pivot, column, a=inverse, overwrite_a=True)
            basis[leave] = enter
            self.updates += 1
        self.lost = True
        return False

    def vertex(self) -> Vertex | None:
        """The solution that belongs to the basis, from a factorisation of its own."""
        from scipy.linalg import lapack

        basis, states = self.basis, self.cmdp.states
        factors, pivots, failed = lapack.dgetrf(self.table[basis])
        x = lapack.dgetrs(factors, pivots, self.right, trans=1)[0]
        dual = lapack.dgetrs(factors, pivots, self.costs[0, basis])[0]
        if failed or not (np.isfinite(x).all() and np.isfinite(dual).all()):
            return None
        self.x, self.solved = x, lambda b: lapack.dgetrs(factors, pivots, b, trans=1)[0]
        policy, choice = self._policy(x)
        multipliers = np.maximum(-dual[states:], 0.0) * self.units[0] / self.units[1:]
        return Vertex(policy, choice, multipliers, self.units[0] * dual[:states])

    def piece(self, axis: int, wanted: Callable[[Array], bool]) -> list[TabularPolicy]:
        """The policies at the ends of the right-hand sides for which the basis of the last vertex is the best one."""
        unit = np.zeros(self.right.size)
        unit[self.cmdp.states + axis] = 1.0
        change = self.solved(unit)
        ends = []
        for sign in (-1.0, 1.0):
            falling = np.flatnonzero(sign * change < -PIVOT)
            step = float((np.maximum(self.x[falling], 0.0) / -(sign * change[falling])).min(initial=np.inf))
            ends.append(self.x + sign * (step if np.isfinite(step) else 0.0) * change)
        costs = self.units[:, None] * self.costs[:, self.basis] / self.cmdp.step_weight
        return [self._policy(x)[0] for x in ends if wanted(costs @ x)]

    def _policy(self, x: Array) -> tuple[TabularPolicy, Any]:
        """The policy of a basic solution, and its most frequent actions."""
        pairs = self.pairs
        played = np.full(self.costs.shape[1], -1.0)
        played[self.basis] = np.maximum(x, 0.0)
        occupancy = pairs.like(played[: pairs.count])
        choice = pairs.argmin(-occupancy)
        return TabularPolicy.from_occupancy(pairs, occupancy, pairs.one_hot(choice)), choice


def _entering(row: Array, reduced: Array) -> int | None:
    """Which variable enters: the first whose reduced cost falls to zero when the price of the leaving one rises."""
    usable = np.flatnonzero(row < -PIVOT)
    if not usable.size:
        return None
    ratios = np.maximum(reduced[usable], 0.0) / -row[usable]
    ties = usable[ratios <= ratios.min() + TIES]
    return int(ties[row[ties].argmin()])
