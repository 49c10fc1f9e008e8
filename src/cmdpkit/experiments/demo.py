"""`make demo`: the paper's instance with the main methods, as a table and a convergence plot."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cmdpkit.experiments.common import ALGORITHMS, COLOURS, figure, run_fixed, save
from cmdpkit.model import CMDP
from cmdpkit.problems import paper
from cmdpkit.report import comparison_table, result_report
from cmdpkit.run.result import Result
from cmdpkit.solver import solve

ITERATIONS = 1_000


def run(cmdp: CMDP) -> tuple[list[Result], dict[str, Result]]:
    """Results of every method at its defaults, and of the first-order methods at the paper's own steps."""
    solve(cmdp)  # loads SciPy's solvers, which is not part of the times below
    defaults = [solve(cmdp, "auto"), solve(cmdp, "lp")]
    defaults += [solve(cmdp, method, max_iterations=ITERATIONS) for method in ALGORITHMS]
    # The paper's experiment: effective step 1 for all, η′ = 1, t_k = 1; exactly ITERATIONS macro steps.
    return defaults, {method: run_fixed(cmdp, method, ITERATIONS) for method in ALGORITHMS}


def plot(curves: dict[str, Result], optimum: float, path: Path) -> None:
    """Distance of the average and the last iterate to the optimum, in objective and in the limit."""
    drawing, axes = figure()
    k = np.arange(1, ITERATIONS + 1)
    for method in ALGORITHMS:
        colour = COLOURS[method]
        history, limit = curves[method].history, curves[method].model.limits[0]
        distances = (
            (optimum - history.average_objective, optimum - history.objective),
            (limit - history.average_constraint_values[:, 0], limit - history.constraint_values[:, 0]),
        )
        for axis, (average, last) in zip(axes[0], distances, strict=True):
            axis.loglog(k, np.abs(last), color=colour, alpha=0.35, linewidth=0.9)
            axis.loglog(k, np.abs(average), color=colour, linewidth=2.0, label=method.upper())
    for axis, title in zip(axes[0], ("|optimality gap|", "|limit − utility|"), strict=True):
        axis.loglog(k, 3.0 / k, "k:", linewidth=1.0, label="1/k")
        axis.set(xlabel="macro step k", title=title, ylim=(1e-6, 5.0))
    axes[0, 0].legend(title="bold: average iterate\nthin: last iterate", loc="lower left", fontsize=9)
    drawing.suptitle("The paper's instance (S = 20, A = 10, γ = 0.8), effective step 1, η′ = 1")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(drawing, path)


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
    plot(curves, defaults[0].objective, path)
    console.print(f"Convergence plot: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo.png"))
