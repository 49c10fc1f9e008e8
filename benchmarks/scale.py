"""Certified optima of large models, against LP solvers in the same run: `python benchmarks/scale.py [--quick]`.

Families of models x sizes x methods (peers.py), each with a time limit; whether the answers agree; how time grows; peak
memory; and the building blocks. Prints it all, and with `--write` makes docs/benchmarks.md and its figure from it.
Seeds are not those that anything was tuned on.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.drawing import BLACK, STYLES, curve, figure, save
from cmdpkit.evaluation import Plan, PolicySystem, backup
from cmdpkit.evaluation.chain import chosen_chain, separator_width
from cmdpkit.experiments.common import append_row, read_csv, write_csv
from cmdpkit.files import write_whole
from peers import PEERS, apart, queues, random_sparse

DOCS = Path(__file__).parent.parent / "docs"
PLAIN, CALLS = (DOCS / "results" / name for name in ("plain.csv", "calls.csv"))
"""Figures of plain.py and limits.py, for the targets."""

LARGEST = DOCS / "results" / "largest.csv"
"""Figures of `--largest`."""

PATIENCE = 10.0
"""Ours may take so many times the limit of the peers: they are run where no peer would come."""

METHODS = {"cmdpkit": "auto", "PMD-PD alone": "pmd-pd"}
LOOKS = dict(zip([*METHODS, *PEERS], STYLES, strict=False))
COLUMNS = ("family", "states", "method", "status", "time", "objective", "iterations", "gap", "memory", "gigabytes")


class Row(NamedTuple):
    """A family with its sizes; peers stop at `largest_peer`, or at the size after one that took too long."""

    family: str
    sizes: tuple[int, ...]
    largest_peer: int
    tol: float = 1e-6


FULL = (
    Row("the paper's", (20,), 20),
    Row("random sparse", (300, 1_000, 3_000, 10_000, 30_000, 100_000), 3_000),
    Row("random sparse, A = 4", (1_000_000,), 0, 1e-4),
    Row("two queues", (400, 2_500, 10_000, 40_000, 90_000), 10_000),
    Row("grid with unsafe cells", (400, 2_500, 10_000), 10_000),
    Row("inventory", (100, 1_000, 10_000), 10_000),
)
LARGEST_ROW = Row("random sparse, A = 4", (1_000_000, 10_000_000), 0, 1e-4)
QUICK = (
    Row("the paper's", (20,), 20),
    Row("random sparse", (300, 1_000, 3_000), 1_000),
    Row("two queues", (400, 2_500), 2_500),
    Row("grid with unsafe cells", (400, 2_500), 400),
    Row("inventory", (100, 1_000), 100),
)


# -- the suite -------------------------------------------------------------------------------------------------------


def measure(rows: tuple[Row, ...], limit: float, methods: Iterable[str] = METHODS) -> dict[str, list[object]]:
    """Every family, size and method; a method that took too long is not run on larger models of the family."""
    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    for family, sizes, largest_peer, tol in rows:
        beaten: set[str] = set()
        for size in sizes:
            for method in (*methods, *(PEERS if size <= largest_peer else ())):
                if method in beaten:
                    continue
                if method in METHODS:
                    answer = apart("ours", family, size, METHODS[method], tol, PATIENCE * limit, limit=PATIENCE * limit)
                else:
                    answer = apart("peer", family, size, method, limit, limit=limit)
                if answer["status"] != "ok":
                    beaten.add(method)
                append_row(columns, (family, size, method, *(answer.get(name, "") for name in COLUMNS[3:])))
                print(f"{family}, {size:,} states, {method}: {answer['status']}, {answer['time']:.3g} s", flush=True)
    return columns


class Measured:
    """The rows of the suite, to ask for."""

    def __init__(self, path: Path) -> None:
        table = read_csv(path)
        self.rows = [dict(zip(table, entry, strict=True)) for entry in zip(*table.values(), strict=True)]

    def get(self, family: str, size: int, method: str) -> dict[str, object] | None:
        key = (family, size, method)
        found = [r for r in self.rows if (r["family"], int(r["states"]), r["method"]) == key]
        return found[0] if found else None

    def curve(self, family: str, method: str) -> tuple[list[int], list[float]]:
        solved = [r for r in self.rows if (r["family"], r["method"], r["status"]) == (family, method, "ok")]
        return [int(r["states"]) for r in solved], [float(r["time"]) for r in solved]

    def exponent(self, family: str, method: str, smallest: int = 1_000) -> float | None:
        """b of time ~ S^b over the models of at least `smallest` states."""
        sizes, times = self.curve(family, method)
        large = [(s, t) for s, t in zip(sizes, times, strict=True) if s >= smallest]
        return float(np.polyfit(*np.log(np.array(large)).T, 1)[0]) if len(large) > 1 else None

    def ratio(self, family: str, size: int, names: tuple[str, ...]) -> float:
        """How many times faster `auto` is than the best of the named peers that solved the model."""
        others = [self.get(family, size, name) for name in names]
        times = [float(o["time"]) for o in others if o is not None and o["status"] == "ok"]
        return min(times) / self.ours(family, size, "time") if times else float("nan")

    def alone(self, family: str, size: int, column: str) -> float:
        """A number of PMD-PD alone, in units of that of `auto`."""
        other = self.get(family, size, "PMD-PD alone")
        solved = other is not None and other["status"] == "ok"
        return float(other[column]) / self.ours(family, size, column) if solved else float("nan")

    def agrees(self, row: Row, size: int, method: str) -> bool:
        """Whether a solver's objective is the certified one, to ten tolerances."""
        answer, objective = self.get(row.family, size, method), self.ours(row.family, size, "objective")
        assert answer is not None
        return abs(float(answer["objective"]) - objective) <= 10.0 * row.tol * max(1.0, abs(objective))

    def ours(self, family: str, size: int, column: str) -> float:
        """A number of `solve(model)`; not a number where that did not end with a certificate."""
        mine = self.get(family, size, "cmdpkit")
        return float(mine[column]) if mine is not None and mine["status"] == "ok" else float("nan")


def tables(measured: Measured, rows: tuple[Row, ...], limit: float) -> Iterator[str]:
    methods = [*METHODS, *PEERS]
    for row in rows:
        yield from ("", f"### {row.family[0].upper()}{row.family[1:]}" + (f", certified to {row.tol:g}"), "")
        yield "| states | " + " | ".join(methods) + " | memory of `cmdpkit` |"
        yield "|---" * (len(methods) + 2) + "|"
        for size in row.sizes:
            cells = [_cell(measured, row, size, name, limit) for name in methods]
            # Beside a small model the libraries' own memory is all that one sees
            memory = measured.ours(row.family, size, "memory") if size >= 30_000 else float("nan")
            cells.append(f"{memory:.1f} x" if np.isfinite(memory) else "-")
            yield f"| {size:,} | {' | '.join(cells)} |"
        growth = {name: measured.exponent(row.family, name) for name in methods}
        known = [f"{name} {b:.2f}" for name, b in growth.items() if b is not None]
        if known:
            yield from ("", f"Exponent b of time ~ S^b from 1,000 states on: {', '.join(known)}.")


def _cell(measured: Measured, row: Row, size: int, method: str, limit: float) -> str:
    answer = measured.get(row.family, size, method)
    if answer is None:
        return "-"
    if answer["status"] != "ok":
        patience = PATIENCE * limit if method in METHODS else limit
        return f"> {patience:.0f} s" if answer["status"] == "time limit" else str(answer["status"])
    taken = float(answer["time"])
    text = f"{taken:.3g} s" + ("" if measured.agrees(row, size, method) else " (DISAGREES)")
    if method not in METHODS:
        return f"{text}, {taken / measured.ours(row.family, size, 'time'):.3g} x"
    return f"{text} ({int(float(answer['iterations']))} {'calls' if method == 'cmdpkit' else 'steps'})"


def draw(measured: Measured, rows: tuple[Row, ...], path: Path, limit: float) -> None:
    """Seconds against states; arrows mark what ran out of time, crosses what disagrees with the certified optimum."""
    shown = [row for row in rows if len(row.sizes) > 1]
    drawing, axes = figure(columns=2, rows=(len(shown) + 1) // 2)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, row in zip(axes.flat, shown, strict=False):
        axis.set(title=row.family, xlabel="states", ylabel="seconds", xscale="log", yscale="log")
        for method, look in LOOKS.items():
            sizes, times = measured.curve(row.family, method)
            if sizes:
                curve(axis, sizes, times, look, method, lw=2.4 if method in METHODS else 1.3)
            _mark(axis, measured, row, method, limit)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    drawing.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=9)
    save(drawing, path)


def _mark(axis: Any, measured: Measured, row: Row, method: str, limit: float) -> None:
    """Runs that have no point on the curve, or one that must not be trusted."""
    for size in row.sizes:
        answer = measured.get(row.family, size, method)
        if answer is not None and answer["status"] != "ok":
            patience = PATIENCE * limit if method in METHODS else limit
            aside = size * 1.08 ** (list(LOOKS).index(method) - 3)  # so that none hides another
            axis.plot(aside, patience, "^", mfc="none", color=LOOKS[method].colour, ms=10)
            axis.plot([], [], "^", mfc="none", color=BLACK, ms=8, ls="", label="not solved in its time (or failed)")
        elif answer is not None and not measured.agrees(row, size, method):
            axis.plot(size, float(answer["time"]), "x", color=BLACK, ms=9, mew=2.0)
            axis.plot([], [], "x", color=BLACK, ms=8, mew=2.0, ls="", label="disagrees with the certified optimum")


def _verdict(good: bool) -> str:
    return "reached" if good else "**not reached**"


def targets(measured: Measured) -> Iterator[str]:
    """What was aimed at, and what came out."""
    simplex_or_interior = ("HiGHS simplex", "HiGHS interior point")
    yield from ("", "## Targets", "", "| target | measured | |", "|---|---|---|")

    def line(text: str, value: float, form: str, good: bool) -> str:
        return f"| {text} | {form.format(value)} | {_verdict(good)} |" if np.isfinite(value) else f"| {text} | - | - |"

    for family, size, factor in (("random sparse", 3_000, 100.0), ("two queues", 2_500, 20.0)):
        value = measured.ratio(family, size, simplex_or_interior)
        text = f"{family}, {size:,} states: {factor:.0f} x faster than the better of HiGHS's simplex and interior point"
        yield line(text, value, "{:.0f} x", value >= factor)
    for row in FULL:
        for size in row.sizes:
            value = measured.ratio(row.family, size, ("HiGHS simplex",))
            factor = 3.0 if size >= 1_000 else 1.0
            if np.isfinite(value):
                text = f"{row.family}, {size:,} states: {factor:.0f} x as fast as HiGHS's simplex"
                yield line(text, value, "{:.1f} x", value >= factor)
    sizes = [(row.family, size) for row in FULL for size in row.sizes]
    yield worst(
        "faster than Storm's multi-objective engine, wherever that ends in time",
        [(measured.ratio(family, size, ("Storm",)), f"{family}, {size:,} states") for family, size in sizes],
        1.0,
    )
    yield worst(
        "PMD-PD alone takes at most 1.5 x the time of `auto`",
        [(measured.alone(family, size, "time"), f"{family}, {size:,} states") for family, size in sizes],
        1.5,
        most=True,
    )
    for family, size, seconds in (
        ("random sparse", 100_000, 10.0),
        ("random sparse, A = 4", 1_000_000, 300.0),
        ("two queues", 90_000, 30.0),
    ):
        value = measured.ours(family, size, "time")
        yield line(f"{family}, {size:,} states: under {seconds:.0f} s", value, "{:.1f} s", value < seconds)
    growth = measured.exponent("two queues", "cmdpkit") or np.nan
    yield line("two queues: time grows no faster than S^1.2", growth, "S^{:.2f}", growth <= 1.2)
    for family, size in (("random sparse", 100_000), ("random sparse, A = 4", 1_000_000), ("two queues", 90_000)):
        value = measured.ours(family, size, "memory")
        yield line(f"{family}, {size:,} states: memory at most 3 x the model's", value, "{:.1f} x", value <= 3.0)
    yield from plain_targets()
    yield from call_targets()
    yield from largest_targets()


def worst(text: str, found: list[tuple[float, str]], wanted: float, most: bool = False) -> str:
    """The line of a target for many models: the worst ratio, where it is, and how many miss the target."""
    known = sorted(pair for pair in found if np.isfinite(pair[0]))
    if not known:
        return f"| {text} | - | - |"
    ratio, where = known[-1] if most else known[0]
    missed = sum(r > wanted if most else r < wanted for r, _ in known)
    middle = float(np.median([r for r, _ in known]))
    note = f"; missed by {missed} of {len(known)}" if missed else ""
    return f"| {text} | worst {ratio:.2f} x ({where}), median {middle:.2f} x{note} | {_verdict(not missed)} |"


def plain_targets() -> Iterator[str]:
    """Models without limits, from the last `plain.py --write`."""
    if not PLAIN.exists():
        return
    table = read_csv(PLAIN)
    rows = [dict(zip(table, entry, strict=True)) for entry in zip(*table.values(), strict=True)]
    for peer, text in (("QuantEcon", "QuantEcon's best method"), ("mdpsolver", "mdpsolver"), ("Storm", "Storm")):
        found = []
        for mine in (r for r in rows if r["solver"] == "cmdpkit"):
            same = [r for r in rows if (r["family"], r["states"]) == (mine["family"], mine["states"])]
            times = [r["time"] for r in same if str(r["solver"]).startswith(peer) and r["right"]]
            if times:
                found.append((min(times) / mine["time"], f"{mine['family']}, {int(mine['states']):,} states"))
        yield worst(f"without limits: at least as fast as {text} ([table](benchmarks_plain.md))", found, 1.0)


def call_targets() -> Iterator[str]:
    """Calls against what they cannot do without, from the last `limits.py --write`."""
    if not CALLS.exists():
        return
    table = read_csv(CALLS)
    for call, text in (
        ("certify", "`certify` without multipliers costs no more than 1.5 oracle solves"),
        ("evaluate", "`evaluate` costs no more than 1.5 linear solves for all values"),
        ("frontier", "a point of `frontier`, one of twenty, costs no more than 1.5 oracle solves"),
    ):
        entries = zip(table["call"], table["family"], table["states"], table["time"], table["limit"], strict=True)
        found = [(t / limit, f"{family}, {int(n):,} states") for name, family, n, t, limit in entries if name == call]
        yield worst(text, found, 1.5, most=True)


def largest_targets() -> Iterator[str]:
    """Ten million states, from the last `--largest`."""
    if not LARGEST.exists():
        return
    measured, family = Measured(LARGEST), LARGEST_ROW.family
    small, large = (measured.ours(family, size, "time") for size in LARGEST_ROW.sizes)
    memory, gap = (measured.ours(family, LARGEST_ROW.sizes[-1], name) for name in ("memory", "gap"))
    text = f"{family}, ten million states: certified to {LARGEST_ROW.tol:g} in 12 x the time of a million"
    found = f"{large:.0f} s, {small:.0f} s: {large / small:.1f} x (gap {gap:.1e})"
    yield f"| {text} | {found} | {_verdict(large <= 12.0 * small and gap <= LARGEST_ROW.tol)} |"
    text = f"{family}, ten million states: memory at most 2.2 x the model's"
    yield f"| {text} | {memory:.1f} x | {_verdict(memory <= 2.2)} |"


# -- building blocks -------------------------------------------------------------------------------------------------


def constraints(limit: float) -> Iterator[str]:
    """How oracle calls grow with the constraints."""
    yield from (
        "",
        "Random sparse, 3,000 states, seed 202:",
        "",
        "| constraints | oracle calls | time |",
        "|---|---|---|",
    )
    for m in (1, 2, 3, 5, 10, 20):
        cmdp = random_sparse(3_000, seed=202, constraints=m)
        result = ck.solve(cmdp, time_limit=limit)
        taken = best_of(2, partial(ck.solve, cmdp, time_limit=limit))
        yield f"| {m} | {result.iterations} ({result.status.name}) | {taken:.2f} s |"


def two_halves(states: int, bridge: float, actions: int = 4) -> ck.CMDP:
    """Two random graphs that a step leaves for the other with probability `bridge`."""
    rng = np.random.default_rng(101)
    half = states // 2
    side = half * (np.arange(states) >= half)[:, None, None]
    inside, across = (rng.integers(0, half, size=(states, actions, n)) for n in (5, 1))
    p = np.concatenate([(1 - bridge) * rng.dirichlet(np.ones(5), (states, actions)), np.full(across.shape, bridge)], 2)
    successors = np.concatenate([inside + side, across + half - side], 2)
    pointers = np.arange(0, p.size + 1, 6)
    matrix = sp.csr_array((p.ravel(), successors.ravel(), pointers), shape=(states * actions, states))
    limits = [ck.AtMost(rng.random((states, actions)), 0.45, per_step=True) for _ in range(3)]
    return ck.CMDP(matrix, reward=rng.random((states, actions)), constraints=limits, gamma=0.99)


def evaluations() -> Iterator[str]:
    """One evaluation of all costs at full accuracy, by each method."""
    chains = {
        "random graph, S = 3,000": random_sparse(3_000),
        "random graph, S = 100,000": random_sparse(100_000),
        "lattice, S = 90,000": queues(90_000),
        "two halves, bridge 1e-3, S = 20,000": two_halves(20_000, 1e-3),
    }
    yield from ("", "One evaluation of all costs, and the method that the rule of `evaluation/system.py` chooses:", "")
    yield from ("| chain | chosen | sweeps | sparse LU | GMRES |", "|---|---|---|---|---|")
    for name, cmdp in chains.items():
        rows = np.arange(cmdp.states) * cmdp.actions
        cost, choice = np.ascontiguousarray(cmdp.costs[:, rows].T), np.zeros(cmdp.states, dtype=int)
        plan = Plan()
        PolicySystem(cmdp, choice=choice, plan=plan).state_values(cost)
        cells = []
        for method in ("sweeps", "sparse", "krylov"):
            if method == "sparse" and separator_width(chosen_chain(cmdp, choice)) > 3_000:
                cells.append("fills up")
                continue
            trial = Plan(method)
            started = time.perf_counter()
            PolicySystem(cmdp, choice=choice, plan=trial).state_values(cost)
            cells.append(f"{1e3 * (time.perf_counter() - started):.0f} ms" if trial.method == method else "given up")
        yield f"| {name} | {plan.method} | {' | '.join(cells)} |"


def bandwidth() -> str:
    """A Bellman sweep over local columns, against copying as many bytes."""
    states, actions, width = 300_000, 4, 8
    rng = np.random.default_rng(0)
    offsets = rng.integers(1, 13, size=(states * actions, width)).cumsum(axis=1) - 50  # different ones in each row
    near = ((np.arange(states * actions)[:, None] // actions + offsets) % states).astype(np.int32)
    pointers = np.arange(0, near.size + 1, width, dtype=np.int32)
    shape = (states * actions, states)
    matrix = sp.csr_array((np.full(near.size, 1.0 / width), near.ravel(), pointers), shape=shape)
    cmdp = ck.CMDP(matrix, cost=rng.random((states, actions)), gamma=0.9)
    cost, value, choice = cmdp.costs[0], rng.random(states), np.zeros(states, dtype=np.int32)
    touched = cmdp.transitions.nnz * 12 + states * actions * 12 + states * 24
    source = np.ones(touched // 16)
    target = np.empty_like(source)

    sweep = best_of(40, lambda: backup.bellman(cmdp, cost, value, choice))
    copy = best_of(40, lambda: np.copyto(target, source))
    speed, copying = touched / sweep / 1e9, 2 * source.nbytes / copy / 1e9
    goal = "A Bellman sweep over local columns reaches half of the copy bandwidth"
    found = f"{speed:.1f} GB/s, copying {copying:.1f} GB/s: {speed / copying:.2f}"
    return f"| {goal} | {found} | {_verdict(speed >= 0.5 * copying)} |"


def small() -> Iterator[str]:
    """The paper's instance against scipy's linprog on the same LP and a plain NumPy loop; imports; compiled code."""
    from scipy.optimize import linprog

    cmdp = ck.problems.paper()
    flow = (np.repeat(np.eye(20), 10, axis=0) - 0.8 * np.asarray(cmdp.transitions)).T
    limits = {"A_ub": cmdp.costs[1:], "b_ub": cmdp.offsets}
    rounds = range(60)  # in turn, so that a busy moment meets all of them
    solvers: dict[str, Callable[[], object]] = {m: partial(ck.solve, cmdp, m) for m in METHODS.values()}
    solvers["lp"] = lambda: linprog(cmdp.costs[0], A_eq=flow, b_eq=cmdp.initial, **limits)
    table = [[best_of(1, run) for run in solvers.values()] for _ in rounds]
    best = dict(zip(solvers, np.min(table, axis=0), strict=True))
    lp = best.pop("lp")
    for method, mine in best.items():
        times = 1.0 if method == "auto" else 2.0
        goal = f"`solve` ({method}) of the paper's instance costs no more than {times:.0f} x `linprog`"
        yield f"| {goal} | {mine * 1e3:.2f} ms, {lp * 1e3:.2f} ms: {mine / lp:.2f} x | {_verdict(mine <= times * lp)} |"

    steps = {"step": 1.0, "eta_dual": 1.0, "tol": 0.0, "max_iterations": 300}
    mine = best_of(10, lambda: ck.solve(cmdp, "pmd-pd", **steps))
    loop, arrays = best_of(2, lambda: plain_loop(cmdp, 300)), best_of(5, lambda: plain_arrays(cmdp, 300))
    goal = "300 steps of PMD-PD cost 10 x less than a plain NumPy loop over states and actions"
    found = f"{mine * 1e3:.0f} ms, {loop * 1e3:.0f} ms: {loop / mine:.0f} x (without the loops: {arrays / mine:.1f} x)"
    yield f"| {goal} | {found} | {_verdict(loop >= 10.0 * mine)} |"

    package, reference = importing("cmdpkit"), importing("scipy.sparse")
    goal = "`import cmdpkit` costs no more than 1.5 x `import scipy.sparse`"
    yield f"| {goal} | {package:.2f} s, {reference:.2f} s | {_verdict(package <= 1.5 * reference)} |"

    model = "import cmdpkit as ck, sys; ck.solve(ck.problems.{}); sys.exit('numba' in sys.modules)"
    compiles = subprocess.run([sys.executable, "-c", model.format("paper()")], check=False).returncode
    yield f"| no compiler on the path of a small model | | {_verdict(compiles == 0)} |"
    job = "import peers, time, cmdpkit as ck, numba; m = peers.random_sparse(3_000); t = time.perf_counter(); "
    job += "ck.solve(m); a = time.perf_counter() - t; t = time.perf_counter(); ck.solve(m); "
    job += "print(a, time.perf_counter() - t, ck.solve(m).status.name)"
    command = [sys.executable, "-c", job]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    first, second = map(float, done.stdout.split()[:2])
    goal = "a second process finds the kernels compiled: loading them costs less than a second"
    yield f"| {goal} | first solve {first:.2f} s, second {second:.2f} s | {_verdict(first - second < 1.0)} |"


def importing(name: str) -> float:
    return best_of(5, lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True))


def plain_loop(cmdp: ck.CMDP, steps: int) -> np.ndarray:
    """Algorithm 1 with step 1 and one inner step as one would first write it, for one constraint."""
    states, actions, gamma = cmdp.states, cmdp.actions, cmdp.gamma
    p = np.asarray(cmdp.transitions).reshape(states, actions, states)
    c = cmdp.costs.reshape(-1, states, actions)
    pi = np.full((states, actions), 1.0 / actions)

    def values(cost: np.ndarray) -> np.ndarray:
        chain, used = np.zeros((states, states)), np.zeros(states)
        for s in range(states):
            for a in range(actions):
                chain[s] += pi[s, a] * p[s, a]
                used[s] += pi[s, a] * cost[s, a]
        return np.linalg.solve(np.eye(states) - gamma * chain, used)

    v = cmdp.initial @ values(c[1]) - cmdp.offsets[0]
    lam = max(0.0, -v)
    for _ in range(steps):
        mixed = c[0] + (lam + v) * c[1]
        value = values(mixed)
        new = np.zeros_like(pi)
        for s in range(states):
            q = np.array([mixed[s, a] + gamma * p[s, a] @ value for a in range(actions)])
            new[s] = pi[s] * np.exp(-(q - q.min()))
            new[s] /= new[s].sum()
        pi = new
        values(c[0])
        v = cmdp.initial @ values(c[1]) - cmdp.offsets[0]
        lam = max(-v, lam + v)
    return pi


def plain_arrays(cmdp: ck.CMDP, steps: int) -> np.ndarray:
    """The same with whole arrays."""
    states, actions, gamma = cmdp.states, cmdp.actions, cmdp.gamma
    p = np.asarray(cmdp.transitions).reshape(states, actions, states)
    c = cmdp.costs.reshape(-1, states, actions)
    pi = np.full((states, actions), 1.0 / actions)

    def values(cost: np.ndarray) -> np.ndarray:
        chain = np.einsum("sa,sat->st", pi, p)
        return np.linalg.solve(np.eye(states) - gamma * chain, (pi * cost).sum(axis=1))

    v = cmdp.initial @ values(c[1]) - cmdp.offsets[0]
    lam = max(0.0, -v)
    for _ in range(steps):
        mixed = c[0] + (lam + v) * c[1]
        q = mixed + gamma * p @ values(mixed)
        pi = pi * np.exp(-(q - q.min(axis=1, keepdims=True)))
        pi /= pi.sum(axis=1, keepdims=True)
        values(c[0])
        v = cmdp.initial @ values(c[1]) - cmdp.offsets[0]
        lam = max(-v, lam + v)
    return pi


def best_of(times: int, run: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return min(taken)


# -- the page --------------------------------------------------------------------------------------------------------


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), model)
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB of memory"
    except (OSError, ValueError):
        memory = ""
    packages = ", ".join(
        f"{name} {_version(name)}" for name in ("numpy", "scipy", "numba", "highspy", "ortools", "stormpy")
    )
    system = f"{platform.system()}, Python {platform.python_version()}, {packages}"
    return f"{model}, {os.cpu_count()} processors{memory}; {system}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def page(rows: tuple[Row, ...], limit: float, data: Path) -> Iterator[str]:
    measured = Measured(data)
    yield "# Benchmarks"
    yield ""
    yield (
        f"Written by `python benchmarks/scale.py --write` (cmdpkit {ck.__version__}) on: {machine()}. The machine was "
        "shared: times differ by some tens of per cent from run to run, and ratios are between times of the same run."
    )
    yield ""
    yield (
        f"Every solver runs in its own process, the peers within {limit:.0f} s on the occupancy LP of the same "
        "model. `cmdpkit` is `solve(model)`, *PMD-PD alone* is `solve(model, 'pmd-pd')`: the paper's algorithm without "
        "the exact finish; both end with a certificate for the tolerance. Our time is the better of two solves in a "
        "process that has solved a smaller model before, a peer's that of two if the first took less than 5 s. Memory "
        "is the growth of the process after that, model included, relative to the model's arrays (from 30,000 states "
        "on). The ratio after a peer's time is that time divided by ours; a solver that ran out of time is not run on "
        "larger models (-). Calls are MDP solves of the exact finish, steps are macro steps of PMD-PD. An answer that "
        "differs from ours by more than ten tolerances is marked DISAGREES. The tolerance of PDLP is 1e-6, as ours; "
        "simplex and interior point (scipy's `linprog`) run at their defaults. Storm's multi-objective engine gets the "
        "model with an end that every step reaches with probability 1 - gamma, and 1e-6 of the value of the uniform "
        "policy as its precision."
    )
    yield from (
        "",
        "Long-run averages have a [table of their own](benchmarks_averages.md), and so have [models without "
        "limits](benchmarks_plain.md).",
    )
    yield from targets(measured)
    yield bandwidth()
    yield from small()
    yield from ("", "## Time against size", "", "![seconds against states, log axes](results/benchmarks.png)")
    yield from tables(measured, rows, limit)
    yield from ("", "## Building blocks")
    yield from constraints(limit)
    yield from evaluations()
    yield ""


def _with_others(before: dict[str, Any], again: dict[str, list[object]], family: str) -> dict[str, list[object]]:
    """The rows of a family, in place of those of an earlier run."""
    kept = before["family"] != family
    after = int(np.flatnonzero(~kept)[0]) if not kept.all() else kept.size
    return {
        name: [*column[:after][kept[:after]].tolist(), *again[name], *column[after:][kept[after:]].tolist()]
        for name, column in before.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and short time limits: some minutes")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md, its figure and its data")
    parser.add_argument(
        "--page", action="store_true", help="the same from the last full run's data: only small things run"
    )
    parser.add_argument("--family", choices=[row.family for row in FULL], help="with --write: measure only this again")
    parser.add_argument("--draw", action="store_true", help="only the figure, from the last full run's data")
    parser.add_argument("--largest", action="store_true", help="only ten million states, for the next page: 20 minutes")
    arguments = parser.parse_args()
    if arguments.largest:
        write_csv(LARGEST, measure((LARGEST_ROW,), 240.0, ("cmdpkit",)))
        return
    if arguments.quick and (arguments.write or arguments.page):
        parser.error("docs/benchmarks.md needs the full run")
    if arguments.family is not None and not arguments.write:
        parser.error("--family needs --write: the other families are those of the last full run")
    rows, limit = (QUICK, 10.0) if arguments.quick else (FULL, 40.0)
    lasting = arguments.write or arguments.page or arguments.draw
    folder = DOCS / "results" if lasting else DOCS.parent / "out"
    folder.mkdir(exist_ok=True)
    data = folder / "benchmarks.csv"
    if arguments.family is not None:
        again = measure(tuple(row for row in rows if row.family == arguments.family), limit)
        write_csv(data, _with_others(read_csv(data), again, arguments.family))
    elif not (arguments.page or arguments.draw):
        write_csv(data, measure(rows, limit))
    draw(Measured(data), rows, folder / "benchmarks.png", limit)
    if arguments.draw:
        return
    lines = []
    for line in page(rows, limit, data):
        print(line, flush=True)
        lines.append(line)
    if lasting:
        write_whole(DOCS / "benchmarks.md", lambda file: file.write("\n".join(lines).encode()))


if __name__ == "__main__":
    main()
