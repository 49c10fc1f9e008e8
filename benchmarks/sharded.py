"""Sharded models against one process: `python benchmarks/sharded.py backups|solve|kills [--states N] [--family F]`.

`backups` measures a Bellman backup with exchange and a sweep of m + 1 values on 1, 2 and 4 workers, against the same
kernels on the whole model in the same run, the bytes sent, and the peak memory of each process. `solve` solves one
model to a tolerance, sharded (`--workers 0` for all blocks in this process) or as a whole (`--whole`). `kills` kills
workers and nodes at random moments. Blocks are built by a function of the state numbers alone, on the workers.
sharded_cost.py has the model of cost of docs/sharded.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from cluster_faults import Nodes
from cmdpkit.checks import Handed
from cmdpkit.cluster.actors import Workers
from cmdpkit.cluster.faults import BlocksLost
from cmdpkit.cluster.session import connect, private_settings
from cmdpkit.evaluation.backup import bellman, looking_ahead, padded
from cmdpkit.evaluation.chain import chosen_chain
from cmdpkit.evaluation.threads import use_at_most
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.mirror import build_shard

ACTIONS, SUCCESSORS, GAMMA = 4, 5, 0.95
CHUNK = 65_536
"""Random numbers belong to chunks of states, so that a model does not depend on its blocks."""


def random_graph(states: int, first: int, last: int) -> ck.Block:
    """Every pair leads to five random states; reward and two costs are random."""
    begin, chunks = first // CHUNK * CHUNK, range(first // CHUNK, -(-last // CHUNK))
    n = min(chunks.stop * CHUNK, states) - begin
    to, p = (np.empty((n, ACTIONS, SUCCESSORS), dtype=kind) for kind in (np.int32, float))
    tables = np.empty((3, n, ACTIONS))
    for chunk in chunks:  # one at a time: the model should be the largest thing in memory
        own = slice(chunk * CHUNK - begin, (chunk + 1) * CHUNK - begin)
        to[own], p[own], tables[:, own] = _random_chunk(states, chunk)
    return _block(states, to[first - begin : last - begin], p[first - begin : last - begin],
                  tables[:, first - begin : last - begin])  # fmt: skip


def _random_chunk(states: int, chunk: int) -> tuple[Any, Any, Any]:
    rng, n = np.random.default_rng([101, chunk]), min(CHUNK, states - chunk * CHUNK)
    to = rng.integers(0, states, size=(n, ACTIONS, SUCCESSORS), dtype=np.int32)
    p = rng.exponential(size=to.shape)
    return to, p / p.sum(axis=-1, keepdims=True), rng.uniform(size=(3, n, ACTIONS))


def lattice(states: int, first: int, last: int) -> ck.Block:
    """Two queues in tandem on a square: arrivals, and two servers of which each may be fast."""
    side = round(states**0.5)
    q1, q2 = np.divmod(np.arange(first, last, dtype=np.int64), side)
    u1, u2 = np.divmod(np.arange(ACTIONS), 2)
    fast = np.array([0.25, 0.4])
    s1, s2 = fast[u1] * (q1 > 0)[:, None], fast[u2] * (q2 > 0)[:, None]
    on = np.broadcast_to
    shape = s1.shape
    to = np.stack(
        [
            on((np.minimum(q1 + 1, side - 1) * side + q2)[:, None], shape),
            on((np.maximum(q1 - 1, 0) * side + np.minimum(q2 + 1, side - 1))[:, None], shape),
            on((q1 * side + np.maximum(q2 - 1, 0))[:, None], shape),
            on((q1 * side + q2)[:, None], shape),
        ],
        axis=-1,
    )
    p = np.stack([np.full(shape, 0.2), s1, s2, 0.8 - s1 - s2], axis=-1)
    waiting = on(((q1 + 2.0 * q2) / side)[:, None], shape)
    tables = np.stack([-waiting, on((u1 + u2) * 1.0, shape), on((q2 / side)[:, None], shape)])
    return _block(states, to, p, tables)


def _block(states: int, to: Any, p: Any, tables: Any) -> ck.Block:
    rows, width = to.shape[0] * to.shape[1], to.shape[2]
    short = np.int32 if rows * width <= np.iinfo(np.int32).max else np.int64
    heads = np.arange(rows + 1, dtype=short) * short(width)
    matrix = sp.csr_array((p.reshape(-1), to.reshape(-1), heads), shape=(rows, states))
    matrix.sum_duplicates()
    return ck.Block(matrix, tables)


FAMILIES = {"random": random_graph, "lattice": lattice}
LIMITS = {"random": (9.0, 9.0), "lattice": (19.0, 10.0)}


def sharded(family: str, states: int, blocks: int, gamma: float = GAMMA) -> ck.ShardedCMDP:
    if family == "lattice":
        states = round(states**0.5) ** 2
    return ck.ShardedCMDP(
        partial(FAMILIES[family], states),
        states=states,
        actions=ACTIONS,
        blocks=blocks,
        gamma=gamma,
        constraints=[ck.AtMost(None, limit, name=f"cost {i}") for i, limit in enumerate(limits_of(family, gamma), 1)],
    )


def limits_of(family: str, gamma: float) -> list[float]:
    """The same per step, whatever γ is."""
    return [limit * (1.0 - GAMMA) / (1.0 - gamma) for limit in LIMITS[family]]


def whole(family: str, states: int, gamma: float = GAMMA) -> ck.CMDP:
    """The same model in one piece."""
    model = sharded(family, states, 1, gamma)
    block = model.build(0, model.states)
    return ck.CMDP(
        Handed(block.transitions),  # without a copy, of which nobody would have the original
        reward=block.quantities[0].copy(),  # the model keeps it, and not all tables of the block
        constraints=[
            ck.AtMost(table, limit, name=f"cost {i}")
            for i, (table, limit) in enumerate(zip(block.quantities[1:], limits_of(family, gamma), strict=True), 1)
        ],
        gamma=gamma,
        action_axis=1,
    )


# -- time per backup -------------------------------------------------------------------------------------------------

BATCH = 4
"""Operations that are submitted at a time, as in a run."""


class Cost(NamedTuple):
    """Of one operation: least seconds in a batch, mean seconds of processor time, bytes."""

    seconds: float
    processor: float
    sent: float = 0.0


def least(run: Callable[[], None], clock: Callable[[], tuple[float, float]], batches: int) -> Cost:
    """The cost of one operation, of which `run` does a batch; `clock` tells bytes and processor time so far."""
    run()
    times, before = [], clock()
    for _ in range(batches):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) / BATCH)
    sent, processor = (after - now for after, now in zip(clock(), before, strict=True))
    return Cost(min(times), processor / batches / BATCH, sent / batches / BATCH)


def of_whole(cmdp: ck.CMDP, batches: int) -> tuple[Cost, Cost]:
    """A Bellman backup and a sweep of three values, in this process."""
    value, choice = np.zeros(cmdp.states), np.zeros(cmdp.states, dtype=np.int32)
    chain = chosen_chain(cmdp, choice)
    costs = padded(cmdp.costs[:, cmdp.pairs.rows(choice)].T)
    tables = [np.zeros_like(costs), np.zeros_like(costs)]
    look = looking_ahead(chain, cmdp.gamma, costs)

    def back_up() -> None:
        for _ in range(BATCH):
            value[:] = bellman(cmdp, cmdp.costs[0], value, choice).values

    def sweep() -> None:
        for _ in range(BATCH):
            look(tables[0], tables[0], tables[1])
            tables.reverse()

    return tuple(least(run, lambda: (0.0, time.process_time()), batches) for run in (back_up, sweep))  # type: ignore[return-value]


def of_blocks(crew: Crew, batches: int) -> tuple[Cost, Cost]:
    """The same on blocks, one on each worker, with what they send to each other."""

    def clock() -> tuple[float, float]:
        parts = crew.each("traffic")
        return float(sum(p.sent for p in parts)), time.process_time() + sum(p.seconds for p in parts)

    def run(kind: str, args: tuple[Any, ...], steps: list[Any], join: bool = False) -> None:
        for _ in range(BATCH):
            steps[0] = crew.submit(kind, *args, after=steps[0], send=True, join=join)
        crew.fetch(steps[0])

    args = (np.array([1.0, 0.0, 0.0]), 0.0, True, True)
    start = crew.submit("forget_mix", send=True, join=True)
    backup = least(partial(run, "backup", args, [start], True), clock, batches)
    crew.each("adopt")
    return backup, least(partial(run, "sweep", (False,), [crew.submit("announce", send=True)]), clock, batches)


def backups(family: str, states: int, blocks: list[int], workers: int | None, batches: int, threads: int) -> None:
    """One line for every number of blocks, each block on a worker of its own unless there are fewer workers."""
    use_at_most(threads)
    cmdp = whole(family, states)
    print(f"{family}, {cmdp.states:,} states, {cmdp.transitions.nnz:,} entries, {threads} thread(s) in all")
    print(
        "| workers | backup, ms | ratio | processor | MB sent | sweep, ms | ratio | processor | MB sent | built in, s "
        "| peak GB of each worker |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    with connect("local", object_store=2 * 2**30):
        for count in blocks:
            model = sharded(family, states, count)
            started = time.perf_counter()
            own = min(count, workers or count)
            team = Workers(partial(build_shard, model, max(1, threads // own)), count, own)
            crew = Crew(model, team)
            built = time.perf_counter() - started
            here, there = of_whole(cmdp, batches), of_blocks(crew, batches)
            peaks = ", ".join(f"{part.memory / 2**30:.2f}" for part in crew.each("traffic"))
            team.close()
            cells = [f"{own}" if own == count else f"{own}, {count} blocks"]
            for one, other in zip(here, there, strict=True):
                cells += [f"{1e3 * other.seconds:.1f} (whole: {1e3 * one.seconds:.1f})"]
                cells += [f"{other.seconds / one.seconds:.2f}", f"{other.processor / one.processor:.2f}"]
                cells += [f"{other.sent / 1e6:.2f}"]
            print(f"| {' | '.join(cells)} | {built:.1f} | {peaks} |", flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak GB of the driver, which also holds the whole model: {memory:.2f}")


# -- whole runs ------------------------------------------------------------------------------------------------------


class Peaks(threading.Thread):
    """The peak memory of the workers, which are gone when a run has ended: asked every second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gigabytes: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(1.0):
            for pid in hosts():
                with contextlib.suppress(OSError, AttributeError):
                    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                    self.gigabytes[pid] = int(found[1]) / 2**20


def solve(family: str, states: int, blocks: int, workers: int, tol: float, as_whole: bool, gamma: float) -> None:
    peaks = Peaks()
    peaks.start()
    started, before = time.perf_counter(), time.process_time()
    if as_whole:
        cmdp = whole(family, states, gamma)
        built = time.perf_counter() - started
        result = ck.solve(cmdp, tol=tol)
    else:
        built = 0.0
        place = {"cluster": "local", "workers": workers} if workers else {}
        result = ck.solve(sharded(family, states, blocks, gamma), tol=tol, **place)
    peaks.over.set()
    proof = result.certificate
    line = {
        "family": family,
        "states": result.model.states,
        "gamma": gamma,
        "blocks": 1 if as_whole else blocks,
        "workers": "whole" if as_whole else workers,
        "status": result.status.value,
        "objective": result.objective,
        "gap": proof.gap,
        "violation": proof.violation,
        "iterations": result.iterations,
        "build": round(built, 1),
        "seconds": round(result.time, 1),
        "processor of the driver": round(time.process_time() - before, 1),
        "peak GB of the driver": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "peak GB of each worker": [round(peak, 2) for peak in peaks.gigabytes.values()],
    }
    print(json.dumps(line), flush=True)


# -- losses ----------------------------------------------------------------------------------------------------------


PAUSE = 8.0
"""Mean seconds between two kills: about as long as a run."""


def kills(times: int, seed: int) -> bool:
    """Kill workers and whole nodes of a cluster at random moments: every run must end with the same numbers."""
    model = ck.ShardedCMDP.split(ck.problems.garnet(400, actions=3, constraints=2, gamma=0.9, seed=1), 4)
    expected = {method: _numbers(ck.solve(model, method, tol=1e-3)) for method in ("auto", "pmd-pd")}
    rng, runs, lost, wrong, at = random.Random(seed), [], [], [], [0]
    with private_settings():
        nodes = Nodes(2)

        def work() -> None:
            """One run after another: both methods, with a checkpoint and without."""
            while sum(nodes.kills.values()) < times:
                method, kept = [(m, k) for m in expected for k in (False, True)][len(runs) % 4]
                runs.append(method)
                try:
                    if _numbers(_solved(model, method, kept, at)) != expected[method]:
                        wrong.append(method)
                except BlocksLost as loss:
                    lost.append(f"{method}: {loss}")
                at[0] = 0
                print(f"{len(runs)} runs, {nodes.kills}, {len(lost)} lost, {len(wrong)} wrong", flush=True)

        try:
            with connect(nodes.cluster.address):
                worker = threading.Thread(target=work, daemon=True)
                worker.start()
                while worker.is_alive():  # nodes can be started by the main thread only
                    worker.join(rng.uniform(0.0, 2.0 * PAUSE))
                    reached = at[0]
                    killed = worker.is_alive() and nodes.kill(rng, "ray::Host", workers=0.6)
                    if killed:
                        print(f"killed a {killed} after iteration {reached} of {runs[-1]}", flush=True)
        finally:
            nodes.cluster.shutdown()
    print(f"{len(runs)} runs, killed {nodes.kills['worker']} workers and {nodes.kills['node']} nodes that held blocks")
    print(f"{len(lost)} runs ended with an error that names what was lost, {len(wrong)} with other numbers")
    print("\n".join(lost), end="\n" if lost else "")
    return not wrong


def _solved(model: ck.ShardedCMDP, method: str, kept: bool, at: list[int]) -> ck.Result:
    """One run, with a checkpoint or without; `at` tells its iteration."""

    def tell(news: Any) -> None:
        at[0] = news.iteration

    with tempfile.TemporaryDirectory() as folder:
        place: dict[str, Any] = {"checkpoint": folder} if kept else {}
        return ck.solve(model, method, tol=1e-3, cluster="auto", workers=4, callback=tell, **place)


def _numbers(result: ck.Result) -> list[Any]:
    proof, tables = result.certificate, [table.tolist() for table in result.policy]
    return [proof.to_dict(), result.history.objective.tolist(), result.history.multipliers.tolist(), tables]


def hosts() -> list[int]:
    """The process ids of the workers of this program."""
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal()]
    return [pid for pid in pids if _is_host(pid) and _is_ours(pid)]


def _is_host(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"ray::Host" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _is_ours(pid: int) -> bool:
    """Whether a process descends from this one: other clusters on the machine are left alone."""
    with contextlib.suppress(OSError):
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("backups", "solve", "kills"))
    parser.add_argument("--family", choices=tuple(FAMILIES), default="random")
    parser.add_argument("--states", type=float, default=1e5)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, help="of solve by default 2, of backups one per block")
    parser.add_argument("--batches", type=int, default=40)  # pages of shared memory are slow at first
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--gamma", type=float, default=GAMMA)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.what == "kills":
        raise SystemExit(not kills(chosen.times, chosen.seed))
    if chosen.what == "backups":
        backups(chosen.family, int(chosen.states), chosen.blocks, chosen.workers, chosen.batches, chosen.threads)
    else:
        size, blocks, workers = int(chosen.states), chosen.blocks[-1], 2 if chosen.workers is None else chosen.workers
        solve(chosen.family, size, blocks, workers, chosen.tol, chosen.whole, chosen.gamma)


if __name__ == "__main__":
    main()
