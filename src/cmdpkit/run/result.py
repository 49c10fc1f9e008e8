"""Results: a status with advice, a policy with its certificate, and the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from cmdpkit.certificates.certificate import Certificate, finite
from cmdpkit.checks import ConstraintArray
from cmdpkit.files import PathLike, write_json
from cmdpkit.model import Problem
from cmdpkit.policy import ShardedPolicy
from cmdpkit.run.history import History
from cmdpkit.run.status import Status
from cmdpkit.tables import result_html, text_html

RECENT = 20
"""Iterations of a training run over which its objective and constraint values are averaged."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """Base of the results of all learners, in the user's sense and units.

    Attributes:
        status: how the run ended; `message` says it in words, `status.advice` what to do.
        policy: the policy to use; `objective`, `constraint_values` (m,) and `violations` (m,) ≥ 0 are its values.
        multipliers: (m,) ≥ 0, shadow prices per unit of each limit; of either sign for `Equal` and `Between`.
        history: one row per iteration.
        iterations, time, method: number of iterations, seconds, and name of the method.
        samples: transitions or environment steps drawn; None if nothing was sampled.
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
        """The result as plain numbers, lists and strings, as printed by `--json`; optionally with the policy."""
        raise NotImplementedError

    def save(self, path: PathLike) -> None:
        """Write everything to an `.npz` file (no pickle), or the summary to a `.json` file.

        A result of a `ShardedCMDP`, whose policy is in blocks, is written to a folder.
        """
        if Path(path).suffix == ".json":
            write_json(path, self.to_dict())
            return
        from cmdpkit.run.storage import save_result

        save_result(self, path)

    def report(self, path: PathLike, **settings: Any) -> None:
        """Write a report to one HTML file that works offline; `settings` are those of `cmdpkit.write_report`."""
        from cmdpkit.insight.report import write_report

        write_report(self, path, **settings)

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read a result from an `.npz` file or a folder that `save` wrote; policies equal those saved, bit for bit."""
        from cmdpkit.run.storage import load_result

        return load_result(cls, path)


@dataclass(frozen=True, kw_only=True)
class ConstraintResult:
    """One constraint of a result, in the user's units."""

    name: str
    sense: str  # "<=", ">=", "==" or "between"
    limit: float | list[float]  # [low, high] for `Between`
    value: float
    slack: float  # distance from the nearer limit, negative where it is violated
    violation: float
    price: float  # the multiplier


@dataclass(frozen=True, eq=False, kw_only=True)
class Result(RunResult):
    """The result of `solve`, in the user's sense and units.

    Attributes:
        status: how the run ended; `message` says it in words, `status.advice` what to do.
        policy: the policy to use; `objective`, `constraint_values` (m,) and `violations` (m,) ≥ 0 are its values.
        multipliers: (m,) ≥ 0, shadow prices per unit of each limit, those with the best proved bound. That of `Equal`
            and `Between` is negative where the lower end binds.
        certificate: what is proved about `policy`: a `Certificate`; for a simulator a `SimulationCertificate` from
            fresh rollouts, or None if the simulator has no bounds.
        history: one row per iteration.
        last_policy, average_policy: first-order methods only: π_K, and the policy whose values are the averages, which
            is a `MixturePolicy` if it was learned from samples.
        average_certificate: the certificate of `average_policy`, if it was learned from samples.
        deterministic_bound: with `deterministic=True`, what no deterministic policy surpasses, as HiGHS's branch and
            bound claims; unlike `certificate.bound` it is not proved.
        samples: transitions drawn for learning; None if nothing was sampled.
        model: the model that was solved; after `Result.load` only its sizes and limits are known.
        iterations, time, method: number of iterations, seconds, and name of the method.
    """

    certificate: Any  # Certificate, or SimulationCertificate or None without a model
    model: Any = field(repr=False)  # CMDP or Simulator; a Problem in a loaded result
    last_policy: Any = field(default=None, repr=False)
    average_policy: Any = field(default=None, repr=False)
    average_certificate: Any = field(default=None, repr=False)
    deterministic_bound: float | None = None
    memory: Any = field(default=None, repr=False)  # of an exact method, for `solve(other, start=result)`; not saved

    def constraint(self, name: str) -> ConstraintResult:
        """What the policy makes of one constraint, by its name.

        Example:
            >>> import cmdpkit as ck
            >>> utility = ck.solve(ck.problems.paper()).constraint("utility")
            >>> round(utility.value, 6), utility.limit, round(utility.price, 6)
            (3.0, 3.0, 0.24267)
        """
        i = self.model.constraint_index(name)
        stated, value = self.model.constraints[i], float(self.constraint_values[i])
        return ConstraintResult(
            name=name,
            sense=stated.symbol,
            limit=stated.bound,
            value=value,
            slack=stated.slack(value),
            violation=float(self.violations[i]),
            price=float(self.multipliers[i]),
        )

    def to_dict(self, policy: bool = False) -> dict[str, Any]:
        if policy and isinstance(self.policy, ShardedPolicy):
            raise ValueError("the policy of a sharded model is in blocks; use result.policy.save, or policy=False")
        certificate, exact = self.certificate, isinstance(self.certificate, Certificate)
        infeasibility = certificate.infeasibility if exact else None
        summary = {
            "status": self.status.value,
            "message": self.message,
            "method": self.method,
            "objective": finite(self.objective),
            "objective_name": self.model.objective_name,
            "objective_per_step": self.model.objective_per_step,
            "bound": finite(certificate.bound) if exact else None,
            "gap": finite(certificate.gap) if exact else None,
            "violation": finite(certificate.violation) if exact else None,
            "constraints": describe_constraints(self.model, self.constraint_values, self.violations, self.multipliers),
            "infeasibility": None if infeasibility is None else infeasibility.tolist(),
            "infeasibility_margin": certificate.infeasibility_margin if exact else None,
            "iterations": self.iterations,
            "time": self.time,
        }
        if self.deterministic_bound is not None:
            summary |= {"deterministic_bound": finite(self.deterministic_bound)}
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

    def _repr_html_(self) -> str:
        return result_html(self)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingResult(RunResult):
    """The result of `train`.

    Attributes:
        status: ITERATION_LIMIT if all iterations were done, otherwise TIME_LIMIT or INTERRUPTED.
        policy: the last one; acts with NumPy alone; `policy.save(path)`, `NeuralPolicy.load(path)`.
        best_policy: the one with the highest reward among those whose costs were within the limits, both counted with
            their standard errors; None if there was none. It was chosen among many: certify it on fresh episodes.
        best: what its episodes in training showed: `iteration`, `objective`, `objective_error`, `constraint_values`,
            `errors`.
        objective, constraint_values, violations: mean reward and costs over the last 20 iterations.
        multipliers: (m,) ≥ 0, the rule's last λ.
        history: one row per policy iteration: `objective`, `constraint_values` (K, m), `violation`, `multipliers`
            (K, m), `divergence`, `explained`, `verdict`, `samples`, `time`.
        verdicts: number of policy steps accepted, and rejected by reason.
        samples: environment steps.
        limits, measure, method, iterations, time: those of the run.
        folder: folder of the run, if it was written to one.
    """

    verdicts: dict[str, int]
    limits: ConstraintArray
    measure: str
    folder: Path | None = None
    best_policy: Any = None
    best: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        """Environment steps; another name for `samples`."""
        return int(self.samples or 0)

    def recent(self, rows: int = RECENT) -> tuple[float, ConstraintArray]:
        """Mean reward and costs over the last iterations."""
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
            "best": self.best,
            "folder": None if self.folder is None else str(self.folder),
        }
        plain = {name: np.asarray(value).tolist() for name, value in self.policy.arrays().items()} if policy else None
        return summary | ({} if plain is None else {"policy": plain})

    def __str__(self) -> str:
        from cmdpkit.report import training_text

        return training_text(self)

    def _repr_html_(self) -> str:
        return text_html(str(self))


class TrainingFailed(RuntimeError):
    """The environment failed during a run; `result` holds what was learned until then, `__cause__` the error."""

    def __init__(self, message: str, result: TrainingResult) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.result)


def recent(history: History, rows: int = RECENT) -> tuple[float, ConstraintArray]:
    """Mean objective and constraint values over the last rows of a training run."""
    return float(history["objective"][-rows:].mean()), history["constraint_values"][-rows:].mean(axis=0)


def describe_constraints(
    problem: Problem, values: ConstraintArray, violations: ConstraintArray, multipliers: ConstraintArray
) -> list[dict[str, Any]]:
    """Every limit with the value of the policy, as plain data for JSON."""
    return [
        {
            "name": constraint.name,
            "sense": constraint.symbol,
            "limit": constraint.bound,
            "per_step": constraint.per_step,
            **({} if constraint.stage is None else {"stage": constraint.stage}),
            "value": finite(values[i]),
            "violation": finite(violations[i]),
            "multiplier": finite(multipliers[i]),
        }
        for i, constraint in enumerate(problem.constraints)
    ]
