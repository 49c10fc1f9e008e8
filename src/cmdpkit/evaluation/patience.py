"""Long computations that can be stopped: loops ask `breathe()` whether to go on.

A caller says when to stop with `until(stop)`; whatever it calls may then end with `Stopped`, and leaves everything that
was known before as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_STOP: ContextVar[Callable[[], bool] | None] = ContextVar("stop", default=None)


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
