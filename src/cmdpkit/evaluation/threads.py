"""Threads for large sweeps, where they are faster: that is measured as they run.

The states are cut into blocks, which depend on the size of the problem alone, and no block's result depends on who
computes it: results are the same bit for bit, with and without threads. So both ways can be tried. The pace of each is
remembered, the better one is used, and the other gets a new chance now and then: a machine may become busy, or free.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count, pairwise
from typing import TypeVar

BLOCK = 1_000_000
"""Work in one block: about a millisecond. Less than three blocks are not worth a second thread (measured)."""

RETRY = 40
"""Every so many sweeps the way that was slower is tried again."""

T = TypeVar("T")


class Pace:
    """Seconds a unit of work takes alone and together."""

    def __init__(self) -> None:
        self.seconds = {False: 0.0, True: 0.0}  # not measured yet counts as fast: both are tried at first
        self.calls = 0

    def together(self) -> bool:
        self.calls += 1
        faster = self.seconds[True] < self.seconds[False]
        return faster != (self.calls % RETRY == 0)

    def note(self, together: bool, seconds: float) -> None:
        known = self.seconds[together]
        self.seconds[together] = seconds if known == 0.0 else 0.7 * known + 0.3 * seconds


PACE = Pace()


def in_blocks(run: Callable[[int, int], T], states: int, work: int) -> list[T]:
    """run(first, last) for consecutive blocks of all states, in order; several at a time where that is faster."""
    blocks = min(max(1, work // BLOCK), states)
    bounds = [states * b // blocks for b in range(blocks + 1)]
    if blocks < 3 or helpers() == 0:
        return [run(first, last) for first, last in pairwise(bounds)]
    together = PACE.together()
    started = time.perf_counter()
    found = _shared(run, bounds) if together else [run(first, last) for first, last in pairwise(bounds)]
    PACE.note(together, (time.perf_counter() - started) / work)
    return found


def _shared(run: Callable[[int, int], T], bounds: list[int]) -> list[T]:
    """The calling thread and its helpers take block after block from one queue."""
    found: dict[int, T] = {}
    queue = count()

    def work_off() -> None:
        while (b := next(queue)) < len(bounds) - 1:
            found[b] = run(bounds[b], bounds[b + 1])

    waiting = [_pool().submit(work_off) for _ in range(helpers())]
    work_off()
    for helper in waiting:
        if not helper.cancel():  # one that never got a processor is not waited for
            helper.result()
    return [found[b] for b in range(len(bounds) - 1)]


@cache
def helpers() -> int:
    """Threads beside the calling one: a processor each, at most three (sweeps are bound by memory)."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 4) - 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers(), thread_name_prefix="cmdpkit")
