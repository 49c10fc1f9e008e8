"""How a run ended, and what to do about it."""

from __future__ import annotations

import enum


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
