"""Errors of the last iterate by macro step: several methods on several models, as a file, a figure and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import Style, clip, curve, figure
from cmdpkit.experiments.common import Settings, append_row, read_csv

TOL = 1e-6
FLOOR = 1e-14

Curve = tuple[Array, Array]
"""Macro steps, and the error after each."""


def first_within(error: Array, tol: float = TOL) -> float:
    """The first step from which the error stays within `tol`; infinity if it does not."""
    return crossing((np.arange(1.0, len(error) + 1), error), tol)


def crossing(shown: Curve, tol: float = TOL) -> float:
    """The first of the steps shown from which the error stays within `tol`; infinity if it does not."""
    k, error = shown
    outside = np.flatnonzero(~(error <= tol))
    after = outside[-1] + 1 if outside.size else 0
    return float(k[after]) if after < len(k) else np.inf


def count(steps: float, shown: Curve) -> str:
    """The steps that a method needs, or the error that it has in the end."""
    return f"{steps:.0f}" if np.isfinite(steps) else f"not in {shown[0][-1]:.0f} ({shown[1][-1]:.0e})"


def empty_rows() -> dict[str, list[Any]]:
    return {"model": [], "method": [], "k": [], "error": []}


def append_curve(rows: dict[str, list[Any]], model: str, method: str, error: Array, points: int) -> None:
    """Append about so many steps of a curve, evenly spaced on a logarithmic scale."""
    shown = np.geomspace(1, len(error), points).astype(int)
    first = first_within(error)  # a step that must be in the file, for the table
    for k in np.unique(np.append(shown, int(first) if np.isfinite(first) else 1)):
        append_row(rows, (model, method, k, error[k - 1]))


def read_curves(settings: Settings, name: str, methods: dict[str, Style]) -> dict[str, dict[str, Curve]]:
    """Of every model, the curve of every method."""
    data = read_csv(settings.folder / f"{name}.csv")
    return {
        str(model): {
            method: (data["k"][chosen], data["error"][chosen])
            for method in methods
            if (chosen := (data["model"] == model) & (data["method"] == method)).any()
        }
        for model in dict.fromkeys(data["model"])
    }


def plot_curves(settings: Settings, name: str, methods: dict[str, Style], main: str) -> None:
    """One panel per model, with the method `main` drawn bold."""
    curves = read_curves(settings, name, methods)
    drawing, axes = figure(columns=len(curves))
    for axis, (model, found) in zip(axes[0], curves.items(), strict=True):
        axis.set(xscale="log", yscale="log")
        for method, (k, error) in found.items():
            curve(axis, k, np.maximum(error, FLOOR), methods[method], method, lw=2.4 if method == main else 1.2)
        axis.axhline(TOL, color="k", lw=0.8, ls=":")
        axis.set(title=model, xlabel="macro step (one policy evaluation each)")
        clip(axis, 1e-13, 10.0)
    axes[0, 0].set_ylabel("error of the last iterate")
    drawing.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    settings.save(drawing, name)
