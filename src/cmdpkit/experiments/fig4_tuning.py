"""The dual step of Figure 4, tuned over the paper's set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.drawing import METHODS as METHOD_STYLES
from cmdpkit.drawing import curve, figure
from cmdpkit.experiments.common import Claim, Section, Settings, append_row, read_csv, write_csv
from cmdpkit.experiments.fig4 import LAST, LIMIT, OPTIONS, QUANTITIES, run_all, sizes

STEPS = (0.00001, 0.0005, 0.001, 0.005, 0.01, 0.05)
METHODS = ("pmd-pd", "npg-pd")
SEEDS = 1  # enough to see which dual steps fail
DATA = "fig4_tuning.csv"
SLOW = True


def run(settings: Settings) -> None:
    _, iterations, runs, small = sizes(settings)
    steps, seeds = (STEPS[1:3], 1) if settings.quick else (STEPS, SEEDS)

    def folder(method: str, step: float, seed: int) -> Path:
        """The folder of a run; the runs of Figure 4 are reused."""
        return runs / (f"paper-{method}-{seed}" if step == 0.0005 else f"paper-{method}-{step:g}-{seed}")

    cases = [(method, step, seed) for seed in range(seeds) for method in METHODS for step in steps]
    jobs = [
        (method, seed, iterations, folder(method, step, seed), {**OPTIONS[method], "eta_dual": step, **small})
        for method, step, seed in cases
    ]
    rows: dict[str, list[Any]] = {column: [] for column in ("method", "step", "seed", *QUANTITIES)}
    for case, answer in zip(cases, run_all(jobs, settings, "fig4-tuning"), strict=True):
        append_row(rows, (*case, *answer["table"][-LAST:].mean(axis=0).round(3)))
    write_csv(settings.folder / DATA, rows)


def plot(settings: Settings) -> None:
    data = read_csv(settings.folder / DATA)
    drawing, axes = figure(columns=3)
    count = len(np.unique(data["seed"]))
    for axis, quantity in zip(axes[0], QUANTITIES, strict=True):
        axis.set_xscale("log")
        for method in METHODS:
            mine = data["method"] == method
            steps = np.unique(data["step"][mine])
            mean = [data[quantity][mine & (data["step"] == step)].mean() for step in steps]
            curve(axis, steps, mean, METHOD_STYLES[method], method.upper())
        if quantity != "reward":
            axis.axhline(LIMIT, color="black", ls=(0, (4, 4)), linewidth=1.2, label="limit")
        axis.set(xlabel="dual step η′", ylabel=f"mean of the last {LAST} iterations")
        axis.set_title(f"{quantity}, {count} seed{'s' * (count > 1)}")
    axes[0, 1].legend()
    settings.save(drawing, "fig4_tuning")


def section(settings: Settings) -> Section:
    data = read_csv(settings.folder / DATA)
    claims = []
    for method in METHODS:
        mine = data["method"] == method
        steps = np.unique(data["step"][mine])
        means = {s: [float(data[q][mine & (data["step"] == s)].mean()) for q in QUANTITIES] for s in steps}
        safe = {s: m[0] for s, m in means.items() if max(m[1:]) <= 1.05 * LIMIT}
        best = max(safe, key=lambda s: safe[s]) if safe else float("nan")
        verdict = "holds" if best == 0.0005 else f"does not: {best:g} earns the most with both costs within 5 %"
        seeds = len(np.unique(data["seed"]))
        if seeds == 1:  # one run cannot tell which of two steps is better
            verdict = f"undecided: one seed ({best:g} earns the most with both costs within 5 %)"
        text = "; ".join(f"{s:g}: {m[0]:.0f} with costs {m[1]:.0f}, {m[2]:.0f}" for s, m in means.items())
        claims.append(
            Claim(
                f"the best dual step of {method.upper()} is 0.0005",
                f"reward and costs over the last {LAST} iterations, {seeds} seed{'s' * (seeds > 1)}: {text}",
                verdict,
            )
        )
    figures = [("fig4_tuning.png", "Figure 4's dual step over the paper's set.")]
    return Section("Figure 4: tuning the dual step", claims, figures)
