"""Beyond the paper: PMD-PD on CartPole with a position budget, and on Pendulum with a torque budget."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.drawing import METHODS, band, curve, figure
from cmdpkit.experiments.common import Claim, Section, Settings, read_csv, write_csv
from cmdpkit.experiments.fig4 import PAPER

SEEDS = 3
LAST = 20
DATA = "tasks.csv"
SLOW = True


class Task(NamedTuple):
    """An environment with a budget, and the settings used to learn it."""

    title: str
    limit: float
    iterations: int
    options: dict[str, Any]
    possible: tuple[tuple[float, float], tuple[float, float]]  # of the reward and the cost of an episode


# Figure 4's settings, with smaller networks and longer steps
SHARED: dict[str, Any] = {**PAPER, "num_envs": 20, "radius": 0.01, "hidden": [64, 64], "inner_steps": 1}

TASKS = {
    "cartpole": Task(
        title="CartPole: at most 50 of 500 steps more than 0.2 from the middle",
        limit=50.0,
        iterations=120,
        options={**SHARED, "gamma": 0.99, "eta_dual": 5e-4},
        possible=((0.0, 500.0), (0.0, 500.0)),
    ),
    "pendulum": Task(
        title="Pendulum: torque of at most 100 in 200 steps",
        limit=100.0,
        iterations=240,
        options={**SHARED, "steps": 200, "gamma": 0.97, "eta_dual": 1e-2, "normalise": True},
        possible=((-3255.0, 0.0), (0.0, 400.0)),  # at most π² + 0.1 · 8² + 0.001 · 2² and 2 per step
    ),
}


def make(name: str) -> Any:
    """One environment of a task."""
    import gymnasium

    from cmdpkit.envs import WithCosts

    if name == "cartpole":
        return WithCosts(gymnasium.make("CartPole-v1"), lambda step: abs(float(step.next_observation[0])) > 0.2)
    return WithCosts(gymnasium.make("Pendulum-v1"), lambda step: abs(float(step.action[0])))


def run(settings: Settings) -> None:
    from cmdpkit.training import train

    columns: dict[str, Any] = {}
    longest = max(task.iterations for task in TASKS.values())
    for name, task in TASKS.items():
        small = {"steps": 40, "num_envs": 4} if settings.quick else {}
        iterations, seeds = (3, 1) if settings.quick else (task.iterations, SEEDS)
        tables = []
        for seed in settings.track(range(seeds), f"tasks: {name}"):
            options = {**task.options, **small}
            result = train(
                lambda name=name: make(name), "pmd-pd", [task.limit], seed=seed, iterations=iterations, **options
            )
            tables.append(np.column_stack([result.history["reward"], result.history["costs"]]))
        mean, std = np.mean(tables, axis=0), np.std(tables, axis=0)
        blank = np.full((longest - len(mean), 2), np.nan)
        for j, quantity in enumerate(("reward", "cost")):
            columns[f"{name} {quantity} mean"] = np.concatenate([mean, blank])[:, j].round(3)
            columns[f"{name} {quantity} std"] = np.concatenate([std, blank])[:, j].round(3)
    write_csv(settings.folder / DATA, columns)


def plot(settings: Settings) -> None:
    data = read_csv(settings.folder / DATA)
    drawing, axes = figure(columns=2, rows=2)
    for i, (name, task) in enumerate(TASKS.items()):
        for j, quantity in enumerate(("reward", "cost")):
            mean, std = data[f"{name} {quantity} mean"], data[f"{name} {quantity} std"]
            k = np.arange(1, len(mean) + 1)
            curve(axes[i, j], k, mean, METHODS["pmd-pd"], "PMD-PD")
            band(axes[i, j], k, mean - std, mean + std, METHODS["pmd-pd"], *task.possible[j])
            axes[i, j].set(xlabel="policy iteration", ylabel=f"{quantity} of an episode", title=name)
        axes[i, 1].axhline(task.limit, color="black", ls=(0, (4, 4)), linewidth=1.2, label="limit")
        axes[i, 1].legend()
    settings.save(drawing, "tasks")


def section(settings: Settings) -> Section:
    data = read_csv(settings.folder / DATA)
    claims = []
    for name, task in TASKS.items():
        reward, cost = (data[f"{name} {q} mean"] for q in ("reward", "cost"))
        known = ~np.isnan(reward)
        first, last = reward[known][0], reward[known][-LAST:].mean()
        end = cost[known][-LAST:].mean()
        claims.append(
            Claim(
                f"PMD-PD learns {task.title} (not in the paper)",
                f"reward {first:.0f} at first, {last:.0f} over the last {LAST} of {known.sum()} iterations; cost "
                f"{cost[known][0]:.0f} at first, {end:.1f} at the end, limit {task.limit:g}",
                "holds" if end <= 1.05 * task.limit and last > first else "does not: the limit is not met",
            )
        )
    figures = [("tasks.png", f"Mean and deviation over {SEEDS} seeds; dashed: the limits.")]
    remarks = "Costs are added to Gymnasium's environments by `WithCosts`, in one line each (`experiments/tasks.py`)."
    return Section("Neural policies on other tasks", claims, figures, remarks)
