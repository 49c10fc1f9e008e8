"""The exact finish: policies as columns of a small LP, priced by exact MDP solves.

Occupancies of finitely many policies can be mixed, and the mixture is again a stationary policy. So the best mixture of
the policies found so far is an LP with one column per policy and m + 1 rows (the master, master.py):

    minimise Σ_j w_j V_0(π_j)  subject to  Σ_j w_j V_i(π_j) ≤ 0 (i = 1..m),  Σ_j w_j = 1,  w ≥ 0.

Its dual prices λ ask an oracle, the unconstrained MDP min_π L(π, λ) (mdp.py), for a policy that would improve the
mixture. The oracle also bounds the optimum from below: G(λ) ≤ V*. The two meet after finitely many steps, because
there are finitely many deterministic policies.

This file holds what is known: columns, bounds and the best mixture. search.py improves it, and answer.py makes a policy
of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact.errors import sum_errors
from cmdpkit.exact.local import Blend, Viewpoint
from cmdpkit.exact.master import Mixture, Program, best_mixture, row_scales
from cmdpkit.exact.mdp import Minimum, Oracle, Stop, never
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy

COLUMN_ACCURACY = 3e-3
"""Values of a column are found to this part of `tol`."""


class Cut(NamedTuple):
    """Multipliers and the bound that they prove for the given limits. For others it moves by λ · (change)."""

    multipliers: Array
    offsets: Array
    bound: float


@dataclass
class ColumnSearch:
    """Columns and bounds found so far; `steps()` of search.py improves them one oracle call at a time."""

    cmdp: CMDP
    tol: float = 0.0  # relative violation that is allowed where the limits touch what is possible
    stop: Stop = never
    columns: list[Any] = field(default_factory=list)  # (S,) choices, blends of them, or policies
    values: list[Array] = field(default_factory=list)  # V_0..V_m of each
    multipliers: Array = field(init=False)  # the best found: largest G(λ)
    bound: float = -np.inf  # G(multipliers)
    mixture: Mixture | None = None  # best feasible mixture
    upper: float = np.inf  # its V_0
    farkas: Array | None = None  # proof of infeasibility
    farkas_margin: float = 0.0
    relaxation: Array = field(init=False)  # scaled; positive only where the limits are met no better than to rounding
    oracle_calls: int = 0
    enough: float = 0.0  # the oracle need not know its minimum better than this
    quick: bool = False  # with a goal, bounds need not bring a column
    goal: float = 0.0  # bounds as close as this are close enough; 0 where that is not known before the end
    aim: float = 0.0  # the same relative to the objective, where the caller wants to look before the oracle is asked
    rigorous: bool = False  # bound the errors of all columns' values
    errors: list[Array] = field(default_factory=list)  # of V_0..V_m of each column, if rigorous
    cuts: list[Cut] = field(default_factory=list)  # every bound that was proved
    refuted: list[Cut] = field(default_factory=list)  # every proof of infeasibility, with its margin as the bound
    stuck: bool = False  # no column improves the mixture any more, within rounding

    def __post_init__(self) -> None:
        cmdp = self.cmdp
        self.multipliers = np.zeros(cmdp.num_rows)
        self.relaxation = np.zeros(cmdp.num_rows)
        self.scales: Array = row_scales(cmdp)
        self.units = self.scales[0] / self.scales[1:]  # of the multipliers
        self.oracle = Oracle(cmdp, self.stop, accuracy=COLUMN_ACCURACY * self.tol * cmdp.fine_scales)
        self.visits: Array | None = None  # state visits of the last viewpoint
        self.view: Viewpoint | None = None  # the last blend
        self.near: Array | None = None  # (S, m + 1) values of the last policy that was evaluated
        self.missed = False  # the last blend, and those before it, did not meet the limits
        self.factors: PolicySystem | None = None  # of the last blend
        self.kept: dict[int, Array] = {}  # state visits of columns that would have to be factorised again
        self.master: Program | None = None  # to continue from when columns have been added
        self.excess = np.inf  # by which the columns miss the limits at least, scaled
        self._table = np.zeros((0, cmdp.num_rows + 1))

    def add(
        self,
        policy: Any,
        values: Array,
        state_values: Array | None = None,
        errors: Array | None = None,
        **known: Any,
    ) -> bool:
        """Take a policy as a column, unless it is there, or one with the same values.

        What else is known of it (its chain, costs or probabilities) need not be found again to bound its errors, if
        these are not known either.
        """
        if not np.isfinite(values).all():
            return False
        if (np.abs(self.table - values) <= 1e-13 * self.scales).all(axis=1).any():
            return False
        if isinstance(policy, np.ndarray):
            policy = policy.astype(np.min_scalar_type(self.cmdp.actions))
            if any(isinstance(c, np.ndarray) and np.array_equal(c, policy) for c in self.columns):
                return False
        self.columns.append(policy)
        self.values.append(values)
        if self.rigorous and errors is not None:
            self.errors.append(errors)
        elif self.rigorous:
            assert state_values is not None
            if isinstance(policy, np.ndarray):
                known["choice"] = policy
            elif known.get("pi") is None:
                known["pi"] = self.probabilities(policy)
            self.errors.append(sum_errors(self.cmdp, state_values, **known))
        return True

    @property
    def table(self) -> Array:
        """(n, m + 1) the values of all columns."""
        if len(self._table) < len(self.values):
            self._table = np.vstack([self._table, *self.values[len(self._table) :]])
        return self._table

    def ask(self, weights: Array, **ends: Any) -> Minimum:
        """The oracle: min_π w·V(π), warm-started from its last answer."""
        self.oracle_calls += 1
        self.focus()
        return self.oracle.minimise(weights, **ends)

    def focus(self) -> None:
        """The gap is relative to the objective: its size says how exact values must be, once it is known."""
        if np.isfinite(self.bound):
            self.oracle.accuracy[0] = COLUMN_ACCURACY * self.tol * self.size

    @property
    def size(self) -> float:
        """What a gap is relative to: the objective, once it is known, but no less than its costs say."""
        return max(float(self.cmdp.fine_scales[0]), min(abs(self.upper), abs(self.bound)))

    def ask_bound(self, multipliers: Array, **ends: Any) -> bool:
        """Query G(λ), ended as `Oracle.minimise` says; keep bound and column. True when the column is new."""
        multipliers = self.cmdp.netted(multipliers)  # which can only raise G
        answer = self.ask(np.concatenate([[1.0], multipliers]), **ends)
        self.learn(Cut(multipliers, self.cmdp.offsets, answer.bound))
        return self.take(answer)

    def learn(self, cut: Cut) -> None:
        """Take a bound that holds for these limits."""
        self.cuts.append(cut)
        if cut.bound > self.bound:
            self.bound, self.multipliers = cut.bound, cut.multipliers

    def take(self, answer: Minimum) -> bool:
        """Take the oracle's answer as a column."""
        system = self.oracle.system
        fresh = self.add(answer.choice, answer.values, self.oracle.state_values, chain=system and system.chain)
        if fresh and self.plan.is_direct and system is not None:
            self.keep(system.state_occupancy())
        return fresh

    def keep(self, visits: Array) -> None:
        """Keep the visits of the last column, and those of the columns in use."""
        if self.plan.is_direct:
            used = [] if self.mixture is None else np.flatnonzero(self.mixture.weights).tolist()
            recent = len(self.columns) - 2 * (self.cmdp.num_rows + 1)
            self.kept = {j: x for j, x in self.kept.items() if j in used or j >= recent}
            self.kept[len(self.columns) - 1] = visits

    @property
    def choice(self) -> Any:
        """The oracle's last policy, from which its next question starts; None before the first."""
        return self.oracle.choice

    @choice.setter
    def choice(self, choice: Any) -> None:
        self.oracle.choice, self.oracle.system = choice, None

    @property
    def plan(self) -> Plan:
        """The method that has suited the chains of the model."""
        return self.oracle.plan

    def evaluate(self, column: Any) -> bool:
        """Evaluate a policy and take it as a column: (S,) choices, a blend, or a `TabularPolicy`."""
        cmdp, (system, costs) = self.cmdp, self.system_of(self.probabilities(column))
        values = system.state_values(costs, accuracy=self.oracle.accuracy)
        return self.add(column, cmdp.initial @ values - np.append(0.0, cmdp.offsets))

    @property
    def has_settled(self) -> bool:
        """The bounds have met, within rounding."""
        return bool(self.upper - self.bound <= 1e-13 * self.scales[0])

    @property
    def has_closed(self) -> bool:
        """The bounds are as close as `aim` says, relative to the objective and no worse relative to the costs."""
        size = max(float(self.cmdp.fine_scales[0]), abs(self.upper))
        return bool(np.isfinite(self.upper) and self.upper - self.bound <= self.aim * size)

    def nearest(self) -> Array | None:
        """(S, m + 1) values of a similar policy: of the last blend if it is kept, or of the oracle's last policy."""
        if self.view is not None:
            return self.view.state_values
        return self.near if self.oracle.state_values is None else self.oracle.state_values

    def system_of(self, pi: PairTable) -> tuple[PolicySystem, Array]:
        """The linear system of a randomised policy, and its costs (S, m + 1). Its probabilities need not be kept."""
        return policy_system(self.cmdp, pi, plan=self.plan), self.cmdp.pairs.expect(pi, self.cmdp.costs)

    def price(self) -> bool:
        """Solve the master; False when the columns found so far cannot meet the limits."""
        if self.goal:  # often all columns of a search that has just moved are outside the same limit
            outside = self.table[:, 1:].min(axis=0) / self.scales[1:] - self.relaxation
            self.excess = float(np.maximum(outside, 0.0).sum())
            if self.excess > 1e-12:
                return False
        mixture = self._best_mixture()
        self.excess = mixture.excess
        if mixture.excess > 1e-12:
            return False
        self.mixture = mixture._replace(prices=mixture.prices * self.units)
        self.upper = float(self.table[:, 0] @ mixture.weights)
        return True

    def _best_mixture(self) -> Mixture:
        if not self.goal or self.cmdp.num_rows <= 1:  # without a goal digits matter more: from the best column
            table = self.table.T / self.scales[:, None]
            return best_mixture(table[0], table[1:], self.relaxation, opposites=self.cmdp.opposites)
        if self.master is None:
            self.master = Program(self.table / self.scales, self.relaxation, exact=True)
        for values in self.values[self.master.count :]:
            self.master.add(values / self.scales)
        return self.master.mixture(self.cmdp.opposites)

    def scaled_rows(self) -> Array:
        return self.table.T[1:] / self.scales[1:, None]

    def probabilities(self, column: Any) -> PairTable:
        """π(a|s) of a column."""
        if isinstance(column, Blend):
            return column.probabilities(self.cmdp.pairs)
        return column.pi if isinstance(column, TabularPolicy) else self.cmdp.pairs.one_hot(column)
