"""Columns on blocks: the search of exact/search.py with the master's own prices, as a machine that can be stopped.

    minimise Σ_j w_j V_0(π_j)  subject to  Σ_j w_j V_i(π_j) ≤ 0 (i = 1..m),  Σ_j w_j = 1,  w ≥ 0.

Columns are deterministic policies, kept in slices where the blocks are; here are their values. Each step asks one
question, which follows from the numbers found so far: between the best multipliers and the master's prices, and
where that tells nothing new, at the prices themselves. All that a step depends on is in `state()` and in the files of
the blocks: a search that continues from there ends with the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import COLUMN_ACCURACY
from cmdpkit.exact.master import Mixture, best_mixture, least_violation, row_scales
from cmdpkit.exact.questions import INEXACT
from cmdpkit.exact.search import FIRST_GAP, IN_OUT
from cmdpkit.sharded.crew import Crew
from cmdpkit.sharded.oracle import Minimum, Oracle

FEASIBLE = 1e-12
"""Excess of a mixture, in units of the master, that is rounding."""

STALLED = 0.95
"""A question that leaves more than this part of the distance between the bounds is no progress."""

PATIENCE = 25
"""So many questions without progress, for each constraint and one more, end the search."""


class ColumnSearch:
    """Columns and bounds found so far; `step()` asks one question.

    Args:
        crew: the blocks.
        tol: the tolerance that is aimed at.
    """

    def __init__(self, crew: Crew, tol: float) -> None:
        self.crew, self.model, self.tol = crew, crew.model, tol
        m = self.model.num_rows
        self.scales = row_scales(self.model)
        self.units = self.scales[0] / self.scales[1:]
        self.oracle = Oracle(crew, COLUMN_ACCURACY * tol * self.model.fine_scales)
        self.values: list[Array] = []  # V_0..V_m of each column
        self.multipliers = np.zeros(m)
        self.bound = -np.inf
        self.mixture: Mixture | None = None
        self.upper = np.inf
        self.farkas: Array | None = None
        self.farkas_margin = 0.0
        self.relaxation = np.zeros(m)
        self.single = -1  # the limit that is asked alone, when all together can neither be met nor refuted
        self.repeated = 0  # questions in a row whose answer was known
        self.idle = 0  # questions in a row without progress
        self.stuck = False
        self.calls = 0

    @property
    def names(self) -> list[str]:
        """What the blocks call the columns."""
        return [f"column-{j:04d}" for j in range(len(self.values))]

    def step(self) -> None:
        """Ask one question."""
        self.calls += 1
        before = self._distance()
        if not self.values:
            self._ask_bound(self.multipliers, FIRST_GAP * float(self.scales[0]) if self.multipliers.size else 0.0)
        elif self.mixture is None:
            self._seek_feasible()
        else:
            self._improve(self.mixture)
        if self.farkas is not None:
            return
        self._price()
        self.idle = self.idle + 1 if self._distance() > STALLED * before else 0
        if not self.model.num_rows or self.idle > PATIENCE * (self.model.num_rows + 1):
            self.stuck = True
        if self.stuck and self._relax():
            self.stuck, self.repeated, self.idle = False, 0, 0

    def _distance(self) -> float:
        """Between the bounds, or (farther) to a mixture within the limits, which cannot be compared with it."""
        if self.mixture is None:
            return np.inf if not self.values else 1e6 * self._excess()
        return (self.upper - self.bound) / float(self.scales[0])

    def _excess(self) -> float:
        return max(0.0, float(least_violation(self._rows())[0]))

    # -- questions ------------------------------------------------------------------------------------------------

    def _improve(self, mixture: Mixture) -> None:
        """Ask between the best multipliers and the master's; then at the master's own; then without multipliers."""
        left = max(self.upper - self.bound, 0.0)
        gap = INEXACT * left
        if self.repeated == 0:
            fresh = self._ask_bound(IN_OUT * self.multipliers + (1.0 - IN_OUT) * mixture.prices, gap)
        elif self.repeated == 1:
            fresh = self._ask_bound(mixture.prices, gap)
        elif self.repeated == 2:
            fresh = self._ask_bound(mixture.prices, 0.0)
        else:
            self._ask_bound(np.zeros_like(mixture.prices), gap)
            fresh, self.stuck = False, True
        self.repeated = 0 if fresh else self.repeated + 1

    def _seek_feasible(self) -> None:
        """Ask where the largest scaled violation is least, until the limits are met or proved impossible to meet."""
        worst, game = least_violation(self._rows())
        y = np.eye(self.model.num_rows)[self.single] if self.single >= 0 else game.prices / self.scales[1:]
        total = float(y.sum())
        y = y / total
        answer = self.oracle.minimise(np.append(0.0, y))
        if answer.bound > 0.0:
            self.farkas, self.farkas_margin = y, answer.bound
            return
        fresh = self._take(answer)
        if self.single >= 0:
            self.single += 1
            if self.single == self.model.num_rows:
                # Neither met nor refuted: the limits touch what is possible
                self.relaxation, self.single = np.full(self.model.num_rows, max(worst, 0.0)), -1
        elif not fresh or total * float((y * answer.values[1:]).sum()) >= worst - 1e-13:
            self.single = 0

    def _ask_bound(self, multipliers: Array, gap: float) -> bool:
        """Query G(λ); keep bound and column. True when the column is new."""
        multipliers = self.model.netted(multipliers)
        if np.isfinite(self.bound):  # the gap is relative to the objective, and now its size is known
            size = max(float(self.model.fine_scales[0]), min(abs(self.upper), abs(self.bound)))
            self.oracle.accuracy[0] = COLUMN_ACCURACY * self.tol * size
        answer = self.oracle.minimise(np.append(1.0, multipliers), gap)
        if answer.bound > self.bound:
            self.bound, self.multipliers = answer.bound, multipliers
        return self._take(answer)

    def _take(self, answer: Minimum) -> bool:
        """Take the oracle's answer as a column, unless it is known."""
        if not np.isfinite(answer.values).all() or self._known(answer.values):
            return False
        self.values.append(answer.values)
        self.crew.each("keep", self.names[-1])
        return True

    def _known(self, values: Array) -> bool:
        """Whether a column takes the same actions; its values are then the same to the accuracy of the oracle."""
        allowed = 3.0 * self.oracle.accuracy + 1e-9 * self.scales
        near = [n for n, other in zip(self.names, self.values, strict=True) if (abs(values - other) <= allowed).all()]
        if not near:
            return False
        return bool(np.all(self.crew.each("same", near), axis=0).any())

    # -- the master -----------------------------------------------------------------------------------------------

    def _rows(self) -> Array:
        return np.array(self.values).T[1:] / self.scales[1:, None]

    def _price(self) -> None:
        table = np.array(self.values).T / self.scales[:, None]
        mixture = best_mixture(table[0], table[1:], self.relaxation, opposites=self.model.opposites)
        if mixture.excess <= FEASIBLE:
            self.mixture = mixture._replace(prices=mixture.prices * self.units)
            self.upper = float((np.array(self.values)[:, 0] * mixture.weights).sum())

    def _relax(self) -> bool:
        """Limits that are met only up to rounding may hide the answer: allow half of `tol` in each, once."""
        if self.tol == 0.0 or self.relaxation.any() or not self.model.num_rows:
            return False
        self.relaxation = 0.5 * self.tol * self.model.fine_scales[1:] / self.scales[1:]
        return bool(self.relaxation.any())

    @property
    def close_enough(self) -> bool:
        """The bounds have met, to half of `tol`."""
        size = max(float(self.model.fine_scales[0]), abs(self.upper)) if np.isfinite(self.upper) else 0.0
        return self.upper - self.bound <= 0.5 * self.tol * size

    def weights(self) -> Array:
        """Those of the best mixture; while none meets the limits, of the one that misses them least."""
        return (self.mixture or least_violation(self._rows())[1]).weights

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        oracle = self.oracle
        return {
            "values": [v.tolist() for v in self.values],
            "multipliers": self.multipliers.tolist(),
            "bound": self.bound,
            "relaxation": self.relaxation.tolist(),
            "single": self.single,
            "repeated": self.repeated,
            "idle": self.idle,
            "stuck": self.stuck,
            "calls": self.calls,
            "upper": self.upper,
            "mixture": None if self.mixture is None else [np.asarray(part).tolist() for part in self.mixture[:4]],
            "farkas": None if self.farkas is None else self.farkas.tolist(),
            "farkas_margin": self.farkas_margin,
            "accuracy": oracle.accuracy.tolist(),
            "largest": oracle.largest.tolist(),
            "start": oracle.start.tolist(),
            "mixes": oracle.mixes,
            "sweeps": oracle.sweeps,
            "backups": oracle.backups,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state()` was taken; the blocks have been restored."""
        oracle = self.oracle
        self.values = [np.array(v) for v in state["values"]]
        self.multipliers, self.bound = np.array(state["multipliers"], dtype=float), float(state["bound"])
        self.relaxation = np.array(state["relaxation"], dtype=float)
        self.single, self.repeated, self.idle = (int(state[name]) for name in ("single", "repeated", "idle"))
        self.stuck, self.calls = bool(state["stuck"]), int(state["calls"])
        oracle.accuracy, oracle.largest, oracle.start = (
            np.array(state[name], dtype=float) for name in ("accuracy", "largest", "start")
        )
        oracle.sweeps, oracle.backups, oracle.begun = int(state["sweeps"]), int(state["backups"]), self.calls > 0
        oracle.mixes = bool(state["mixes"])
        self.upper, self.farkas_margin = float(state["upper"]), float(state["farkas_margin"])
        self.farkas = None if state["farkas"] is None else np.array(state["farkas"], dtype=float)
        if state["mixture"] is not None:
            weights, prices, value, excess = state["mixture"]
            self.mixture = Mixture(np.array(weights, dtype=float), np.array(prices, dtype=float), value, excess)
