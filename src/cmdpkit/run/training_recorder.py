"""The record of a training run: one row per policy iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.model import Problem
from cmdpkit.primal_dual import Iterate
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.history import History
from cmdpkit.run.recorder import Row, columns_of, snapshot

if TYPE_CHECKING:
    from cmdpkit.learners.neural.learner import NeuralLearner


class Detail(NamedTuple):
    """The outcome of a trust-region step."""

    divergence: float
    explained: Array  # (m + 1,)
    verdict: str


class TrainingRecorder:
    """Rows that describe the policy before each step, and the multipliers that the rule had found until then."""

    def __init__(self, learner: NeuralLearner, budget: Budget) -> None:
        self.learner, self.budget = learner, budget
        self.problem: Problem = learner.problem
        self.rows: list[Row] = []
        self.details: list[Detail] = []
        self.multipliers: Array = np.zeros(learner.limits.size)
        self._fresh = 0  # rows of the last macro step

    def add(self, iterate: Iterate, elapsed: float) -> None:
        each = self.learner.steps * self.learner.envs.num_envs
        for update in self.learner.updates:
            time = update.finished - self.budget.started
            self.rows.append(Row(update.objective, update.values, self.multipliers, 1, time, update.iteration * each))
            self.details.append(Detail(update.divergence, update.fit, update.verdict))
        self._fresh = len(self.learner.updates)
        self.multipliers = self.learner.widened(iterate.multipliers)

    def news(self) -> list[Snapshot]:
        """Arguments of the callback for the last macro step."""
        first = len(self.rows) - self._fresh
        return [
            snapshot(self.problem, row, number, samples=row.samples, **detail._asdict())
            for number, (row, detail) in enumerate(zip(self.rows[first:], self.details[first:], strict=True), first + 1)
        ]

    def history(self) -> History:
        count, m = len(self.rows), self.problem.num_constraints
        columns: dict[str, Any] = columns_of(self.problem, self.rows)
        del columns["inner_steps"]
        time = columns.pop("time")
        columns |= {
            "divergence": np.array([detail.divergence for detail in self.details], dtype=float),
            "explained": np.array([detail.explained for detail in self.details], dtype=float).reshape(count, m + 1),
            "verdict": np.array([detail.verdict for detail in self.details], dtype=str),
            "samples": np.array([row.samples for row in self.rows], dtype=np.int64),
            "time": time,
        }
        return History(columns)

    def state(self) -> dict[str, Any]:
        return {
            "multipliers": self.multipliers,
            "divergence": np.array([detail.divergence for detail in self.details]),
            "explained": np.array([detail.explained for detail in self.details]),
            "verdict": [str(detail.verdict) for detail in self.details],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.multipliers = np.array(state["multipliers"])
        columns = zip(state["divergence"], state["explained"], state["verdict"], strict=True)
        self.details = [Detail(float(step), np.array(fit), str(verdict)) for step, fit, verdict in columns]
