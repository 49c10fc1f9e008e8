"""What a method returns to `solve`, which turns it into a `Result`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.exact.memory import Memory
from cmdpkit.policy import TabularPolicy
from cmdpkit.run.history import History
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an exact or a first-order method on a known model."""

    status: Status
    policy: Any  # TabularPolicy; ShardedPolicy of a model in blocks
    certificate: Certificate
    history: History
    iterations: int
    last_policy: TabularPolicy | None = None
    average_policy: TabularPolicy | None = None
    note: str = ""
    message: str = ""  # in place of the status's advice
    deterministic_bound: float | None = None  # on V_0 of deterministic policies, in the internal sign convention
    memory: Memory | None = None

    def result(self, model: Any, method: str, time: float) -> Result:
        """The result of `solve`, in the user's sense and units."""
        certificate, bound = self.certificate, self.deterministic_bound
        return Result(
            status=self.status,
            policy=self.policy,
            objective=certificate.objective,
            constraint_values=certificate.constraint_values,
            violations=certificate.violations,
            multipliers=certificate.multipliers,
            certificate=certificate,
            history=self.history,
            iterations=self.iterations,
            time=time,
            method=method,
            message=" ".join(part for part in (self.message or self.status.advice, self.note) if part),
            model=model,
            last_policy=self.last_policy,
            average_policy=self.average_policy,
            deterministic_bound=None if bound is None else model.user_objective(bound),
            memory=self.memory,
        )
