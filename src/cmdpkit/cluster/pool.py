"""Independent blocks of work, done in this process or on the workers of a cluster, with the same results.

What is in a block, its random stream included, never depends on who does it: the results are the same, bit for bit, in
one process and on any number of workers.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from cmdpkit.cluster.session import connect, processors

Block = TypeVar("Block")
Answer = TypeVar("Answer")

RETRIES = 10
"""How often a block is done again if its worker or its node dies."""

AHEAD = 3
"""Blocks per processor that are submitted before the first answer is there, by default."""

PATIENCE = 60.0
"""Seconds until work is given up if no node is left to do it."""

INTERVAL = 0.1
"""Seconds between two questions whether to stop."""


class WorkerLost(RuntimeError):
    """A block of work was lost with the processes that did it, again and again."""


class _Store:
    """What the workers of one connection have been given: an object that many calls use is sent once."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}
        self.processors = processors()

    def reference(self, kept: Any) -> Any:
        if id(kept) not in self._kept:
            self._kept[id(kept)] = (kept, put(kept))  # the object is held: its id stays its own
        return self._kept[id(kept)][1]


_STORE: ContextVar[_Store | None] = ContextVar("store", default=None)


@contextlib.contextmanager
def using(cluster: str | None) -> Iterator[None]:
    """Let `in_order` use a cluster inside of the context; None leaves everything in this process."""
    if cluster is None:
        yield
        return
    with connect(cluster):
        token = _STORE.set(_Store())
        try:
            yield
        finally:
            _STORE.reset(token)


def distributed() -> bool:
    """Whether blocks are done by the workers of a cluster."""
    return _STORE.get() is not None


def in_order(
    work: Callable[[Any, Any, Block], Answer],
    blocks: Iterable[Block],
    kept: Any = None,
    shared: Any = None,
    *,
    name: Callable[[Block], str] = str,
    stop: Callable[[], None] | None = None,
    ahead: int = AHEAD,
) -> Iterator[Answer]:
    """Yield `work(kept, shared, block)` for every block, in order.

    Args:
        work: a function at the top level of a module, without side effects.
        blocks: small descriptions of the blocks.
        kept: what many calls need, such as a simulator: it is sent to the workers once, and must not change.
        shared: what all blocks of this call need.
        name: what a block is called where it fails.
        stop: called again and again while blocks are under way; what it raises ends the work.
        ahead: blocks per processor that are submitted before the first answer is there.

    An error in a block is raised here, as it would be in one process, with a note that names the block. A block whose
    worker dies is done again; after ten times `WorkerLost` is raised. Blocks that were submitted and are no longer
    wanted end with the connection, or when they are done: cancelling them can end this process (Ray 2.60).
    """
    found = list(blocks)
    store = _STORE.get()
    if store is None or len(found) == 1:
        for block in found:
            if stop is not None:
                stop()
            with _blaming(name(block)):
                answer = work(kept, shared, block)
            yield answer
    else:
        yield from _on_workers(store, work, found, kept, shared, name, stop, ahead * store.processors)


def elsewhere(work: Callable[[Any], Answer], what: Any, name: str) -> Answer:
    """`work(what)`, done by one worker of the cluster that is used, or in this process."""
    if not distributed():
        return work(what)
    import ray

    answer: Answer = wait_for(ray.remote(max_retries=RETRIES)(work).remote(put(what)), name)
    return answer


def _on_workers(
    store: _Store,
    work: Callable[[Any, Any, Block], Answer],
    blocks: list[Block],
    kept: Any,
    shared: Any,
    name: Callable[[Block], str],
    stop: Callable[[], None] | None,
    ahead: int,
) -> Iterator[Answer]:
    import ray

    task = ray.remote(max_retries=RETRIES)(work)
    common = (None if kept is None else store.reference(kept), None if shared is None else put(shared))
    waiting: deque[tuple[Block, Any]] = deque()
    rest = iter(blocks)
    while True:
        while len(waiting) < ahead and (block := next(rest, _NOTHING)) is not _NOTHING:
            waiting.append((block, task.remote(*common, block)))
        if not waiting:
            return
        block, reference = waiting.popleft()
        yield wait_for(reference, name(block), stop)


_NOTHING: Any = object()


def wait_for(reference: Any, name: str, stop: Callable[[], None] | None = None) -> Any:
    """The result of a task or of an actor's method; its errors are those of one process, with a note."""
    import ray
    from ray import exceptions

    alone = None  # since when there is no processor left
    while not ray.wait([reference], timeout=INTERVAL)[0]:
        if stop is not None:
            stop()
        now = time.monotonic()
        alone = (alone or now) if not ray.cluster_resources().get("CPU") else None
        if alone is not None and now - alone > PATIENCE:
            raise WorkerLost(f"{name} waits in vain: no node of the cluster has been alive for {PATIENCE:.0f} s")
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if not isinstance(cause, Exception) or isinstance(cause, exceptions.RayError):
            raise WorkerLost(f"{name} failed on a worker: {error}") from error
        cause.add_note(f"in {name}, on a worker of the cluster")
        raise cause from None
    except exceptions.RayError as error:
        raise WorkerLost(f"{name} was lost with its worker: {type(error).__name__}: {error}") from error


def put(value: Any) -> Any:
    """Send an object to the cluster; an error says which one cannot be sent."""
    import ray

    try:
        return ray.put(value)
    except TypeError as error:
        what = type(value).__name__
        raise TypeError(f"this {what} cannot be sent to the workers of a cluster: {error}") from None


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in {name}")
        raise
