"""What a solver found: a status with advice, a policy with its certificate, and the history of the run."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cmdpkit.certificate import Certificate, finite
from cmdpkit.checks import Array
from cmdpkit.files import PathLike, write_json
from cmdpkit.model import CMDP, Statement
from cmdpkit.policy import TabularPolicy
from cmdpkit.simulators import Simulator


class Status(enum.Enum):
    """How a run ended. `advice` says what to do about it."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    ITERATION_LIMIT = "iteration limit"
    TIME_LIMIT = "time limit"
    NUMERICAL_ERROR = "numerical error"
    INTERRUPTED = "interrupted"
    SAMPLE_LIMIT = "sample limit"  # learning from a simulator only
    NO_SLATER_POINT = "no slater point"  # pmd-pd-zero only

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.OPTIMAL: "The certificate proves the policy optimal and feasible to the tolerance.",
    Status.INFEASIBLE: "No policy meets all limits, and the weights below prove it. Relax a limit that has weight.",
    Status.ITERATION_LIMIT: "The best policy so far, as good as its certificate says. Raise max_iterations.",
    Status.TIME_LIMIT: "The best policy so far, as good as its certificate says. Raise time_limit.",
    Status.SAMPLE_LIMIT: "The budget of transitions is spent; the policy is as good as its certificate says.",
    Status.NUMERICAL_ERROR: "The tolerance was not proved in double precision; the certificate says what was.",
    Status.NO_SLATER_POINT: "No policy is strictly inside all limits, which pmd-pd-zero needs; auto does not need it.",
    Status.INTERRUPTED: "Stopped. The best policy so far, as good as its certificate says.",
}


class History:
    """One row an iteration: `history["objective"]` or `history.objective` is a column, `len()` counts the rows.

    First-order methods: row k describes π_{k+1}, in the user's sense and units. `objective`, `violation` (largest),
    `time` and `inner_steps` are (K,); `constraint_values` and `multipliers` (the rule's λ) are (K, m);
    `average_objective`, `average_constraint_values` and `average_violation` are those of the average of π_1..π_{k+1}.
    Exact methods have a row an oracle call: `objective`, `violation`, `bound`, `multipliers`, `time`.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> Array:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"the history has no column {name!r}; it has {', '.join(self._columns)}") from None

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(f"the history has no column {name!r}; it has {', '.join(self.__dict__['_columns'])}")
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self._columns)})"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method hands to `solve`, which makes it a `Result`."""

    status: Status
    policy: TabularPolicy
    certificate: Certificate
    history: History
    iterations: int
    last_policy: TabularPolicy | None = None
    average_policy: TabularPolicy | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of `solve`, in the user's sense and units.

    Attributes:
        status: how the run ended; `message` says it in words, `status.advice` what to do.
        policy: the policy to use; `objective`, `constraint_values` (m,) and `violations` (m,) ≥ 0 are its own.
        multipliers: (m,) ≥ 0, shadow prices per unit of each limit, those with the best proved bound.
        certificate: what is proved about `policy`: a `Certificate`; when only a simulator was given, a
            `SimulationCertificate` from fresh rollouts, or None where the simulator has no bounds.
        history: one row an iteration.
        last_policy, average_policy: first-order methods only: π_K, and the policy whose values are the averages, which
            is a `MixturePolicy` when it was learned from samples.
        average_certificate: of `average_policy`, when it was learned from samples.
        samples: transitions drawn for learning; None when nothing was sampled.
        iterations, time, method, model: of the run.
    """

    status: Status
    policy: TabularPolicy
    objective: float
    constraint_values: Array
    violations: Array
    multipliers: Array
    certificate: Any  # Certificate, or SimulationCertificate or None without a model
    history: History = field(repr=False)
    iterations: int
    time: float
    method: str
    message: str
    model: CMDP | Simulator = field(repr=False)
    last_policy: TabularPolicy | None = field(default=None, repr=False)  # first-order methods: π_K
    average_policy: Any = field(default=None, repr=False)  # its values are the averages of π_1..π_K
    average_certificate: Any = field(default=None, repr=False)
    samples: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings: what `--json` prints. The policy itself is saved with `policy.save`."""
        certificate, exact = self.certificate, isinstance(self.certificate, Certificate)
        summary = {
            "status": self.status.value,
            "message": self.message,
            "method": self.method,
            "objective": finite(self.objective),
            "bound": finite(certificate.bound) if exact else None,
            "gap": finite(certificate.gap) if exact else None,
            "violation": finite(certificate.violation) if exact else None,
            "constraints": self._constraints(),
            "infeasibility": certificate.infeasibility.tolist()
            if exact and certificate.infeasibility is not None
            else None,
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
        return summary

    def _constraints(self) -> list[dict[str, Any]]:
        return describe_constraints(self.model, self.constraint_values, self.violations, self.multipliers)

    def save(self, path: PathLike) -> None:
        """Write `to_dict()` as JSON, whole or not at all."""
        write_json(path, self.to_dict())

    def __str__(self) -> str:
        from cmdpkit.report import result_text

        return result_text(self)


def describe_constraints(
    statement: Statement, values: Array, violations: Array, multipliers: Array
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
        for i, constraint in enumerate(statement.constraints)
    ]
