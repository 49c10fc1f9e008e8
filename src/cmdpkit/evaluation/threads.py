"""Threads for large sweeps: blocks of states from one queue, so that a busy machine costs nothing.

The calling thread works through the blocks; helpers take some of them when they get a processor. Nobody waits for more
than the last block. The blocks depend on the size of the problem alone, never on the number of threads, so that results
are the same bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count, pairwise
from typing import TypeVar

BLOCK = 1_000_000
"""Work in one block: about a millisecond. Less than three blocks are not worth a second thread (measured)."""

T = TypeVar("T")


def in_blocks(run: Callable[[int, int], T], states: int, work: int) -> list[T]:
    """run(first, last) for consecutive blocks of all states, in order; several at a time where `work` is large."""
    blocks = min(max(1, work // BLOCK), states)
    bounds = [states * b // blocks for b in range(blocks + 1)]
    if blocks < 3 or helpers() == 0:
        return [run(first, last) for first, last in pairwise(bounds)]
    found: dict[int, T] = {}
    queue = count()

    def work_off() -> None:
        while (b := next(queue)) < blocks:
            found[b] = run(bounds[b], bounds[b + 1])

    waiting = [_pool().submit(work_off) for _ in range(helpers())]
    work_off()
    for helper in waiting:
        if not helper.cancel():  # one that never got a processor is not waited for
            helper.result()
    return [found[b] for b in range(blocks)]


@cache
def helpers() -> int:
    """Threads beside the calling one: a processor each, at most three (sweeps are bound by memory)."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 4) - 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers(), thread_name_prefix="cmdpkit")
