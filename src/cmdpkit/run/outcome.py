"""What a method returns to `solve`, which turns it into a `Result`."""

from __future__ import annotations

from dataclasses import dataclass

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.exact.memory import Memory
from cmdpkit.policy import TabularPolicy
from cmdpkit.run.history import History
from cmdpkit.run.status import Status


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an exact or a first-order method on a known model."""

    status: Status
    policy: TabularPolicy
    certificate: Certificate
    history: History
    iterations: int
    last_policy: TabularPolicy | None = None
    average_policy: TabularPolicy | None = None
    note: str = ""
    message: str = ""  # in place of the status's advice
    deterministic_bound: float | None = None  # on V_0 of deterministic policies, in the internal sign convention
    memory: Memory | None = None
