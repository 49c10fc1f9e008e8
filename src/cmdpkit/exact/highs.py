"""HiGHS where it can be stopped: large LPs are solved in a process of their own, which ends when the caller says so.

Run as a program (`python -m cmdpkit.exact.highs IN OUT`) it solves the LP of one file and writes the answer to another;
the files hold plain arrays.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.files import load_arrays, save_arrays

KIND = "cmdpkit linear program"
OUT_OF_BUDGET = 1
"""Status of an LP that was stopped, as SciPy numbers them."""

POLL = 0.02
"""Seconds between two looks at the clock."""


class Answer(NamedTuple):
    """What `scipy.optimize.linprog` answered."""

    status: int  # 0 optimal, 1 out of budget, 2 infeasible, 3 unbounded, 4 numerical trouble
    message: str
    x: Array | None = None
    prices: Array | None = None  # of the inequality rows: marginals, at most 0
    iterations: int = 0


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
    with tempfile.TemporaryDirectory(prefix="cmdpkit-") as folder:
        problem, answer = Path(folder) / "problem.npz", Path(folder) / "answer.npz"
        arrays = {"cost": cost, "limits": limits, "right": right, "free": free, "method": method}
        arrays |= {f"option_{name}": value for name, value in options.items()}
        save_arrays(problem, KIND, arrays | _parts("rows", rows) | _parts("balance", balance), compress=False)
        command = [sys.executable, "-m", "cmdpkit.exact.highs", str(problem), str(answer)]
        # A session of its own: Ctrl-C is for this process to handle
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            while worker.poll() is None:
                if stop():
                    return Answer(OUT_OF_BUDGET, "The LP was stopped.")
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
    return Answer(int(arrays["status"]), str(arrays["message"]), x, arrays["prices"], int(arrays["iterations"]))


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


def _main(problem: str, target: str) -> None:
    arrays = load_arrays(problem, KIND)
    options = {n.removeprefix("option_"): float(value) for n, value in arrays.items() if n.startswith("option_")}
    if "maxiter" in options:
        options["maxiter"] = int(options["maxiter"])
    numbers = (arrays["cost"], _matrix("rows", arrays), arrays["limits"], _matrix("balance", arrays), arrays["right"])
    answer = _linprog(*numbers, int(arrays["free"]), str(arrays["method"]), options)
    tables = {"x": answer.x, "prices": answer.prices}
    plain = {"status": answer.status, "message": answer.message, "iterations": answer.iterations}
    save_arrays(
        target,
        KIND,
        plain | {n: np.zeros(0) if table is None else table for n, table in tables.items()},
        compress=False,
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
