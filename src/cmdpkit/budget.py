"""Budgets: when to give up, and who is told of the progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.result import Status


@dataclass(frozen=True)
class Snapshot:
    """What a callback hears after every iteration, in the user's sense and units."""

    iteration: int
    objective: float  # of the current policy; infinite while there is none within the limits
    violation: float  # largest, relative to max(1, |limit|)
    bound: float  # proved so far; infinite while nothing is
    multipliers: Array
    time: float

    def __str__(self) -> str:
        parts = [f"objective {self.objective:.6g}"] if np.isfinite(self.objective) else []
        parts += [f"bound {self.bound:.6g}"] if np.isfinite(self.bound) else []
        return "  ".join([*parts, f"violation {self.violation:.1e}"])


Callback = Callable[[Snapshot], Any]


@dataclass(frozen=True)
class Budget:
    """Limits of a run. `watch` hears of every iteration and stops the run by returning True."""

    max_iterations: int | None = None
    time_limit: float | None = None
    watch: Callback | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def tell(self, news: Snapshot) -> Status | None:
        """Tell the watcher, if there is one; INTERRUPTED when it asks to stop."""
        if self.watch is not None and self.watch(news) is True:
            return Status.INTERRUPTED
        return None

    def spent(self, iterations: int) -> Status | None:
        """The status that ends the run now, if any."""
        if self.max_iterations is not None and iterations >= self.max_iterations:
            return Status.ITERATION_LIMIT
        if self.time_limit is not None and self.elapsed >= self.time_limit:
            return Status.TIME_LIMIT
        return None
