"""The status of a run, with advice."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """How a run ended; `advice` says what it means and what to do."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    ITERATION_LIMIT = "iteration limit"
    TIME_LIMIT = "time limit"
    NUMERICAL_ERROR = "numerical error"
    SEVERAL_CLASSES = "several classes"  # long-run averages that depend on where the start leads
    INTERRUPTED = "interrupted"
    SAMPLE_LIMIT = "sample limit"  # learning from a simulator only
    NO_SLATER_POINT = "no slater point"  # pmd-pd-zero only

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.OPTIMAL: "The certificate proves the policy optimal and feasible to the tolerance.",
    Status.INFEASIBLE: "No policy meets all limits, as the weights below prove; one of those limits must be relaxed.",
    Status.ITERATION_LIMIT: "This is the best policy so far; see its certificate. Increase max_iterations.",
    Status.TIME_LIMIT: "This is the best policy so far; see its certificate. Increase time_limit.",
    Status.SAMPLE_LIMIT: "The budget of transitions is spent; see the certificate of the policy.",
    Status.NUMERICAL_ERROR: "The tolerance was not reached in double precision; see the certificate.",
    Status.SEVERAL_CLASSES: "Policies can end in parts of the model that are never left; averages that depend on "
    "which part are not supported. The policy is the best found; see its certificate.",
    Status.NO_SLATER_POINT: "No policy is strictly inside all limits, as pmd-pd-zero requires; use auto instead.",
    Status.INTERRUPTED: "Interrupted. This is the best policy so far; see its certificate.",
}
