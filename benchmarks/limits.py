"""What calls cost against what they cannot do without, in one run: `python benchmarks/limits.py [largest] [--write]`.

- `solve(model, "pmd-pd")` against `solve(model)`;
- `certify(model, policy)` against one solve with the oracle at the best multipliers;
- `evaluate(model, policy)` against one linear solve for all m + 1 costs, and its time if all tables are read;
- `frontier(model, name, limits)` at twenty limits, per limit, against one solve with the oracle.

Times are processor times, the least of several that take turns. Families and sizes up to `largest` states (10,000), on
seeds that nothing was tuned on. `--write` keeps the figures for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that wait count as processor time

import numpy as np

import cmdpkit as ck
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.exact.mdp import minimise
from cmdpkit.experiments.common import append_row, write_csv
from peers import grid, inventory, queues, random_four_actions, random_sparse
from scale import CALLS

TOL = 1e-6
POINTS = 20
ROUGH = 0.05
"""Tolerance of the frontier that tells the range of limits."""
SECONDS, TURNS = 0.5, 9
"""Every pair is timed for so long, and at most so often."""

FAMILIES: dict[str, tuple[Callable[[int], ck.CMDP], tuple[int, ...]]] = {
    "the paper's": (lambda _: ck.problems.paper(), (20,)),
    "random sparse": (lambda n: random_sparse(n, seed=404), (20, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)),
    "random sparse, A = 4": (lambda n: random_four_actions(n, seed=404), (100, 1_000, 10_000, 100_000, 1_000_000)),
    "two queues": (queues, (25, 100, 400, 2_500, 10_000, 40_000)),
    "grid with unsafe cells": (grid, (25, 100, 400, 2_500, 10_000)),
    "inventory": (inventory, (30, 100, 1_000, 10_000)),
    "maintenance": (lambda n: ck.problems.maintenance(levels=n), (11, 100, 1_000, 10_000)),
    "wireless": (lambda n: ck.problems.wireless(buffer=n // 4 - 1), (84, 400, 4_000, 40_000)),
}


def in_turns(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Least processor time of two calls that take turns."""
    times: list[list[float]] = [[], []]
    while len(times[0]) < 2 or (sum(map(sum, times)) < SECONDS and len(times[0]) < TURNS):
        for call, known in zip((one, other), times, strict=True):
            started = time.process_time()
            call()
            known.append(time.process_time() - started)
    return min(times[0]), min(times[1])


def ratios(cmdp: ck.CMDP) -> Iterator[tuple[str, float, float, str]]:
    """Name, times of the call and of its limit, and how the call ended."""
    results: dict[str, ck.Result] = {}

    def solve(method: str) -> None:
        results[method] = ck.solve(cmdp, method, tol=TOL)

    times = in_turns(lambda: solve("pmd-pd"), lambda: solve("auto"))
    yield "pmd-pd", *times, f"{results['pmd-pd'].status.name.lower()}, {results['pmd-pd'].iterations} steps"
    best = results["auto"]
    weights = np.append(1.0, cmdp.row_prices(best.certificate.multipliers))
    times = in_turns(lambda: ck.certify(cmdp, best.policy), lambda: minimise(cmdp, weights))
    yield "certify", *times, ""

    def linear() -> None:
        system = policy_system(cmdp, best.policy.pi)
        system.state_values(cmdp.pairs.expect(best.policy.pi, cmdp.costs))

    times = in_turns(lambda: ck.evaluate(cmdp, best.policy), linear)

    def tables() -> object:
        found = ck.evaluate(cmdp, best.policy)
        return found.action_values, found.occupancy  # computed when they are used

    yield "evaluate", *times, f"{1e3 * in_turns(tables, linear)[0]:.4g} ms with all tables"
    name = cmdp.names[0]
    ends = ck.frontier(cmdp, name, tol=ROUGH).limits[[0, -1]]
    if ends[1] > ends[0]:
        wanted = np.linspace(*ends, POINTS + 2)[1:-1]  # some frontiers are infinitely steep at their ends
        points, oracle = in_turns(lambda: ck.frontier(cmdp, name, wanted), lambda: minimise(cmdp, weights))
        yield "frontier", points / POINTS, oracle, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("largest", nargs="?", type=float, default=10_000)
    parser.add_argument("--write", action="store_true", help=f"write {CALLS.name}")
    given = parser.parse_args()
    data: dict[str, list[object]] = {name: [] for name in ("call", "family", "states", "time", "limit")}
    for family, (make, sizes) in FAMILIES.items():
        for size in (n for n in sizes if n <= given.largest):
            cmdp = make(size)
            cells = []
            for name, call, limit, note in ratios(cmdp):
                cells.append(
                    f"{name} {call / limit:5.2f} ({1e3 * call:.4g} / {1e3 * limit:.4g} ms{note and ', ' + note})"
                )
                append_row(data, (name, family, cmdp.states, call, limit))
            print(f"{family}, {cmdp.states:,} states: " + "; ".join(cells), flush=True)
    if given.write:
        write_csv(CALLS, data)


if __name__ == "__main__":
    main()
