"""Learning from samples at the defaults against tuned fixed steps: `python benchmarks/learning.py [--quick] [--write]`.

Thirty random models with one to five limits, of seeds that nothing was tuned on. The default gets no option; twelve
pairs of fixed steps get as many transitions. What a run returns is judged exactly, on the model that the learner does
not see: error = max(optimality gap, violation), the optimum by the LP. Prints tables, and with `--write` makes
docs/benchmarks_learning.md from them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cmdpkit as ck
from cmdpkit.experiments.common import append_row, random_instance, read_csv, write_csv
from cmdpkit.files import write_whole
from cmdpkit.simulators import ModelSimulator

DOCS = Path(__file__).parent.parent / "docs"
FIRST_SEED = 1_000
ESTIMATORS = {"pooled": "pooled transitions", "truncated": "rollouts"}
STEPS = (1.0, 4.0, 16.0, 64.0)
"""Fixed primal steps, in units of 1/span of the objective."""
DUAL_STEPS = (1.0, 4.0, 16.0)
"""Fixed dual steps, in units of (1 − γ) span_0/span_i²."""
MACRO_STEPS = 25
COLUMNS = ("estimator", "instance", "limits", "states", "actions", "gamma", "run", "method", "transitions", "error")


def instance(seed: int, limits: int) -> ck.CMDP:
    """Dense like the paper's for odd seeds, and sparse for even ones; sizes and discounts are drawn."""
    if seed % 2:
        return random_instance(seed, limits)
    rng = np.random.default_rng(seed)
    states, actions, successors = (int(rng.integers(*ends)) for ends in ((8, 25), (4, 11), (2, 6)))
    gamma = float(rng.choice([0.5, 0.7, 0.8, 0.9, 0.95]))
    return ck.problems.garnet(states, actions, successors, limits, gamma, seed=seed)


def error_of(cmdp: ck.CMDP, policy: Any, optimum: float) -> float:
    """max(gap, violation), exact."""
    exact = ck.evaluate(cmdp, policy)
    gap = cmdp.sense * (exact.objective - optimum)
    return float(max(gap, cmdp.misses(exact.constraint_values).max(initial=0.0), 0.0))


def fixed_steps(cmdp: ck.CMDP) -> dict[str, dict[str, Any]]:
    """Options of the twelve pairs."""
    simulator = ModelSimulator(cmdp)
    assert simulator.bounds is not None
    spans = np.ptp(simulator.bounds, axis=1)
    unit = (1.0 - cmdp.gamma) * spans[0] / spans[1:] ** 2
    return {
        f"{step:g}, {dual:g}": {"steps": "fixed", "step": step / spans[0], "eta_dual": dual * unit}
        for step, dual in itertools.product(STEPS, DUAL_STEPS)
    }


def runs(cmdp: ck.CMDP, estimator: str, seed: int) -> Iterator[tuple[str, int, float]]:
    """Method, transitions and error: the default, and every pair with its last policy and with its average."""
    # The learner gets a simulator; its certificate would take time, and is not needed
    sampling = ck.Sampling(estimator=estimator, certificate_rollouts=2)
    optimum = ck.solve(cmdp, "lp").objective
    found = ck.solve(ModelSimulator(cmdp), sampling=sampling, max_iterations=MACRO_STEPS, seed=seed)
    spent = found.samples
    assert spent is not None
    yield "default", spent, error_of(cmdp, found.policy, optimum)
    for name, options in fixed_steps(cmdp).items():
        # Algorithm 2 estimates one Q less at the end: it may take another step from that
        count = MACRO_STEPS + 1
        found = ck.solve(
            ModelSimulator(cmdp), sampling=sampling, budget=spent, max_iterations=count, seed=seed, **options
        )
        assert found.samples is not None
        assert 0.95 * spent < found.samples <= spent
        yield f"{name}, last", found.samples, error_of(cmdp, found.policy, optimum)
        yield f"{name}, average", found.samples, error_of(cmdp, found.average_policy, optimum)


def measure(seeds: range, repetitions: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    started = time.process_time()
    for seed in seeds:
        cmdp = instance(seed, 1 + (seed - seeds[0]) % 5)
        size = (cmdp.num_constraints, cmdp.states, cmdp.actions, cmdp.gamma)
        for estimator, run in itertools.product(ESTIMATORS, range(repetitions)):
            for method, spent, error in runs(cmdp, estimator, run):
                append_row(columns, (estimator, seed, *size, run, method, spent, f"{error:.5g}"))
        print(f"seed {seed}: {time.process_time() - started:.0f} s", flush=True)
    return columns


# -- the page --------------------------------------------------------------------------------------------------------


class Errors:
    """Errors of one estimator; the median over the runs of an instance counts."""

    def __init__(self, table: dict[str, np.ndarray], estimator: str) -> None:
        mine = table["estimator"] == estimator
        seeds, places = np.unique(table["instance"][mine], return_index=True)
        self.methods = list(dict.fromkeys(table["method"][mine].tolist()))
        self.limits = table["limits"][mine][places].astype(int)
        known = np.empty((seeds.size, len(self.methods), int(table["run"].max()) + 1))
        place = {method: j for j, method in enumerate(self.methods)}
        rows = (table["instance"], table["method"], table["run"], table["error"])
        for seed, method, run, error in zip(*(column[mine] for column in rows), strict=True):
            known[np.searchsorted(seeds, seed), place[str(method)], int(run)] = error
        errors, fixed = np.median(known, axis=2), known[:, 1:]
        self.best = 1 + int(np.median(errors[:, 1:], axis=0).argmin())
        self.columns = {
            "default": errors[:, 0],
            "best pair for all instances": errors[:, self.best],
            "best pair of each instance": np.median(_chosen_by_others(fixed), axis=1),
            "best pair of each instance, in hindsight": errors[:, 1:].min(axis=1),
        }

    def row(self, name: str, chosen: np.ndarray) -> str:
        medians = [f"{np.median(errors[chosen]):.4f}" for errors in self.columns.values()]
        default, _, tuned, _ = self.columns.values()
        won = f"{int((default <= tuned)[chosen].sum())} of {int(chosen.sum())}"
        return f"| {' | '.join((name, *medians, won))} |"


def _chosen_by_others(errors: np.ndarray) -> np.ndarray:
    """(instances, runs): the error in each run of the pair that is best in the others."""
    runs = errors.shape[2]
    if runs == 1:
        return np.asarray(errors.min(axis=1))
    best = [np.median(np.delete(errors, run, axis=2), axis=2).argmin(axis=1) for run in range(runs)]
    return np.stack([errors[np.arange(len(errors)), best[run], run] for run in range(runs)], axis=1)


def lines(table: dict[str, np.ndarray]) -> Iterator[str]:
    for estimator, words in ESTIMATORS.items():
        errors = Errors(table, estimator)
        yield from (
            f"## {words.capitalize()}",
            "",
            f"| limits | {' | '.join(errors.columns)} | default at most tuned |",
        )
        yield "|---" * (len(errors.columns) + 2) + "|"
        for m in np.unique(errors.limits):
            yield errors.row(f"m = {m}", errors.limits == m)
        yield errors.row("**all**", errors.limits > 0)
        default, *others = errors.columns.values()
        step, dual, output = errors.methods[errors.best].split(", ")
        yield from ("", f"The best pair for all instances: step {step}, dual step {dual}, with its {output} policy.")
        verdicts = [
            f"{'at most' if np.median(default) <= np.median(other) else '**above**'} that of the {name} "
            f"({_ratio(default, other)})"
            for name, other in zip(list(errors.columns)[1:], others, strict=True)
        ]
        yield from (f"The median of the default is {'; '.join(verdicts)}.", "")


def _ratio(one: np.ndarray, other: np.ndarray) -> str:
    """The ratio of the medians, with the middle 90 % of those of instances drawn with replacement."""
    drawn = np.random.default_rng(0).integers(len(one), size=(10_000, len(one)))
    low, high = np.quantile(np.median(one[drawn], axis=1) / np.median(other[drawn], axis=1), (0.05, 0.95))
    return f"{np.median(one) / np.median(other):.2f} times, {low:.2f} to {high:.2f}"


def target(errors: dict[str, Errors]) -> str:
    """By which readings of the target it is met."""
    readings = []
    for name in list(next(iter(errors.values())).columns)[1:]:
        outcomes = []
        for words, one in errors.items():
            above = float(np.median(one.columns["default"]) / np.median(one.columns[name])) - 1.0
            outcomes.append(f"{'met' if above <= 0.0 else f'missed by {100.0 * above:.0f} %'} with {words}")
        readings.append(f"as the {name}: {', '.join(outcomes)}")
    return (
        "The target was a median over the instances at most that of the best tuned fixed pair, with the same "
        f"transitions. What the best pair is can be read in three ways. {'; '.join(readings).capitalize()}."
    )


def page(table: dict[str, np.ndarray]) -> Iterator[str]:
    seeds, runs = table["instance"].astype(int), int(table["run"].max()) + 1
    steps, duals = (", ".join(f"{s:g}" for s in sizes) for sizes in (STEPS, DUAL_STEPS))
    yield from ("# Learning without tuning", "")
    yield (
        f"Written by `python benchmarks/learning.py --write` (cmdpkit {ck.__version__}). {np.unique(seeds).size} "
        f"random models, seeds {seeds.min()} to {seeds.max()}, one to five limits in turn: 8 to 24 states, 4 to 10 "
        "actions, γ from 0.5 to 0.95, dense and sparse transitions. No constant was chosen on these seeds."
    )
    yield ""
    yield (
        "*Default* is `solve(simulator, sampling=Sampling(estimator=...))` without any option of the method, after "
        f"{MACRO_STEPS} macro steps. Fixed steps (Algorithm 2) get as many transitions: steps of {steps} in units of "
        f"1/span of the objective, each with dual steps of {duals} in units of (1 − γ) span_0/span_i². Each pair "
        "counts twice, with its last policy and with the average of all, which is the paper's output. The error of a "
        "policy is the larger of optimality gap and violation, exact, in units of the values, which reach 1/(1 − γ); "
        f"that of a method on an instance is the median of {runs} runs, the learner's seeds 0 to {runs - 1}. Tables "
        "show medians over instances. The *best pair of each instance* is chosen by the other runs on that instance, "
        "whose transitions are not counted; *in hindsight* it is chosen by the runs that judge it, and profits from "
        "luck: the smallest of 24 noisy numbers. *Default at most tuned* counts instances on which "
        "the error of the default is at most that of the best pair of each instance. Behind ratios of medians stands "
        "where 90 % of them lie for instances drawn with replacement."
    )
    yield from ("", target({words: Errors(table, name) for name, words in ESTIMATORS.items()}))
    yield ""
    yield from lines(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five instances, one run each")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks_learning.md and its data")
    parser.add_argument("--again", action="store_true", help="only make the tables again from the stored data")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first instance")
    given = parser.parse_args()
    if given.write and (given.quick or given.seed != FIRST_SEED):
        parser.error("docs/benchmarks_learning.md needs the full run")
    folder = DOCS / "results" if given.write or given.again else DOCS.parent / "out"
    folder.mkdir(exist_ok=True)
    if not given.again:
        count, repetitions = (5, 1) if given.quick else (30, 3)
        write_csv(folder / "learning.csv", measure(range(given.seed, given.seed + count), repetitions))
    text = "\n".join(page(read_csv(folder / "learning.csv")))
    print(text)
    if given.write or given.again:
        write_whole(DOCS / "benchmarks_learning.md", lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
