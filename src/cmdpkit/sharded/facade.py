"""`solve` for sharded models: checks its arguments, brings the blocks to where they are solved, returns a `Result`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from cmdpkit.checks import check_count
from cmdpkit.model.sharded import ShardedCMDP
from cmdpkit.run.budget import Budget
from cmdpkit.run.result import Result
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.first_order import FirstOrder
from cmdpkit.sharded.mirror import build_shard
from cmdpkit.sharded.solve import Columns, check_folder

ITERATIONS = 300
"""Default of max_iterations for pmd-pd."""

METHODS = ("auto", "columns", "pmd-pd")


def solve_sharded(
    model: ShardedCMDP,
    method: Any,
    tol: float,
    budget: Budget,
    cluster: str | None,
    checkpoint: Any = None,
    workers: int | None = None,
) -> Result:
    """Solve a sharded model in this process, or on the workers of a cluster.

    Args:
        model: the model.
        method: "auto" or "columns", which are the same here, or "pmd-pd" (with growing steps).
        tol: as for `solve`.
        budget: limits of the run.
        cluster: "local", "auto" or an address; None keeps all blocks in this process.
        checkpoint: a folder, which all workers can reach, to continue from when this process is lost.
        workers: number of processes that hold the blocks, by default one per processor of the cluster.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} does not know sharded models; choose one of {', '.join(METHODS)}")
    if workers is not None:
        check_count(workers, "workers", least=1)
        if cluster is None:
            raise ValueError('workers is the number of processes on a cluster; give cluster="local" with it')
    if tol == 0.0:
        raise ValueError("tol must be positive for a sharded model: its values are found by sweeps")
    if method == "pmd-pd" and checkpoint is not None:
        raise ValueError("method 'pmd-pd' keeps no checkpoint of a sharded model; 'auto' does")
    if method == "pmd-pd" and budget.max_iterations is None:
        budget.max_iterations = ITERATIONS
    folder = check_folder(checkpoint)
    with _crew(model, cluster, workers) as crew:
        if method == "pmd-pd":
            outcome = FirstOrder(crew, tol, budget).solve()
        else:
            outcome = Columns(crew, tol, budget, folder).solve()
    certificate = outcome.certificate
    return Result(
        status=outcome.status,
        policy=outcome.policy,
        objective=certificate.objective,
        constraint_values=certificate.constraint_values,
        violations=certificate.violations,
        multipliers=certificate.multipliers,
        certificate=certificate,
        history=outcome.history,
        iterations=outcome.iterations,
        time=budget.elapsed,
        method=method,
        message=" ".join(part for part in (outcome.status.advice, outcome.note) if part),
        model=model,
    )


@contextlib.contextmanager
def _crew(model: ShardedCMDP, cluster: str | None, workers: int | None) -> Iterator[Crew]:
    """The blocks, built; gone afterwards."""
    if cluster is None:
        yield Crew.in_process(model)
        return
    from cmdpkit.cluster.actors import Workers
    from cmdpkit.cluster.session import connect, processors

    with connect(cluster):
        count = min(workers or processors(), model.blocks)
        hosts = Workers(partial(build_shard, model, max(1, processors() // count)), model.blocks, count)
        try:
            yield Crew(model, hosts)
        finally:
            hosts.close()
