"""`make demo`: the paper's instance with the main methods, as a table and a convergence plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import BLACK, GREY, METHODS, Style, clip, curve, figure, save
from cmdpkit.experiments.common import ALGORITHMS, run_fixed
from cmdpkit.model import CMDP
from cmdpkit.problems import paper
from cmdpkit.report import comparison_table, result_report
from cmdpkit.run.result import Result
from cmdpkit.solver import solve

ITERATIONS = 1_000
CURVES = 2_000  # enough for fixed steps to come to the tolerance
TOL = 1e-6
DEFAULT = Style(BLACK, "-", "*")


def run(cmdp: CMDP) -> tuple[list[Result], dict[str, Result]]:
    """Results of every method at its defaults, and of the first-order methods at the paper's own steps."""
    solve(cmdp)  # loads SciPy's solvers, which is not part of the times below
    defaults = [solve(cmdp, "auto"), solve(cmdp, "lp")]
    defaults += [solve(cmdp, method, max_iterations=ITERATIONS) for method in ALGORITHMS]
    # The paper's experiment: effective step 1 for all, η′ = 1, t_k = 1; exactly CURVES macro steps.
    return defaults, {method: run_fixed(cmdp, method, CURVES) for method in ALGORITHMS}


def error(result: Result, optimum: float, prefix: str = "") -> Array:
    """The larger of relative gap and relative violation, step by step: what `tol` bounds."""
    history, limits = result.history, result.model.limits
    gap = np.abs(history[f"{prefix}objective"] - optimum) / max(1.0, abs(optimum))
    over = (
        result.model.signs * (history[f"{prefix}constraint_values"] - limits) / np.maximum(1.0, np.abs(limits))
    ).max(1)
    return np.asarray(np.maximum(np.maximum(gap, over), 1e-16))


def plot(default: Result, curves: dict[str, Result], optimum: float, path: Path) -> None:
    """Left: the last iterate, of the default and with the paper's steps; right: the average iterate."""
    drawing, (axes,) = figure(columns=2)
    k = np.arange(1, CURVES + 1)
    for axis, prefix, title in zip(axes, ("", "average_"), ("last iterate", "average iterate"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="macro step (one policy evaluation each)", title=title)
        for method in ALGORITHMS:
            label = f"{method.upper()}, the paper's steps"
            curve(axis, k, error(curves[method], optimum, prefix), METHODS[method], label)
        axis.axhline(TOL, color=GREY, lw=0.8, ls=":")
    reached = error(default, optimum)
    curve(axes[0], k[: len(reached)], reached, DEFAULT, "PMD-PD, growing steps (the default)", lw=2.6, ms=7)
    for found, style in ((reached, DEFAULT), (error(curves["pmd-pd"], optimum), METHODS["pmd-pd"])):
        _point_out(axes[0], found, style.colour)
    axes[1].loglog(k, 1.0 / k, color=GREY, ls=(0, (1, 3)), lw=1.4, label="1/k")
    axes[0].set_ylabel("error: larger of relative gap and violation")
    clip(axes[0], 1e-8, 5.0)
    axes[1].set_ylim(1e-8, 5.0)
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    drawing.legend(handles.values(), handles, loc="outside lower center", ncols=3, fontsize=9)
    drawing.suptitle("The paper's instance: 20 states, 10 actions, γ = 0.8, one limit")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(drawing, path)


def _point_out(axis: Any, found: Array, colour: str) -> None:
    """The step from which the error stays within the tolerance."""
    first = int(np.flatnonzero(found > TOL)[-1]) + 2
    if first <= len(found):
        arrow = {"arrowstyle": "->", "color": colour}
        axis.annotate(f"{first:,} steps", (first, TOL), (first * 0.22, TOL * 0.06), color=colour, arrowprops=arrow)


def main(path: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    cmdp = paper()
    console.print("The paper's instance (20 states, 10 actions, gamma 0.8):")
    console.print("maximise the discounted reward while the discounted utility stays at 3 or more.\n")
    defaults, curves = run(cmdp)
    console.print(result_report(defaults[0]))
    console.print("\nEvery method at its defaults, to a tolerance of 1e-6 or 1,000 steps:\n")
    console.print(comparison_table(defaults))
    console.print(
        "\nslack         how far inside its limit the policy stays\n"
        "shadow price  reward lost for each unit by which the limit is tightened\n"
        "proved gap    certified distance to the best policy that there is, as a fraction\n"
    )
    plot(defaults[2], curves, defaults[0].objective, path)
    console.print(f"Convergence plot: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo.png"))
