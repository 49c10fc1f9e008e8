"""Certified optima of large models, against HiGHS and PDLP in the same run: `python benchmarks/scale.py [--quick]`.

Every line gives the time of `ck.solve` (the second solve in the process: compiled code is loaded by then, and the first
solve's time is given beside it), and of each peer on the occupancy LP of the same model, within a time limit. A peer
that is not installed, fails or runs out of time is shown as such. Seeds are not those that anything was tuned on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation import Plan, PolicySystem, backup
from cmdpkit.evaluation.chain import chosen_chain, separator_width

PEERS = {"HiGHS simplex": "highs-ds", "HiGHS interior point": "highs-ipm", "OR-Tools PDLP": "pdlp"}


def random_sparse(states: int, seed: int = 101, constraints: int = 3) -> ck.CMDP:
    return ck.problems.garnet(states, actions=10, successors=5, constraints=constraints, gamma=0.99, seed=seed)


def million(seed: int = 101) -> ck.CMDP:
    return ck.problems.garnet(1_000_000, actions=4, successors=5, constraints=2, gamma=0.95, seed=seed)


def lattice(states: int, arrivals: tuple[float, float] = (0.45, 0.35)) -> ck.CMDP:
    return ck.problems.two_queues(capacity=round(states**0.5) - 1, arrivals=arrivals, gamma=0.999)


FAMILIES: dict[str, Callable[..., ck.CMDP]] = {"random": random_sparse, "million": million, "lattice": lattice}


def own_bytes(cmdp: ck.CMDP) -> int:
    matrix, tables = cmdp.transitions, [cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints)]
    return sum(part.nbytes for part in (matrix.data, matrix.indices, matrix.indptr, cmdp.costs, *tables))


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def ours(family: str, size: int, tol: float, repeat: bool) -> dict[str, float | str]:
    """Solve in this process."""
    before = resident()
    cmdp = FAMILIES[family](*((size,) if family != "million" else ()))
    times = []
    for _ in range(2 if repeat else 1):
        started = time.perf_counter()
        result = ck.solve(cmdp, tol=tol)
        times.append(time.perf_counter() - started)
    return {
        "status": result.status.name,
        "objective": result.objective,
        "first": times[0],
        "time": min(times),
        "calls": result.iterations,
        "gap": result.certificate.gap,
        "violation": result.certificate.violation,
        "memory": (resident() - before) / own_bytes(cmdp),
        "gigabytes": resident() / 1e9,
    }


def peer(family: str, size: int, method: str, limit: float) -> dict[str, float | str]:
    """The occupancy LP of the same model by another solver, in this process."""
    cmdp = FAMILIES[family](size)
    pairs, S, A = cmdp.states * cmdp.actions, cmdp.states, cmdp.actions
    leave = sp.csr_array((np.ones(pairs), (np.repeat(np.arange(S), A), np.arange(pairs))), shape=(S, pairs))
    flow = sp.csc_array(leave - cmdp.gamma * cmdp.transitions.T)
    started = time.perf_counter()
    if method == "pdlp":
        return pdlp(cmdp, flow, limit)
    from scipy.optimize import linprog

    answer = linprog(
        cmdp.costs[0],
        A_ub=sp.csr_array(cmdp.costs[1:]),
        b_ub=cmdp.offsets,
        A_eq=flow,
        b_eq=cmdp.initial,
        method=method,
        options={"time_limit": limit},
    )
    objective = cmdp.sense * answer.fun if answer.status == 0 else float("nan")
    return {
        "status": "ok" if answer.status == 0 else "time limit",
        "objective": objective,
        "time": time.perf_counter() - started,
    }


def pdlp(cmdp: ck.CMDP, flow: sp.csc_array, limit: float) -> dict[str, float | str]:
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp as solver

    program = solver.QuadraticProgram()
    program.objective_vector = cmdp.costs[0]
    program.constraint_matrix = sp.csc_matrix(sp.vstack([flow, sp.csr_array(cmdp.costs[1:])]))
    program.constraint_lower_bounds = np.append(cmdp.initial, np.full(cmdp.num_constraints, -np.inf))
    program.constraint_upper_bounds = np.append(cmdp.initial, cmdp.offsets)
    program.variable_lower_bounds = np.zeros(cmdp.costs.shape[1])
    program.variable_upper_bounds = np.full(cmdp.costs.shape[1], np.inf)
    options = solvers_pb2.PrimalDualHybridGradientParams()
    options.termination_criteria.time_sec_limit = limit
    options.termination_criteria.simple_optimality_criteria.eps_optimal_relative = 1e-6
    options.termination_criteria.simple_optimality_criteria.eps_optimal_absolute = 1e-6
    started = time.perf_counter()
    answer = solver.primal_dual_hybrid_gradient(program, options)
    optimal = answer.solve_log.termination_reason == solve_log_pb2.TERMINATION_REASON_OPTIMAL
    objective = cmdp.sense * float(cmdp.costs[0] @ answer.primal_solution) if optimal else float("nan")
    return {"status": "ok" if optimal else "time limit", "objective": objective, "time": time.perf_counter() - started}


def apart(*job: object, limit: float) -> dict[str, float | str]:
    """Run a job of this script in a process of its own, so that memory and libraries are its own."""
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 120.0, check=True)
    except subprocess.TimeoutExpired:
        return {"status": "time limit", "time": limit}
    except subprocess.CalledProcessError as error:
        return {"status": "not installed" if "ModuleNotFoundError" in error.stderr else "failed", "time": float("nan")}
    answer: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def table(rows: list[tuple[str, int, float, bool]], limit: float) -> None:
    print("| model | states | time (first solve) | calls | gap | memory | " + " | ".join(PEERS) + " |")
    print("|---" * (6 + len(PEERS)) + "|")
    for family, size, tol, with_peers in rows:
        mine = apart("ours", family, size, tol, size <= 100_000, limit=3600.0)
        cells = [f"{family} (tol {tol:g})", f"{size:,}"]
        if mine["status"] != "OPTIMAL":
            print("| " + " | ".join([*cells, str(mine["status"])]) + " |")
            continue
        cells += [f"{mine['time']:.3g} s ({mine['first']:.3g} s)", f"{mine['calls']}", f"{mine['gap']:.1e}"]
        # Beside a small model the compiler's own memory is all that one sees
        relative = f"{mine['memory']:.1f} x model, " if size >= 90_000 else ""
        cells += [f"{relative}{mine['gigabytes']:.2g} GB"]
        for method in PEERS.values():
            other = apart("peer", family, size, method, limit, limit=limit) if with_peers else {"status": "-"}
            if other["status"] != "ok":
                cells.append(f"> {limit:.0f} s" if other["status"] == "time limit" else str(other["status"]))
                continue
            agrees = abs(float(other["objective"]) - float(mine["objective"])) <= 1e-5 * abs(float(mine["objective"]))
            ratio = float(other["time"]) / float(mine["time"])
            cells.append(f"{other['time']:.3g} s = {ratio:.0f} x" + ("" if agrees else " (DISAGREES)"))
        print("| " + " | ".join(cells) + " |", flush=True)


def growth(limit: float) -> None:
    """How oracle calls grow with the constraints."""
    print("\n| constraints | oracle calls | time |\n|---|---|---|")
    for m in (1, 2, 3, 5, 10, 20):
        cmdp = random_sparse(3_000, seed=202, constraints=m)
        started = time.perf_counter()
        result = ck.solve(cmdp, time_limit=limit)
        print(
            f"| {m} | {result.iterations} ({result.status.name}) | {time.perf_counter() - started:.2f} s |", flush=True
        )


def best_of(times: int, run: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return min(taken)


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


def evaluations() -> None:
    """One evaluation of all costs at full accuracy, by each method."""
    chains = {
        "random graph, S = 3,000": random_sparse(3_000),
        "random graph, S = 100,000": random_sparse(100_000),
        "lattice, S = 90,000": lattice(90_000),
        "two halves, bridge 1e-3, S = 20,000": two_halves(20_000, 1e-3),
    }
    print("\n| one evaluation | chosen | sweeps | sparse LU | GMRES |\n|---|---|---|---|---|")
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
        print(f"| {name} | {plan.method} | {' | '.join(cells)} |", flush=True)


def bandwidth() -> None:
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
    print(f"\nBellman sweep, local columns: {speed:.1f} GB/s; copy: {copying:.1f} GB/s; ratio {speed / copying:.2f}")


def small() -> None:
    """The paper's instance against scipy's linprog on the same LP, and imports."""
    from scipy.optimize import linprog

    cmdp = ck.problems.paper()
    flow = (np.repeat(np.eye(20), 10, axis=0) - 0.8 * np.asarray(cmdp.transitions)).T

    mine = best_of(60, lambda: ck.solve(cmdp))
    limits = {"A_ub": cmdp.costs[1:], "b_ub": cmdp.offsets}
    lp = best_of(60, lambda: linprog(cmdp.costs[0], A_eq=flow, b_eq=cmdp.initial, **limits))
    print(f"\npaper's instance: solve {mine * 1e3:.2f} ms, linprog {lp * 1e3:.2f} ms, ratio {mine / lp:.2f}")

    def importing(name: str) -> float:
        return best_of(5, lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True))

    package, reference = importing("cmdpkit"), importing("scipy.sparse")
    print(f"import cmdpkit {package:.2f} s, import scipy.sparse {reference:.2f} s, ratio {package / reference:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and short time limits: about two minutes")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        kind, *rest = json.loads(arguments.job)
        print(json.dumps({"ours": ours, "peer": peer}[kind](*rest)))
        return
    limit = 20.0 if arguments.quick else 120.0
    rows = [("random", 1_000, 1e-6, True), ("random", 3_000, 1e-6, not arguments.quick), ("lattice", 2_500, 1e-6, True)]
    rows += [("random", 10_000, 1e-6, False), ("lattice", 10_000, 1e-6, False)]
    if not arguments.quick:
        rows += [
            ("random", 100_000, 1e-6, False),
            ("lattice", 90_000, 1e-6, False),
            ("million", 1_000_000, 1e-4, False),
        ]
    print(f"cmdpkit {ck.__version__}, peers limited to {limit:.0f} s\n")
    table(rows, limit)
    growth(limit)
    if not arguments.quick:
        evaluations()
    bandwidth()
    small()


if __name__ == "__main__":
    main()
