"""Finite horizons: how much more than plain backward sweeps a solve costs, and how much memory.

A backward sweep is V ← min_a c + P V over one stage with NumPy, SciPy or BLAS. The unit is T of them, in the same
process and in processor time: what the least possible oracle call costs. `call` is one call of the oracle in that unit
(the induction, the bound that it proves, and the values of all costs under the new policy), `solve` the whole of
`solve(model)` per oracle call, everything included: local models, blends, certificate, as few randomised states as
possible. Memory is the peak of the process above what it held before the model was made, in MB, and in brackets the
transitions of the model as they are given. HiGHS solves the LP over all stages where that is small enough.

    python benchmarks/horizon.py            # all models, each in a process of its own
    python benchmarks/horizon.py sparse-1000
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.exact.mdp import Oracle


class Size(NamedTuple):
    """A random model; `successors` of each pair, or 0 for a dense one."""

    states: int
    actions: int
    horizon: int
    successors: int
    limits: int = 3
    changing: bool = False
    by_lp: bool = False


SIZES = {
    "sparse-1000": Size(1_000, 10, 100, 10),
    "sparse-1000-wide": Size(1_000, 10, 100, 100),
    "dense-1000": Size(1_000, 10, 100, 0),
    "dense-300": Size(300, 10, 50, 0),
    "sparse-10000": Size(10_000, 5, 20, 10),
    "sparse-200-long": Size(200, 5, 500, 10),
    "changing-500": Size(500, 5, 50, 10, changing=True),
    "sparse-100-lp": Size(100, 4, 20, 5, by_lp=True),
    "dense-50-lp": Size(50, 4, 20, 0, by_lp=True),
}


TURNS = 3


def matrix(size: Size, rng: np.random.Generator) -> Any:
    pairs = size.states * size.actions
    if not size.successors:
        table = rng.random((pairs, size.states))
        table /= table.sum(axis=1, keepdims=True)
        return table
    columns = rng.integers(0, size.states, (pairs, size.successors))
    shares = rng.dirichlet(np.ones(size.successors), pairs)
    pointers = np.arange(0, columns.size + 1, size.successors)
    return sp.csr_array((shares.ravel(), columns.ravel(), pointers), shape=(pairs, size.states))


def model(size: Size, seed: int = 0) -> ck.CMDP:
    rng = np.random.default_rng(seed)
    tables = rng.random((size.limits + 1, size.states, size.actions))
    limits = [ck.AtMost(table, 0.45 * size.horizon, name=f"limit {i}") for i, table in enumerate(tables[1:])]
    P: Any = [matrix(size, rng) for _ in range(size.horizon)] if size.changing else matrix(size, rng)
    if not size.successors:
        P = P.reshape(size.states, size.actions, size.states)
    return ck.CMDP(P, reward=tables[0], constraints=limits, horizon=size.horizon, initial=0, action_axis=1)


def seconds(run: Any, times: int) -> float:
    """Processor time of the fastest of some runs."""
    found = []
    for _ in range(times):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return min(found)


def sweeps(cmdp: ck.CMDP) -> None:
    each = cmdp.transitions if isinstance(cmdp.transitions, tuple) else (cmdp.transitions,) * (cmdp.horizon or 1)
    cost, value = np.asarray(cmdp.objective), np.zeros(cmdp.states)
    for P in reversed(each):
        value = (cost + (P @ value).reshape(cost.shape)).min(axis=1)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def transitions_bytes(cmdp: ck.CMDP) -> float:
    each = cmdp.transitions if isinstance(cmdp.transitions, tuple) else (cmdp.transitions,)
    return float(sum(m.data.nbytes + (m.indices.nbytes if sp.issparse(m) else 0) for m in each))


def by_highs(cmdp: ck.CMDP) -> tuple[float, float]:
    """Seconds and optimum of the LP over all stages."""
    from scipy.optimize import linprog

    T, S, P = cmdp.horizon or 1, cmdp.states, sp.csr_array(cmdp.transitions)
    leave = sp.csr_array((np.ones(cmdp.pairs.count), (cmdp.pairs.state, np.arange(cmdp.pairs.count))), (S, P.shape[0]))
    balance = sp.kron(sp.eye_array(T), leave) - sp.kron(sp.eye_array(T, k=-1), P.T)
    rows = np.array([np.tile(np.ravel(c.values), T) for c in cmdp.constraints])
    begin = time.process_time()
    found = linprog(
        -np.tile(cmdp.objective.ravel(), T),
        A_ub=rows,
        b_ub=cmdp.limits,
        A_eq=balance,
        b_eq=np.append(cmdp.initial, np.zeros((T - 1) * S)),
        method="highs",
    )
    return time.process_time() - begin, -found.fun


def measure(name: str) -> str:
    size = SIZES[name]
    ck.solve(model(SIZES["sparse-100-lp"]._replace(horizon=60)))  # imports and compiles
    before = peak()
    cmdp = model(size)
    result = ck.solve(cmdp)
    grown = (peak() - before) / 1e6
    oracle, weights = Oracle(cmdp.lowering.model), np.append(1.0, np.full(size.limits, 0.3))
    runs = (lambda: sweeps(cmdp), lambda: oracle.minimise(weights), lambda: ck.solve(cmdp))
    # They take turns, because the machine may be shared
    unit, call, whole = np.min([[seconds(run, 2) for run in runs] for _ in range(TURNS)], axis=0)
    text = f"{name:<18}{result.status.name:>9}{result.iterations:>7}{unit:>10.4f}{call / unit:>8.2f}"
    text += f"{whole / unit / max(result.iterations, 1):>8.2f}{whole:>9.2f}{grown:>9.0f}"
    text += f" ({transitions_bytes(cmdp) / 1e6:.0f})"
    if size.by_lp:
        highs, optimum = by_highs(cmdp)
        agree = abs(optimum - result.objective) <= 1e-5 * max(1.0, abs(optimum))
        text += f"   HiGHS {highs:.2f} s ({'agrees' if agree else 'DIFFERS'})"
    return text


def main() -> int:
    if len(sys.argv) == 2:
        print(measure(sys.argv[1]))
        return 0
    print(f"{'model':<18}{'status':>9}{'calls':>7}{'T sweeps':>10}{'call':>8}{'solve':>8}{'seconds':>9}{'memory':>9}")
    for name in SIZES:
        subprocess.run([sys.executable, __file__, name], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
