"""What a training run gives: its rows, its result, and the error that keeps what was learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.neural_policy import NeuralPolicy
from cmdpkit.result import History, Status


class Row(NamedTuple):
    """One policy iteration, in the user's sense: what the policy was worth, and what became of its step."""

    reward: float
    costs: Array  # (m,), to be compared with the limits
    multipliers: Array  # (m,), λ with which the policy was improved
    divergence: float  # mean KL of the step
    explained: Array  # (m + 1,): part of the returns' variance that the critics explained
    verdict: str  # of the trust-region step
    steps: int  # of the environment so far
    time: float


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What `train` learned.

    Attributes:
        status: ITERATION_LIMIT when all iterations were done, else TIME_LIMIT or INTERRUPTED.
        policy: acts with NumPy alone; `policy.save(path)`, `NeuralPolicy.load(path)`.
        multipliers: (m,) ≥ 0, the rule's last λ.
        history: one row a policy iteration: `reward`, `costs` (K, m), `multipliers` (K, m), `divergence`, `explained`,
            `verdict`, `steps`, `time`.
        verdicts: how many policy steps were accepted or refused, and why.
        limits, measure, method, iterations, steps, time: of the run.
        folder: where the run was written, if anywhere.
    """

    status: Status
    policy: NeuralPolicy
    multipliers: Array
    history: History = field(repr=False)
    verdicts: dict[str, int]
    limits: Array
    measure: str
    method: str
    iterations: int
    steps: int
    time: float
    folder: Path | None = None

    def recent(self, rows: int = 20) -> tuple[float, Array]:
        """Reward and costs in the mean over the last iterations."""
        return float(self.history["reward"][-rows:].mean()), self.history["costs"][-rows:].mean(axis=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings: what `--json` prints."""
        reward, costs = self.recent() if self.iterations else (None, np.full(self.limits.size, np.nan))
        return {
            "status": self.status.value,
            "method": self.method,
            "measure": self.measure,
            "iterations": self.iterations,
            "steps": self.steps,
            "time": self.time,
            "reward": reward,
            "costs": [None if np.isnan(cost) else float(cost) for cost in costs],
            "limits": self.limits.tolist(),
            "multipliers": self.multipliers.tolist(),
            "verdicts": self.verdicts,
            "folder": None if self.folder is None else str(self.folder),
        }

    def __str__(self) -> str:
        from cmdpkit.report import training_text

        return training_text(self)


class TrainingFailed(RuntimeError):
    """The environment failed in the middle of a run; `result` holds what had been learned, `__cause__` says why."""

    def __init__(self, message: str, result: TrainingResult) -> None:
        super().__init__(message)
        self.result = result
