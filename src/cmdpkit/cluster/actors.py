"""Objects on the workers of a Ray cluster: blocks of something large, which answer to calls and send messages.

A worker is an actor that holds some blocks. A call on a block is one task: its numbers and its messages are references,
which other calls take before they exist, and Ray delivers the messages through shared memory, without the driver. With
several blocks on a worker, the messages of one travel while the next is computed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cmdpkit.cluster.faults import BlocksLost
from cmdpkit.cluster.pool import put

PLACED = 60.0
"""Seconds in which the cluster must find a place for a worker that was lost."""

ALIVE = 120.0
"""Seconds in which a worker must have finished what nobody waits for any more; one that has not is replaced."""

QUIET = "RAY_IGNORE_UNHANDLED_ERRORS"
"""Without this, Ray prints every call that failed because an earlier one did."""


class Host:
    """The blocks of one worker."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.table = np.empty(0)  # of joined messages

    def build(self, number: int, made: bytes) -> None:
        import pickle

        try:
            make = pickle.loads(made)  # sent by the program that started this worker, never read from a file
        except Exception as error:
            raise RuntimeError(
                f"a worker cannot load what builds its blocks ({type(error).__name__}: {error}); define it in the "
                "program itself, or in a module that is installed on every node"
            ) from error
        self.blocks[number] = make(number)

    def call(self, number: int, method: str, args: tuple[Any, ...], returns: int, *inbox: Any) -> Any:
        numbers, messages = getattr(self.blocks[number], method)(list(inbox), *args)
        if len(messages) != returns:
            raise AssertionError(f"{method} sent {len(messages)} messages, not {returns}")
        return (numbers, *messages) if returns else numbers

    def join(self, *messages: Any) -> Any:
        """Messages as one table, for all blocks of this worker's node."""
        if self.table.shape != (sum(map(len, messages)), *messages[0].shape[1:]):
            self.table = np.concatenate(messages)  # kept: fresh memory costs as much as the copy
        else:
            np.concatenate(messages, out=self.table)
        return self.table

    def where(self) -> int:
        """The process id."""
        return os.getpid()

    def node(self) -> str:
        """The name of the node on which it runs."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class Workers:
    """Blocks on the workers of the connected cluster.

    Args:
        make: called with the number of a block on the worker that holds it.
        count: number of blocks.
        workers: number of workers; blocks that follow each other share one.
    """

    def __init__(self, make: Callable[[int], Any], count: int, workers: int) -> None:
        os.environ.setdefault(QUIET, "1")
        self._make, self._count = put(_pickled(make)), count
        workers = min(workers, count)
        self._home = [number * workers // count for number in range(count)]
        self._hosts: list[Any] = [None] * workers  # started by `repair`
        self._nodes: list[str] = []  # of the workers

    def call(
        self, method: str, args: tuple[Any, ...], inboxes: Sequence[list[Any]] | None, returns: Sequence[int]
    ) -> list[tuple[Any, list[Any]]]:
        """Submit a call to every block; of each, a reference to its numbers and references to its messages."""
        handles = []
        with self._losses():
            for number in range(self._count):
                inbox = inboxes[number] if inboxes else []
                sent = returns[number]
                task = self._hosts[self._home[number]].call.options(num_returns=1 + sent)
                found = task.remote(number, method, args, sent, *inbox)
                handles.append((found[0], list(found[1:])) if sent else (found, []))
        return handles

    def join(self, messages: Sequence[Any]) -> list[Any]:
        """For every block, a reference to one table of all messages, which is put together once per node."""
        tables: dict[str, Any] = {}
        with self._losses():
            for host, node in zip(self._hosts, self._nodes, strict=True):
                if node not in tables:
                    tables[node] = host.join.remote(*messages)
        return [tables[self._nodes[home]] for home in self._home]

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """Wait for numbers."""
        import ray

        with self._losses():
            try:
                found: list[Any] = ray.get(list(handles))
            except Exception:
                for handle in handles:  # of several errors the first in this order, whoever was faster
                    ray.get(handle)
                raise
        return found

    def one(self, block: int, method: str, args: tuple[Any, ...]) -> Any:
        """The numbers of one block."""
        return self.get([self._hosts[self._home[block]].call.remote(block, method, args, 0)])[0]

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [int(found) for found in self.get([host.where.remote() for host in self._hosts])]

    def repair(self) -> None:
        """Start workers that are missing or do not answer, and build their blocks."""
        dead = self._dead()
        if dead:
            self._place(dead)

    def close(self) -> None:
        """End all workers."""
        import ray

        for host in self._hosts:
            if host is not None:
                with contextlib.suppress(Exception):  # it is gone, or the cluster is
                    ray.kill(host)
        self._hosts = [None] * len(self._hosts)

    # -- losses ---------------------------------------------------------------------------------------------------

    def _place(self, which: Any) -> None:
        """Start workers and build their blocks."""
        import ray

        numbers = list(which)
        for worker in numbers:
            if self._hosts[worker] is not None:
                with contextlib.suppress(Exception):
                    ray.kill(self._hosts[worker])
            actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(Host)
            self._hosts[worker] = actor.remote()
        homes = [self._hosts[worker].where.remote() for worker in numbers]
        _, missing = ray.wait(homes, num_returns=len(homes), timeout=PLACED)
        if missing:
            lost = [b for b, home in enumerate(self._home) if home in {numbers[homes.index(ref)] for ref in missing}]
            raise BlocksLost(f"no worker of the cluster took {BlocksLost('', lost).names} in {PLACED:g} s", lost)
        built = [
            self._hosts[home].build.remote(number, self._make)
            for number, home in enumerate(self._home)
            if home in set(numbers)
        ]
        self.get(built)
        self._nodes = self.get([host.node.remote() for host in self._hosts])

    def _dead(self) -> list[int]:
        """Workers that have died, or do not answer."""
        import ray

        asked = {worker: host.where.remote() for worker, host in enumerate(self._hosts) if host is not None}
        if asked:
            ray.wait([*asked.values()], num_returns=len(asked), timeout=ALIVE)
        dead = [worker for worker, host in enumerate(self._hosts) if host is None]
        for worker, ref in asked.items():
            try:
                ray.get(ref, timeout=0.0)
            except Exception:  # it has died, or is still busy with what nobody waits for
                dead.append(worker)
        return sorted(dead)

    @contextlib.contextmanager
    def _losses(self) -> Any:
        """Errors of Ray as those of the package: the user's own errors as they were raised."""
        from ray import exceptions as failures

        try:
            yield
        except failures.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, _losses_of_ray()):
                raise self._lost(error) from error
            raise cause if isinstance(cause, Exception) else error from None
        except _losses_of_ray() as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> BlocksLost:
        time.sleep(0.1)  # for the cluster to notice
        dead = self._dead()
        blocks = [number for number, home in enumerate(self._home) if home in dead]
        lost = BlocksLost("", blocks)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return BlocksLost(f"{lost.names} lost with their worker: {reason}", blocks)


def _pickled(make: Callable[[int], Any]) -> bytes:
    """As sent to the workers: functions of the program itself by value, those of modules by name."""
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps(make))
    except Exception as error:
        raise TypeError(f"what builds the blocks cannot be sent to the workers of a cluster: {error}") from error


def _losses_of_ray() -> tuple[type[Exception], ...]:
    """What Ray raises when a process, a node or an object is lost."""
    from ray import exceptions as failures

    names = (
        "RayActorError",
        "ActorDiedError",
        "ActorUnavailableError",
        "ObjectLostError",
        "OwnerDiedError",
        "ObjectFetchTimedOutError",
        "ReferenceCountingAssertionError",
        "NodeDiedError",
        "WorkerCrashedError",
        "LocalRayletDiedError",
        "RaySystemError",
        "OutOfMemoryError",
        "ActorUnschedulableError",
    )
    return tuple(getattr(failures, name) for name in names if hasattr(failures, name))
