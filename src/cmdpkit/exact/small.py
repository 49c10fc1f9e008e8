"""The last step on small models: columns, master and oracle in exact arithmetic, where rounding is in the way.

What is proved in the end is that of a policy and of multipliers in double precision: they are rounded before they are
judged, and judged exactly. The mathematics is that of columns.py, with the master's own prices as the next question.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.rational import RationalModel, Visits, below
from cmdpkit.exact.mdp import Stop, never
from cmdpkit.exact.simplex import ZERO, ExactMaster, Mixed, Vector
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy

DIGITS = 256
"""Bits of a column in the master: enough to tell columns apart, few enough to be fast."""

CLOSE = Fraction(1, 1000)
"""The bounds need not be nearer to each other than to this part of `tol`."""

ROUNDS = 400
"""Questions to the oracle at most."""

BISECTIONS = 60


class Column(NamedTuple):
    choice: Any
    visits: Visits
    values: Vector  # V_0..V_m


class Refuted(NamedTuple):
    """Farkas weights and their proved margin."""

    weights: Array
    margin: float


class SmallSearch:
    """Columns found so far, and the best bound with its multipliers, all exact."""

    def __init__(self, cmdp: CMDP, tol: float, stop: Stop = never) -> None:
        self.cmdp, self.tol, self.stop = cmdp, Fraction(tol), stop
        self.model = RationalModel(cmdp)
        self.scales = [max(Fraction(1), abs(o)) for o in self.model.offsets[1:]]
        self.columns: list[Column] = []
        spans = [Fraction(float(s)) for s in cmdp.spans[1:]]
        self.master = ExactMaster(cmdp.num_rows, [s if s > 0 else Fraction(1) for s in spans])
        self.multipliers: Array = np.zeros(cmdp.num_rows)
        self.bound: Fraction | None = None
        self.refuted: Refuted | None = None

    def solve(self) -> Iterator[TabularPolicy]:
        """Policies that may be optimal to `tol`, the best ones first; none where the limits are refuted."""
        self.ask(np.zeros(self.cmdp.num_rows))
        strict = self._mixture([ZERO] * self.cmdp.num_rows)
        if self.refuted is not None:
            return
        relaxed = self._mixture([self.tol / 2 * s for s in self.scales])
        if strict is not None:
            yield self.policy(strict.weights)
            if relaxed is not None:
                yield self.policy(self._between(strict, relaxed))
        elif relaxed is not None:
            self._lower_to(relaxed.value)
            yield self.policy(relaxed.weights)

    def ask(self, multipliers: Array) -> bool:
        """Query G(λ); True when the policy is new."""
        multipliers = self.cmdp.netted(np.minimum(multipliers, np.finfo(float).max))
        start = self.columns[-1].choice if self.columns else None
        least = self.model.minimise([1.0, *multipliers], start, self.stop)
        if self.bound is None or least.bound > self.bound:
            self.bound, self.multipliers = least.bound, multipliers
        return self._take(least.choice)

    def _take(self, choice: Any) -> bool:
        if any(np.array_equal(choice, column.choice) for column in self.columns):
            return False
        played = self.model.chosen(choice)
        visits = self.model.visits(played)
        values, _ = self.model.values(played, visits)
        self.columns.append(Column(choice, visits, values))
        self.master.add([_short(v) for v in values])
        return True

    def _mixture(self, relaxation: Vector) -> Mixed | None:
        """The best mixture of all policies within the relaxed limits, to a small part of `tol`; None if there is none.

        Where the limits themselves are shown to be impossible, `refuted` says so.
        """
        for _ in range(ROUNDS):
            mixed = self.master.solve(relaxation)
            if self.stop():
                return None
            if mixed.excess > 0:
                if not self._refute(mixed.prices):
                    return None
                continue
            # The bound on V_0 within the relaxed limits is G(λ) − Σ λ_i r_i
            given = sum((Fraction(p) * r for p, r in zip(self.multipliers.tolist(), relaxation, strict=True)), ZERO)
            assert self.bound is not None
            close = CLOSE * self.tol * max(Fraction(1), abs(mixed.value))
            if mixed.value - (self.bound - given) <= close or not self.ask(_rounded(mixed.prices)):
                return mixed
        return None

    def _refute(self, prices: Vector) -> bool:
        """Ask for the policy that violates least at these prices; True when it is new and nothing is refuted."""
        largest = max(prices)
        y = self.cmdp.netted(_rounded([p / largest for p in prices]))
        least = self.model.minimise([0.0, *y], self.columns[-1].choice, self.stop)
        margin = below(least.bound)
        if margin > 0.0:
            self.refuted = Refuted(y, margin)
            return False
        return self._take(least.choice)

    def _between(self, strict: Mixed, relaxed: Mixed) -> Vector:
        """The mixture of both whose objective is near the bound, as far as the limits allow."""
        assert self.bound is not None
        target = self.bound + self.tol / 2 * max(Fraction(1), abs(self.bound))
        distance = strict.value - relaxed.value
        share = min(max((strict.value - target) / distance, ZERO), Fraction(1)) if distance > 0 else ZERO
        n = len(relaxed.weights)
        first = [*strict.weights, *[ZERO] * (n - len(strict.weights))]
        return [(1 - share) * v + share * w for v, w in zip(first, relaxed.weights, strict=True)]

    def _lower_to(self, value: Fraction) -> None:
        """Where no policy meets the limits exactly, bounds have no end: take one near the value that is attained."""
        high, low = self.multipliers, np.zeros_like(self.multipliers)
        for _ in range(BISECTIONS):
            assert self.bound is not None
            if abs(self.bound - value) <= self.tol / 4 * max(Fraction(1), abs(value)) or self.stop():
                return
            middle = self.cmdp.netted(0.5 * (low + high))
            bound = self.model.minimise([1.0, *middle], self.columns[-1].choice, self.stop).bound
            self.bound, self.multipliers = bound, middle
            low, high = (middle, high) if bound < value else (low, middle)

    def policy(self, weights: Vector) -> TabularPolicy:
        """The stationary policy of a mixture, rounded to doubles that sum to one as nearly as they can."""
        pairs = self.cmdp.pairs
        occupancy = [ZERO] * pairs.count
        for weight, column in zip(weights, self.columns, strict=False):
            if weight > 0:
                for state, row in enumerate(pairs.rows(column.choice)):
                    visits = max(int(column.visits.numbers[state]), 0)
                    occupancy[row] += weight * Fraction(visits, 1 << column.visits.shift)
        table = np.zeros(pairs.count)
        fallback = pairs.rows(self.columns[-1].choice)
        for state, (first, last) in enumerate(zip(pairs.first[:-1], pairs.first[1:], strict=True)):
            total = sum(occupancy[first:last], ZERO)
            if total == 0:
                table[fallback[state]] = 1.0
                continue
            shares = [x / total for x in occupancy[first:last]]
            largest = max(range(len(shares)), key=shares.__getitem__)
            rounded = [float(share) for share in shares]
            rest = sum((Fraction(p) for i, p in enumerate(rounded) if i != largest), ZERO)
            rounded[largest] = float(1 - rest)
            table[first:last] = rounded
        return TabularPolicy.over(pairs, pairs.like(table))


def _short(value: Fraction) -> Fraction:
    """The leading digits."""
    spare = abs(value.numerator).bit_length() - DIGITS
    if spare <= 0:
        return value
    return Fraction((value.numerator >> spare) << spare, value.denominator)


def _rounded(values: Vector) -> Array:
    return np.array([below(v) for v in values])
