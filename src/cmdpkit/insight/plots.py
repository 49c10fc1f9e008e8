"""Figures of frontiers and comparisons, in the style of drawing.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import BLACK, BLUE, GREY, STYLES, VERMILLION, band, check_paths, clip, curve, figure, save, styles
from cmdpkit.files import PathLike

if TYPE_CHECKING:
    from cmdpkit.insight.curves import Frontier, Surface
    from cmdpkit.insight.league import Comparison, Run
    from cmdpkit.insight.sweep import Sweep

DPI = 150
POINTS = 200
"""Points of a curve that is averaged over seeds."""


def plot_frontier(found: Frontier, path: PathLike, formats: Sequence[str] = ()) -> None:
    """The certified band over the limit, and below it the shadow price."""
    check_paths(path, formats)
    drawing, axes = figure(1, 2, (7.0, 3.0), sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    top, bottom = axes[:, 0]
    known = found.feasible & np.isfinite(found.lower) & np.isfinite(found.upper)
    limits = found.limits[known]
    band(top, limits, found.lower[known], found.upper[known], STYLES[0], alpha=0.3)
    top.plot(limits, found.objectives[known], color=BLUE, marker="o", ms=3, lw=1.2, label="optimum, certified")
    own = found.model.limits[found.model.names.index(found.name)]
    if limits.size and limits[0] <= own <= limits[-1]:
        for axis in (top, bottom):
            axis.axvline(own, color=GREY, lw=1.2, ls="--", label="limit of the model" if axis is top else None)
    _mark_infeasible(top, found, limits)
    sense = "reward (maximised)" if found.model.maximise else "cost (minimised)"
    top.set_ylabel(sense)
    top.legend(frameon=False)
    looser = found.model.signs[found.model.names.index(found.name)] > 0
    bottom.step(limits, found.prices[known], where="post" if looser else "pre", color=VERMILLION, lw=1.2)
    bottom.set_ylabel("shadow price")
    if limits.size and found.prices[known].max() > 100.0 * max(float(np.median(found.prices[known])), 1e-300):
        bottom.set_yscale("symlog", linthresh=max(float(np.median(found.prices[known])), 1e-12))
    bottom.set_xlabel(f"limit of {found.name!r}" + (" per step" if _constraint(found).per_step else ""))
    save(drawing, path, formats, DPI)


def _mark_infeasible(axes: Any, found: Frontier, limits: Any) -> None:
    """Shade the values that no policy meets."""
    edge = found.least[0]
    if not limits.size or not np.isfinite(edge):
        return
    room = 0.05 * max(float(np.ptp(limits)), 1e-3 * max(1.0, abs(float(edge))))
    outside = edge - room if _constraint(found).sign > 0 else edge + room
    shade = {"fc": "#D55E0020", "ec": VERMILLION, "hatch": "///", "lw": 0.0}
    axes.axvspan(min(edge, outside), max(edge, outside), label="proved infeasible", **shade)


def _constraint(found: Frontier) -> Any:
    return found.model.rows[found.model.names.index(found.name)]


def plot_surface(found: Surface, path: PathLike, formats: Sequence[str] = ()) -> None:
    """The optimum over both limits, with contours; what cannot be met stays white."""
    check_paths(path, formats)
    drawing, grid = figure(1, 1, (7.0, 5.0))
    axes = grid[0, 0]
    axes.grid(visible=False)
    values = np.ma.masked_invalid(found.objectives.T)
    drawn = axes.pcolormesh(*found.limits, values, shading="nearest", cmap="cividis", rasterized=True)
    drawing.colorbar(drawn, label="reward (maximised)" if found.model.maximise else "cost (minimised)")
    if min(values.shape) > 1 and values.count() > 3 and values.max() > values.min():
        lines = axes.contour(*found.limits, values, colors="white", linewidths=0.8)
        axes.clabel(lines, fontsize=7)
    axes.set_xlabel(f"limit of {found.names[0]!r}")
    axes.set_ylabel(f"limit of {found.names[1]!r}")
    save(drawing, path, formats, DPI)


# -- comparisons -------------------------------------------------------------------------------------------------------


def plot_comparison(found: Comparison, path: PathLike, formats: Sequence[str] = ()) -> None:
    """Error, or objective and values with their limits, of every method; a cross ends what was not proved."""
    check_paths(path, formats)
    panels = list(_panels(found))
    columns = min(3, len(panels))
    drawing, axes = figure(columns, -(-len(panels) // columns))
    looks = styles(found.methods)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (model, title, quantity) in zip(axes.flat, panels, strict=False):
        if quantity is None:
            axis.set(xscale="log", yscale="log", ylabel="error: larger of gap and violation")
        for method in found.methods:
            runs = found.of(model, method)
            if runs:
                _draw_method(axis, found, runs, quantity, looks[method])
        _dress(axis, found, model, title, quantity)
    handles = {label: handle for handle, label in zip(*axes[0, 0].get_legend_handles_labels(), strict=True)}
    drawing.legend(handles.values(), handles, loc="outside lower center", ncols=2 * columns, fontsize=8)
    save(drawing, path, formats, DPI)


def _panels(found: Comparison) -> Iterator[tuple[str, str, int | None]]:
    """Model, title, and what is shown: None for the error, 0 for the objective, 1..m for the values."""
    for model in found.models:
        named = f"{model}: " if len(found.models) > 1 else ""
        if next(run for run in found.runs if run.model == model).gap is not None:
            yield model, model, None
            continue
        yield model, f"{named}{'reward' if found.maximise[model] else 'cost'}", 0
        yield from ((model, f"{named}{c.name}", i) for i, c in enumerate(found.constraints[model], start=1))


def _draw_method(axis: Any, found: Comparison, runs: Sequence[Run], quantity: int | None, look: Any) -> None:
    curves = [(run.axes[found.by], _quantity(run, quantity)) for run in runs]
    x, mean, low, high = over_seeds(curves, found.confidence, geometric=quantity is None)
    if not x.size:
        return
    curve(axis, x, mean, look, runs[0].method)
    if len(runs) > 1:
        bounds = (
            found.possible[runs[0].model].get(quantity, (-np.inf, np.inf)) if quantity is not None else (0.0, np.inf)
        )
        band(axis, x, low, high, look, *bounds)
    if quantity is None and any(run.status != "optimal" for run in runs):
        axis.plot(x[-1:], mean[-1:], "x", color=look.colour, ms=9, mew=2.0)
        axis.plot([], [], "x", color=BLACK, ms=7, mew=1.5, label="ended without a proof")
    elif quantity is None and any(run.final_error > 10.0 * found.tol for run in runs):
        axis.plot(x[-1:], mean[-1:], "*", color=BLACK, ms=14, label="DISAGREES with the certified optimum")


def _quantity(run: Run, quantity: int | None) -> Array:
    if quantity is None:
        return run.error
    return run.objective if not quantity else run.values[:, quantity - 1]


def over_seeds(
    curves: Sequence[tuple[Array, Array]], confidence: float, geometric: bool
) -> tuple[Array, Array, Array, Array]:
    """Mean and interval of several curves at common points; a run that has ended counts with its last value."""
    from cmdpkit.insight.league import interval

    if len(curves) == 1:
        x, y = curves[0]
        known = np.isfinite(y)
        return x[known], y[known], y[known], y[known]
    start, end = max(x[0] for x, _ in curves), max(x[-1] for x, _ in curves)
    points = np.unique(np.concatenate([x for x, _ in curves]))
    points = points[(points >= start) & (points <= end)]
    if points.size > POINTS:
        points = points[np.unique(np.geomspace(1, points.size, POINTS).astype(int)) - 1]
    held = np.array([y[np.searchsorted(x, points, side="right") - 1] for x, y in curves])
    known = np.isfinite(held).all(axis=0)
    found = np.array([interval(column, confidence, geometric) for column in held[:, known].T]).reshape(-1, 3)
    return points[known], *found.T


def _dress(axis: Any, found: Comparison, model: str, title: str, quantity: int | None) -> None:
    units = {"evaluations": "policy evaluations", "samples": "samples (transitions or steps)"}
    axis.set(title=title, xlabel=units.get(found.by, found.by))
    if quantity is None:
        axis.axhline(found.tol, color=BLACK, lw=0.8, ls=":", label=f"tolerance {found.tol:g}")
        clip(axis, 1e-4 * found.tol or 1e-12, 10.0)
    elif quantity:
        for end in found.constraints[model][quantity - 1].ends:
            if np.isfinite(end):
                axis.axhline(end, color=BLACK, lw=1.2, ls="--", label="limit")


def plot_sweep(found: Sweep, path: PathLike, formats: Sequence[str] = ()) -> None:
    """Objective and violation of every run by its settings; means over seeds are joined, early stops are faint."""
    check_paths(path, formats)
    chosen = {run.choice: run.settings for run in found.runs}
    names = {name for settings in chosen.values() for name in settings}
    values = [next(iter(settings.values())) for settings in chosen.values()] if len(names) == 1 else []
    numeric = bool(values) and all(isinstance(value, (int, float)) for value in values)
    places = dict(zip(chosen, values if numeric else range(len(chosen)), strict=True))
    methods = list(dict.fromkeys(run.method for run in found.runs))
    drawing, axes = figure(columns=2)
    for axis, quantity in zip(axes[0], ("objective", "violation"), strict=True):
        if numeric and min(values) > 0.0 and max(values) >= 10.0 * min(values):
            axis.set_xscale("log")
        for method, look in styles(methods).items():
            mine = [run for run in found.runs if run.method == method and np.isfinite(getattr(run, quantity))]
            seen: dict[Any, list[float]] = {}
            for run in mine:
                seen.setdefault(places[run.choice], []).append(getattr(run, quantity))
                strength = 0.25 if run.stopped else 0.8
                axis.plot(places[run.choice], getattr(run, quantity), look.marker, c=look.colour, ms=4, alpha=strength)
            curve(axis, list(seen), [np.mean(each) for each in seen.values()], look, method, marker="")
        axis.set(ylabel=quantity, xlabel=next(iter(names)) if len(names) == 1 else "settings")
        if not numeric:
            axis.set_xticks(range(len(chosen)), [text or "default" for text in chosen], rotation=30)
    axes[0, 0].legend()
    save(drawing, path, formats, DPI)
