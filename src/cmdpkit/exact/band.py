"""The optimum as a function of the limits, from both sides, for all limits at once.

What one solve finds holds for other limits too. A column keeps its sums, so that the best mixture of all columns is an
upper bound wherever it meets the limits; a bound G(λ) falls by λ · (change of the limits). Both are convex in the
limits, the first from above, the second from below, and a new solve is needed only where they are apart:

    max_k [G_k − λ_k · (x − x_k)]  ≤  V*(x)  ≤  min { Σ_j w_j V_0(π_j) : Σ_j w_j V_i(π_j) ≤ x_i, w ∈ simplex }.

Upper bounds count the largest error that the values of each column can have, lower bounds that of the oracle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import bellman
from cmdpkit.evaluation.bounds import EPS, bound_from_backup, horizon_bound
from cmdpkit.evaluation.factors import dense_lu
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.exact.answer import mixed_policy
from cmdpkit.exact.columns import ColumnSearch, Cut
from cmdpkit.exact.errors import sum_errors
from cmdpkit.exact.master import Mixture, Program, best_mixture
from cmdpkit.exact.mdp import Stop, never
from cmdpkit.exact.nearby import (
    LEAST_PRICE,
    Anchor,
    anchor_bytes,
    anchor_of,
    close_beside,
    moved,
    view_excess,
)
from cmdpkit.exact.pivots import Walk, is_pivotable
from cmdpkit.exact.search import steps
from cmdpkit.exact.slater import least_miss
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy

ROOM = 1e-3
"""A policy with room for the limits is looked for to this accuracy first, and to less than `tol` where it has none."""

INSIDE = 1e-11
"""Mixtures stay this far inside the limits (scaled), so that rounding in the small LP cannot matter."""

ASIDE = 3e-11
"""Vertices stay this far inside, so that their errors are inside as well."""

SAME, NEARLY_SAME = 1e-13, 1e-12
"""Sums of columns that differ by less (scaled) are the same; and sums that a vertex only promises."""

SETTLED = 1e-3
"""Bounds that are within this part of `tol` are not brought closer together."""

CLOSED = 0.8
"""A search ends when its bounds are within this part of what they may be apart: the band's count all errors as well."""

STEEPER, INWARD = (0.25, 1.0, 8.0, 64.0), 0.25
"""Where no policy is inside the limits, one beside those that nearly are may be, for this part of the distance that the
bounds may have. If not, prices rise by these factors."""

ENOUGH = 0.2
"""The accuracy asked of the oracle, as a part of the distance that the bounds may have."""

ANCHOR_BYTES = 200_000_000
"""Memory for the ends of earlier searches: the next one continues from the nearest."""


class Upper(NamedTuple):
    """A mixture of columns and its V_0 at most; `relaxed` if it meets the limits only to `tol`."""

    value: float
    weights: Array | None
    relaxed: bool = False


class Band:
    """Bounds on the optimum for all limits of a model; `improve` brings them together at given limits.

    Args:
        cmdp: the model. Limits are given as `offsets` (m,): sign · limit, so that more is always looser.
        tol: accuracy, as in `solve`.
        axes: limits that vary. The others may be violated by half of `tol` where they cannot be met with room.
        stop: called during a search; True ends it.
    """

    def __init__(self, cmdp: CMDP, tol: float, axes: list[int], stop: Stop = never) -> None:
        self.cmdp, self.tol, self.axes, self.stop = cmdp, tol, axes, stop
        self.search = ColumnSearch(cmdp, tol, stop, rigorous=True)
        self.sums: list[Array] = []
        self.cuts: list[Cut] = []
        self.refuted: list[Cut] = []
        self.anchors: list[Anchor] = []
        self.solves = 0
        self._walk = Walk(cmdp) if cmdp.num_rows and is_pivotable(cmdp) else None
        self._walked: set[bytes] = set()
        self._sought = False  # the policy with the most room has been looked for
        self._mixtures: dict[Any, Upper] = {}
        self._strict: dict[bytes, Upper] = {}  # the last mixture within given limits: later columns only improve it
        self._programs: dict[Any, Program] = {}  # of mixtures, to continue from when columns have been added
        self._known: Array = np.zeros((0, 0))
        self._reached: Array = self._known  # the same where costs that are all 0 have no errors
        self._tangents, self._refutations = Tangents(), Tangents()
        self._nothing = cmdp.cost_sizes[1:] == 0.0  # sums of such costs are 0, without errors
        self._allowed = 0.5 * tol * cmdp.fine_scales[1:] / self.search.scales[1:]

    # -- what is known ------------------------------------------------------------------------------------------

    def lower(self, offsets: Array) -> tuple[float, Array]:
        """The best bound for these limits, and its multipliers."""
        return self._tangents.best(self.cuts, offsets)

    def refutation(self, offsets: Array) -> tuple[float, Array]:
        """The largest Farkas margin for these limits, and its weights: positive where no policy meets them."""
        return self._refutations.best(self.refuted, offsets)

    def upper(self, offsets: Array, objective: int = 0) -> Upper:
        """The best mixture of columns within the limits; within what `tol` allows where none is.

        One that was as good as optimal when there were fewer columns is not looked for again.
        """
        known = self._strict.get(offsets.tobytes()) if objective == 0 else None
        if known is not None and self._distance(known, offsets) <= SETTLED * self.tol:
            assert known.weights is not None
            return known._replace(weights=np.append(known.weights, np.zeros(len(self.sums) - known.weights.size)))
        key = (objective, len(self.sums), offsets.tobytes())
        if key not in self._mixtures:
            found = self._mixtures[key] = self._mixture(offsets, objective)
            if objective == 0 and found.weights is not None and not found.relaxed:
                self._strict[offsets.tobytes()] = found
        found = self._mixtures[key]
        if found.relaxed and objective == 0:  # what violates the limits a little may be better than the optimum
            found = found._replace(value=max(found.value, self.lower(offsets)[0]))
        return found

    def _mixture(self, offsets: Array, objective: int) -> Upper:
        if not self.sums:
            return Upper(np.inf, None)
        table, scales, nothing = self._most(), self.search.scales, self._nothing
        columns = (self._reached if objective == 0 else self._costed(objective)) - np.append(0.0, offsets)
        columns /= scales if objective == 0 else np.append(scales[objective], scales[1:])
        strict = np.where(nothing & (offsets >= 0.0), 0.0, -INSIDE)
        allowed = self._allowed.copy()
        allowed[self.axes] = strict[self.axes]
        least = columns[:, 1:].min(axis=0)
        for relaxation in (strict, allowed):
            if (least > relaxation + 0.5 * INSIDE).any():
                continue
            mixture = self._best(columns, relaxation, (objective, offsets.tobytes(), relaxation.tobytes()))
            if not offsets.size or (columns[:, 1:].T @ mixture.weights - relaxation).max() <= 0.5 * INSIDE:
                value = float(mixture.weights @ table[:, objective])
                rounding = (len(table) + 4) * EPS * float(mixture.weights @ np.abs(table[:, objective]))
                return Upper(value + rounding, mixture.weights, bool(relaxation.max(initial=0.0) > 0.0))
        return Upper(np.inf, None)

    def _most(self) -> Array:
        """(n, m + 1) the sums of all columns, at most."""
        if len(self._known) < len(self.sums):
            self._known = np.array(self.sums) + np.array(self.search.errors)
            self._reached = self._costed(0)
        return self._known

    def _costed(self, objective: int) -> Array:
        """The same with one of the costs as the objective; sums of costs that are all 0 have no errors."""
        table = self._known.copy()
        if self._nothing.any():
            table[:, 1:][:, self._nothing] = 0.0
        table[:, 0] = self._known[:, objective]
        return table

    def _best(self, columns: Array, relaxation: Array, key: Any) -> Mixture:
        """The best mixture, by the program that found it when there were fewer columns."""
        if relaxation.size <= 1:
            return best_mixture(columns[:, 0], columns[:, 1:].T, relaxation)
        if key not in self._programs:
            self._programs[key] = Program(columns, relaxation, exact=True)
        program = self._programs[key]
        for column in columns[program.count :]:
            program.add(column)
        return program.mixture()

    def width(self, offsets: Array) -> float:
        """The distance of the bounds, in units of what `tol` is relative to."""
        return self._distance(self.upper(offsets), offsets)

    def _distance(self, upper: Upper, offsets: Array) -> float:
        value, lower = upper.value, self.lower(offsets)[0]
        return (value - lower) / self.cmdp.proof_scale(value) if np.isfinite(value) else np.inf

    def policy(self, weights: Array) -> TabularPolicy:
        return mixed_policy(self.search, np.append(weights, np.zeros(len(self.sums) - weights.size)))

    def model(self, offsets: Array) -> CMDP:
        """The model with these limits."""
        last = self.search.cmdp  # which knows its structure
        return last.with_limits(dict(zip(last.names, (last.signs * offsets).tolist(), strict=True)))

    @property
    def loosest(self) -> Array:
        """(m,) offsets that no policy exceeds."""
        return 1.01 * self.cmdp.cost_sizes[1:] * most_steps(self.cmdp) + 1e-3 * self.search.scales[1:]

    # -- more ---------------------------------------------------------------------------------------------------

    def improve(self, offsets: Array, share: float = 0.5, near: bool = False, quick: bool = False) -> bool:
        """Search at these limits until the bounds are within share · tol, or the limits are refuted. True if so.

        With `near` a policy that is optimal for limits nearby is enough as well: what is searched for there completes
        it, as mixtures of the two. Whether they come within share · tol is not known before; the answer is False. With
        `quick` bounds come from backups of known values where these are enough, and small models are not searched but
        pivoted.
        """
        if self._done(offsets, share) or (quick and self._pivot(offsets) and self._done(offsets, share)):
            return True
        search = self.search = self._at(offsets)
        search.quick = quick
        known, self.solves = len(search.cuts), self.solves + 1
        self._aim(search, self.lower(offsets)[0], share)
        if quick and not near:
            close_beside(search)
            self._keep(search, known)
            if self._done(offsets, share):
                return True
        for _ in steps(search):
            self._aim(search, search.upper if np.isfinite(search.upper) else search.bound, share)
            closed = search.upper - search.bound <= search.goal
            if near and len(search.cuts) > known:
                closed = closed or view_excess(search) <= search.goal
            if closed or search.stuck or search.farkas is not None or self.stop():
                break
        self._keep(search, known)
        self.anchors = [*self.anchors, anchor_of(search)][-max(1, ANCHOR_BYTES // anchor_bytes(self.cmdp)) :]
        if near:
            return False  # it is looked at again when its neighbours are known
        self.step_inside(offsets)
        return self._done(offsets, share)

    def _pivot(self, offsets: Array) -> bool:
        """On a small model, take the best vertex for these limits, once: its prices as a bound, and as columns the ends
        of the piece of the frontier that it lies on, or itself where several limits vary.
        """
        if self._walk is None or offsets.tobytes() in self._walked:
            return False
        self._walked.add(offsets.tobytes())
        vertex = self._walk.at(offsets - ASIDE * self.search.scales[1:], self.stop)
        if vertex is None:
            return False
        self.solves += 1
        for policy in self._walk.piece(self.axes[0], self._is_new) if len(self.axes) == 1 else [vertex.policy]:
            self._evaluate(policy)
        cmdp, prices = self.cmdp, self.cmdp.netted(vertex.multipliers)
        weights = np.append(1.0, prices)
        backup = bellman(cmdp, weights @ cmdp.costs, vertex.values, vertex.choice)
        self.cuts.append(Cut(prices, cmdp.offsets, bound_from_backup(cmdp, weights, vertex.values, backup)))
        return True

    def _evaluate(self, policy: TabularPolicy) -> None:
        """Take a policy of a small model as a column, unless one with the same sums is there."""
        assert self._walk is not None
        cmdp, pi = self.cmdp, policy.pi
        chain, cost = self._walk.chain(pi), cmdp.pairs.expect(pi, cmdp.costs)
        values = dense_lu(chain, cmdp.gamma)[0](cost)
        sums = cmdp.initial @ values
        if self._is_new(sums, SAME):
            self.add(policy, sums, sum_errors(cmdp, values, pi=pi, chain=chain, cost=cost))

    def _is_new(self, sums: Array, same: float = NEARLY_SAME) -> bool:
        """Whether no column has these sums (m + 1,)."""
        if not self.sums:
            return True
        return bool((np.abs(np.array(self.sums) - sums) > same * self.search.scales).any(axis=1).all())

    def _done(self, offsets: Array, share: float) -> bool:
        known = self._strict.get(offsets.tobytes())
        if known is not None and self._distance(known, offsets) <= share * self.tol:
            return True
        return self.refutation(offsets)[0] > 0.0 or self.width(offsets) <= share * self.tol

    def _is_strict(self, offsets: Array) -> bool:
        """Whether a mixture is known that is strictly inside the limits."""
        if offsets.tobytes() in self._strict:
            return True
        found = self.upper(offsets)
        return found.weights is not None and not found.relaxed

    def _aim(self, search: ColumnSearch, objective: float, share: float) -> None:
        """Say how close the bounds of a search must be where the optimum is about as large as `objective`."""
        if np.isfinite(objective):
            distance = share * self.tol * self.cmdp.proof_scale(objective)
            search.enough, search.goal = ENOUGH * distance, CLOSED * distance

    def step_inside(self, offsets: Array) -> None:
        """Where no mixture is strictly inside the limits, look beside the last policy, then ask at higher prices.

        First all prices rise, then only those of the limits that vary: policies that are far inside the others may be
        outside these.
        """
        if self._is_strict(offsets) or self._sought or self.refutation(offsets)[0] > 0.0:
            return
        search = self.search = self._at(offsets)
        self._aim(search, search.bound, 1.0)
        close_beside(search, INWARD)
        self._keep(search, len(search.cuts))
        for rising in (slice(None), self.axes):
            for factor in STEEPER:
                if self._is_strict(offsets) or self.refutation(offsets)[0] > 0.0 or self.stop():
                    return
                known, prices = len(search.cuts), search.multipliers.copy()
                prices[rising] += factor * np.maximum(prices, LEAST_PRICE * search.units)[rising]
                search.ask_bound(prices)
                self._keep(search, known)
        self._seek_room(offsets)

    def _seek_room(self, offsets: Array) -> None:
        """Add the policy that is farthest inside the limits that do not vary, once."""
        loose = self.cmdp.offsets.copy()
        loose[self.axes] = self.loosest[self.axes]
        if self._is_strict(offsets) or (self.upper(offsets).relaxed and self._is_strict(loose)):
            return  # what has no room is the limit that varies
        self._sought = True
        model = self.model(loose)
        for accuracy in (ROOM, 1e-3 * self.tol):
            missed = least_miss(model, accuracy, self.stop)
            if missed.upper < 0.0 or self.stop():
                break
        policy = missed.policy
        values = policy_system(self.cmdp, policy.pi).state_values(self.cmdp.pairs.expect(policy.pi, self.cmdp.costs))
        limits = np.append(0.0, self.search.cmdp.offsets)
        if self.search.add(policy, self.cmdp.initial @ values - limits, values):
            self.sums.append(self.cmdp.initial @ values)

    def _at(self, offsets: Array) -> ColumnSearch:
        scales = self.search.scales[1:]
        near = None
        if self.anchors:
            away = np.abs((np.array([a.offsets for a in self.anchors]) - offsets) / scales)
            near = self.anchors[int(away.max(axis=1).argmin())]
        search = moved(self.search, self.model(offsets), self.sums, near)
        bound, multipliers = self.lower(offsets)
        if np.isfinite(bound):
            search.learn(Cut(multipliers, offsets, bound))
        return search

    def _keep(self, search: ColumnSearch, known: int) -> None:
        """Take over what a search has found."""
        limits = np.append(0.0, search.cmdp.offsets)
        self.sums += [values + limits for values in search.values[len(self.sums) :]]
        self.cuts += search.cuts[known:]
        self.refuted += search.refuted
        search.refuted = []

    def adopt(self, other: Band) -> None:
        """Take over what is known of a model that differs in its limits only."""
        self.cuts += other.cuts
        self.refuted += other.refuted
        for column, sums, errors in zip(other.search.columns, other.sums, other.search.errors, strict=True):
            self.add(column, sums, errors)

    def add(self, column: Any, sums: Array, errors: Array) -> None:
        """Add a policy with its sums of all costs, and by how much each of these may be off."""
        self.search.columns.append(column)
        self.search.values.append(sums - np.append(0.0, self.search.cmdp.offsets))
        self.search.errors.append(errors)
        self.sums.append(sums)


class Tangents:
    """Cuts as arrays, kept while there are no others."""

    def __init__(self) -> None:
        self._last: Cut | None = None
        self._prices = self._points = self._bounds = self._sizes = np.zeros(0)

    def best(self, cuts: list[Cut], offsets: Array) -> tuple[float, Array]:
        """The largest bound − λ · (x − x_k) over all cuts, rounded down, and its multipliers."""
        if not cuts:
            return -np.inf, np.zeros_like(offsets)
        if self._last is not cuts[-1] or len(self._bounds) != len(cuts):
            self._last, self._bounds = cuts[-1], np.array([c.bound for c in cuts])
            self._prices, self._points = np.array([c.multipliers for c in cuts]), np.array([c.offsets for c in cuts])
            self._sizes = np.abs(self._bounds) + (self._prices * np.abs(self._points)).sum(axis=1)
        slack = 8.0 * EPS * (self._sizes + self._prices @ np.abs(offsets))
        values = self._bounds - np.einsum("ij,ij->i", self._prices, offsets - self._points) - slack
        k = int(values.argmax())
        return float(values[k]), self._prices[k]


def most_steps(cmdp: CMDP) -> float:
    """Σ_k γᵏ at most, with rows of P that may sum to slightly more than one."""
    if cmdp.criterion == "average":
        return 1.0
    horizon = horizon_bound(cmdp)
    return horizon if np.isfinite(horizon) else 2.0 / (1.0 - cmdp.gamma)
