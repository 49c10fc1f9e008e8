"""Answers to settings: one computation at a time, from the last answer on; a newer request cancels an older one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from cmdpkit.evaluation.patience import Stopped, cancelled, cancelled_by
from cmdpkit.insight.curves import Frontier
from cmdpkit.insight.explorer.dials import Desk, Setting
from cmdpkit.insight.frontier import frontier
from cmdpkit.model import CMDP
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status
from cmdpkit.solver import solve

KEPT = 32
"""Answers and curves that are kept."""

CURVE_TOL = 1e-3
"""Relative distance of the bounds of a curve."""


class Superseded(Exception):
    """A newer request has come; nobody waits for this answer any more."""


class Latest:
    """Runs one job at a time. A newer job of the same kind cancels the one before; so does one of a more urgent kind.

    Kinds are numbers: 0 is the most urgent.
    """

    def __init__(self, kinds: int = 2) -> None:
        self._running, self._counting = Lock(), Lock()
        self._newest = [0] * kinds

    def run(self, job: Callable[[], Any], kind: int = 0) -> Any:
        """The result of `job`, which asks `cancelled()` whether to go on; or Superseded."""
        with self._counting:
            self._newest[kind] += 1
            mine = self._newest[: kind + 1]

        def gone() -> bool:
            return self._newest[: kind + 1] != mine

        with self._running:
            if gone():
                raise Superseded
            with cancelled_by(gone):
                result = job()
            if gone():
                raise Superseded
            return result

    def cancel(self) -> None:
        """End whatever runs or waits."""
        with self._counting:
            self._newest = [n + 1 for n in self._newest]


class Answers:
    """The answers to settings of a desk, each within a time limit."""

    def __init__(self, desk: Desk, seconds: float) -> None:
        self.desk, self.seconds = desk, seconds
        self.latest = Latest()
        self._known: OrderedDict[Any, Any] = OrderedDict()
        self._last: Result | None = None

    def solve(self, setting: Setting) -> Result:
        """The result for a setting; at the time limit it is the best so far, and says so."""
        result: Result = self._recall(setting) or self.latest.run(lambda: self._solve(setting))
        return result

    def _solve(self, setting: Setting) -> Result:
        cmdp = self.desk.model(setting)
        result = solve(cmdp, start=self._start(cmdp), time_limit=self.seconds)
        if result.status is Status.INTERRUPTED:
            raise Superseded
        self._last = result
        self._keep(setting, result)
        return result

    def _start(self, cmdp: CMDP) -> Result | None:
        """The last answer, if it belongs to a model of the same size."""
        last = self._last
        if last is None or not isinstance(last.model, CMDP):
            return None
        old = last.model
        alike = (old.states, old.actions, old.horizon, old.criterion) == (
            cmdp.states, cmdp.actions, cmdp.horizon, cmdp.criterion,
        )  # fmt: skip
        return last if alike and old.pairs.same(cmdp.pairs) and np.isfinite(last.multipliers).all() else None

    def frontier(self, setting: Setting, name: str) -> Frontier:
        """The optimum as a function of one limit, with all other numbers as set."""
        cmdp = self.desk.model(setting).one_sided
        index = cmdp.names.index(name)
        others = (*np.delete(cmdp.limits, index).tolist(), *setting[len(setting) - self._parameters :])
        key = ("frontier", name, others)

        def find() -> Frontier:
            found: Frontier = frontier(cmdp, name, tol=CURVE_TOL, time_limit=self.seconds)
            if not cancelled():
                self._keep(key, found)
            return found

        try:
            curve: Frontier = self._recall(key) or self.latest.run(find, kind=1)
        except Stopped:
            raise Superseded from None
        return curve

    @property
    def _parameters(self) -> int:
        return sum(dial.group == "parameters" for dial in self.desk.dials)

    def _recall(self, key: Any) -> Any:
        return self._known.get(key)

    def _keep(self, key: Any, value: Any) -> None:
        self._known[key] = value
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
