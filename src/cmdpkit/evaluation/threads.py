"""Threads: for large sweeps where they are faster, and no more than one in BLAS where matrices are small.

In a sweep the states are split into blocks that depend only on the size of the problem, and the result of a block does
not depend on the thread that computes it: results are the same bit for bit with and without threads. Both ways are
timed and the faster one is used. The other is tried again from time to time, since the load of the machine may change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count, pairwise
from threading import Lock
from typing import Any, ClassVar, TypeVar

import scipy.sparse as sp

from cmdpkit.model import CMDP, StagedTransitions

BLOCK = 1_000_000
"""Work per block, about a millisecond. Below three blocks a second thread does not pay off (measured)."""

RETRY = 40
"""Number of sweeps after which the slower way is tried again."""

DENSE, THREADED = 200, 9_000
"""Up to so many states sparse models are solved by dense algebra; BLAS uses threads for matrices of so many numbers."""

T = TypeVar("T")


class Pace:
    """Seconds per unit of work, single-threaded and with threads."""

    def __init__(self) -> None:
        self.seconds = {False: 0.0, True: 0.0}  # 0 means not measured yet: both ways are tried first
        self.calls = 0

    def together(self) -> bool:
        self.calls += 1
        faster = self.seconds[True] < self.seconds[False]
        return faster != (self.calls % RETRY == 0)

    def note(self, together: bool, seconds: float) -> None:
        known = self.seconds[together]
        self.seconds[together] = seconds if known == 0.0 else 0.7 * known + 0.3 * seconds


PACE = Pace()


def in_blocks(run: Callable[[int, int], T], states: int, work: int, blocks: int | None = None) -> list[T]:
    """Call run(first, last) for consecutive blocks of all states, with threads where that is faster.

    There are as many blocks as suit the work, unless their number is given.
    """
    few = work < 3 * BLOCK or blocks == 1
    blocks = min(max(1, work // BLOCK), states) if blocks is None else blocks
    bounds = [states * b // blocks for b in range(blocks + 1)]
    if few or helpers() == 0:
        return [run(first, last) for first, last in pairwise(bounds)]
    together = PACE.together()
    started = time.perf_counter()
    found = _shared(run, bounds) if together else [run(first, last) for first, last in pairwise(bounds)]
    PACE.note(together, (time.perf_counter() - started) / work)
    return found


def _shared(run: Callable[[int, int], T], bounds: list[int]) -> list[T]:
    """The calling thread and its helpers take blocks from one queue."""
    found: dict[int, T] = {}
    queue = count()

    def work_off() -> None:
        while (b := next(queue)) < len(bounds) - 1:
            found[b] = run(bounds[b], bounds[b + 1])

    waiting = [_pool().submit(work_off) for _ in range(helpers())]
    work_off()
    for helper in waiting:
        if not helper.cancel():  # do not wait for a helper that has not started
            helper.result()
    return [found[b] for b in range(len(bounds) - 1)]


@cache
def helpers() -> int:
    """Number of threads besides the calling one: one per processor, at most three (sweeps are memory-bound)."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 4, _MOST[0]) - 1


_MOST = [4]


def use_at_most(threads: int) -> None:
    """Limit the threads of this process, which shares its machine with others like it."""
    _MOST[0] = max(1, threads)
    helpers.cache_clear()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers(), thread_name_prefix="cmdpkit")


# -- BLAS ------------------------------------------------------------------------------------------------------------


class OneBlasThread:
    """A context in which BLAS uses one thread, if the model is solved by dense algebra.

    Matrices of 100 to 2,000 states are multiplied with vectors thousands of times, a few microseconds each: threads
    that wait for each other take two to four times as long (measured: docs/decisions.md). The last one to leave sets
    back what was there before.
    """

    _lock: ClassVar[Lock] = Lock()
    _inside: ClassVar[int] = 0
    _limit: ClassVar[Any] = None

    def __init__(self, cmdp: CMDP) -> None:
        matrix = cmdp.transitions
        dense = not (sp.issparse(matrix) or isinstance(matrix, StagedTransitions))
        self._matters = (dense or cmdp.states <= DENSE) and cmdp.pairs.count * cmdp.states >= THREADED

    def __enter__(self) -> None:
        if self._matters:
            own = OneBlasThread
            with own._lock:
                if own._inside == 0:
                    own._limit = _libraries().limit(limits=1, user_api="blas")
                own._inside += 1

    def __exit__(self, *_: object) -> None:
        if self._matters:
            own = OneBlasThread
            with own._lock:
                own._inside -= 1
                if own._inside == 0:
                    own._limit.restore_original_limits()


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401  (dense algebra needs it, and it brings a BLAS of its own)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
