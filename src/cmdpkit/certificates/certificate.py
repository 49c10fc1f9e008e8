"""The certificate: what is proved about one policy, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.tables import certificate_html


@dataclass(frozen=True, eq=False)
class Certificate:
    """A proof about one policy, in the user's sense and units.

    `bound`, `gap` and `violation` are rigorous: the bound is no better than the true optimum, and gap and violation
    include the largest rounding error that the evaluation of the policy can have made (`accuracy`).
    """

    objective: float  # of the policy
    bound: float  # no feasible policy does better than this
    gap: float  # |objective − bound| / max(1, |objective|)
    violation: float  # largest of violations_i / max(1, |limit_i|), evaluation errors included
    constraint_values: Array  # (m,)
    violations: Array  # (m,) ≥ 0, in the units of the limits
    multipliers: Array  # (m,) ≥ 0 (Equal, Between: any sign): no policy has a smaller Lagrangian than the bound
    accuracy: float  # numerical error of objective and constraint values is at most this, relative to max(1, |·|)
    infeasibility: Array | None = None  # like multipliers, y with Σ y_i V_i > 0 for every policy: limits cannot be met
    infeasibility_margin: float | None = None  # by how much: Σ y_i V_i is at least this for every policy

    def feasible(self, tol: float = 0.0) -> bool:
        """Every limit is met to tol · max(1, |limit|), rounding included."""
        return self.violation <= tol

    def optimal(self, tol: float) -> bool:
        """The policy is feasible to `tol` and its objective within a relative `tol` of every feasible policy's."""
        return self.feasible(tol) and self.gap <= tol

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON; a bound that does not exist is None."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else finite(value) for name, value in columns.items()
        }

    def _repr_html_(self) -> str:
        return certificate_html(self)

    def __str__(self) -> str:
        if self.infeasibility is not None:
            y = np.array2string(self.infeasibility, precision=6)
            return f"infeasible: with y = {y} every policy has sum(y * V) >= {self.infeasibility_margin:.3g} > 0"
        proved = f"gap {self.gap:.2e}, violation {self.violation:.2e}"
        return f"objective {self.objective:.9g}, bound {self.bound:.9g}, {proved}"


def finite(value: float | None) -> float | None:
    """JSON has no infinity: a bound that does not exist is null."""
    return None if value is None or not np.isfinite(value) else float(value)
