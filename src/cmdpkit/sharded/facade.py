"""`solve` for sharded models: checks its arguments, brings the blocks to where they are solved, returns a `Result`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from cmdpkit.checks import Array, check_count
from cmdpkit.model.sharded import ShardedCMDP
from cmdpkit.rules.growing import GrowingPMDPD
from cmdpkit.run.budget import Budget
from cmdpkit.run.choice import choose
from cmdpkit.run.result import Result
from cmdpkit.settings import TabularSettings
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.first_order import FirstOrder
from cmdpkit.sharded.folder import check_folder
from cmdpkit.sharded.mirror import build_shard
from cmdpkit.sharded.solve import Columns

ITERATIONS = 300
"""Default of max_iterations for pmd-pd."""

METHODS = ("auto", "columns", "pmd-pd")

ARGUMENTS = "method, tol, max_iterations, time_limit, progress, callback, checkpoint, resume, cluster and workers"

MIRROR_OPTIONS = ("growth", "initial_multipliers")
"""What pmd-pd takes here; its steps grow."""


def solve_sharded(
    model: ShardedCMDP,
    method: Any,
    tol: float,
    budget: Budget,
    cluster: str | None,
    checkpoint: Any = None,
    resume: bool | None = None,
    workers: int | None = None,
    **options: Any,
) -> Result:
    """Solve a sharded model in this process, or on the workers of a cluster.

    Args:
        model: the model.
        method: "auto" or "columns", which are the same here, or "pmd-pd" (with growing steps).
        tol: as for `solve`.
        budget: limits of the run.
        cluster: "local", "auto" or an address; None keeps all blocks in this process.
        checkpoint: a folder, which all workers can reach, to continue from when this process is lost.
        resume: as for `solve`.
        workers: number of processes that hold the blocks, by default one per processor of the cluster.
        **options: `growth` and `initial_multipliers` of pmd-pd.
    """
    mirror = _mirror(model, method, options)
    if workers is not None:
        check_count(workers, "workers", least=1)
        if cluster is None:
            raise ValueError('workers is the number of processes on a cluster; give cluster="local" with it')
    if tol == 0.0:
        raise ValueError("tol must be positive for a sharded model: its values are found by sweeps")
    folder = check_folder(checkpoint, resume)
    with _crew(model, cluster, workers) as crew:
        if mirror is None:
            outcome = Columns(crew, tol, budget, folder).solve()
        else:
            budget.max_iterations = ITERATIONS if budget.max_iterations is None else budget.max_iterations
            outcome = FirstOrder(crew, tol, budget, folder, *mirror).solve()
    return outcome.result(model, method if isinstance(method, str) else "pmd-pd", budget.elapsed)


def _mirror(model: ShardedCMDP, method: Any, options: dict[str, Any]) -> tuple[GrowingPMDPD, Array | None] | None:
    """The rule of pmd-pd, and the multipliers that it starts from; None for the other methods."""
    if method in METHODS[:2]:
        if options:
            raise ValueError(f"unknown option {next(iter(options))!r} for a ShardedCMDP, which takes {ARGUMENTS}")
        return None
    if method != METHODS[2] and not isinstance(method, GrowingPMDPD):
        raise ValueError(f"method {method!r} does not know sharded models; choose one of {', '.join(METHODS)}")
    choice = choose(method, options, "exact", TabularSettings, model.num_constraints, f" (besides {ARGUMENTS})")
    wrong = [name for name in choice.given if name not in MIRROR_OPTIONS]
    if wrong or not isinstance(choice.rule, GrowingPMDPD):
        name = repr(wrong[0]) if wrong else f"steps={options.get('steps')!r}"
        raise ValueError(
            f"on a ShardedCMDP pmd-pd has growing steps and starts from the uniform policy; leave out {name} (it takes "
            f"{' and '.join(MIRROR_OPTIONS)})"
        )
    start = choice.settings.initial_multipliers
    return choice.rule, None if start is None else model.check_prices(start, "initial_multipliers")


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
