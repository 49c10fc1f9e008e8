"""Budgets: when to stop, and what is reported to callbacks."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cmdpkit.checks import Array, check_count, check_nonnegative
from cmdpkit.evaluation.patience import cancelled
from cmdpkit.run.status import Status

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@dataclass(frozen=True)
class Snapshot:
    """The argument of callbacks, after every iteration, in the user's sense and units; the same for all learners."""

    iteration: int
    objective: float  # of the current policy; infinite until one is feasible
    violation: float  # largest, relative to max(1, |limit|)
    bound: float  # proved so far; infinite before
    multipliers: Array  # (m,), a copy
    time: float
    samples: int | None = None  # transitions or environment steps drawn, if any
    constraint_values: Array | None = None  # (m,), if known
    divergence: float | None = None  # training only: mean KL divergence of the step
    explained: Array | None = None  # training only: (m + 1,) fraction of the variance that the critics explained
    verdict: str | None = None  # training only: outcome of the step

    @property
    def reward(self) -> float:
        """Former name of `objective` in training runs."""
        return self.objective

    @property
    def costs(self) -> Array | None:
        """Former name of `constraint_values` in training runs."""
        return self.constraint_values

    @property
    def steps(self) -> int | None:
        """Former name of `samples` in training runs."""
        return self.samples

    def __str__(self) -> str:
        if self.samples is not None:
            size = next((f"{self.samples / unit:.3g}{name}" for unit, name in _UNITS if self.samples >= unit), "0")
            return f"{size} transitions, objective {self.objective:.4g}"
        parts = [f"objective {self.objective:.6g}"] if np.isfinite(self.objective) else []
        parts += [f"bound {self.bound:.6g}"] if np.isfinite(self.bound) else []
        parts += [f"violation {self.violation:.1e}"] if np.isfinite(self.violation) else []
        return "  ".join(parts)


Callback = Callable[[Snapshot], Any]


@dataclass
class Interruption:
    """Whether Ctrl-C was pressed or a callback asked to stop: shared by the budgets of a run and of its parts."""

    requested: bool = False


@dataclass
class Budget:
    """Limits of a run. `watch` is called after every iteration and stops the run by returning True.

    A copy made by `dataclasses.replace`, for a part of the run, is interrupted together with the original.
    """

    max_iterations: int | None = None
    time_limit: float | None = None
    watch: Callback | None = None
    transitions: int | None = None  # maximum number of transitions drawn
    started: float = field(default_factory=time.perf_counter)
    interruption: Interruption = field(default_factory=Interruption)

    @property
    def interrupted(self) -> bool:
        """Ctrl-C was pressed, or the callback asked to stop."""
        return self.interruption.requested

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float | None:
        """Remaining seconds; None without a limit."""
        return None if self.time_limit is None else max(0.0, self.time_limit - self.elapsed)

    def tell(self, news: Snapshot) -> None:
        """Call the callback, if there is one."""
        if self.watch is not None and isinstance(stop := self.watch(news), (int, np.bool_, np.integer)) and stop:
            self.interruption.requested = True

    @property
    def stopped(self) -> bool:
        """Whether the caller wants the run to end now."""
        return self.interrupted or cancelled()

    def exhausted(self) -> bool:
        """Whether time is up or the caller wants to stop; long computations should then end at the next safe point."""
        return self.stopped or (self.time_limit is not None and self.elapsed >= self.time_limit)

    def spent(self, iterations: int) -> Status | None:
        """The status with which the run must end now, or None."""
        if self.stopped:
            return Status.INTERRUPTED
        if self.max_iterations is not None and iterations >= self.max_iterations:
            return Status.ITERATION_LIMIT
        return Status.TIME_LIMIT if self.exhausted() else None

    @contextlib.contextmanager
    def catching_ctrl_c(self) -> Iterator[None]:
        """Let Ctrl-C stop the run at its next safe point, with a valid result; a second Ctrl-C stops it immediately.

        This applies only in the main thread, and if no other handler is installed.
        """
        ours = threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def stop(*_: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interruption.requested = True

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def check_run(time_limit: Any, seed: Any, callback: Any) -> None:
    """Check the arguments that all runs take."""
    if time_limit is not None:
        check_nonnegative(time_limit, "time_limit")
    check_count(seed, "seed", least=0)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")
