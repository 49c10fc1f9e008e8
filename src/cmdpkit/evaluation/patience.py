"""Long computations that can be stopped: loops ask `breathe()` whether to go on.

A caller says when to stop with `until(stop)`; whatever it calls may then end with `Stopped`, and leaves everything that
was known before as it was. What a run needs for its answer is not stopped: with `hurrying(late)` the iterations inside
end with what they have reached, soon after `late` says so. A program that no longer wants an answer at all says so with
`cancelled_by(gone)`: budgets ask `cancelled()`, and every run inside ends as if its callback had asked for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_STOP: ContextVar[Callable[[], bool] | None] = ContextVar("stop", default=None)
_LATE: ContextVar[Callable[[], bool] | None] = ContextVar("late", default=None)

_GONE: ContextVar[Callable[[], bool] | None] = ContextVar("gone", default=None)

GRACE = 0.25
"""Seconds that an iteration may still take where the time of its caller is up."""


class Stopped(Exception):
    """A computation may not go on: its budget is spent, time is up, or the caller wants to stop."""

    def __init__(self, out_of_budget: bool = False) -> None:
        super().__init__("stopped")
        self.out_of_budget = out_of_budget


@contextlib.contextmanager
def until(stop: Callable[[], bool] | None) -> Iterator[None]:
    """Let `stop` end what is computed inside; None lets nothing end it."""
    token = _STOP.set(stop)
    try:
        yield
    finally:
        _STOP.reset(token)


def breathe() -> None:
    """Raise `Stopped` when the caller wants to stop."""
    stop = _STOP.get()
    if stop is not None and stop():
        raise Stopped


@contextlib.contextmanager
def cancelled_by(gone: Callable[[], bool]) -> Iterator[None]:
    """Let runs inside end when `gone` says that nobody waits for them."""
    token = _GONE.set(gone)
    try:
        yield
    finally:
        _GONE.reset(token)


def cancelled() -> bool:
    """Whether nobody waits for the answer any more."""
    gone = _GONE.get()
    return gone is not None and gone()


@contextlib.contextmanager
def hurrying(late: Callable[[], bool]) -> Iterator[None]:
    """Let iterations inside end early when `late` says so, with what they have reached."""
    token = _LATE.set(late)
    try:
        yield
    finally:
        _LATE.reset(token)


class Hurry:
    """Asked by an iteration whether to end early: from `grace` seconds after it sees that the caller's time is up."""

    def __init__(self, grace: float | None = None) -> None:
        self._late, self._grace = _LATE.get(), GRACE if grace is None else grace
        self._since: float | None = None

    def __call__(self) -> bool:
        if self._late is None or not self._late():
            return False
        now = time.perf_counter()
        self._since = now if self._since is None else self._since
        return now - self._since >= self._grace
