"""Long-run averages against discounted sums of the same models, and against peers: `python benchmarks/averages.py`.

Two queues and random graphs of two sizes, with the same limits per step. Prints a table, and with `--write` makes
docs/benchmarks_averages.md from it. Peers are HiGHS on the LP over stationary occupancies, and relative value iteration
on the Lagrangian at the optimal prices: what a method that used it would have to repeat for every price that it tries.
QuantEcon (0.11) has no average criterion.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck
from cmdpkit.experiments.common import append_row, read_csv, write_csv
from cmdpkit.files import write_whole
from peers import queues, random_sparse
from scale import machine

DOCS = Path(__file__).parent.parent / "docs"
TOL = 1e-6
TARGET = 2.0
COLUMNS = ("family", "states", "method", "criterion", "status", "time", "objective", "iterations")


class Row(NamedTuple):
    """A model: whether HiGHS and PMD-PD alone are tried, and how often it is solved."""

    family: str
    states: int
    make: Callable[[int], ck.CMDP]
    small: bool
    repeat: int


FULL = (
    Row("two queues", 2_500, queues, True, 4),
    Row("two queues", 90_000, queues, False, 2),
    Row("random sparse", 1_000, random_sparse, True, 4),
    Row("random sparse", 3_000, random_sparse, True, 4),
    Row("random sparse", 100_000, random_sparse, False, 2),
)
QUICK = (Row("two queues", 400, queues, True, 2), Row("random sparse", 300, random_sparse, True, 2))


def averaged(cmdp: ck.CMDP) -> ck.CMDP:
    """The model with long-run averages, and limits on sums divided by the number of steps that these count."""
    tops = {c.name or "": c for c in cmdp.constraints if isinstance(c, ck.AtMost) and not c.per_step}
    sums = {name: (1.0 - cmdp.gamma) * c.limit for name, c in tops.items()}
    return cmdp.with_criterion(average=True).with_limits(sums)


# -- peers -----------------------------------------------------------------------------------------------------------


def stationary_lp(cmdp: ck.CMDP, method: str, limit: float) -> tuple[str, float, int]:
    """minimise c·x over Σ_a x(s', a) = Σ P(s'|s, a) x(s, a), Σ x = 1, x ≥ 0, and the limits."""
    states, pairs = cmdp.states, cmdp.pairs.count
    leave = sp.csr_array((np.ones(pairs), np.arange(pairs), cmdp.pairs.first), shape=(states, pairs))
    balance = sp.csr_array(leave - sp.csr_array(cmdp.transitions).T)[1:]  # those of all states but one imply it there
    equations = sp.csc_matrix(sp.vstack([balance, np.ones((1, pairs))]))
    right = np.append(np.zeros(states - 1), 1.0)
    limits: dict[str, Any] = {"A_ub": cmdp.costs[1:], "b_ub": cmdp.offsets}
    settings = {"time_limit": limit, "primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(cmdp.costs[0], A_eq=equations, b_eq=right, method=method, options=settings, **limits)
    status = {0: "ok", 1: "time limit"}.get(found.status, "failed")
    return status, float(cmdp.sense * found.fun) if status == "ok" else np.nan, int(found.nit)


def relative_value_iteration(cmdp: ck.CMDP, cost: np.ndarray, limit: float, tol: float = TOL) -> tuple[str, float, int]:
    """h ← Th − (Th)(0) until the bounds min (Th − h) ≤ g ≤ max (Th − h) are within `tol` of each other."""
    matrix, pairs = sp.csr_array(cmdp.transitions), cmdp.pairs
    h, started = np.zeros(cmdp.states), time.process_time()
    for sweep in range(1, 10**9):
        after = np.asarray(pairs.min(pairs.like(cost + matrix @ h)))
        low, high = float((after - h).min()), float((after - h).max())
        if high - low <= tol * max(1.0, abs(low)):
            return "ok", 0.5 * (low + high), sweep
        if time.process_time() - started > limit:
            return "time limit", np.nan, sweep
        h = after - after[0]
    raise AssertionError


# -- measurements ----------------------------------------------------------------------------------------------------


def clock(run: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of all threads: on a shared machine it says more than the time on the wall."""
    started = time.process_time()
    answer = run()
    return time.process_time() - started, answer


def measure(rows: tuple[Row, ...], limit: float) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def note(row: Row, method: str, criterion: str, status: str, taken: float, objective: float, count: int) -> None:
        append_row(columns, (row.family, row.states, method, criterion, status, taken, objective, count))
        print(f"{row.family}, {row.states:,}, {method}, {criterion}: {status}, {taken:.3g} s", flush=True)

    for row in rows:
        discounted = row.make(row.states)
        models = {"discounted": discounted, "average": averaged(discounted)}
        for method in ("auto", "pmd-pd") if row.small else ("auto",):
            small = row.make(min(row.states, 2_500))  # loads libraries and compiled code
            for model in (small, averaged(small)):
                ck.solve(model, method, tol=TOL)
            times: dict[str, list[float]] = {name: [] for name in models}
            last: dict[str, Any] = {}
            for _ in range(row.repeat if method == "auto" else max(1, row.repeat // 2)):  # in turn
                for name, model in models.items():
                    taken, result = clock(lambda m=model, k=method: ck.solve(m, k, tol=TOL))
                    times[name].append(taken)
                    last[name] = result
            for name, result in last.items():
                status = "ok" if result.status is ck.Status.OPTIMAL else result.status.name.lower()
                note(row, method, name, status, min(times[name]), result.objective, result.iterations)
            if method == "auto":
                best = last["average"]
        average = models["average"]
        cost = average.costs[0] + average.row_prices(best.multipliers) @ average.costs[1:]
        free = average.with_objective(cost=average.pairs.like(cost)).with_limits(dict.fromkeys(average.names))
        taken, result = min((clock(lambda m=free: ck.solve(m, tol=TOL)) for _ in range(2)), key=lambda one: one[0])
        value = average.sense * (result.objective - average.row_prices(best.multipliers) @ average.offsets)
        note(row, "its Lagrangian", "average", "ok", taken, value, result.iterations)
        taken, (status, g, sweeps) = clock(lambda m=average, c=cost: relative_value_iteration(m, c, limit))
        value = average.sense * (g - average.row_prices(best.multipliers) @ average.offsets)
        note(row, "relative value iteration", "average", status, taken, value, sweeps)
        for name, method in (("HiGHS simplex", "highs-ds"), ("HiGHS interior point", "highs-ipm")) if row.small else ():
            taken, (status, value, count) = clock(lambda m=average, k=method: stationary_lp(m, k, 20.0 * limit))
            note(row, name, "average", status, taken, value, count)
    return columns


# -- the page --------------------------------------------------------------------------------------------------------

PEERS = ("its Lagrangian", "relative value iteration", "HiGHS simplex", "HiGHS interior point")


def lines(table: dict[str, np.ndarray], rows: tuple[Row, ...], limit: float) -> Iterator[str]:
    entries = [dict(zip(table, entry, strict=True)) for entry in zip(*table.values(), strict=True)]

    def get(row: Row, method: str, criterion: str) -> dict[str, Any] | None:
        key = (row.family, row.states, method, criterion)
        found = [e for e in entries if (e["family"], int(e["states"]), e["method"], e["criterion"]) == key]
        return found[0] if found else None

    titles = ("model", "states", "discounted", "average", "ratio", "PMD-PD alone: discounted", "average", "ratio")
    yield "| " + " | ".join((*titles, *PEERS)) + " |"
    yield "|---" * (len(titles) + len(PEERS)) + "|"
    worst = 0.0
    for row in rows:
        cells = [row.family, f"{row.states:,}"]
        for method, word in (("auto", "calls"), ("pmd-pd", "steps")):
            both = [one for name in ("discounted", "average") if (one := get(row, method, name)) is not None]
            if not both:
                cells += ["-"] * 3
                continue
            for one in both:
                told = f"{float(one['time']):.3g} s ({int(float(one['iterations']))} {word})"
                cells.append(told if one["status"] == "ok" else f"{told}, {one['status']}")
            ratio = float(both[1]["time"]) / float(both[0]["time"])
            cells.append(f"{ratio:.2f}")
            worst = max(worst, ratio) if method == "auto" else worst
        ours = get(row, "auto", "average")
        assert ours is not None
        cells += [_peer(get(row, name, "average"), ours, limit) for name in PEERS]
        yield f"| {' | '.join(cells)} |"
    verdict = "reached" if worst <= TARGET else "**not reached**"
    target = f"Target: averages within {TARGET:.0f} times the discounted times of `auto`"
    yield from ("", f"{target}. Largest ratio {worst:.2f}: {verdict}.")


def _peer(peer: dict[str, Any] | None, ours: dict[str, Any], limit: float) -> str:
    if peer is None:
        return "-"
    if peer["status"] == "time limit":
        return f"> {limit:.0f} s"
    if peer["status"] != "ok":
        return str(peer["status"])
    taken, size = float(peer["time"]), max(1.0, abs(float(ours["objective"])))
    agrees = abs(float(peer["objective"]) - float(ours["objective"])) <= 10.0 * TOL * size
    return f"{taken:.3g} s, {taken / float(ours['time']):.3g} x" + ("" if agrees else " (DISAGREES)")


def page(table: dict[str, np.ndarray], rows: tuple[Row, ...], limit: float) -> Iterator[str]:
    yield from ("# Long-run averages: times", "")
    yield (
        f"Written by `python benchmarks/averages.py --write` (cmdpkit {ck.__version__}) on: {machine()}. Seed 101 for "
        "the random graphs (ten actions, five successors, three limits, γ = 0.99); two queues with nine actions, two "
        "limits and γ = 0.999. Average models have the same limits per step, and no discount."
    )
    yield ""
    yield (
        "Times are processor times of all threads, the best of some solves that take turns, because the machine was "
        f"shared; everything of ours ends with a certificate for {TOL:g}. Relative value iteration (plain, with "
        "sparse matrices) solves one model without limits, the Lagrangian at the optimal prices, to the same accuracy: "
        "a method with limits would repeat it for every price it tries. *Its Lagrangian* is `solve` on that model. "
        "HiGHS solves the LP over stationary occupancies with tolerances of 1e-10 (at scipy's defaults its optimum of "
        "the queues lies 2e-5 below the certified bound), on small models only, as PMD-PD alone. "
        f"Relative value iteration ends after {limit:.0f} s. The ratio after a time is that time divided by ours."
    )
    yield ""
    yield from lines(table, rows, limit)
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: some seconds")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks_averages.md and its data")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("docs/benchmarks_averages.md needs the full run")
    rows, limit = (QUICK, 20.0) if arguments.quick else (FULL, 30.0)
    folder = DOCS / "results" if arguments.write else DOCS.parent / "out"
    folder.mkdir(exist_ok=True)
    write_csv(folder / "averages.csv", measure(rows, limit))
    text = "\n".join(page(read_csv(folder / "averages.csv"), rows, limit))
    print(text)
    if arguments.write:
        write_whole(DOCS / "benchmarks_averages.md", lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
