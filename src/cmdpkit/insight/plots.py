"""Figures of frontiers. Only this module of the room imports matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.files import PathLike, check_folder

if TYPE_CHECKING:
    from cmdpkit.insight.curves import Frontier, Surface

MISSING = "plots need matplotlib: pip install 'cmdpkit[plot]'"


def plot_frontier(found: Frontier, path: PathLike) -> None:
    """The certified band over the limit, and below it the shadow price."""
    figure = _figure(path, (7.0, 6.0))
    top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    known = found.feasible & np.isfinite(found.lower) & np.isfinite(found.upper)
    limits = found.limits[known]
    top.fill_between(limits, found.lower[known], found.upper[known], color="tab:blue", alpha=0.3, lw=0)
    top.plot(limits, found.objectives[known], color="tab:blue", marker="o", ms=3, lw=1.2, label="optimum, certified")
    own = found.model.limits[found.model.names.index(found.name)]
    if limits.size and limits[0] <= own <= limits[-1]:
        for axes in (top, bottom):
            axes.axvline(own, color="0.4", lw=1.0, ls="--", label="limit of the model" if axes is top else None)
    _mark_infeasible(top, found, limits)
    sense = "reward (maximised)" if found.model.maximise else "cost (minimised)"
    top.set_ylabel(sense)
    top.legend(frameon=False)
    looser = found.model.signs[found.model.names.index(found.name)] > 0
    bottom.step(limits, found.prices[known], where="post" if looser else "pre", color="tab:red", lw=1.2)
    bottom.set_ylabel("shadow price")
    if limits.size and found.prices[known].max() > 100.0 * max(float(np.median(found.prices[known])), 1e-300):
        bottom.set_yscale("symlog", linthresh=max(float(np.median(found.prices[known])), 1e-12))
    bottom.set_xlabel(f"limit of {found.name!r}" + (" per step" if _constraint(found).per_step else ""))
    figure.savefig(path, dpi=150)


def _mark_infeasible(axes: Any, found: Frontier, limits: Any) -> None:
    """Shade the values that no policy meets."""
    edge = found.least[0]
    if not limits.size or not np.isfinite(edge):
        return
    room = 0.05 * max(float(np.ptp(limits)), 1e-3 * max(1.0, abs(float(edge))))
    outside = edge - room if _constraint(found).sign > 0 else edge + room
    axes.axvspan(min(edge, outside), max(edge, outside), color="tab:red", alpha=0.12, lw=0, label="proved infeasible")


def _constraint(found: Frontier) -> Any:
    return found.model.rows[found.model.names.index(found.name)]


def plot_surface(found: Surface, path: PathLike) -> None:
    """The optimum over both limits, with contours; what cannot be met stays white."""
    figure = _figure(path, (7.0, 5.0))
    axes = figure.subplots()
    values = np.ma.masked_invalid(found.objectives.T)
    drawn = axes.pcolormesh(*found.limits, values, shading="nearest")
    figure.colorbar(drawn, label="reward (maximised)" if found.model.maximise else "cost (minimised)")
    if min(values.shape) > 1 and values.count() > 3 and values.max() > values.min():
        lines = axes.contour(*found.limits, values, colors="white", linewidths=0.8)
        axes.clabel(lines, fontsize=7)
    axes.set_xlabel(f"limit of {found.names[0]!r}")
    axes.set_ylabel(f"limit of {found.names[1]!r}")
    figure.savefig(path, dpi=150)


def _figure(path: PathLike, size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING) from error
    check_folder(path)
    return Figure(figsize=size, layout="constrained")
