"""Beyond the paper: its Acrobot with no option set but the limits, beside Figure 4's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import METHODS, band, curve, figure
from cmdpkit.experiments import fig4
from cmdpkit.experiments.common import Claim, Section, Settings, append_row, read_csv, write_csv
from cmdpkit.experiments.fig4 import LAST, LIMIT, QUANTITIES

ITERATIONS, SEEDS = 500, 5
STEPS, PAPER_STEPS = 4_000, 5_000  # of an iteration: by default, and in Figure 4
RUNS = Path("out/acrobot")
DATA = "acrobot.csv"
SLOW = True
UNKNOWN = "no figures with the paper's settings"


def run(settings: Settings) -> None:
    seeds, iterations, folder = min(SEEDS, settings.seeds), ITERATIONS, RUNS
    small: dict[str, Any] = {}
    if settings.quick:
        seeds, iterations, folder = 2, 4, settings.folder / "acrobot-runs"
        small = {"steps": 60, "hidden": [8]}
    jobs = [("pmd-pd", seed, iterations, folder / f"pmd-pd-{seed}", small) for seed in range(seeds)]
    answers = fig4.run_all(jobs, settings, "acrobot")
    tables = np.array([answer["table"] for answer in answers])
    columns: dict[str, Any] = {"iteration": np.arange(1, iterations + 1)}
    for j, name in enumerate(QUANTITIES):
        columns[f"{name} mean"] = tables[:, :, j].mean(axis=0).round(3)
        columns[f"{name} std"] = tables[:, :, j].std(axis=0).round(3)
    rows: dict[str, list[Any]] = {name: [] for name in ("seed", *QUANTITIES, "seconds", "steps")}
    for seed, answer in enumerate(answers):
        ends = answer["table"][-LAST:].mean(axis=0).round(3)
        append_row(rows, (seed, *ends, round(float(answer["time"]), 1), int(answer["steps"])))
    write_csv(settings.folder / DATA, columns)
    write_csv(settings.folder / "acrobot_seeds.csv", rows)


def _curves(settings: Settings) -> dict[str, tuple[int, dict[str, Any]]]:
    """Steps per iteration, and mean and deviation by quantity, of the defaults and of the paper's settings if known."""
    curves = {"the defaults": (STEPS, read_csv(settings.folder / DATA))}
    if (settings.folder / fig4.DATA).exists():
        data = read_csv(settings.folder / fig4.DATA)
        mine = {name.removeprefix("pmd-pd "): column for name, column in data.items()}
        curves["the paper's settings"] = (PAPER_STEPS, mine)
    return curves


def plot(settings: Settings) -> None:
    drawing, axes = figure(columns=3)
    style = dict(zip(("the defaults", "the paper's settings"), METHODS.values(), strict=False))
    for axis, name in zip(axes[0], QUANTITIES, strict=True):
        for label, (steps, data) in _curves(settings).items():
            millions, mean, std = data["iteration"] * steps / 1e6, data[f"{name} mean"], data[f"{name} std"]
            curve(axis, millions, mean, style[label], label)
            band(axis, millions, mean - std, mean + std, style[label], *fig4.POSSIBLE)
        if name != "reward":
            axis.axhline(LIMIT, color="black", ls=(0, (4, 4)), linewidth=1.2, label="limit")
        axis.set(xlabel="million steps", ylabel="sum over 500 steps", title=name)
    axes[0, 1].legend()
    settings.save(drawing, "acrobot")


def section(settings: Settings) -> Section:
    curves = _curves(settings)
    ends = {"the defaults": read_csv(settings.folder / "acrobot_seeds.csv")}
    if "the paper's settings" in curves:
        seeds = read_csv(settings.folder / "fig4_seeds.csv")
        mine = seeds["method"] == "pmd-pd"
        ends["the paper's settings"] = {name: column[mine] for name, column in seeds.items()}
    since, off = {}, {}
    for label, (steps, data) in curves.items():
        last = max(fig4.first_within(data[f"{q} mean"]) for q in QUANTITIES[1:])
        since[label] = steps * last if last <= len(data["iteration"]) else np.inf
        off[label] = sum(abs(float(ends[label][q].mean()) - LIMIT) for q in QUANTITIES[1:])
    text = "; ".join(
        f"{label}: " + ", ".join(f"{q} {found[q].mean():.1f} ± {found[q].std():.1f}" for q in QUANTITIES)
        + f" ({len(found['seed'])} seeds)"
        for label, found in ends.items()
    )  # fmt: skip
    claims = [
        Claim(
            "PMD-PD with no option set but the limits earns as much as with the paper's settings",
            f"mean ± deviation over the last {LAST} iterations of 2 million steps: {text}",
            _compared([found["reward"] for found in ends.values()]),
        ),
        Claim(
            "it meets both limits sooner",
            "both mean costs stay within 5 % of the limit from "
            + ", ".join(f"{steps:,.0f} steps ({label})" for label, steps in since.items()),
            _first(since),
        ),
        Claim(
            "its costs end closer to the limits",
            "|cost 1 − 50| + |cost 2 − 50|: " + ", ".join(f"{value:.1f} ({label})" for label, value in off.items()),
            _first(off),
        ),
    ]
    figures = [("acrobot.png", "Mean and one deviation over the seeds; dashed: the limits.")]
    commands = (f"acrobot --seeds {len(ends['the defaults']['seed'])}",)
    return Section("Acrobot with the defaults of `train` (not in the paper)", claims, figures, commands=commands)


def _compared(rewards: list[Array]) -> str:
    return UNKNOWN if len(rewards) < 2 else fig4.compare(rewards[0], rewards[1], "with the defaults PMD-PD")


def _first(values: dict[str, float]) -> str:
    if len(values) < 2:
        return UNKNOWN
    mine, other = values.values()
    return "holds" if mine < other else "does not"
