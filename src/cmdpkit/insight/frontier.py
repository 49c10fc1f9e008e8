"""The optimum as a function of one limit or two, certified everywhere.

The bounds of exact/band.py hold for all limits at once. Over one limit they are refined where they are farthest apart:
between two tangents, where the lower bound has a kink (the sandwich algorithm). The lower bound is linear between its
kinks and the upper bound convex, so that no point in between is worse than the kinks themselves.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import finite
from cmdpkit.checks import Array, check_count, check_nonnegative, check_number
from cmdpkit.evaluation.patience import Stopped, cancelled, until
from cmdpkit.exact.band import Band, Upper
from cmdpkit.files import PathLike, write_whole
from cmdpkit.model import CMDP, check_model
from cmdpkit.policy import raised_policy

MOST = 1_000
"""Solves at most; a tolerance of 1e-6 on a smooth frontier takes some hundred."""

SPLIT = 0.4
"""A solve brings the bounds within this part of `tol`, so that what lies between two of them is within all of it."""

STEPS_INSIDE = (0.0, 1e-9, 1e-7, 1e-5, 1e-3)
"""Where the tightest limit cannot be resolved to `tol`, the frontier starts so much later, relative to its range."""


class Shown:
    """What a curve and a surface have in common: how they are shown and written."""

    gap: float
    tol: float
    rows: Callable[..., list[dict[str, Any]]]

    @property
    def complete(self) -> bool:
        return self.gap <= self.tol

    def __str__(self) -> str:
        from cmdpkit.report import frontier_report, plain

        return plain(frontier_report(self))

    def to_csv(self, path: PathLike) -> None:
        """Write one row per limit, or per grid point."""
        _write_csv(path, self.rows())


@dataclass(frozen=True, eq=False, kw_only=True)
class Frontier(Shown):
    """The optimum as a function of one limit, in the user's sense and units. Rows are sorted by limit.

    Attributes:
        name: the limit that varies.
        limits: (n,) its values. Over a range found by itself, `lower` and `upper` hold between them too, linearly
            interpolated; at limits that were given, use `at` in between.
        objectives: (n,) attained by `policy(limit)`; NaN where no policy meets the limits.
        lower, upper: (n,) the optimum is proved to lie between them.
        prices: (n,) what one more unit of the limit is worth at most: shadow prices, those for a looser limit.
        ranges: (n, 2) limits between which the tangent with that price is proved to be within `tol` of the optimum.
        feasible: (n,) whether a policy is known that meets the limits.
        least: (2,) the tightest value of the limit that can be met, proved and attained; NaN if not looked for.
        infeasibility: (m,) Farkas weights that prove that tighter values, or all of them, cannot be met; or None.
        gap: the largest distance between the bounds, relative as in `solve`; `complete` if it is at most `tol`.
        violation: largest violation of a limit by the policies used, relative; 0 where they can be met with room.
        solves, time: number of searches, and seconds.
    """

    name: str
    limits: Array
    objectives: Array
    lower: Array
    upper: Array
    prices: Array
    ranges: Array
    feasible: Any
    least: Array
    infeasibility: Array | None
    gap: float
    violation: float
    tol: float
    solves: int
    time: float
    model: CMDP = field(repr=False)
    band: Band = field(repr=False)

    def at(self, limit: float) -> tuple[float, float]:
        """(lower, upper) bounds on the optimum at any limit; both infinite where it is proved that it cannot be met."""
        return _bounds(self.model, self.band, {self.name: limit})

    def policy(self, limit: float) -> Any:
        """A policy that attains the objective at this limit."""
        return _policy(self.model, self.band, {self.name: limit})

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary of plain numbers per limit; None where there is no number."""
        columns = (self.limits, self.objectives, self.lower, self.upper, self.prices, *self.ranges.T)
        names = ("limit", "objective", "lower", "upper", "price", "from", "to")
        return [
            dict(zip(names, map(finite, numbers), strict=True)) | {"feasible": bool(known)}
            for *numbers, known in zip(*columns, self.feasible, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON."""
        return _summary(self) | {"limit": self.name, "least": [finite(x) for x in self.least], "points": self.rows()}

    def table(self) -> str:
        """The frontier as a text table; `str(frontier)` adds what is known of its range."""
        from cmdpkit.report import frontier_table, plain

        return plain(frontier_table(self))

    def plot(self, path: PathLike, formats: Sequence[str] = ()) -> None:
        """Draw the certified band and the shadow price to an image file (.png, .pdf, .svg), and to further formats.

        Needs matplotlib.
        """
        from cmdpkit.insight.plots import plot_frontier

        plot_frontier(self, path, formats)


@dataclass(frozen=True, eq=False, kw_only=True)
class Surface(Shown):
    """The optimum as a function of two limits on a grid, in the user's sense and units.

    `limits` are the two axes, of n and k values. `objectives`, `lower`, `upper` and `feasible` are (n, k), `prices` is
    (n, k, 2); `infeasible` (n, k) marks where it is proved that no policy meets the limits. `at` holds between grid
    points too. Other attributes are those of `Frontier`.
    """

    names: tuple[str, str]
    limits: tuple[Array, Array]
    objectives: Array
    lower: Array
    upper: Array
    prices: Array
    feasible: Any
    infeasible: Any
    gap: float
    violation: float
    tol: float
    solves: int
    time: float
    model: CMDP = field(repr=False)
    band: Band = field(repr=False)

    def at(self, first: float, second: float) -> tuple[float, float]:
        """(lower, upper) bounds on the optimum at any two limits."""
        return _bounds(self.model, self.band, dict(zip(self.names, (first, second), strict=True)))

    def policy(self, first: float, second: float) -> Any:
        """A policy that attains the objective at these limits."""
        return _policy(self.model, self.band, dict(zip(self.names, (first, second), strict=True)))

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary of plain numbers per grid point."""
        return [
            {
                self.names[0]: float(self.limits[0][j]),
                self.names[1]: float(self.limits[1][k]),
                "objective": finite(self.objectives[j, k]),
                "lower": finite(self.lower[j, k]),
                "upper": finite(self.upper[j, k]),
                f"price of {self.names[0]}": finite(self.prices[j, k, 0]),
                f"price of {self.names[1]}": finite(self.prices[j, k, 1]),
                "feasible": bool(self.feasible[j, k]),
            }
            for j in range(self.limits[0].size)
            for k in range(self.limits[1].size)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON."""
        return _summary(self) | {"limits": list(self.names), "points": self.rows()}

    def table(self) -> str:
        """The objectives as a text table, one row per value of the first limit."""
        from cmdpkit.report import plain, surface_table

        return plain(surface_table(self))

    def plot(self, path: PathLike, formats: Sequence[str] = ()) -> None:
        """Draw the surface as a map with contours to an image file, and to further formats. Needs matplotlib."""
        from cmdpkit.insight.plots import plot_surface

        plot_surface(self, path, formats)


def frontier(
    cmdp: CMDP,
    limit: str | Sequence[str],
    limits: Any = None,
    *,
    tol: float = 1e-4,
    points: int = 11,
    time_limit: float | None = None,
) -> Any:
    """The optimum as a function of one limit (a `Frontier`) or two (a `Surface`), certified everywhere.

    Args:
        cmdp: the model. All other limits stay as they are.
        limit: the name of the limit to vary, or two names for a surface. The two ends of `Equal` and `Between` vary
            apart, as "power <=" and "power >=".
        limits: values at which the optimum is wanted; two lists of values for a surface. By default the range is found:
            from the tightest value that can be met to where the limit stops binding, refined until the bounds are
            within `tol` everywhere in it. Values that cannot be met are marked, and the proof is kept.
        tol: largest distance between the bounds, relative as in `solve`.
        points: points per axis of a surface, if `limits` are not given.
        time_limit: seconds; what is proved until then is returned.

    Example:
        >>> import cmdpkit as ck
        >>> curve = ck.frontier(ck.problems.paper(), "utility")
        >>> low, high = curve.at(3.0)  # the optimum at a utility of 3 is proved to lie between them
        >>> low <= 4.462444 <= high, high - low < 1e-3
        (True, True)
        >>> round(float(curve.limits[-1]), 4)  # no policy has more utility
        4.525
    """
    check_model(cmdp)
    cmdp = cmdp.one_sided
    names = (limit,) if isinstance(limit, str) else tuple(limit)
    axes = _axes(cmdp, names)
    check_nonnegative(tol, "tol")
    if tol == 0.0:
        raise ValueError("tol must be positive: the bounds meet only up to rounding")
    check_count(points, "points", least=2)
    if time_limit is not None:
        check_nonnegative(time_limit, "time_limit")
    inner = cmdp if cmdp.lowering is None else cmdp.lowering.model
    if inner.is_extreme:
        raise ValueError("the costs are too large or too small for a frontier; state the model in other units")
    wanted = _values(limits, names)
    started = time.perf_counter()

    def stop() -> bool:
        return cancelled() or (time_limit is not None and time.perf_counter() - started >= time_limit)

    band = Band(inner, tol, axes, stop)
    make: Callable[..., Any] = _surface if len(axes) == 2 else _curve
    return replace(make(inner, band, axes, wanted, stop, started, points), model=cmdp)


def _axes(cmdp: CMDP, names: Sequence[Any]) -> list[int]:
    if len(names) not in (1, 2) or len(set(names)) < len(names):
        raise ValueError(f"a frontier is over one limit or two different ones, not {names!r}")
    unknown = [name for name in names if name not in cmdp.names]
    if unknown:
        known = ", ".join(map(repr, cmdp.names)) or "none"
        raise ValueError(f"there is no constraint {unknown[0]!r}; the model has {known}")
    return [cmdp.names.index(name) for name in names]


def _values(limits: Any, names: Sequence[str]) -> list[Array] | None:
    """The limits that were given, sorted, per axis."""
    if limits is None:
        return None
    if isinstance(limits, str) or not isinstance(limits, Iterable):
        raise TypeError(f"limits must be a list of numbers, not {type(limits).__name__}")
    lists = [limits] if len(names) == 1 else list(limits)
    if len(lists) != len(names):
        raise ValueError(f"limits must be two lists, one for {names[0]!r} and one for {names[1]!r}")
    for name, values in zip(names, lists, strict=True):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"the limits of {name!r} must be a list of numbers, not {type(values).__name__}")
    found = [
        np.unique([check_number(x, f"a limit of {name!r}") for x in values])
        for name, values in zip(names, lists, strict=True)
    ]
    if any(values.size == 0 for values in found):
        raise ValueError("limits must not be empty")
    return found


# -- one limit -------------------------------------------------------------------------------------------------------


def _curve(
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

    def improve(self, x: float, share: float = SPLIT, near: bool = False) -> bool:
        self.known.pop(x, None)
        return self.band.improve(self.offsets(x), share, near)

    def _relative(self, upper: float, lower: float) -> float:
        return (upper - lower) / self.band.cmdp.proof_scale(upper) if np.isfinite(upper) else np.inf

    def find_range(self) -> tuple[float, float]:
        """From the tightest limit that can be met to where it stops binding."""
        band, axis = self.band, self.axis
        loose = float(band.loosest[axis])
        self.improve(loose)
        least = band.least(axis)
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

        The first time, a policy near each limit is enough; most limits are then met by mixtures of neighbours.
        """
        self.positions = np.sort(positions)
        for near in (True, False):
            for x in self.positions[::-1]:
                if stop():
                    return
                self.improve(float(x), 1.0, near)
        for x in self.positions:
            self.band.seek_room(self.offsets(float(x)))
        self.known.clear()

    def _lines(self) -> tuple[Array, Array]:
        """Intercepts and prices of all cuts along the line: the bound at x is intercept − price · x."""
        zero = self.offsets(0.0)
        cuts = self.band.cuts
        prices = np.array([c.multipliers[self.axis] for c in cuts])
        values = np.array([c.bound - float(c.multipliers @ (zero - c.offsets)) for c in cuts])
        return values, prices

    def _kinks(self, first: float, last: float) -> list[float]:
        return _envelope(*self._lines(), first, last)[0]

    def _thinned(self, first: float, last: float) -> Array:
        """Breakpoints of the lower bound, without cuts that the band does not need to stay within `tol`."""
        values, prices = self._lines()
        kinks, kept = _envelope(values, prices, first, last)
        for x in kinks:
            self.upper(x)
        for k in list(kept)[1:-1]:
            fewer = [j for j in kept if j != k]
            if self._widest(values[fewer], prices[fewer], first, last) <= self.band.tol:
                kept = fewer
        self.band.cuts = [self.band.cuts[k] for k in kept]
        kinks, _ = _envelope(values[kept], prices[kept], first, last)
        if prices[kept[-1]] == 0.0 and len(kinks) > 2 and self.width(kinks[-2]) <= self.band.tol:
            kinks = kinks[:-1]  # from there on the limit does not bind
        return np.array(kinks)

    def _widest(self, values: Array, prices: Array, first: float, last: float) -> float:
        """The largest distance between chords of the upper bound and the largest of these lines."""
        xs = np.array(sorted(x for x, u in self.known.items() if np.isfinite(u.value)))
        chords = np.array([self.known[x].value for x in xs])
        kinks = _envelope(values, prices, first, last)[0]
        return max(self._relative(float(np.interp(x, xs, chords)), float((values - prices * x).max())) for x in kinks)

    def result(self, everywhere: bool, least: tuple[float, float], seconds: float) -> Frontier:
        band, axis, cmdp = self.band, self.axis, self.band.cmdp
        uppers = [self.upper(float(x)) for x in self.positions]
        upper = np.array([u.value for u in uppers])
        lower, prices = np.zeros(0), np.zeros(0)
        if uppers:
            lower, prices = (np.array(part) for part in zip(*map(self._lower, self.positions), strict=True))
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
        bounds = _user(cmdp, lower, upper)
        return Frontier(
            name=cmdp.names[axis],
            limits=(cmdp.signs[axis] * self.positions)[order],
            objectives=np.where(feasible, cmdp.sense * upper, np.nan)[order],
            lower=bounds[0][order],
            upper=bounds[1][order],
            prices=np.where(feasible, prices, np.nan)[order],
            ranges=self._ranges(prices, feasible)[order],
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

    def _lower(self, x: float) -> tuple[float, float]:
        """The bound at x and the price for a looser limit, the smallest of those that prove it."""
        bound, multipliers = self.band.lower(self.offsets(x))
        values, prices = self._lines()
        if not values.size:
            return -np.inf, float(multipliers[self.axis])
        at_x = values - prices * x
        slack = 1e-12 * (1.0 + np.abs(at_x).max())
        return bound, float(prices[at_x >= at_x.max() - slack].min())

    def _ranges(self, prices: Array, feasible: Any) -> Array:
        """Where the tangent with a price is within `tol` of the upper bound, in the user's units."""
        ranges = np.full((prices.size, 2), np.nan)
        if not feasible.any():
            return ranges
        xs = self.positions[feasible]
        uppers = np.array([self.upper(float(x)).value for x in xs])
        room = self.band.tol * np.array([self.band.cmdp.proof_scale(u) for u in uppers])
        values, all_prices = self._lines()
        sign = float(self.band.cmdp.signs[self.axis])
        for k in np.flatnonzero(feasible):
            intercept = float(values[all_prices == prices[k]].max())
            low, high = _sublevel(xs, uppers - (intercept - prices[k] * xs) - room)
            ranges[k] = np.sort([sign * low, sign * high])
        return ranges

    def _proof(self, least: tuple[float, float], refuted: list[Any], impossible: Any) -> Array | None:
        if impossible.any():
            return np.asarray(refuted[int(np.flatnonzero(impossible)[-1])][1])
        if np.isnan(least[0]) or not self.band.refuted:
            return None
        below = least[0] - 1.0 if np.isfinite(least[0]) else float(self.band.loosest[self.axis])
        margin, weights = self.band.refutation(self.offsets(below))
        return weights if margin > 0.0 else None


def _envelope(values: Array, prices: Array, first: float, last: float) -> tuple[list[float], list[int]]:
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


def _sublevel(xs: Array, values: Array) -> tuple[float, float]:
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


# -- two limits ------------------------------------------------------------------------------------------------------


def _surface(
    cmdp: CMDP, band: Band, axes: list[int], wanted: list[Array] | None, stop: Any, started: float, points: int
) -> Surface:
    values: list[Array] = [np.zeros(0), np.zeros(0)]
    try:
        with until(stop):
            values = wanted if wanted is not None else _box(cmdp, band, axes, points)
            for offsets in _grid(cmdp, axes, values):
                if stop():
                    break
                band.improve(offsets, 1.0)
    except Stopped:
        pass
    return _surface_result(cmdp, band, axes, values, time.perf_counter() - started)


def _box(cmdp: CMDP, band: Band, axes: list[int], points: int) -> list[Array]:
    """Per limit, from the tightest value with the other one dropped to the loosest that can matter."""
    loose = cmdp.offsets.copy()
    loose[axes] = band.loosest[axes]
    free = Band(band.model(loose), band.tol, axes, band.stop)
    free.improve(loose, SPLIT)
    least = [free.least(axis)[1] for axis in axes]
    band.adopt(free)
    if not np.isfinite(least).all():
        return [np.sort(cmdp.limits[axis : axis + 1]) for axis in axes]
    corners = [free.upper(loose), *(free.upper(loose, objective=axis + 1) for axis in axes)]
    sums = np.array(free.sums)
    ends = [
        max(float(corner.weights @ sums[:, axis + 1]) for corner in corners if corner.weights is not None)
        for axis in axes
    ]
    return [
        np.sort(cmdp.signs[axis] * np.linspace(low + 1e-9 * abs(high - low), max(low, high), points))
        for axis, low, high in zip(axes, least, ends, strict=True)
    ]


def _grid(cmdp: CMDP, axes: list[int], values: list[Array]) -> Iterator[Array]:
    """The offsets of all grid points, the loosest first, neighbours after each other."""
    first, second = (np.sort(cmdp.signs[axis] * part)[::-1] for axis, part in zip(axes, values, strict=True))
    for j, x in enumerate(first):
        for y in second if j % 2 == 0 else second[::-1]:
            offsets = cmdp.offsets.copy()
            offsets[axes] = x, y
            yield offsets


def _surface_result(cmdp: CMDP, band: Band, axes: list[int], values: list[Array], seconds: float) -> Surface:
    shape = (values[0].size, values[1].size)
    lower, upper, prices = np.full(shape, -np.inf), np.full(shape, np.inf), np.full((*shape, 2), np.nan)
    infeasible, relaxed = np.zeros(shape, dtype=bool), False
    for j, k in np.ndindex(*shape):
        offsets = cmdp.offsets.copy()
        offsets[axes] = cmdp.signs[axes] * [values[0][j], values[1][k]]
        found = band.upper(offsets)
        upper[j, k], relaxed = found.value, relaxed or found.relaxed
        lower[j, k], multipliers = band.lower(offsets)
        if np.isfinite(found.value):
            prices[j, k] = multipliers[axes]
        elif band.refutation(offsets)[0] > 0.0:
            infeasible[j, k], lower[j, k] = True, np.inf
    feasible = np.isfinite(upper)
    scales = np.array([cmdp.proof_scale(u) for u in upper[feasible]])
    gap = float(((upper[feasible] - lower[feasible]) / scales).max(initial=0.0))
    gap = gap if (feasible | infeasible).all() else np.inf
    bounds = _user(cmdp, lower, upper)
    return Surface(
        names=(cmdp.names[axes[0]], cmdp.names[axes[1]]),
        limits=(values[0], values[1]),
        objectives=np.where(feasible, cmdp.sense * upper, np.nan),
        lower=bounds[0],
        upper=bounds[1],
        prices=prices,
        feasible=feasible,
        infeasible=infeasible,
        gap=gap,
        violation=0.5 * band.tol if relaxed else 0.0,
        tol=band.tol,
        solves=band.solves,
        time=seconds,
        model=cmdp,
        band=band,
    )


# -- both ------------------------------------------------------------------------------------------------------------


def _user(cmdp: CMDP, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Bounds in the user's sense: those of a reward change places."""
    return (-upper, -lower) if cmdp.maximise else (lower, upper)


def _bounds(cmdp: CMDP, band: Band, limits: dict[str, float]) -> tuple[float, float]:
    offsets = cmdp.with_limits(limits).offsets
    lower, upper = band.lower(offsets)[0], band.upper(offsets).value
    if not np.isfinite(upper) and band.refutation(offsets)[0] > 0.0:
        lower = np.inf
    low, high = _user(cmdp, lower, upper)
    return float(low), float(high)


def _policy(cmdp: CMDP, band: Band, limits: dict[str, float]) -> Any:
    found = band.upper(cmdp.with_limits(limits).offsets)
    if found.weights is None:
        raise ValueError(f"no policy is known that meets the limits with {limits}; see frontier.least")
    policy = band.policy(found.weights)
    return policy if cmdp.lowering is None else raised_policy(cmdp, policy)


def _summary(found: Frontier | Surface) -> dict[str, Any]:
    names = ("complete", "tol", "gap", "violation", "solves", "time")
    return {name: finite(value) if (value := getattr(found, name)) is not True else True for name in names}


def _write_csv(path: PathLike, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["limit"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))
