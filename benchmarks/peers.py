"""Models of growing size, and solvers for them: ours and the peers, each run in a process of its own.

A process of its own keeps memory apart, ends a solver that ignores its time limit, and is needed anyway: highspy and
OR-Tools cannot share one. The peers get the occupancy LP of the same model, built before the clock starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck

Answer = dict[str, Any]


def random_sparse(states: int, seed: int = 101, constraints: int = 3) -> ck.CMDP:
    return ck.problems.garnet(states, actions=10, successors=5, constraints=constraints, gamma=0.99, seed=seed)


def random_four_actions(states: int, seed: int = 101) -> ck.CMDP:
    return ck.problems.garnet(states, actions=4, successors=5, constraints=2, gamma=0.95, seed=seed)


def queues(states: int) -> ck.CMDP:
    return ck.problems.two_queues(capacity=round(states**0.5) - 1, arrivals=(0.45, 0.35), gamma=0.999)


def grid(states: int) -> ck.CMDP:
    return ck.problems.grid(rows=round(states**0.5), columns=round(states**0.5), gamma=0.999)


def inventory(states: int) -> ck.CMDP:
    return ck.problems.inventory(capacity=states - 1)


def paper(states: int = 20) -> ck.CMDP:
    return ck.problems.paper()


FAMILIES: dict[str, Callable[..., ck.CMDP]] = {
    "random sparse": random_sparse,
    "random sparse, A = 4": random_four_actions,
    "two queues": queues,
    "grid with unsafe cells": grid,
    "inventory": inventory,
    "the paper's": paper,
}

WARM_UP = {"random sparse": 2_500, "inventory": 2_500, "the paper's": 20}
"""States of a model of the family that is solved first, to load libraries and compiled code; 10,000 if not here."""


# -- ours ------------------------------------------------------------------------------------------------------------


def ours(family: str, size: int, method: str, tol: float, limit: float) -> Answer:
    """Best of two solves up to 100,000 states; memory is the growth of the process, with the model itself in it."""
    make = FAMILIES[family]
    started = time.perf_counter()
    ck.solve(make(WARM_UP.get(family, 10_000)), method, tol=tol)
    first = time.perf_counter() - started
    return_free_memory()
    before = resident("VmRSS")
    cmdp = make(size)
    times = []
    for _ in range(2 if size <= 100_000 else 1):
        started = time.perf_counter()
        result = ck.solve(cmdp, method, tol=tol, time_limit=limit)
        times.append(time.perf_counter() - started)
    return {
        "status": "ok" if result.status is ck.Status.OPTIMAL else result.status.name.lower().replace("_", " "),
        "objective": result.objective,
        "time": min(times),
        "warm up": first,
        "iterations": result.iterations,
        "gap": result.certificate.gap,
        "violation": result.certificate.violation,
        "memory": (resident("VmHWM") - before) / own_bytes(cmdp),
        "gigabytes": resident("VmHWM") / 1e9,
    }


def return_free_memory() -> None:
    """What the warm-up has freed must not be there for the model to use, or it would not be counted."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def own_bytes(cmdp: ck.CMDP) -> int:
    matrix, tables = cmdp.transitions, [cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints)]
    arrays = [matrix.data, matrix.indices, matrix.indptr] if sp.issparse(matrix) else [np.asarray(matrix)]
    return sum(part.nbytes for part in (*arrays, *tables))  # what the user gave


def resident(field: str) -> float:
    """VmRSS is the memory of this process now, VmHWM the most that it had, in bytes."""
    try:
        with open("/proc/self/status") as status:
            return next(float(line.split()[1]) * 1024.0 for line in status if line.startswith(field))
    except FileNotFoundError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


# -- peers -----------------------------------------------------------------------------------------------------------


class OccupancyLP:
    """minimise c·x subject to lower ≤ matrix·x ≤ upper, x ≥ 0: flow balance in every state, then the limits."""

    def __init__(self, cmdp: ck.CMDP) -> None:
        self.cmdp = cmdp
        states, pairs = cmdp.states, cmdp.states * cmdp.actions
        rows = np.repeat(np.arange(states), cmdp.actions)
        leave = sp.csr_array((np.ones(pairs), (rows, np.arange(pairs))), shape=(states, pairs))
        flow = leave - cmdp.gamma * sp.csr_array(cmdp.transitions).T
        self.cost = cmdp.costs[0]
        self.matrix = sp.csc_matrix(sp.vstack([flow, sp.csr_array(cmdp.costs[1:])]))
        self.lower = np.append(cmdp.initial, np.full(cmdp.num_constraints, -np.inf))
        self.upper = np.append(cmdp.initial, cmdp.offsets)
        self.storm: tuple[Any, str, float] | None = None


def scipy_highs(method: str) -> Callable[[OccupancyLP, float], tuple[bool, float]]:
    def solve(lp: OccupancyLP, limit: float) -> tuple[bool, float]:
        from scipy.optimize import linprog

        states = lp.cmdp.states
        answer = linprog(
            lp.cost,
            A_ub=lp.matrix[states:],
            b_ub=lp.upper[states:],
            A_eq=lp.matrix[:states],
            b_eq=lp.upper[:states],
            method=method,
            options={"time_limit": limit},
        )
        return answer.status == 0, float(answer.fun) if answer.status == 0 else float("nan")

    return solve


def highs_pdlp(lp: OccupancyLP, limit: float) -> tuple[bool, float]:
    import highspy

    solver, program = highspy.Highs(), highspy.HighsLp()
    program.num_col_, program.num_row_ = lp.matrix.shape[1], lp.matrix.shape[0]
    program.col_cost_, program.row_lower_, program.row_upper_ = lp.cost, lp.lower, lp.upper
    program.col_lower_, program.col_upper_ = np.zeros(lp.cost.size), np.full(lp.cost.size, np.inf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_, program.a_matrix_.index_ = lp.matrix.indptr, lp.matrix.indices
    program.a_matrix_.value_ = lp.matrix.data
    options = {"output_flag": False, "solver": "pdlp", "time_limit": limit, "kkt_tolerance": 1e-6}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(program)
    solver.run()
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return optimal, float(solver.getInfo().objective_function_value)


def ortools_pdlp(lp: OccupancyLP, limit: float) -> tuple[bool, float]:
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp

    program = pdlp.QuadraticProgram()
    program.objective_vector, program.constraint_matrix = lp.cost, lp.matrix
    program.constraint_lower_bounds, program.constraint_upper_bounds = lp.lower, lp.upper
    program.variable_lower_bounds = np.zeros(lp.cost.size)
    program.variable_upper_bounds = np.full(lp.cost.size, np.inf)
    options = solvers_pb2.PrimalDualHybridGradientParams()
    options.termination_criteria.time_sec_limit = limit
    options.termination_criteria.simple_optimality_criteria.eps_optimal_relative = 1e-6
    options.termination_criteria.simple_optimality_criteria.eps_optimal_absolute = 1e-6
    answer = pdlp.primal_dual_hybrid_gradient(program, options)
    optimal = answer.solve_log.termination_reason == solve_log_pb2.TERMINATION_REASON_OPTIMAL
    return optimal, float(lp.cost @ answer.primal_solution)


def storm(lp: OccupancyLP, limit: float) -> tuple[bool, float]:
    """Storm's multi-objective engine on totals until an end that every step reaches with probability 1 − γ."""
    import stormpy

    model, formula, precision = storm_model(lp)
    environment = stormpy.Environment()
    environment.modelchecker().multi().precision = stormpy.Rational(precision)
    answer = stormpy.model_checking(model, *stormpy.parse_properties(formula), environment=environment)
    met = hasattr(answer, "get_value")
    return met, lp.cmdp.sense * float(answer.get_value(model.initial_states[0])) if met else float("nan")


def storm_model(lp: OccupancyLP) -> tuple[Any, str, float]:
    """The model and the query, kept; the precision is ours, relative to the value of the uniform policy."""
    import stormpy

    if lp.storm is None:
        cmdp = lp.cmdp
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.drn"
            killed(cmdp).to_drn(path)
            model = stormpy.build_model_from_drn(str(path))
        kind = "max" if cmdp.maximise else "min"
        bounds = []
        for row in cmdp.rows:
            total = row.limit / (1.0 - cmdp.gamma) if row.per_step else row.limit
            bounds.append(f'R{{"{word(row.name)}"}}{row.symbol}{total:.17g} [C]')
        formula = f'multi({", ".join([f"""R{{"{"reward" if cmdp.maximise else "cost"}"}}{kind}=? [C]""", *bounds])})'
        typical = ck.evaluate(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)).objective
        lp.storm = model, formula, 1e-6 * max(1.0, abs(typical))
    return lp.storm


def word(name: str) -> str:
    return name.replace(" ", "_")


def killed(cmdp: ck.CMDP) -> ck.CMDP:
    """The same with two more states: the end, and a start from which a step leads to the initial distribution."""
    states, actions = cmdp.states, cmdp.actions
    matrix = cmdp.gamma * sp.csr_array(cmdp.transitions)
    ends = sp.csr_array(1.0 - np.asarray(matrix.sum(axis=1)).reshape(-1, 1))
    inside = sp.hstack([matrix, ends, sp.csr_array((states * actions, 1))])
    end = sp.csr_array((np.ones(actions), (np.arange(actions), np.full(actions, states))), shape=(actions, states + 2))
    start = sp.csr_array(np.tile(np.append(cmdp.initial, [0.0, 0.0]), (actions, 1)))
    nothing = np.zeros((2, actions))
    tables = [np.vstack([np.asarray(c.values), nothing]) for c in cmdp.rows]
    limits = [ck.AtMost(table, 0.0, name=word(row.name)) for table, row in zip(tables, cmdp.rows, strict=True)]
    goal = {"reward" if cmdp.maximise else "cost": np.vstack([np.asarray(cmdp.objective), nothing])}
    transitions = sp.csr_array(sp.vstack([inside, end, start]))
    return ck.CMDP(transitions, constraints=limits, gamma=0.5, initial=states + 1, **goal)


PREPARE: dict[str, Callable[[OccupancyLP], object]] = {"Storm": storm_model}
"""What a peer does before the clock starts."""

PEERS: dict[str, Callable[[OccupancyLP, float], tuple[bool, float]]] = {
    "HiGHS simplex": scipy_highs("highs-ds"),
    "HiGHS interior point": scipy_highs("highs-ipm"),
    "HiGHS PDLP": highs_pdlp,
    "OR-Tools PDLP": ortools_pdlp,
    "Storm": storm,
}


def peer(family: str, size: int, name: str, limit: float) -> Answer:
    PEERS[name](OccupancyLP(paper()), limit)  # loads the libraries
    lp = OccupancyLP(FAMILIES[family](size))
    if name in PREPARE:
        PREPARE[name](lp)
    times: list[float] = []
    while not times or (len(times) == 1 and times[0] < 5.0):  # the better of two, where that is cheap
        started = time.perf_counter()
        optimal, value = PEERS[name](lp, limit)
        times.append(time.perf_counter() - started)
    taken = min(times)
    status = "ok" if optimal else "time limit" if taken >= 0.9 * limit else "failed"
    return {
        "status": status,
        "objective": lp.cmdp.sense * value,
        "time": taken,
        "gigabytes": resident("VmHWM") / 1e9,
    }


# -- processes -------------------------------------------------------------------------------------------------------


def apart(*job: object, limit: float) -> Answer:
    """Run a job in a process of its own: ("ours", family, size, method, tol, limit) or ("peer", ...)."""
    command = [sys.executable, __file__, json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1.5 * limit + 60.0, check=True)
    except subprocess.TimeoutExpired:
        return {"status": "time limit", "time": limit}
    except subprocess.CalledProcessError as error:
        return {"status": "not installed" if "ModuleNotFoundError" in error.stderr else "failed", "time": float("nan")}
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    kind, *rest = json.loads(sys.argv[1])
    print(json.dumps({"ours": ours, "peer": peer}[kind](*rest)))
