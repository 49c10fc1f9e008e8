"""What is remembered of a first-order run: every iterate's values, the average occupancy, the average weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.model import CMDP, Statement
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.result import History


class Row(NamedTuple):
    """One macro step, in the convention."""

    objective: float
    v: Array
    multipliers: Array
    inner_steps: int
    time: float
    samples: int = 0  # transitions drawn so far


class Recorder:
    """Everything that is remembered of the iterates π_1..π_K, in the convention."""

    def __init__(self, cmdp: CMDP, learner: ExactLearner) -> None:
        self.cmdp = cmdp
        self.learner = learner
        self.policy = learner.policy
        self.rows: list[Row] = []
        self.occupancy = np.zeros((cmdp.states, cmdp.actions))
        self.values = np.zeros(cmdp.num_constraints + 1)  # sums of V_0..V_m
        self.weights = np.zeros(cmdp.num_constraints + 1)  # sums of the weights used
        self.last_weights = self.weights.copy()

    def add(self, iterate: Iterate, elapsed: float) -> None:
        self.policy = self.learner.policy
        self.occupancy += self.learner.occupancy
        self.values[0] += iterate.objective
        self.values[1:] += iterate.v
        self.last_weights = np.array([iterate.weights.objective, *iterate.weights.constraints])
        self.weights += self.last_weights
        self.rows.append(Row(iterate.objective, iterate.v, iterate.multipliers, iterate.inner_steps, elapsed))

    @property
    def average_policy(self) -> TabularPolicy:
        """The stationary policy whose values are the averages: (1/K) Σ d^{π_k}, normalised in every state."""
        if not self.rows:
            return self.policy
        return TabularPolicy.from_occupancy(self.occupancy, self.policy.probabilities)

    def candidate_multipliers(self) -> list[Array]:
        """Weights of the constraints relative to the objective's: those of the last step, and those of all steps.

        With fixed steps PMD-PD's are λ + η′ V, which tends to the optimal multipliers also where a limit is slack (λ
        alone tends to −η′ V there); with growing steps they are λ itself. The average is what a method without
        multipliers (CRPO) has in effect used.
        """
        candidates = [self.last_weights, self.weights]
        return [np.maximum(w[1:] / w[0], 0.0) for w in candidates if w[0] > 0.0]

    def history(self) -> History:
        return history(self.cmdp, self.rows)


def history(statement: Statement, rows: Sequence[Row], with_samples: bool = False) -> History:
    """The columns of a run, in the user's sense and units."""
    m, count = statement.num_constraints, len(rows)
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    k = np.arange(1, count + 1)
    v_0 = np.array(columns[0], dtype=float)
    v = np.array(columns[1], dtype=float).reshape(count, m)
    average = np.cumsum(v, axis=0) / k[:, None]
    table: dict[str, Any] = {
        "objective": statement.sense * v_0 + 0.0,
        "constraint_values": statement.user_constraint_values(v),
        "violation": np.maximum(v, 0.0).max(axis=1, initial=0.0),
        "multipliers": np.array(columns[2], dtype=float).reshape(count, m),
        "average_objective": statement.sense * np.cumsum(v_0) / k + 0.0,
        "average_constraint_values": statement.user_constraint_values(average),
        "average_violation": np.maximum(average, 0.0).max(axis=1, initial=0.0),
        "inner_steps": np.array(columns[3], dtype=int),
        "time": np.array(columns[4], dtype=float),
    }
    if with_samples:
        table["samples"] = np.array(columns[5], dtype=np.int64)
    return History(table)
