"""What a run returns: a status with advice, a policy with its evidence, and the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from cmdpkit.certificates.certificate import Certificate, finite
from cmdpkit.checks import ConstraintArray
from cmdpkit.files import PathLike, write_json
from cmdpkit.model import Problem
from cmdpkit.run.history import History
from cmdpkit.run.status import Status

RECENT = 20
"""Iterations of a training run over which its objective and constraint values are averaged."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """What the results of all learners have in common, in the user's sense and units.

    Attributes:
        status: how the run ended; `message` says it in words, `status.advice` what to do.
        policy: the policy to use; `objective`, `constraint_values` (m,) and `violations` (m,) ≥ 0 are its own.
        multipliers: (m,) ≥ 0, shadow prices per unit of each limit.
        history: one row per iteration.
        iterations, time, method: of the run.
        samples: transitions or environment steps drawn; None when nothing was sampled.
    """

    status: Status
    policy: Any
    objective: float
    constraint_values: ConstraintArray
    violations: ConstraintArray
    multipliers: ConstraintArray
    history: History = field(repr=False)
    iterations: int
    time: float
    method: str
    message: str
    samples: int | None = None

    def to_dict(self, policy: bool = False) -> dict[str, Any]:
        """Plain numbers, lists and strings: what `--json` prints; with the policy itself, if wanted."""
        raise NotImplementedError

    def save(self, path: PathLike) -> None:
        """Write everything to an `.npz` file (no pickle), or the summary to a `.json` file; whole or not at all."""
        if Path(path).suffix == ".json":
            write_json(path, self.to_dict())
            return
        from cmdpkit.run.storage import save_result

        save_result(self, path)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read a result written by `save` to an `.npz` file; its policies are those that were saved, bit for bit."""
        from cmdpkit.run.storage import load_result

        return load_result(cls, path)


@dataclass(frozen=True, eq=False, kw_only=True)
class Result(RunResult):
    """The outcome of `solve`, in the user's sense and units.

    Attributes:
        status: how the run ended; `message` says it in words, `status.advice` what to do.
        policy: the policy to use; `objective`, `constraint_values` (m,) and `violations` (m,) ≥ 0 are its own.
        multipliers: (m,) ≥ 0, shadow prices per unit of each limit, those with the best proved bound.
        certificate: what is proved about `policy`: a `Certificate`; when only a simulator was given, a
            `SimulationCertificate` from fresh rollouts, or None where the simulator has no bounds.
        history: one row per iteration.
        last_policy, average_policy: first-order methods only: π_K, and the policy whose values are the averages, which
            is a `MixturePolicy` when it was learned from samples.
        average_certificate: of `average_policy`, when it was learned from samples.
        samples: transitions drawn for learning; None when nothing was sampled.
        model: what was solved; after `Result.load` only its sizes and limits are known.
        iterations, time, method: of the run.
    """

    certificate: Any  # Certificate, or SimulationCertificate or None without a model
    model: Any = field(repr=False)  # CMDP or Simulator; a Problem in a loaded result
    last_policy: Any = field(default=None, repr=False)
    average_policy: Any = field(default=None, repr=False)
    average_certificate: Any = field(default=None, repr=False)

    def to_dict(self, policy: bool = False) -> dict[str, Any]:
        certificate, exact = self.certificate, isinstance(self.certificate, Certificate)
        infeasibility = certificate.infeasibility if exact else None
        summary = {
            "status": self.status.value,
            "message": self.message,
            "method": self.method,
            "objective": finite(self.objective),
            "bound": finite(certificate.bound) if exact else None,
            "gap": finite(certificate.gap) if exact else None,
            "violation": finite(certificate.violation) if exact else None,
            "constraints": describe_constraints(self.model, self.constraint_values, self.violations, self.multipliers),
            "infeasibility": None if infeasibility is None else infeasibility.tolist(),
            "infeasibility_margin": certificate.infeasibility_margin if exact else None,
            "iterations": self.iterations,
            "time": self.time,
        }
        if self.samples is not None:
            summary |= {"samples": self.samples}
        if not exact:
            summary |= {"simulation": None if certificate is None else certificate.to_dict()}
        if self.average_certificate is not None:
            summary |= {"mixture": self.average_certificate.to_dict()}
        return summary | ({"policy": self.policy.probabilities.tolist()} if policy else {})

    def __str__(self) -> str:
        from cmdpkit.report import result_text

        return result_text(self)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingResult(RunResult):
    """What `train` learned.

    Attributes:
        status: ITERATION_LIMIT when all iterations were done, else TIME_LIMIT or INTERRUPTED.
        policy: acts with NumPy alone; `policy.save(path)`, `NeuralPolicy.load(path)`.
        objective, constraint_values, violations: reward and costs in the mean over the last 20 iterations.
        multipliers: (m,) ≥ 0, the rule's last λ.
        history: one row per policy iteration: `objective`, `constraint_values` (K, m), `violation`, `multipliers`
            (K, m), `divergence`, `explained`, `verdict`, `samples`, `time`.
        verdicts: how many policy steps were accepted or refused, and why.
        samples: steps of the environment.
        limits, measure, method, iterations, time: of the run.
        folder: where the run was written, if anywhere.
    """

    verdicts: dict[str, int]
    limits: ConstraintArray
    measure: str
    folder: Path | None = None

    @property
    def steps(self) -> int:
        """Steps of the environment: another name of `samples`."""
        return int(self.samples or 0)

    def recent(self, rows: int = RECENT) -> tuple[float, ConstraintArray]:
        """Reward and costs in the mean over the last iterations."""
        return recent(self.history, rows)

    def to_dict(self, policy: bool = False) -> dict[str, Any]:
        reward, costs = self.recent() if self.iterations else (None, np.full(self.limits.size, np.nan))
        summary = {
            "status": self.status.value,
            "message": self.message,
            "method": self.method,
            "measure": self.measure,
            "iterations": self.iterations,
            "samples": self.samples,
            "steps": self.samples,
            "time": self.time,
            "reward": reward,
            "objective": reward,
            "costs": [finite(float(cost)) for cost in costs],
            "constraint_values": [finite(float(cost)) for cost in costs],
            "limits": self.limits.tolist(),
            "multipliers": self.multipliers.tolist(),
            "verdicts": self.verdicts,
            "folder": None if self.folder is None else str(self.folder),
        }
        plain = {name: np.asarray(value).tolist() for name, value in self.policy.arrays().items()} if policy else None
        return summary | ({} if plain is None else {"policy": plain})

    def __str__(self) -> str:
        from cmdpkit.report import training_text

        return training_text(self)


class TrainingFailed(RuntimeError):
    """The environment failed in the middle of a run; `result` holds what had been learned, `__cause__` says why."""

    def __init__(self, message: str, result: TrainingResult) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.result)


def recent(history: History, rows: int = RECENT) -> tuple[float, ConstraintArray]:
    """Objective and constraint values in the mean over the last rows of a training run."""
    return float(history["objective"][-rows:].mean()), history["constraint_values"][-rows:].mean(axis=0)


def describe_constraints(
    problem: Problem, values: ConstraintArray, violations: ConstraintArray, multipliers: ConstraintArray
) -> list[dict[str, Any]]:
    """Every limit with the policy's value, as plain data for JSON."""
    return [
        {
            "name": constraint.name,
            "sense": constraint.symbol,
            "limit": constraint.limit,
            "per_step": constraint.per_step,
            "value": finite(values[i]),
            "violation": finite(violations[i]),
            "multiplier": finite(multipliers[i]),
        }
        for i, constraint in enumerate(problem.constraints)
    ]
