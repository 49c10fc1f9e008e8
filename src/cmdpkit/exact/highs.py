"""HiGHS where it can be stopped: large LPs are solved in a process of their own, which ends when the caller says so.

Run as a program (`python -m cmdpkit.exact.highs IN OUT`) it solves the LP of one file and writes the answer to another;
the files hold plain arrays.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.files import load_arrays, save_arrays

KIND = "cmdpkit linear program"
OUT_OF_BUDGET, NO_SOLUTION = 1, 2
"""Status of a problem that was stopped, and of one without a solution, as SciPy numbers them."""

GAP = 1e-9
"""Relative gap at which branch and bound ends."""

POLL = 0.02
"""Seconds between two looks at the clock."""


LEAVE = 0.8
"""Part of the time that branch and bound may use in a process of its own."""


class Answer(NamedTuple):
    """What `scipy.optimize.linprog` or `milp` answered."""

    status: int  # 0 optimal, 1 out of budget, 2 infeasible, 3 unbounded, 4 numerical trouble
    message: str
    x: Array | None = None
    prices: Array | None = None  # of the inequality rows: marginals, at most 0
    iterations: int = 0
    bound: float = -np.inf  # of branch and bound: HiGHS claims that no solution is below


def solve(
    cost: Array,
    rows: Any,
    limits: Array,
    balance: Any,
    right: Array,
    free: int,
    method: str,
    options: dict[str, float],
    stop: Callable[[], bool] | None = None,
) -> Answer:
    """min cost·x subject to rows·x ≤ limits, balance·x = right, x ≥ 0 but for the last `free` variables.

    With `stop` the LP is solved in another process, and given up as soon as it returns True.
    """
    if stop is None or not sys.executable:
        return _linprog(cost, rows, limits, balance, right, free, method, options)
    arrays = {"cost": cost, "limits": limits, "right": right, "free": free, "method": method}
    arrays |= {f"option_{name}": value for name, value in options.items()}
    return _apart(arrays | _parts("rows", rows) | _parts("balance", balance), stop)


def solve_mixed(
    cost: Array,
    matrix: Any,
    low: Array,
    high: Array,
    upper: Array,
    whole: Array,
    time_limit: float | None,
    stop: Callable[[], bool] | None = None,
) -> Answer:
    """min cost·x subject to low ≤ matrix·x ≤ high and 0 ≤ x ≤ upper, with whole numbers where `whole` is 1."""
    limit = np.inf if time_limit is None else time_limit
    if stop is None or not sys.executable:
        return _milp(cost, matrix, low, high, upper, whole, limit)
    arrays = {"cost": cost, "low": low, "high": high, "upper": upper, "whole": whole, "ends": time.time() + limit}
    return _apart(arrays | _parts("matrix", matrix), stop)


def _apart(arrays: dict[str, Any], stop: Callable[[], bool]) -> Answer:
    """Solve in another process."""
    with tempfile.TemporaryDirectory(prefix="cmdpkit-") as folder:
        problem, answer = Path(folder) / "problem.npz", Path(folder) / "answer.npz"
        save_arrays(problem, KIND, arrays, compress=False)
        command = [sys.executable, "-m", "cmdpkit.exact.highs", str(problem), str(answer)]
        # A session of its own: Ctrl-C is for this process to handle
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            while worker.poll() is None:
                if stop():
                    return Answer(OUT_OF_BUDGET, "HiGHS was stopped.")
                time.sleep(POLL)
        finally:
            worker.kill()
            worker.wait()
        if worker.returncode or not answer.exists():
            return Answer(4, f"HiGHS ended with code {worker.returncode}.")
        return _read(load_arrays(answer, KIND))


def _parts(name: str, matrix: Any) -> dict[str, Any]:
    table = sp.csr_array(matrix)
    return {f"{name}_data": table.data, f"{name}_indices": table.indices, f"{name}_indptr": table.indptr} | {
        f"{name}_shape": np.array(table.shape)
    }


def _matrix(name: str, arrays: dict[str, Any]) -> Any:
    parts = tuple(arrays[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_array(parts, shape=tuple(arrays[f"{name}_shape"]))


def _read(arrays: dict[str, Any]) -> Answer:
    x = arrays["x"] if arrays["x"].size else None
    numbers = int(arrays["iterations"]), float(arrays["bound"])
    return Answer(int(arrays["status"]), str(arrays["message"]), x, arrays["prices"], *numbers)


def _linprog(
    cost: Array, rows: Any, limits: Array, balance: Any, right: Array, free: int, method: str, options: dict[str, float]
) -> Answer:
    from scipy.optimize import linprog

    has_rows = len(limits) > 0
    answer = linprog(
        cost,
        A_ub=sp.csr_array(rows) if has_rows else None,
        b_ub=limits if has_rows else None,
        A_eq=sp.csr_array(balance),
        b_eq=right,
        bounds=[(0.0, None)] * (cost.size - free) + [(None, None)] * free if free else (0.0, None),
        method=method,
        options=options,
    )
    solved = answer.status == 0 and answer.x is not None
    prices = answer.ineqlin.marginals if solved and has_rows else np.zeros(0)
    return Answer(int(answer.status), str(answer.message), answer.x if solved else None, prices, int(answer.nit or 0))


def _milp(cost: Array, matrix: Any, low: Array, high: Array, upper: Array, whole: Array, time_limit: float) -> Answer:
    from scipy.optimize import Bounds, LinearConstraint, milp

    options = {"mip_rel_gap": GAP} | ({} if np.isinf(time_limit) else {"time_limit": max(time_limit, 1e-3)})
    rows = LinearConstraint(sp.csr_array(matrix), low, high)
    with _told_on_stderr():
        answer = milp(cost, integrality=whole, bounds=Bounds(0.0, upper), constraints=rows, options=options)
    bound = -np.inf if answer.mip_dual_bound is None else float(answer.mip_dual_bound)
    return Answer(int(answer.status), str(answer.message), answer.x, np.zeros(0), answer.mip_node_count or 0, bound)


@contextlib.contextmanager
def _told_on_stderr() -> Iterator[None]:
    """Branch and bound prints notes of its own, whatever it is asked: keep them out of what callers print."""
    try:
        kept = os.dup(1)
    except OSError:  # no standard output
        yield
        return
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _solved(arrays: dict[str, Any]) -> Answer:
    if "whole" in arrays:
        low, high, upper, whole = (arrays[name] for name in ("low", "high", "upper", "whole"))
        left = LEAVE * (float(arrays["ends"]) - time.time())  # and time to hand over what was found
        return _milp(arrays["cost"], _matrix("matrix", arrays), low, high, upper, whole, left)
    options = {n.removeprefix("option_"): float(value) for n, value in arrays.items() if n.startswith("option_")}
    if "maxiter" in options:
        options["maxiter"] = int(options["maxiter"])
    numbers = (arrays["cost"], _matrix("rows", arrays), arrays["limits"], _matrix("balance", arrays), arrays["right"])
    return _linprog(*numbers, int(arrays["free"]), str(arrays["method"]), options)


def _main(problem: str, target: str) -> None:
    answer = _solved(load_arrays(problem, KIND))
    tables = {"x": answer.x, "prices": answer.prices}
    plain = {name: getattr(answer, name) for name in ("status", "message", "iterations", "bound")}
    save_arrays(
        target,
        KIND,
        plain | {n: np.zeros(0) if table is None else table for n, table in tables.items()},
        compress=False,
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
