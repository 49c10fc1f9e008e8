"""Figure 4: neural policies on the constrained Acrobot, three algorithms over ten seeds, in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.cluster import distributed, in_order
from cmdpkit.drawing import METHODS, band, curve, figure
from cmdpkit.experiments.common import ALGORITHMS, Claim, Section, Settings, append_row, read_csv, write_csv

ENV, LIMIT = "cmdpkit/ConstrainedAcrobot-v0", 50.0
ITERATIONS, SEEDS = 400, 10
LAST = 20  # iterations over which final figures are averaged
QUANTITIES = ("reward", "cost 1", "cost 2")
POSSIBLE = (0.0, 500.0)  # a step gives 0 to 1 of each
PAPER: dict[str, Any] = {
    "num_envs": 10,
    "steps": 500,
    "gamma": 0.98,
    "smoothing": 1.0,
    "hidden": [128, 128],
    "activation": "relu",
    "radius": 0.003,
    "damping": 0.001,
    "cg_steps": 10,
    "fisher_states": 5_000,
    "normalise": False,
    "critic_epochs": 5,
    "critic_minibatch": 250,
}
"""The paper's settings of the networks and the trust region, for all methods."""
# Two policy iterations per dual update for PMD-PD; CRPO steps on the first cost above 50.5, in a trust region of 0.003,
# 0.006 or 0.01 with no, one or both costs violated.
OPTIONS: dict[str, dict[str, Any]] = {
    "pmd-pd": {**PAPER, "eta_dual": 5e-4, "inner_steps": 2},
    "npg-pd": {**PAPER, "eta_dual": 5e-4},
    "crpo": {**PAPER, "tolerance": -0.5, "first": True, "radii": [0.003, 0.006, 0.01], "damping": 0.006},
}
FAIR = "npg-pd, two steps"
"""NPG-PD with as many policy iterations per dual update as PMD-PD: not in the paper, for a fair comparison."""
FAIR_SEEDS = 5
RUNS = Path("out/fig4")
"""Checkpoints and logs of the individual runs; a repeated call continues them."""
DATA = "fig4.csv"
SLOW = True
"""Not run by `reproduce all`, which only draws and evaluates the existing data."""


def run_once(method: str, seed: int, iterations: int, folder: Path, options: dict[str, Any]) -> dict[str, Array]:
    """One training run, continued from its checkpoint if there is one; its history as plain arrays."""
    from cmdpkit.training import train

    resume = (folder / "run.json").exists()
    result = train(ENV, method, [LIMIT, LIMIT], seed=seed, iterations=iterations, out=folder, resume=resume, **options)
    history = result.history
    table = np.column_stack([history["reward"], history["costs"]])[:iterations]
    return {"table": table, "time": np.array(result.time), "steps": np.array(result.steps)}


def _run_job(_: None, once: Callable[..., dict[str, Array]], job: tuple[Any, ...]) -> dict[str, Array]:
    return once(*job)


def _name(job: tuple[Any, ...]) -> str:
    return f"the run of {job[0]}, seed {job[1]}, in {job[3]}"


def run_all(
    jobs: Sequence[tuple[Any, ...]], settings: Settings, title: str, once: Callable[..., dict[str, Array]] = run_once
) -> list[dict[str, Array]]:
    """Run the jobs on the cluster that is used, or in one single-threaded process per core; answers are in order."""
    if distributed():
        placed = [(method, seed, steps, folder.resolve(), options) for method, seed, steps, folder, options in jobs]
        answers = in_order(_run_job, placed, None, once, name=_name, ahead=1)
        return [next(answers) for _ in settings.track(placed, title)]
    if settings.quick:
        return [once(*job) for job in settings.track(jobs, title)]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            waiting: list[Future[dict[str, Array]]] = [pool.submit(once, *job) for job in jobs]
            return [future.result() for future in settings.track(waiting, title)]
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def sizes(settings: Settings) -> tuple[int, int, Path, dict[str, Any]]:
    """Number of seeds and iterations, the folder of the runs, and options of a quick run."""
    if settings.quick:
        return 2, 4, settings.folder / "fig4-runs", {"steps": 60, "hidden": [16], "num_envs": 4}
    return SEEDS, ITERATIONS, RUNS, {}


def run(settings: Settings) -> None:
    seeds, iterations, runs, small = sizes(settings)
    jobs = [
        (m, s, iterations, runs / f"paper-{m}-{s}", {**OPTIONS[m], **small}) for m in ALGORITHMS for s in range(seeds)
    ]
    fair = [
        (
            "npg-pd",
            seed,
            iterations,
            runs / f"paper-npg-pd-two-{seed}",
            {**OPTIONS["npg-pd"], "inner_steps": 2, **small},
        )
        for seed in range(min(seeds, FAIR_SEEDS))
    ]
    answers = run_all([*jobs, *fair], settings, "fig4")
    columns: dict[str, Any] = {"iteration": np.arange(1, iterations + 1)}
    rows: dict[str, list[Any]] = {name: [] for name in ("method", "seed", *QUANTITIES, "seconds", "steps")}
    for i, method in enumerate(ALGORITHMS):
        mine = answers[i * seeds : (i + 1) * seeds]
        tables = np.array([answer["table"] for answer in mine])
        for j, name in enumerate(QUANTITIES):
            mean, std = tables[:, :, j].mean(axis=0), tables[:, :, j].std(axis=0)
            columns |= {f"{method} {name} mean": mean.round(3), f"{method} {name} std": std.round(3)}
        for seed, answer in enumerate(mine):
            ends = tables[seed, -LAST:].mean(axis=0).round(3)
            append_row(rows, (method, seed, *ends, round(float(answer["time"]), 1), int(answer["steps"])))
    for seed, answer in enumerate(answers[len(jobs) :]):
        ends = answer["table"][-LAST:].mean(axis=0).round(3)
        append_row(rows, (FAIR, seed, *ends, round(float(answer["time"]), 1), int(answer["steps"])))
    write_csv(settings.folder / DATA, columns)
    write_csv(settings.folder / "fig4_seeds.csv", rows)


def plot(settings: Settings) -> None:
    data = read_csv(settings.folder / DATA)
    drawing, axes = figure(columns=3)
    for axis, name in zip(axes[0], QUANTITIES, strict=True):
        for method in ALGORITHMS:
            mean, std = data[f"{method} {name} mean"], data[f"{method} {name} std"]
            curve(axis, data["iteration"], mean, METHODS[method], method.upper())
            band(axis, data["iteration"], mean - std, mean + std, METHODS[method], *POSSIBLE)
        if name != "reward":
            axis.axhline(LIMIT, color="black", ls=(0, (4, 4)), linewidth=1.2, label="limit")
        axis.set(xlabel="policy iteration", ylabel="sum over 500 steps", title=name)
    axes[0, 1].legend()
    settings.save(drawing, "fig4")


def first_within(costs: Array) -> int:
    """The first iteration from which the mean cost over the last 20 stays within 5 % of the limit, or below."""
    smooth = np.convolve(costs, np.full(LAST, 1.0 / LAST), mode="valid") if len(costs) >= LAST else costs
    over = np.flatnonzero(smooth > 1.05 * LIMIT)
    return int(over[-1]) + LAST + 1 if over.size else 1


def compare(mine: Array, other: Array, who: str = "PMD-PD") -> str:
    """A verdict on the difference of two mean rewards, given its standard error."""
    difference = float(mine.mean() - other.mean())
    error = float(np.sqrt(sum(rewards.var() / max(len(rewards) - 1, 1) for rewards in (mine, other))))
    if abs(difference) <= 2.0 * error:
        return f"undecided: the rewards differ by {difference:+.1f} with a standard error of {error:.1f}"
    verdict = f"holds: {who} earns more" if difference > 0 else f"does not: {who} earns less"
    return f"{verdict}, {difference:+.1f} with a standard error of {error:.1f}"


def section(settings: Settings) -> Section:
    data, runs = read_csv(settings.folder / DATA), read_csv(settings.folder / "fig4_seeds.csv")
    ends = {m: {q: runs[q][runs["method"] == m] for q in QUANTITIES} for m in ALGORITHMS}
    mean = {m: {q: float(ends[m][q].mean()) for q in QUANTITIES} for m in ALGORITHMS}
    distance = {m: max(abs(mean[m][q] - LIMIT) for q in QUANTITIES[1:]) for m in ALGORITHMS}
    total = {m: sum(abs(mean[m][q] - LIMIT) for q in QUANTITIES[1:]) for m in ALGORITHMS}
    within = {m: max(first_within(data[f"{m} {q} mean"]) for q in QUANTITIES[1:]) for m in ALGORITHMS}
    quarter = len(data["iteration"]) // 4
    early = {m: float(data[f"{m} reward mean"][:quarter].mean()) for m in ALGORITHMS}
    since = {
        m: f"{k} ({m.upper()})" if k <= len(data["iteration"]) else f"never ({m.upper()})" for m, k in within.items()
    }
    text = "; ".join(
        f"{m.upper()} " + ", ".join(f"{q} {mean[m][q]:.1f} ± {ends[m][q].std():.1f}" for q in QUANTITIES)
        for m in ALGORITHMS
    )
    safe = max(mean["pmd-pd"][q] for q in QUANTITIES[1:])
    seconds = runs["seconds"].sum()
    count = len(set(runs["seed"]))
    equal = {q: runs[q][runs["method"] == FAIR] for q in QUANTITIES}
    same = {q: ends["pmd-pd"][q][: len(equal[q])] for q in QUANTITIES}
    claims = [
        Claim(
            "Figure 4: PMD-PD earns more than NPG-PD",
            f"last {LAST} of {len(data['iteration'])} iterations, mean ± deviation over {count} seeds: {text}",
            compare(ends["pmd-pd"]["reward"], ends["npg-pd"]["reward"]),
        ),
        Claim(
            "Figure 4: its costs end closer to the limit of 50",
            "|cost 1 − 50| + |cost 2 − 50|: " + ", ".join(f"{m.upper()} {total[m]:.1f}" for m in ALGORITHMS),
            "holds" if total["pmd-pd"] == min(total.values()) else "does not",
        ),
        Claim(
            "Figure 4: CRPO meets the limits sooner but earns more slowly",
            "both mean costs stay within 5 % of the limit from iteration "
            + ", ".join(since.values())
            + f" on; mean reward of the first {quarter} iterations: "
            + ", ".join(f"{m.upper()} {early[m]:.1f}" for m in ALGORITHMS),
            "holds"
            if within["crpo"] < within["pmd-pd"] and early["crpo"] < early["pmd-pd"]
            else "holds in part: it earns more slowly, but does not meet the limits sooner"
            if early["crpo"] < early["pmd-pd"]
            else "does not",
        ),
        Claim(
            "the same with equal schedules: two policy iterations per dual update for both (not in the paper)",
            f"{len(equal['reward'])} seeds: "
            + "; ".join(
                f"{name} " + ", ".join(f"{q} {table[q].mean():.1f} ± {table[q].std():.1f}" for q in QUANTITIES)
                for name, table in (("PMD-PD", same), ("NPG-PD", equal))
            ),
            compare(same["reward"], equal["reward"]),
        ),
        Claim(
            "PMD-PD ends with both costs at most 50 (5 %) and far above the hand-written safe rule (not in the paper)",
            f"costs at most {safe:.1f}; reward {mean['pmd-pd']['reward']:.1f}, where the rule `action 0 if ω1 < 0 or "
            "ω2 < 0, else 2` earns about 104",
            "holds" if safe <= 1.05 * LIMIT and mean["pmd-pd"]["reward"] > 150.0 else "does not",
        ),
    ]
    remarks = (
        "The paper's settings: 10 windows of 500 steps per iteration, two hidden layers of 128, γ = 0.98, trust region "
        "0.003 (CRPO 0.003, 0.006, 0.01), η′ = 0.0005, two policy iterations per dual update for PMD-PD; "
        f"the {len(runs['seed'])} runs took {seconds / 60.0:.0f} minutes of one core in all, on a busy machine. "
        f"Largest distance of a cost from the limit: {', '.join(f'{m.upper()} {distance[m]:.1f}' for m in ALGORITHMS)}."
    )
    figures = [("fig4.png", f"Mean and one deviation over {count} seeds; dashed: the limits.")]
    return Section("Figure 4: Acrobot with neural policies", claims, figures, remarks)
