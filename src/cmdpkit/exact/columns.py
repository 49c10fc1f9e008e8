"""The exact finish: policies as columns of a small LP, priced by exact MDP solves.

Occupancies of finitely many policies can be mixed, and the mixture is again a stationary policy. So the best mixture of
the policies found so far is an LP with one column per policy and m + 1 rows (the master, master.py):

    minimise Σ_j w_j V_0(π_j)  subject to  Σ_j w_j V_i(π_j) ≤ 0 (i = 1..m),  Σ_j w_j = 1,  w ≥ 0.

Its dual prices λ ask an oracle, the unconstrained MDP min_π L(π, λ) (mdp.py), for a policy that would improve the
mixture. The oracle also bounds the optimum from below: G(λ) ≤ V*. The two meet after finitely many steps, because
there are finitely many deterministic policies. Most steps ask elsewhere: where G has its maximum under the local model
of the last policy (local.py), which is Newton's method and needs few steps whatever m; the master's own prices are
asked when that makes no progress.

While the columns found so far cannot meet the limits, the same is done for the largest violation; its prices y become a
Farkas proof when no policy meets the limits: y ≥ 0 and min_π Σ y_i V_i(π) > 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import is_compiled
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact.errors import sum_errors
from cmdpkit.exact.joined import stationary_policy
from cmdpkit.exact.levels import LevelMethod
from cmdpkit.exact.local import ACCURACY, Blend, LocalDual, Outlook, Viewpoint, outlook
from cmdpkit.exact.master import Mixture, Program, best_mixture, least_violation, row_scales
from cmdpkit.exact.mdp import Minimum, Oracle, Stop, never
from cmdpkit.exact.vertex import least_randomised, rounded
from cmdpkit.model import CMDP, StagedTransitions
from cmdpkit.policy import TabularPolicy

PATIENCE = 2
"""So many Newton steps in a row without progress end them."""

IN_OUT = 0.5
"""Where Newton's step fails, the oracle is asked between the best multipliers so far and the master's (measured)."""

FIRST_CAP = 0.5
"""Newton's first step keeps λ_i below this, in units of span(c_0)/span(c_i); later ones below twice the last λ."""

FIRST_GAP = 0.01
"""The first question is answered to this part of what the objective can vary."""

ROUNDS = 60
"""Policies that a Newton step tries at most: where that is not enough, the multipliers were bad ones. On a grid good
ones take up to 40."""

UNSURE_ROUNDS = 4
"""The same where a search has a goal and the prices are not yet sure: another blend is better than more policies."""

INEXACT = 0.02
"""An oracle need not know its minimum better than to this part of the distance between the bounds."""

BOUND_SHARE = 0.05
"""Nor, on a large model, than to this part of the gap that is allowed."""

DUAL_SHARE = 0.2
"""The oracle is asked when the bound promises to gain this part of what is left; else another blend is better."""

PRIMAL_STEPS = 3
"""Blends at most before the oracle is asked all the same."""

VISITS_ACCURACY = 1e-4
"""State visits of a viewpoint, relative."""

MARGIN = 0.1
"""Blends keep this part of what the last prediction missed away from the limits, so that some of them meet all."""

NARROW = 0.03
"""The same for each limit by itself, where a search has a goal: a limit that is met with room costs its price."""

COLUMN_ACCURACY = 3e-3
"""Values of a column are found to this part of `tol`."""

PROOF_ACCURACY = 0.03
"""Values of a proof, and visits of columns that are mixed, the same on a large model."""

FAR = 1e6
"""A violation counts so many times its scaled size: meeting the limits at all is progress."""

SURE = 0.5
"""A search with a goal asks the oracle when a blend's Lagrangian is off its prediction by this part of the goal."""

SHARP, NEARLY = 0.005, 0.3
"""A search with a goal solves local problems to this part of what is left, or to this part of the goal: it starts near
its end, where a better blend saves more than the passes cost (measured)."""

NEAR = 0.5
"""A blend that is proved to be within this part of the goal needs no better bound."""

NEAREST = 20
"""Columns that the local model of a search with a goal is bounded by: those with the smallest Lagrangian."""

BESIDE = 0.05
"""A column beside a blend is looked for at prices higher or lower by this part first."""

BLIND = 0.5
"""Where the oracle finds so much more than the local model, in units of what is left, its policy is the next viewpoint:
the blend's actions are bad in states that it does not visit."""

PROGRESS = 0.7
"""A Newton step that leaves more than this part of the distance between the bounds is no progress."""


SHARPEST, PRICE_CAPS = 1e-9, 8
"""How exactly the local problem of a policy is solved that may be the best one, and how often its cap is raised."""

STEEP = 10.0
"""While no policy meets the only limit, its price is this, in units of span(c_0)/span(c_1)."""

LEVEL_CALLS, LEVEL_CALLS_PER_LIMIT = 8, 6
"""Oracle calls of the level method at most; about half as many are usual."""


class Cut(NamedTuple):
    """Multipliers and the bound that they prove for the given limits. For others it moves by λ · (change)."""

    multipliers: Array
    offsets: Array
    bound: float


class Anchor(NamedTuple):
    """Where a search stood: its last blend, and the oracle's last policy with its values."""

    offsets: Array
    view: Viewpoint | None
    choice: Any
    state_values: Array | None


@dataclass
class ColumnSearch:
    """Columns and bounds found so far; `steps()` improves them one oracle call at a time."""

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
        self._oracle = Oracle(cmdp, self.stop, accuracy=COLUMN_ACCURACY * self.tol * cmdp.fine_scales)
        self._visits: Array | None = None
        self._view: Viewpoint | None = None  # the last blend
        self._near: Array | None = None  # (S, m + 1) values of the last policy that was evaluated
        self._missed = False  # the last blend, and those before it, did not meet the limits
        self._factors: PolicySystem | None = None  # of the last blend
        self._kept: dict[int, Array] = {}  # state visits of columns that would have to be factorised again
        self._master: Program | None = None  # to continue from when columns have been added
        self._excess = np.inf  # by which the columns miss the limits at least, scaled

    # -- columns ------------------------------------------------------------------------------------------------

    def anchor(self) -> Anchor:
        """Where the search stands, to continue from later."""
        return Anchor(self.cmdp.offsets, self._view, self._oracle.choice, self._oracle.state_values)

    def moved(self, cmdp: CMDP, sums: list[Array], anchor: Anchor | None = None) -> ColumnSearch:
        """The search on a model with other limits, with everything found so far, from an anchor near them.

        `sums` (m + 1,) are those of the columns, without limits: subtracting them one after another would add errors.
        """
        offsets = np.append(0.0, cmdp.offsets)
        columns, values, errors = [*self.columns], [*(np.array(sums) - offsets)] if sums else [], [*self.errors]
        other = ColumnSearch(cmdp, self.tol, self.stop, columns, values, rigorous=self.rigorous, errors=errors)
        other._oracle, other._oracle.cmdp, other._visits = self._oracle, cmdp, self._visits
        anchor = anchor or self.anchor()
        other.choice, other._oracle.state_values = anchor.choice, anchor.state_values
        if anchor.view is not None:
            shift = np.append(0.0, anchor.offsets) - offsets
            other._view = anchor.view._replace(values=anchor.view.values + shift)
        return other

    def add(self, policy: Any, values: Array, state_values: Array | None = None, **known: Any) -> bool:
        """Take a policy as a column, unless it is there, or one with the same values.

        What else is known of it (its chain, costs or probabilities) need not be found again to bound its errors.
        """
        if not np.isfinite(values).all():
            return False
        if self.values and (np.abs(np.array(self.values) - values) <= 1e-13 * self.scales).all(axis=1).any():
            return False
        if isinstance(policy, np.ndarray):
            policy = policy.astype(np.min_scalar_type(self.cmdp.actions))
            if any(isinstance(c, np.ndarray) and np.array_equal(c, policy) for c in self.columns):
                return False
        self.columns.append(policy)
        self.values.append(values)
        if self.rigorous:
            assert state_values is not None
            if isinstance(policy, np.ndarray):
                known["choice"] = policy
            elif known.get("pi") is None:
                known["pi"] = self.probabilities(policy)
            self.errors.append(sum_errors(self.cmdp, state_values, **known))
        return True

    def _ask(self, weights: Array, **ends: Any) -> Minimum:
        """The oracle: min_π w·V(π), warm-started from its last answer."""
        self.oracle_calls += 1
        self._focus()
        return self._oracle.minimise(weights, **ends)

    def _focus(self) -> None:
        """The gap is relative to the objective: its size says how exact values must be, once it is known."""
        if np.isfinite(self.bound):
            self._oracle.accuracy[0] = COLUMN_ACCURACY * self.tol * self._size

    @property
    def _size(self) -> float:
        """What a gap is relative to: the objective, once it is known, but no less than its costs say."""
        return max(float(self.cmdp.fine_scales[0]), min(abs(self.upper), abs(self.bound)))

    def ask_bound(self, multipliers: Array, **ends: Any) -> bool:
        """Query G(λ), ended as `Oracle.minimise` says; keep bound and column. True when the column is new."""
        multipliers = self.cmdp.netted(multipliers)  # which can only raise G
        answer = self._ask(np.concatenate([[1.0], multipliers]), **ends)
        self.learn(Cut(multipliers, self.cmdp.offsets, answer.bound))
        return self._take(answer)

    def _glance(self, multipliers: Array, view: Viewpoint, gap: float) -> bool:
        """Bound G(λ) from the values of a blend, if that is allowed, and cheaper than an answer of the oracle."""
        if not (self.quick and self.goal) or isinstance(self.cmdp.transitions, StagedTransitions):
            return False
        multipliers = self.cmdp.netted(multipliers)
        weights = np.concatenate([[1.0], multipliers])
        bound = self._oracle.glance(weights, view.state_values, gap, NEAR * self.goal, self._factors)
        if bound is None:
            return False
        self.learn(Cut(multipliers, self.cmdp.offsets, bound))
        return True

    def learn(self, cut: Cut) -> None:
        """Take a bound that holds for these limits."""
        self.cuts.append(cut)
        if cut.bound > self.bound:
            self.bound, self.multipliers = cut.bound, cut.multipliers

    def _take(self, answer: Minimum) -> bool:
        """Take the oracle's answer as a column."""
        system = self._oracle.system
        fresh = self.add(answer.choice, answer.values, self._oracle.state_values, chain=system and system.chain)
        if fresh and self.plan.is_direct and system is not None:
            self._keep(system.state_occupancy())
        return fresh

    def _keep(self, visits: Array) -> None:
        """Keep the visits of the last column, and those of the columns in use."""
        if self.plan.is_direct:
            used = [] if self.mixture is None else np.flatnonzero(self.mixture.weights).tolist()
            recent = len(self.columns) - 2 * (self.cmdp.num_rows + 1)
            self._kept = {j: x for j, x in self._kept.items() if j in used or j >= recent}
            self._kept[len(self.columns) - 1] = visits

    @property
    def choice(self) -> Any:
        """The oracle's last policy, from which its next question starts; None before the first."""
        return self._oracle.choice

    @choice.setter
    def choice(self, choice: Any) -> None:
        self._oracle.choice, self._oracle.system = choice, None

    def evaluate(self, column: Any) -> bool:
        """Evaluate a policy and take it as a column: (S,) choices, a blend, or a `TabularPolicy`."""
        cmdp, (system, costs) = self.cmdp, self._system(self.probabilities(column))
        values = system.state_values(costs, accuracy=self._oracle.accuracy)
        return self.add(column, cmdp.initial @ values - np.append(0.0, cmdp.offsets))

    def begin_at(self, blend: Blend) -> Array:
        """Take a policy as the first column and viewpoint; returns the multipliers that are best near it."""
        self._view = view = self._evaluate(blend)
        self._price()
        local, cuts = LocalDual(self.cmdp, view, self.scales), np.array(self.values) / self.scales
        value, prices = float(cuts[0, 0]), np.zeros(self.cmdp.num_rows)
        for cap in 8.0 ** np.arange(PRICE_CAPS):
            prices = outlook(local, cuts, prices, value - SHARPEST, value, float(cap), 0.0).prices
            if prices.max() < 0.5 * cap:
                break
        return np.asarray(prices * self.units)

    # -- the search ---------------------------------------------------------------------------------------------

    def steps(self, start: Array | None = None) -> Iterator[ColumnSearch]:
        """Improve until nothing can be improved, yielding after every oracle call.

        `stuck` says that the answer cannot be improved; a caller that continues is given relaxed limits. Multipliers to
        start from are taken seriously when there are columns as well.
        """
        if start is None and not self.columns and self._has_one_limit():
            yield from self._one_limit()
        near = FIRST_GAP if start is None or not self.columns else INEXACT * self.tol
        first = near * float(self.scales[0]) if self.cmdp.num_rows else 0.0
        if start is not None or not self.columns or self._oracle.state_values is None:
            self.ask_bound(self.multipliers if start is None else start, gap=first)
        self._price()
        self.stuck = not self.cmdp.num_rows
        yield self
        while not self.stuck or self._relax():
            if isinstance(self.cmdp.transitions, StagedTransitions) and not self.rigorous:
                yield from self._levels()
            if not self.stuck:
                yield from self._newton()
            if self.mixture is None:
                yield from self._seek_feasible()
                # The master may miss by its own tolerance what the game has just shown; then there is no answer.
                self.stuck = self.farkas is None and not self._price()
                yield self
                if self.farkas is not None:
                    return
            if not self.stuck and not self._settled():
                yield from self._kelley()

    def _has_one_limit(self) -> bool:
        cmdp = self.cmdp
        plain = cmdp.criterion != "average" and cmdp.blocks is None
        return cmdp.num_rows == 1 and plain and not isinstance(cmdp.transitions, StagedTransitions)

    def _one_limit(self) -> Iterator[ColumnSearch]:
        """One limit: its price and the policy improve in turn.

        The Lagrangian of a policy is a line over the price. The lowest of the lines that are known have their peak
        where two of them cross. There the last policy is improved once: its new line is below the peak, or it is the
        best one there. Only where values come from factorisations: sweeps take less time for rough values.
        """
        weights = np.array([1.0, 0.0])
        self._oracle.begin(weights)
        if not self.plan.is_direct:
            return
        self._take(self._oracle.take(self.choice, weights))
        while True:
            met = self._price()
            prices = self.mixture.prices if met and self.mixture is not None else STEEP * self.units
            weights = np.append(1.0, prices)
            self.oracle_calls += 1
            bound, better = self._oracle.improvement(weights)
            self.learn(Cut(prices, self.cmdp.offsets, bound))
            self.stuck = met and (better is None or self._settled())
            yield self
            if better is None or self.stuck or self.stop() or not self._take(self._oracle.take(better, weights)):
                return

    def _levels(self) -> Iterator[ColumnSearch]:
        """Ask where the level method says, for a number of calls that is enough unless the model is an odd one."""
        method = LevelMethod(self.multipliers / self.units)
        for k in range(LEVEL_CALLS + LEVEL_CALLS_PER_LIMIT * self.cmdp.num_rows):
            if self.mixture is None and k > 2 * self.cmdp.num_rows + LEVEL_CALLS:
                return
            cuts, best = np.array(self.values) / self.scales, self.bound / float(self.scales[0])
            fresh = self.ask_bound(method.next(cuts, best, self.multipliers / self.units) * self.units)
            self._price()
            self.stuck = self.mixture is not None and self._settled()
            yield self
            if self.stuck or not fresh or self.stop():
                return

    def _newton(self) -> Iterator[ColumnSearch]:
        """Ask where G is largest under the local model, while that brings the bounds together."""
        asked, idle, margin, first = self.multipliers, 0, np.zeros(self.cmdp.num_rows), self.bound
        view = self._view or self._oracle_view()
        self._focus()
        large = self._oracle.backs_up
        self._oracle.system = None  # factors can be as large as the model: one policy's at a time
        while not self.stuck and idle < PATIENCE:
            before, known = self._distance(), len(self.columns)
            for _ in range(PRIMAL_STEPS):
                ahead = self._outlook(view, asked / self.units, margin)
                view = self._evaluate(ahead.blend)
                self._view = view if self.rigorous else None
                missed = view.values / self.scales - ahead.predicted
                off = np.abs(missed[1:])
                margin = NARROW * off if self.goal else np.full_like(off, (NARROW if large else MARGIN) * off.max())
                self._price()
                # What the bound can still gain by asking, under the local model
                gain = ahead.value * float(self.scales[0]) - self.bound
                sure = abs(float(missed[0] + ahead.prices @ missed[1:])) * float(self.scales[0]) <= SURE * self.goal
                if self.stop() or self._may_ask(gain, sure):
                    break
                asked = ahead.prices * self.units if self.goal else asked
            if self.goal and self.upper - self.bound <= self.goal:
                yield self
                return
            if self.aim and self.has_closed:
                yield self  # perhaps that is proof enough
            asked = ahead.prices * self.units
            blind = self._learn_at(asked, view, gain, sure, first) if self.goal else self._ask_at(asked, view, gain)
            self.stuck = self.mixture is not None and self._settled()
            yield self
            idle = idle + 1 if self._distance() > PROGRESS * before else 0
            if blind:
                view = self._oracle_view()
            self._oracle.system = self._factors = None
            if self.stop() or len(self.columns) == known:
                return

    def _may_ask(self, gain: float, sure: bool) -> bool:
        """Whether the oracle is asked next, or another blend is better.

        With a goal, blends come first until their Lagrangian is as predicted: then prices and values are nearly right,
        and the oracle's answer, which starts from the blend's values, takes one policy or two.
        """
        if self.goal:
            return sure or self.upper - self.bound <= self.goal
        return self.mixture is None or gain > DUAL_SHARE * (self.upper - self.bound)

    def _ask_at(self, prices: Array, view: Viewpoint, gain: float) -> bool:
        """Ask the oracle, to a part of what is left. False: the blend stays the viewpoint."""
        gap = max(INEXACT * min(self.upper - self.bound, gain), self.enough)
        if self.rigorous or not self._oracle.backs_up or not self._back_up(prices, view, gap):
            self.ask_bound(prices, gap=gap, rounds=ROUNDS, hopeless=self.bound)
        self._price()
        return False

    def _back_up(self, prices: Array, view: Viewpoint, gap: float) -> bool:
        """Bound G(λ) on a large model by backups from a blend's values.

        The policy that is best there becomes a column only where blends alone do not meet the limits: its values cost
        more than the bound.
        """
        prices, oracle = self.cmdp.netted(prices), self._oracle
        weights = np.append(1.0, prices)
        gap = max(gap, BOUND_SHARE * self.aim * self._size)
        if gap <= 0.0:
            return False
        self.oracle_calls += 1
        bound, choice = oracle.back_up(weights, view.state_values @ weights, gap, self.bound)
        self.learn(Cut(prices, self.cmdp.offsets, bound))
        if choice is None:
            return False
        self._focus()
        if self.mixture is None and self._missed:
            self._take(oracle.take(choice, weights, guess=view.state_values))
        else:
            oracle.choice, oracle.state_values = choice, None
        self._missed = self.mixture is None
        return True

    def _learn_at(self, prices: Array, view: Viewpoint, gain: float, sure: bool, first: float) -> bool:
        """With a goal: bound G from a blend's values, or ask the oracle. True if it sees much that the blend does not.

        Prices that are sure are asked to the end, others to a part of what is left and with few policies. Where the
        bound has nothing to gain, what the mixture lacks are blends.
        """
        if self.quick and sure and self.mixture is not None and gain <= self.enough:
            return False
        left, value = min(self.upper - self.bound, gain), gain + self.bound
        gap = self.enough if sure else max(INEXACT * left, self.enough)
        if self._glance(prices, view, gap) and (self.mixture is not None or self.bound - first > self.goal):
            return False
        self._factors = None
        rounds = ROUNDS if sure else UNSURE_ROUNDS
        self.ask_bound(prices, gap=gap, rounds=rounds, hopeless=self.bound, guess=view.state_values)
        self._price()
        return value - self.cuts[-1].bound > BLIND * (self.upper - self.bound)

    def _kelley(self) -> Iterator[ColumnSearch]:
        """Ask between the best multipliers and the master's, and if that tells nothing new, at the master's own."""
        assert self.mixture is not None
        prices = self.mixture.prices
        fresh = self.ask_bound(IN_OUT * self.multipliers + (1.0 - IN_OUT) * prices)
        if not fresh:
            yield self
            fresh = self.ask_bound(prices)
        if fresh:
            self._price()
        self.stuck = not fresh or self._settled()
        if not fresh and self.upper - self.bound > 1e-9 * self.scales[0]:
            # The bounds have not met: where all limits are slack, rounding may have hidden that λ = 0 is best.
            self.ask_bound(np.zeros_like(prices))
        yield self

    def _settled(self) -> bool:
        return bool(self.upper - self.bound <= 1e-13 * self.scales[0])

    @property
    def has_closed(self) -> bool:
        """The bounds are as close as `aim` says, relative to the objective and no worse relative to the costs."""
        size = max(float(self.cmdp.fine_scales[0]), abs(self.upper))
        return bool(np.isfinite(self.upper) and self.upper - self.bound <= self.aim * size)

    @property
    def accuracy(self) -> Array | float:
        """To which a policy of a large model need be evaluated for its proof; 0 is to rounding."""
        exact = PROOF_ACCURACY / COLUMN_ACCURACY if self.may_round else 1.0
        return exact * self._oracle.accuracy if is_compiled(self.cmdp.transitions) else 0.0

    def _distance(self) -> float:
        """How far the search has to go, scaled: between the bounds, or (farther) to a mixture within the limits."""
        if self.mixture is not None:
            return (self.upper - self.bound) / float(self.scales[0])
        return FAR * self._excess

    @property
    def view_excess(self) -> float:
        """By how much the last blend's Lagrangian is above the bound: it is nearly optimal for the limits it meets."""
        if self._view is None:
            return np.inf
        return float(self._view.values[0] + self.multipliers @ self._view.values[1:]) - self.bound

    def _oracle_view(self) -> Viewpoint:
        """The oracle's last policy as the centre of a local model."""
        oracle = self._oracle
        if oracle.state_values is None:  # only its Lagrangian was bounded
            oracle.take(oracle.choice, np.append(1.0, self.multipliers), guess=self._near)
        assert oracle.state_values is not None
        system = oracle.system or policy_system(self.cmdp, choice=oracle.choice, plan=oracle.plan)
        return self._viewpoint(Blend([oracle.choice], np.ones(1)), system, oracle.state_values)

    def _viewpoint(self, policy: Blend, system: PolicySystem, state_values: Array) -> Viewpoint:
        self._near = state_values
        self._visits = system.state_occupancy(self._visits, accuracy=VISITS_ACCURACY)
        values = self.cmdp.initial @ state_values
        values[1:] -= self.cmdp.offsets
        return Viewpoint(policy, state_values, self._visits, values)

    def _evaluate(self, blend: Blend) -> Viewpoint:
        """Take a randomised policy as a column."""
        self._factors = None
        system, state_values, known = self._evaluated(blend, self.nearest())
        view = self._viewpoint(blend, system, state_values)
        if self.goal and self.plan.has_factors and self.cmdp.criterion != "average":
            self._factors = system
        if self.add(blend, view.values, state_values, **known):
            self._keep(view.visits)
        return view

    def _evaluated(self, blend: Blend, near: Array | None) -> tuple[PolicySystem, Array, dict[str, Any]]:
        """The linear system of a blend, its values (S, m + 1) from a guess, and what else `add` wants to know of it."""
        pi = blend.probabilities(self.cmdp.pairs)
        system, costs = self._system(pi)
        known = {"chain": system.chain, "cost": costs, "pi": pi if self.rigorous else None}
        del pi  # of a large model, before it is solved
        return system, system.state_values(costs, near, self._oracle.accuracy), known

    def close(self) -> None:
        """Where the last blend is nearly optimal, but for other limits, add one beside it that meets these.

        The prices are known: nothing is asked, and the local model is needed only in the directions in which limits are
        missed. The new column is no viewpoint, so that its visits are not needed either.
        """
        view, prices = self._view, self.multipliers / self.units
        if view is None or not self.view_excess <= self.goal:
            return
        local = LocalDual(self.cmdp, view, self.scales)
        for direction in (np.zeros_like(prices), *np.diag(np.sign(view.values[1:]))):
            local.look(prices * (1.0 + BESIDE * direction))
        cap = max(FIRST_CAP, 2.0 * float(prices.max()))
        blend, _ = local.blend(np.zeros_like(prices), cap, NEARLY * self.goal / float(self.scales[0]))
        _, state_values, known = self._evaluated(blend, view.state_values)
        self.add(blend, self.cmdp.initial @ state_values - np.append(0.0, self.cmdp.offsets), state_values, **known)

    def nearest(self) -> Array | None:
        """(S, m + 1) values of a similar policy: of the last blend if it is kept, or of the oracle's last policy."""
        if self._view is not None:
            return self._view.state_values
        return self._near if self._oracle.state_values is None else self._oracle.state_values

    def _system(self, pi: PairTable) -> tuple[PolicySystem, Array]:
        """The linear system of a randomised policy, and its costs (S, m + 1). Its probabilities need not be kept."""
        return policy_system(self.cmdp, pi, plan=self.plan), self.cmdp.pairs.expect(pi, self.cmdp.costs)

    def _outlook(self, view: Viewpoint, start: Array, margin: Array) -> Outlook:
        local = LocalDual(self.cmdp, view, self.scales)
        cuts = np.array(self.values) / self.scales
        if self.goal:
            cuts = cuts[np.argsort(cuts[:, 0] + cuts[:, 1:] @ start)[:NEAREST]]
        cap = max(FIRST_CAP, 2.0 * float(start.max()))
        bound, upper = self.bound / self.scales[0], self.upper / self.scales[0]
        enough = max(NEARLY * self.goal / float(self.scales[0]), 1e-13)
        share = SHARP if self.goal else ACCURACY
        return outlook(local, cuts, start, bound, upper, cap, margin, enough, share)

    def _relax(self) -> bool:
        """Limits that are met only up to rounding may hide the answer: allow half of `tol` in each, once."""
        if self.tol == 0.0 or self.relaxation.any() or not self.cmdp.num_rows:
            return False
        self.relaxation = 0.5 * self.tol * self.cmdp.fine_scales[1:] / self.scales[1:]
        self._master = None
        self.stuck = not self.relaxation.any() or not self._price()  # costs that are zero leave nothing to allow
        return not self.stuck

    def meet(self, bound: float) -> None:
        """Take the mixture that comes halfway from `tol` to a bound which rounding keeps below the optimum.

        Where prices are steep, a bound loses a multiple of the rounding error that they weigh. A mixture of the best
        within the limits and the best within half of `tol` beyond them has any objective in between.
        """
        table = np.array(self.values).T / self.scales[:, None]
        loose = 0.5 * self.tol * self.cmdp.fine_scales[1:] / self.scales[1:]
        strict, relaxed = (best_mixture(table[0], table[1:], limits) for limits in (np.zeros(loose.size), loose))
        high, low = (float(table[0] @ mixture.weights) for mixture in (strict, relaxed))
        target = (bound + 0.5 * self.tol * self.cmdp.proof_scale(bound)) / float(self.scales[0])
        if low < high and np.isfinite(target):
            share = min(max((high - target) / (high - low), 0.0), 1.0)
            self.mixture = strict._replace(weights=(1.0 - share) * strict.weights + share * relaxed.weights)

    def _price(self) -> bool:
        """Solve the master; False when the columns found so far cannot meet the limits."""
        mixture = self._best_mixture()
        self._excess = mixture.excess
        if mixture.excess > 1e-12:
            return False
        self.mixture = mixture._replace(prices=mixture.prices * self.units)
        self.upper = float(np.array(self.values)[:, 0] @ mixture.weights)
        return True

    def _best_mixture(self) -> Mixture:
        if not self.goal or self.cmdp.num_rows <= 1:  # without a goal digits matter more: from the best column
            table = np.array(self.values).T / self.scales[:, None]
            return best_mixture(table[0], table[1:], self.relaxation, opposites=self.cmdp.opposites)
        if self._master is None:
            self._master = Program(np.array(self.values) / self.scales, self.relaxation, exact=True)
        for values in self.values[self._master.count :]:
            self._master.add(values / self.scales)
        return self._master.mixture(self.cmdp.opposites)

    def _seek_feasible(self) -> Iterator[ColumnSearch]:
        """Minimise the largest scaled violation until the limits are met, or proved impossible to meet."""
        while True:
            worst, game = least_violation(self._scaled_rows())
            if worst <= 0.0:
                return
            y = game.prices / self.scales[1:]
            total = float(y.sum())
            y = y / total  # the margin is proved for these very weights
            answer = self._ask(np.concatenate([[0.0], y]))
            fresh = self._take(answer)
            self.refuted.append(Cut(y, self.cmdp.offsets, answer.bound))
            if answer.bound > 0.0:
                self.farkas, self.farkas_margin = y, answer.bound
                return
            if not fresh or total * float(y @ answer.values[1:]) >= worst - 1e-13:
                self._settle(worst)
                return
            yield self

    def _settle(self, worst: float) -> None:
        """Neither met nor refuted together: a single limit may be refuted, else they touch what is possible."""
        for i, single in enumerate(np.eye(self.cmdp.num_rows)):
            answer = self._ask(np.append(0.0, single))
            self._take(answer)
            self.refuted.append(Cut(single, self.cmdp.offsets, answer.bound))
            if answer.bound > 0.0:
                self.farkas, self.farkas_margin = np.eye(len(single))[i], answer.bound
                return
        self.relaxation, self._master = np.full(self.cmdp.num_rows, worst), None

    def _scaled_rows(self) -> Array:
        return np.array(self.values).T[1:] / self.scales[1:, None]

    # -- the answer ---------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The method that has suited the chains of the model."""
        return self._oracle.plan

    def policy(self) -> TabularPolicy:
        """The stationary policy of the best mixture: π(a|s) = d(s, a) / Σ_a d(s, a), with d the mixed occupancy.

        While no mixture meets the limits, the mixture that misses them least; before any column, the uniform policy.
        """
        if not self.columns:
            return TabularPolicy.over(self.cmdp.pairs, self.cmdp.pairs.uniform())
        return self.mixed(self._weights())

    def mixed(self, weights: Array) -> TabularPolicy:
        """The stationary policy of a mixture of the columns."""
        self._oracle.system = None  # one chain at a time
        return self._of_occupancy(self._occupancy(weights))

    @property
    def may_round(self) -> bool:
        """Whether `rounded()` is worth a try: on a large model, from the values of the last blend."""
        return self._near is not None and self._oracle.backs_up and not self.rigorous

    def rounded(self) -> TabularPolicy | None:
        """A policy with about the values of `policy()` that randomises in few states, for little time."""
        near, pairs, visits = self.nearest(), self.cmdp.pairs, self._visits
        assert near is not None
        assert visits is not None
        self._oracle.system = None
        if self._last_suffices():
            pi = self.probabilities(self.columns[-1]).ravel()
        else:
            occupancy = self._occupancy(self._weights(), PROOF_ACCURACY)
            visits = pairs.sum(occupancy)
            pi = np.array(self._of_occupancy(occupancy).pi).ravel()
            del occupancy
        return rounded(self.cmdp, pi, visits, near, self.tol)

    def _last_suffices(self) -> bool:
        """Whether the last column alone, a blend whose visits and values are known, is as close as `aim` says."""
        values, last = self.values[-1], self.columns[-1]
        met = (values[1:] <= self.relaxation * self.scales[1:]).all()
        return isinstance(last, Blend) and bool(met and values[0] - self.bound <= self.aim * self._size)

    def vertex(self) -> TabularPolicy | None:
        """A policy with the values of `policy()` that randomises in fewer states, if there is one (vertex.py)."""
        self._oracle.system = None
        cmdp, oracle, occupancy = self.cmdp, self._oracle, [self._occupancy(self._weights())]
        visits, values = cmdp.pairs.sum(occupancy[0]), self.nearest()
        # Large tables are passed on, not kept
        policy = [self._of_occupancy(occupancy.pop())]
        return least_randomised(cmdp, policy.pop(), visits, oracle.plan, oracle.accuracy, values)

    def _weights(self) -> Array:
        return (self.mixture or least_violation(self._scaled_rows())[1]).weights

    def _of_occupancy(self, occupancy: PairTable) -> TabularPolicy:
        pairs, choice = self.cmdp.pairs, self._oracle.choice
        fallback = pairs.uniform() if choice is None else pairs.one_hot(choice)
        if self.cmdp.criterion == "average":
            return stationary_policy(self.cmdp, occupancy, fallback, self.tol)
        return TabularPolicy.from_occupancy(pairs, occupancy, fallback)

    def _occupancy(self, weights: Array, accuracy: float = COLUMN_ACCURACY) -> PairTable:
        """Visits to the pairs under a mixture of the columns, to a part of `tol`."""
        pairs = self.cmdp.pairs
        occupancy = np.zeros(pairs.count)
        for j in np.flatnonzero(weights > 0.0):
            column, visits = self.columns[j], self._kept.get(int(j))
            if visits is None:
                chosen = isinstance(column, np.ndarray)
                played = {"choice": column} if chosen else {"probabilities": self.probabilities(column)}
                system = policy_system(self.cmdp, **played, plan=self.plan)
                del played
                visits = system.state_occupancy(self._visits, accuracy * self.tol)
                del system  # one chain at a time
            if isinstance(column, np.ndarray):
                occupancy[pairs.rows(column)] += weights[j] * visits
            elif isinstance(column, Blend):
                for choice, share in zip(column.choices, column.weights, strict=True):
                    occupancy[pairs.rows(choice)] += weights[j] * share * visits
            else:
                occupancy += (pairs.over(weights[j] * visits) * column.pi).ravel()
        return pairs.like(occupancy)

    def probabilities(self, column: Any) -> PairTable:
        """π(a|s) of a column."""
        if isinstance(column, Blend):
            return column.probabilities(self.cmdp.pairs)
        return column.pi if isinstance(column, TabularPolicy) else self.cmdp.pairs.one_hot(column)
