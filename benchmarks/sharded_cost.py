"""What sharded models cost on clusters: `python benchmarks/sharded_cost.py [--measure] [--check FILE]`.

A backup or sweep takes, on every node, time for its entries of P, for the bytes that are copied into and out of shared
memory and sent over the network, and on the driver time for every task. `--measure` measures these constants on this
machine; `--check` compares what they predict with the output of `sharded.py backups`. Without options the table of
docs/sharded.md is printed from the constants below.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.cluster.actors import Workers
from cmdpkit.cluster.session import connect
from cmdpkit.evaluation.threads import use_at_most
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.mirror import build_shard
from sharded import ACTIONS, SUCCESSORS, of_blocks, of_whole, sharded, whole

VALUES = 3
"""m + 1 for two limits."""


class Constants(NamedTuple):
    """Seconds, on one core of the machine that was measured."""

    random_backup: float = 3.6e-9  # per entry of P
    random_sweep: float = 1.9e-8  # per entry of P_π, for all values
    lattice_backup: float = 1.1e-9
    lattice_sweep: float = 2.4e-9
    far_backup: float = 1.1e-8  # of a random graph whose values do not fit into the cache
    far_sweep: float = 2.4e-8
    copied: float = 2.7e-10  # per byte into or out of shared memory
    task: float = 6.7e-4  # per block and operation, on the driver


CACHE = 32e6
"""Bytes of the cache that the cores share."""

NETWORK = 1.25e9
"""Bytes per second of 10 Gbit/s."""

CORES = 8
"""Cores of a node that share its memory bandwidth, each a worker."""

MEMORY = {"random": 590, "lattice": 540}
"""Bytes per own state, counted from the arrays of a block: P, costs, chain, values; 40 more per state of the halo."""


class Place(NamedTuple):
    """Where a model is solved."""

    workers: int
    cores: int  # in all
    nodes: int = 1


def halo(family: str, states: float, workers: int) -> float:
    """States of others that a worker needs."""
    if workers == 1:
        return 0.0
    if family == "lattice":
        return 2.0 * math.sqrt(states)
    own = states / workers
    # n·A·k draws among S states; of a block of which it needs half, a worker takes all
    share = 1.0 - math.exp(-own * ACTIONS * SUCCESSORS / states)
    return (states - own) * (share if share < 0.5 else 1.0)


def predicted(constants: Constants, family: str, states: float, place: Place, kind: str) -> float:
    """Seconds of a backup or a sweep."""
    far = family == "random" and 8.0 * states > CACHE
    per_entry = getattr(constants, f"far_{kind}" if far else f"{family}_{kind}")
    width = SUCCESSORS if family == "random" else 4
    entries = states * width * (ACTIONS if kind == "backup" else 1)
    size = 8.0 * (1 if kind == "backup" else VALUES)
    received = size * halo(family, states, place.workers)  # of each worker
    sent = size * min(states / place.workers, received) if place.workers > 1 else 0.0
    side_by_side = min(place.workers, place.cores)
    compute = entries * per_entry / place.cores  # by workers, or by the threads of one
    copies = (sent + received) * constants.copied * place.workers / side_by_side
    # Whole slices come to a node once, whoever needs them there
    network = received * (place.workers / place.nodes if family == "lattice" else 1.0) / NETWORK
    return float(compute + copies + (network if place.nodes > 1 else 0.0) + place.workers * constants.task)


def measure() -> Constants:
    """The constants of this machine: a few minutes, and 6 GB of memory."""
    use_at_most(1)
    found: dict[str, float] = {}
    for name, family, states in (("random", "random", 1e6), ("lattice", "lattice", 1e6), ("far", "random", 1e7)):
        cmdp = whole(family, int(states))
        backup, sweep = of_whole(cmdp, 5)
        found[f"{name}_backup"] = backup.seconds / cmdp.transitions.nnz
        found[f"{name}_sweep"] = sweep.seconds / (cmdp.transitions.nnz / ACTIONS)
        del cmdp
    with connect("local", object_store=2**30):
        import ray

        table = np.ones(3_000_000)
        times = []
        for _ in range(10):
            started = time.perf_counter()
            np.copyto(table, ray.get(ray.put(table)))
            times.append(time.perf_counter() - started)
        found["copied"] = min(times) / table.nbytes / 2.0
        model = sharded("lattice", 400, 2)
        hosts = Workers(partial(build_shard, model, 1), 2, 2)
        found["task"] = min(cost.seconds for cost in of_blocks(Crew(model, hosts), 10)) / 2
        hosts.close()
    return Constants(**found)


def check(constants: Constants, text: str, cores: int) -> None:
    """Predicted and measured seconds of every line of `sharded.py backups`."""
    family, states = "", 0.0
    print("| family | states | workers | backup: predicted, measured (ms) | sweep: predicted, measured (ms) |")
    print("|---|---|---|---|---|")
    ratios = []
    for line in text.splitlines():
        if head := re.match(r"(\w+), ([\d,]+) states", line):
            family, states = head[1], float(head[2].replace(",", ""))
        if row := re.match(r"\| (\d+) \| ([\d.]+) \(.*?\) \|.*?\| ([\d.]+) \(whole", line):
            place = Place(int(row[1]), cores)
            guesses = [1e3 * predicted(constants, family, states, place, kind) for kind in ("backup", "sweep")]
            real = [float(row[2]), float(row[3])]
            ratios += [guess / number for guess, number in zip(guesses, real, strict=True)]
            pairs = [f"{guess:.1f}, {number:.1f}" for guess, number in zip(guesses, real, strict=True)]
            print(f"| {family} | {states:,.0f} | {place.workers} | {' | '.join(pairs)} |")
    off = float(np.exp(np.median(np.abs(np.log(ratios)))))
    print(f"\nPredicted / measured: median {np.median(ratios):.2f}, half of them within a factor {off:.2f}")


SOLVE: dict[str, tuple[int, int]] = {"random": (123, 520), "lattice": (76, 2_090)}
"""Backups and sweeps (visits among them) of a run to 1e-4 with γ = 0.95 and two limits (measured, 10⁵ states)."""


def clusters(constants: Constants) -> None:
    """The table of docs/sharded.md."""
    print(
        "| model | states | nodes | memory per node | backup | sweep | whole run | node hours "
        "| received per backup and node |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for family in ("random", "lattice"):
        for states, nodes in ((1e8, 16), (1e8, 64), (1e9, 64), (1e9, 256)):
            place = Place(nodes, nodes, nodes)
            # A worker per node, whose threads share its memory
            fast = constants._replace(
                **{
                    name: value / CORES
                    for name, value in constants._asdict().items()
                    if name.endswith(("_backup", "_sweep"))
                }
            )
            times = [predicted(fast, family, states, place, kind) for kind in ("backup", "sweep")]
            total = sum(count * seconds for count, seconds in zip(SOLVE[family], times, strict=True))
            gigabytes = states / nodes * MEMORY[family] / 1e9 + 8 * 5 * halo(family, states, nodes) / 1e9
            sent = 8.0 * halo(family, states, nodes) / 1e6
            cells: list[Any] = [family, f"{states:.0e}", nodes, f"{gigabytes:.1f} GB", f"{times[0]:.2f} s"]
            cells += [
                f"{times[1]:.2f} s",
                f"{total / 60.0:.0f} min",
                f"{nodes * total / 3600.0:.1f}",
                f"{sent:,.2f} MB",
            ]
            print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    chosen = parser.parse_args()
    constants = measure() if chosen.measure else Constants()
    if chosen.measure:
        print(constants)
    if chosen.check:
        check(constants, chosen.check.read_text(), chosen.cores)
    clusters(constants)


if __name__ == "__main__":
    main()
