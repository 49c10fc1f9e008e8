"""The optimum as a function of one limit, certified everywhere.

The bounds of exact/band.py hold for all limits at once. Over one limit they are refined where they are farthest apart:
between two tangents, where the lower bound has a kink (the sandwich algorithm). The lower bound is linear between its
kinks and the upper bound convex, so that no point in between is worse than the kinks themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.band import Band, Upper
from cmdpkit.exact.tightest import tightest
from cmdpkit.insight.curves import Frontier, in_users_sense
from cmdpkit.model import CMDP

MOST = 1_000
"""Solves at most; a tolerance of 1e-6 on a smooth frontier takes some hundred."""

SPLIT = 0.4
"""A solve brings the bounds within this part of `tol`, so that what lies between two of them is within all of it."""

VISITS = ((True, True), (False, True), (False, False))
"""How given limits are searched, one time after the other: `near` and `quick` of `Band.improve`."""

STEPS_INSIDE = (0.0, 1e-9, 1e-7, 1e-5, 1e-3)
"""Where the tightest limit cannot be resolved to `tol`, the frontier starts so much later, relative to its range."""


def curve(
    cmdp: CMDP, band: Band, axes: list[int], wanted: list[Array] | None, stop: Any, started: float, _: int
) -> Frontier:
    line = Line(band, axes[0])
    least = (np.nan, np.nan)
    try:
        with until(stop):
            if wanted is None:
                least = line.find_range()
                line.refine(stop)
            else:
                line.visit(cmdp.signs[axes[0]] * wanted[0], stop)
    except Stopped:
        pass
    if wanted is None:
        line.settle()
    return line.result(wanted is None, least, time.perf_counter() - started)


class Line:
    """The band along one limit. Inside, the position x is sign · limit: more is looser."""

    def __init__(self, band: Band, axis: int) -> None:
        self.band, self.axis = band, axis
        self.positions: Array = np.zeros(0)
        self.known: dict[float, Upper] = {}  # upper bounds at positions; columns that came later only improve them

    def offsets(self, x: float) -> Array:
        offsets: Array = self.band.cmdp.offsets.copy()
        offsets[self.axis] = x
        return offsets

    def upper(self, x: float) -> Upper:
        if x not in self.known:
            self.known[x] = self.band.upper(self.offsets(x))
        return self.known[x]

    def width(self, x: float) -> float:
        """The distance of the bounds at x, in units of what `tol` is relative to."""
        upper = self.upper(x).value
        return self._relative(upper, self.band.lower(self.offsets(x))[0])

    def improve(self, x: float, share: float = SPLIT, near: bool = False, quick: bool = False) -> bool:
        self.known.pop(x, None)
        return self.band.improve(self.offsets(x), share, near, quick)

    def _relative(self, upper: float, lower: float) -> float:
        return (upper - lower) / self.band.cmdp.proof_scale(upper) if np.isfinite(upper) else np.inf

    def find_range(self) -> tuple[float, float]:
        """From the tightest limit that can be met to where it stops binding."""
        band, axis = self.band, self.axis
        loose = float(band.loosest[axis])
        self.improve(loose)
        least = tightest(band, axis)
        if not np.isfinite(least[1]):
            return least
        free = band.upper(self.offsets(loose))
        first = least[1] + 1e-10 * float(band.search.scales[axis + 1])
        last = first
        if free.weights is not None:
            last = max(first, float(free.weights @ np.array(band.sums)[: free.weights.size, axis + 1]))
        for share in STEPS_INSIDE:
            start = first + share * (last - first)
            if self.improve(start) or last == first:
                break
        self.positions = np.unique([start, last])
        own = float(band.cmdp.offsets[axis])
        if start < own < last:
            self.improve(own)
        return least

    def refine(self, stop: Callable[[], bool]) -> None:
        """Solve at the worst kink until the bounds are within `tol` everywhere."""
        if not self.positions.size:
            return
        first, last = float(self.positions[0]), float(self.positions[-1])
        given_up: set[float] = set()
        for _ in range(MOST):
            kinks = self._kinks(first, last)
            open_kinks = [x for x in kinks if x not in given_up]
            worst = max(open_kinks, key=self.width, default=first)
            if stop() or not open_kinks or self.width(worst) <= self.band.tol:
                break
            if not self.improve(worst):
                given_up.add(worst)

    def settle(self) -> None:
        """Make the breakpoints of the lower bound the positions: between them it is linear."""
        if self.positions.size and self.band.cuts:
            self.positions = self._thinned(float(self.positions[0]), float(self.positions[-1]))

    def visit(self, positions: Array, stop: Callable[[], bool]) -> None:
        """From the loosest to the tightest limit: each search starts where the last one ended.

        The first time, a policy near each limit is enough; most limits are then met by mixtures of neighbours. The
        third time, the oracle's policies are evaluated as well. The last time is for limits that were met only to
        `tol` until then.
        """
        self.positions = np.sort(positions)
        every = self.positions[::-1].tolist()
        rest = every
        for near, quick in VISITS:
            rest = [x for x in rest if not stop() and not self.improve(x, 1.0, near, quick)]
        for x in every:
            self.band.step_inside(self.offsets(x))
        for x in every:
            if not stop():
                self.improve(x, 1.0)
        self.known.clear()

    def _lines(self) -> tuple[Array, Array]:
        """Intercepts and prices of all cuts along the line: the bound at x is intercept − price · x."""
        zero = self.offsets(0.0)
        cuts = self.band.cuts
        prices = np.array([c.multipliers[self.axis] for c in cuts])
        values = np.array([c.bound - float(c.multipliers @ (zero - c.offsets)) for c in cuts])
        return values, prices

    def _kinks(self, first: float, last: float) -> list[float]:
        return envelope(*self._lines(), first, last)[0]

    def _thinned(self, first: float, last: float) -> Array:
        """Breakpoints of the lower bound, without cuts that the band does not need to stay within `tol`."""
        values, prices = self._lines()
        kinks, kept = envelope(values, prices, first, last)
        for x in kinks:
            self.upper(x)
        for k in list(kept)[1:-1]:
            fewer = [j for j in kept if j != k]
            if self._widest(values[fewer], prices[fewer], first, last) <= self.band.tol:
                kept = fewer
        self.band.cuts = [self.band.cuts[k] for k in kept]
        kinks, _ = envelope(values[kept], prices[kept], first, last)
        if prices[kept[-1]] == 0.0 and len(kinks) > 2 and self.width(kinks[-2]) <= self.band.tol:
            kinks = kinks[:-1]  # from there on the limit does not bind
        return np.array(kinks)

    def _widest(self, values: Array, prices: Array, first: float, last: float) -> float:
        """The largest distance between chords of the upper bound and the largest of these lines."""
        xs = np.array(sorted(x for x, u in self.known.items() if np.isfinite(u.value)))
        chords = np.array([self.known[x].value for x in xs])
        kinks = envelope(values, prices, first, last)[0]
        return max(self._relative(float(np.interp(x, xs, chords)), float((values - prices * x).max())) for x in kinks)

    def result(self, everywhere: bool, least: tuple[float, float], seconds: float) -> Frontier:
        band, axis, cmdp = self.band, self.axis, self.band.cmdp
        uppers = [self.upper(float(x)) for x in self.positions]
        upper = np.array([u.value for u in uppers])
        lower, prices = np.zeros(0), np.zeros(0)
        if uppers:
            lines = self._lines()
            found = [self._lower(x, *lines) for x in self.positions]
            lower, prices = (np.array(part) for part in zip(*found, strict=True))
        refuted = [band.refutation(self.offsets(x)) for x in self.positions]
        impossible = np.array([margin > 0.0 for margin, _ in refuted], dtype=bool) & ~np.isfinite(upper)
        lower = np.where(impossible, np.inf, lower)
        feasible = np.isfinite(upper)
        scales = np.array([cmdp.proof_scale(u) for u in upper[feasible]])
        gap = float(((upper[feasible] - lower[feasible]) / scales).max(initial=0.0))
        undecided = not everywhere and bool((~feasible & ~impossible).any())
        if undecided or (everywhere and not self.positions.size and not np.isposinf(least[0])):
            gap = np.inf
        order = np.argsort(cmdp.signs[axis] * self.positions, kind="stable")
        bounds = in_users_sense(cmdp, lower, upper)
        return Frontier(
            name=cmdp.names[axis],
            limits=(cmdp.signs[axis] * self.positions)[order],
            objectives=np.where(feasible, cmdp.sense * upper, np.nan)[order],
            lower=bounds[0][order],
            upper=bounds[1][order],
            prices=np.where(feasible, prices, np.nan)[order],
            find_ranges=partial(self._ranges, prices, feasible, order),
            feasible=feasible[order],
            least=cmdp.signs[axis] * np.array(least),
            infeasibility=self._proof(least, refuted, impossible),
            gap=gap,
            violation=0.5 * band.tol if any(u.relaxed for u in uppers) else 0.0,
            tol=band.tol,
            solves=band.solves,
            time=seconds,
            model=cmdp,
            band=band,
        )

    def _lower(self, x: float, values: Array, prices: Array) -> tuple[float, float]:
        """The bound at x and the price for a looser limit, the smallest of those of the lines that prove it."""
        bound, multipliers = self.band.lower(self.offsets(x))
        if not values.size:
            return -np.inf, float(multipliers[self.axis])
        at_x = values - prices * x
        slack = 1e-12 * (1.0 + np.abs(at_x).max())
        return bound, float(prices[at_x >= at_x.max() - slack].min())

    def _ranges(self, prices: Array, feasible: Any, order: Any) -> Array:
        """Where the tangent with a price is within `tol` of the upper bound, in the user's units and order."""
        ranges = np.full((prices.size, 2), np.nan)
        if not feasible.any():
            return ranges
        kinks = self._kinks(*self.positions[feasible][[0, -1]])
        xs = np.union1d(self.positions[feasible], kinks)
        uppers = np.array([self.upper(float(x)).value for x in xs])
        xs, uppers = xs[np.isfinite(uppers)], uppers[np.isfinite(uppers)]
        room = self.band.tol * np.array([self.band.cmdp.proof_scale(u) for u in uppers])
        values, all_prices = self._lines()
        sign = float(self.band.cmdp.signs[self.axis])
        for k in np.flatnonzero(feasible):
            intercept = float(values[all_prices == prices[k]].max())
            low, high = sublevel(xs, uppers - (intercept - prices[k] * xs) - room)
            ranges[k] = np.sort([sign * low, sign * high])
        return np.asarray(ranges[order])

    def _proof(self, least: tuple[float, float], refuted: list[Any], impossible: Any) -> Array | None:
        if impossible.any():
            return np.asarray(refuted[int(np.flatnonzero(impossible)[-1])][1])
        if np.isnan(least[0]) or not self.band.refuted:
            return None
        below = least[0] - 1.0 if np.isfinite(least[0]) else float(self.band.loosest[self.axis])
        margin, weights = self.band.refutation(self.offsets(below))
        return weights if margin > 0.0 else None


def envelope(values: Array, prices: Array, first: float, last: float) -> tuple[list[float], list[int]]:
    """The largest of the lines values − prices · x on [first, last]: its kinks with both ends, and its lines."""
    x, kinks = first, [first]
    at = values - prices * x
    best = np.flatnonzero(at >= at.max() - 1e-15 * (1.0 + abs(at.max())))
    k = int(best[prices[best].argmin()])
    lines = [k]
    while True:
        flatter = np.flatnonzero(prices < prices[k])
        if not flatter.size:
            break
        crossings = (values[k] - values[flatter]) / (prices[k] - prices[flatter])
        nearest = float(crossings.min())
        if nearest >= last:
            break
        ties = flatter[crossings <= nearest]
        k = int(ties[prices[ties].argmin()])
        lines.append(k)
        if nearest > x:
            x = nearest
            kinks.append(x)
    return [*kinks, *([last] if last > x else [])], lines


def sublevel(xs: Array, values: Array) -> tuple[float, float]:
    """Where the interpolated values are at most 0: an interval, or the point of the smallest if there is none."""
    k = int(values.argmin())
    inside = np.flatnonzero(values <= 0.0)
    if not inside.size:
        return float(xs[k]), float(xs[k])
    ends = []
    for j, step in ((int(inside[0]), -1), (int(inside[-1]), 1)):
        x = float(xs[j])
        if 0 <= j + step < xs.size:
            share = -values[j] / (values[j + step] - values[j])
            x += float(share * (xs[j + step] - xs[j]))
        ends.append(x)
    return ends[0], ends[1]
