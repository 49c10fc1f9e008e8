"""What is remembered of a first-order run: every iterate's values, the average occupancy, the average weights."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.result import History


class Recorder:
    """Everything that is remembered of the iterates π_1..π_K, in the convention."""

    def __init__(self, cmdp: CMDP, learner: ExactLearner) -> None:
        self.cmdp = cmdp
        self.learner = learner
        self.policy = learner.policy
        self.rows: list[tuple[float, Array, Array, int, float]] = []
        self.occupancy = np.zeros((cmdp.states, cmdp.actions))
        self.values = np.zeros(cmdp.num_constraints + 1)  # sums of V_0..V_m
        self.weights = np.zeros(cmdp.num_constraints + 1)  # sums of the weights used
        self.last_weights = self.weights.copy()

    def add(self, iterate: Iterate, elapsed: float) -> None:
        self.policy = self.learner.policy
        self.occupancy += self.learner.occupancy
        self.values += np.append(iterate.objective, iterate.v)
        self.last_weights = np.append(iterate.weights.objective, iterate.weights.constraints)
        self.weights += self.last_weights
        self.rows.append((iterate.objective, iterate.v, iterate.multipliers, iterate.inner_steps, elapsed))

    @property
    def average_policy(self) -> TabularPolicy:
        """The stationary policy whose values are the averages: (1/K) Σ d^{π_k}, normalised in every state."""
        if not self.rows:
            return self.policy
        return TabularPolicy.from_occupancy(self.occupancy, self.policy.probabilities)

    def candidate_multipliers(self) -> list[Array]:
        """Weights of the constraints relative to the objective's: those of the last step, and those of all steps.

        For PMD-PD they are λ + η′ V, which tends to the optimal multipliers also where a limit is slack (λ alone tends
        to −η′ V there). The average is what a method without multipliers (CRPO) has in effect used.
        """
        candidates = [self.last_weights, self.weights]
        return [np.maximum(w[1:] / w[0], 0.0) for w in candidates if w[0] > 0.0]

    def history(self) -> History:
        cmdp, m, count = self.cmdp, self.cmdp.num_constraints, len(self.rows)
        columns = list(zip(*self.rows, strict=True)) if self.rows else [(), (), (), (), ()]
        k = np.arange(1, count + 1)
        v_0 = np.array(columns[0], dtype=float)
        v = np.array(columns[1], dtype=float).reshape(count, m)
        average = np.cumsum(v, axis=0) / k[:, None]
        return History(
            {
                "objective": cmdp.sense * v_0 + 0.0,
                "constraint_values": cmdp.user_constraint_values(v),
                "violation": np.maximum(v, 0.0).max(axis=1, initial=0.0),
                "multipliers": np.array(columns[2], dtype=float).reshape(count, m),
                "average_objective": cmdp.sense * np.cumsum(v_0) / k + 0.0,
                "average_constraint_values": cmdp.user_constraint_values(average),
                "average_violation": np.maximum(average, 0.0).max(axis=1, initial=0.0),
                "inner_steps": np.array(columns[3], dtype=int),
                "time": np.array(columns[4], dtype=float),
            }
        )
