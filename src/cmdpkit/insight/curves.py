"""What a frontier is: the optimum as a function of one limit or two, how it is asked, shown and written."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from cmdpkit.certificates.certificate import finite
from cmdpkit.checks import Array
from cmdpkit.exact.band import Band, Upper
from cmdpkit.files import PathLike, write_whole
from cmdpkit.model import CMDP
from cmdpkit.policy import raised_policy


@dataclass(frozen=True, eq=False, kw_only=True)
class Shown:
    """What a curve and a surface have in common: how good they are, and how they are shown and written."""

    gap: float
    violation: float
    tol: float
    solves: int
    time: float
    model: CMDP = field(repr=False)
    band: Band = field(repr=False)
    rows: ClassVar[Callable[..., list[dict[str, Any]]]]

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
    feasible: Any
    least: Array
    infeasibility: Array | None
    find_ranges: Callable[[], Array] = field(repr=False)

    @cached_property
    def ranges(self) -> Array:
        """Computed when it is first read."""
        return self.find_ranges()

    def at(self, limit: float) -> tuple[float, float]:
        """(lower, upper) bounds on the optimum at any limit; both infinite where it is proved that it cannot be met."""
        return _bounds(self, {self.name: limit})

    def policy(self, limit: float) -> Any:
        """A policy that attains the objective at this limit.

        For long-run averages whose best policies stay in separate parts of the model, it joins the parts, and attains
        objective and limits to a tenth of `tol`.
        """
        return _policy(self, {self.name: limit})

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

    def at(self, first: float, second: float) -> tuple[float, float]:
        """(lower, upper) bounds on the optimum at any two limits."""
        return _bounds(self, dict(zip(self.names, (first, second), strict=True)))

    def policy(self, first: float, second: float) -> Any:
        """A policy that attains the objective at these limits; see `Frontier.policy`."""
        return _policy(self, dict(zip(self.names, (first, second), strict=True)))

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


def in_users_sense(cmdp: CMDP, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Bounds in the user's sense: those of a reward change places."""
    return (-upper, -lower) if cmdp.maximise else (lower, upper)


def _bounds(found: Frontier | Surface, limits: dict[str, float]) -> tuple[float, float]:
    offsets = found.model.with_limits(limits).offsets
    lower, upper = found.band.lower(offsets)[0], _upper(found, offsets).value
    if not np.isfinite(upper) and found.band.refutation(offsets)[0] > 0.0:
        lower = np.inf
    low, high = in_users_sense(found.model, lower, upper)
    return float(low), float(high)


def _policy(found: Frontier | Surface, limits: dict[str, float]) -> Any:
    upper = _upper(found, found.model.with_limits(limits).offsets)
    if upper.weights is None:
        raise ValueError(f"no policy is known that meets the limits with {limits}; see frontier.least")
    policy = found.band.policy(upper.weights)
    return policy if found.model.lowering is None else raised_policy(found.model, policy)


def _upper(found: Frontier | Surface, offsets: Array) -> Upper:
    """The best mixture within the limits; one that meets them only to `tol` counts where `violation` says so."""
    upper = found.band.upper(offsets)
    return Upper(np.inf, None) if upper.relaxed and not found.violation else upper


def _summary(found: Frontier | Surface) -> dict[str, Any]:
    numbers = {name: finite(getattr(found, name)) for name in ("tol", "gap", "violation", "time")}
    return {"complete": found.complete, "solves": found.solves, **numbers}


def _write_csv(path: PathLike, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["limit"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))
