"""Bounds on the optimum from samples alone, coverage and width: `python benchmarks/bounds.py [--quick] [--write]`.

`bound_by_simulation` claims that no policy within the limits surpasses its bound, with the confidence asked for. Here
the optimum is known, and a thousand bounds from independent samples are compared with it. Then the distance of the
bound from the optimum, against the number of transitions. With `--write` it makes docs/benchmarks_bounds.md.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cmdpkit as ck
from cmdpkit.drawing import STYLES, curve, figure, save
from cmdpkit.experiments.common import append_row, read_csv, write_csv
from cmdpkit.files import write_whole

DOCS = Path(__file__).parent.parent / "docs"
DELTA = 0.05
TRANSITIONS = (20_000, 40_000, 80_000, 200_000, 400_000, 1_000_000, 2_000_000)
RUNS = 5


class Task(NamedTuple):
    """A model or simulator whose optimum is known, and the transitions of one bound."""

    name: str
    simulator: Any
    optimum: float
    samples: int
    deltas: tuple[float, ...] = (DELTA,)


def coin() -> Task:
    """One state, one action and a cost of 0 or 1: nothing to choose, so that only the interval itself is tested."""
    chance, gamma = 0.3, 0.5

    def step(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        return states, (rng.random((1, states.size)) < chance).astype(float)

    simulator = ck.Simulator(
        step,
        lambda n, rng: np.zeros(n, dtype=int),
        states=1,
        actions=1,
        gamma=gamma,
        maximise=False,
        bounds=[(0.0, 1.0)],
    )
    return Task("one state, one action, random cost", simulator, chance / (1.0 - gamma), 400, (DELTA, 0.5))


def random_costs() -> Task:
    """Three states, two actions and a limit; reward and cost of a step are 0 or 1, with the model's means."""
    rng = np.random.default_rng(0)
    moves, (reward, use), gamma = rng.dirichlet(np.ones(3), (3, 2)), rng.random((2, 3, 2)), 0.6
    least = ck.solve(ck.CMDP(moves, cost=use, gamma=gamma)).objective
    free = ck.CMDP(moves, reward=reward, constraints=[ck.AtMost(use, 100.0)], gamma=gamma)
    limit = 0.5 * (least + float(ck.solve(free).constraint_values[0]))  # it binds
    exact = ck.solve(free.with_limits({free.names[0]: limit}), "lp")
    means, ends = np.stack([reward, use]), moves.cumsum(axis=2)

    def step(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        following = (rng.random(states.size)[:, None] > ends[states, actions]).sum(axis=1)
        return np.minimum(following, 2), (rng.random((2, states.size)) < means[:, states, actions]).astype(float)

    simulator = ck.Simulator(
        step,
        lambda n, rng: rng.integers(3, size=n),
        states=3,
        actions=2,
        gamma=gamma,
        constraints=[ck.AtMost(None, limit)],
        bounds=[(0.0, 1.0), (0.0, 1.0)],
    )
    return Task("three states, random rewards and costs", simulator, exact.objective, 2_000)


def known(name: str, samples: int) -> Task:
    cmdp = ck.problems.CATALOGUE[name]()
    return Task({"paper": "the paper's instance"}.get(name, name), cmdp, ck.solve(cmdp, "lp").objective, samples)


def distance(task: Task, samples: int, delta: float, seed: int) -> float:
    """How far the bound is on its side of the optimum; negative if it is invalid."""
    found = ck.bound_by_simulation(task.simulator, samples, 1.0 - delta, seed=seed)
    return (1.0 if task.simulator.maximise else -1.0) * (found.bound - task.optimum)


def coverage(tasks: list[Task], repetitions: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {n: [] for n in ("task", "pairs", "transitions", "delta", "seed", "distance")}
    for task in tasks:
        for delta in task.deltas:
            started = time.process_time()
            for seed in range(repetitions):
                row = (task.name, task.simulator.pairs.count, task.samples, delta, seed)
                append_row(columns, (*row, f"{distance(task, task.samples, delta, seed):.5g}"))
            print(f"{task.name}, {delta:g}: {time.process_time() - started:.0f} s", flush=True)
    return columns


def widths(tasks: list[Task], transitions: tuple[int, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ("task", "optimum", "transitions", "run", "distance")}
    for task in tasks:
        for samples in transitions:
            for run in range(RUNS):
                append_row(columns, (task.name, task.optimum, samples, run, distance(task, samples, DELTA, run)))
        print(f"{task.name}: widths done", flush=True)
    return columns


# -- the page --------------------------------------------------------------------------------------------------------


def covered(table: dict[str, np.ndarray]) -> Iterator[str]:
    yield "| task | pairs | transitions | δ | invalid | allowed | distance: smallest | median | in deviations |"
    yield "|---|---|---|---|---|---|---|---|---|"
    worst = True
    for name in dict.fromkeys(table["task"].tolist()):
        for delta in np.unique(table["delta"][table["task"] == name]):
            rows = (table["task"] == name) & (table["delta"] == delta)
            found = table["distance"][rows]
            pairs, transitions = (int(table[column][rows][0]) for column in ("pairs", "transitions"))
            invalid, allowed = int((found < 0.0).sum()), delta * found.size
            worst &= invalid <= allowed + 3.0 * math.sqrt(allowed * (1.0 - delta))
            cells = (name, f"{pairs:,}", f"{transitions:,}", f"{delta:g}", f"{invalid} of {found.size:,}")
            margin = f"{np.median(found) / found.std(ddof=1):.1f}"
            cells += (f"{allowed:.0f}", f"{found.min():+.3g}", f"{np.median(found):.3g}", margin)
            yield f"| {' | '.join(cells)} |"
    yield ""
    yield (
        f"Coverage as claimed in all rows: {'yes' if worst else '**no**'}. An excess of three standard deviations of "
        "the count would be taken for chance."
    )


def medians(table: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Transitions, the median distance for each, and the optimum."""
    rows = table["task"] == name
    counts = np.unique(table["transitions"][rows])
    middle = [np.median(table["distance"][rows & (table["transitions"] == count)]) for count in counts]
    return counts, np.array(middle), float(table["optimum"][rows][0])


def wide(table: dict[str, np.ndarray]) -> Iterator[str]:
    names = list(dict.fromkeys(table["task"].tolist()))
    known = {name: medians(table, name) for name in names}
    yield f"| transitions | {' | '.join(f'{name}, optimum {optimum:.6g}' for name, (_, _, optimum) in known.items())} |"
    yield "|---" * (len(names) + 1) + "|"
    for i, count in enumerate(known[names[0]][0]):
        cells = [f"{middle[i]:.3g} ({100.0 * middle[i] / abs(best):.3g} %)" for _, middle, best in known.values()]
        yield f"| {int(count):,} | {' | '.join(cells)} |"
    yield ""
    for name, (counts, middle, _) in known.items():
        slope = np.polyfit(np.log(counts), np.log(middle), 1)[0]
        yield f"Fitted exponent of {name}: {slope:.2f}; the root of the number of transitions would give −0.5."


def draw(table: dict[str, np.ndarray], path: Path) -> None:
    drawing, axes = figure(columns=1)
    axis = axes[0, 0]
    axis.set(xscale="log", yscale="log", xlabel="transitions", ylabel="distance from the optimum, relative")
    for style, name in zip(STYLES, dict.fromkeys(table["task"].tolist()), strict=False):
        counts, middle, optimum = medians(table, name)
        curve(axis, counts, middle / abs(optimum), style, name)
        guide = middle[-1] / abs(optimum) * np.sqrt(counts[-1] / counts)
        axis.plot(counts, guide, ls=(0, (1, 3)), color=style.colour)
    axis.set_title("bounds from samples alone, δ = 0.05")
    axis.plot([], [], ls=(0, (1, 3)), color="black", label="1/√transitions")
    axis.legend(fontsize=8)
    save(drawing, path)


def page(table: dict[str, np.ndarray], width: dict[str, np.ndarray]) -> Iterator[str]:
    yield from ("# Bounds from samples alone", "")
    yield (
        f"Written by `python benchmarks/bounds.py --write` (cmdpkit {ck.__version__}), seeds 0 to "
        f"{int(table['seed'].max())}. `bound_by_simulation` sees a simulator only; the optimum, which it bounds, is "
        "the LP's for the model behind it."
    )
    yield from ("", "## Coverage", "")
    yield (
        "A bound with confidence 1 − δ may be invalid, on the wrong side of the optimum, in a part δ of all cases. "
        "*Distance* is that from the bound to the optimum, negative where invalid, and *in deviations* the median in "
        "units of the standard deviation between repetitions: how conservative the bound is. One state with one action "
        "leaves nothing but the interval itself; elsewhere δ is shared by all pairs, the multipliers are not quite the "
        "optimal ones, and the largest of all errors counts in every state, which all push the bound away."
    )
    yield ""
    yield from covered(table)
    yield from (
        "",
        "## Width",
        "",
        f"Distance from the optimum, δ = {DELTA:g}, medians of {RUNS} runs (seeds 0 to {RUNS - 1}).",
        "",
    )
    yield from wide(width)
    yield from ("", "![distance of the bound from the optimum against transitions](results/bounds_width.png)", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="twenty repetitions, few transitions")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks_bounds.md, its data and its figure")
    parser.add_argument("--again", action="store_true", help="only make tables and figure again from the stored data")
    given = parser.parse_args()
    if given.quick and given.write:
        parser.error("docs/benchmarks_bounds.md needs the full run")
    folder = DOCS / "results" if given.write or given.again else DOCS.parent / "out"
    folder.mkdir(exist_ok=True)
    if not given.again:
        repetitions, transitions = (20, TRANSITIONS[:3]) if given.quick else (1_000, TRANSITIONS)
        tasks = [known("paper", 20_000), known("maintenance", 13_200)]
        write_csv(folder / "bounds_width.csv", widths(tasks, transitions))
        write_csv(folder / "bounds_coverage.csv", coverage([coin(), random_costs(), tasks[0]], repetitions))
    width = read_csv(folder / "bounds_width.csv")
    text = "\n".join(page(read_csv(folder / "bounds_coverage.csv"), width))
    draw(width, folder / "bounds_width.png")
    print(text)
    if given.write or given.again:
        write_whole(DOCS / "benchmarks_bounds.md", lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
