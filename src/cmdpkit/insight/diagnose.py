"""Why a model has no feasible policy and what would help; or how much room its limits leave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cmdpkit.certificates.certificate import finite
from cmdpkit.checks import Array, check_nonnegative, check_number, freeze
from cmdpkit.evaluation import evaluate
from cmdpkit.evaluation.patience import Stopped, cancelled, until
from cmdpkit.exact.conflict import Conflict, Relaxation, minimal_conflict, relaxation
from cmdpkit.exact.slater import LeastMiss, least_miss
from cmdpkit.model import CMDP, check_model
from cmdpkit.policy import TabularPolicy, raised_policy
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status
from cmdpkit.solver import solve

RELATIVE = "relative"


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis:
    """What is known about the feasibility of a model, in the user's units. `str(diagnosis)` is a table.

    Attributes:
        feasible: True or False where it is proved; None if not (time ran out, or the limits leave no room at all).
        margin: (2,) bounds on the margin by which all limits can be met at once, in `units`; negative if missed.
        conflict: names of limits that cannot be met together; without any one of them the others can (`irreducible`).
        weights: (m,) the Farkas proof of that: Σ weight · excess is at least `proved_excess` for every policy.
        relaxations: per limit the value to which it alone would have to be relaxed (`proved`: tighter values do not do;
            `attained`: this one does), or None where relaxing it alone does not help.
        policy: the policy whose largest miss, in `units`, is smallest; `misses` (m,) ≥ 0 are in the limits' own units.
        units: (m,) in which misses and the margin are compared.
        result: the result of `solve`: for a feasible model with its binding limits and their prices.
    """

    feasible: bool | None
    margin: Array
    conflict: tuple[str, ...]
    irreducible: bool
    weights: Array | None
    proved_excess: float | None
    relaxations: dict[str, Relaxation | None]
    policy: TabularPolicy
    misses: Array
    values: Array
    units: Array
    result: Result = field(repr=False)
    model: CMDP = field(repr=False)

    @property
    def binding(self) -> dict[str, float]:
        """Limits with a positive shadow price in the optimum, with that price; empty for an infeasible model."""
        if not self.feasible:
            return {}
        prices = zip(self.model.names, self.result.multipliers, strict=True)
        return {name: float(price) for name, price in prices if price > 0.0}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON."""
        return {
            "feasible": self.feasible,
            "margin": [finite(x) for x in self.margin],
            "conflict": list(self.conflict),
            "irreducible": self.irreducible,
            "weights": None if self.weights is None else self.weights.tolist(),
            "proved_excess": self.proved_excess,
            "relaxations": {
                name: None if found is None else {"proved": finite(found.proved), "attained": finite(found.attained)}
                for name, found in self.relaxations.items()
            },
            "misses": dict(zip(self.model.names, self.misses.tolist(), strict=True)),
            "units": dict(zip(self.model.names, self.units.tolist(), strict=True)),
            "binding": self.binding,
            "status": self.result.status.value,
        }

    def table(self) -> str:
        """Every limit with what is known about it, as a text table."""
        from cmdpkit.report import diagnosis_table, plain

        return plain(diagnosis_table(self))

    def __str__(self) -> str:
        from cmdpkit.report import diagnosis_report, plain

        return plain(diagnosis_report(self))


def diagnose(cmdp: CMDP, units: Any = None, *, tol: float = 1e-6, time_limit: float | None = None) -> Diagnosis:
    """Say why no policy meets the limits of a model and what would help, or how much room the limits leave.

    Args:
        cmdp: the model. The two ends of `Equal` and `Between` are diagnosed apart, as "power <=" and "power >=".
        units: in which misses are compared: a number per limit, by name, such as {"power": 0.1, "delay": 5.0} (others
            count in their own units). The name of an `Equal` or `Between` stands for both of its ends. "relative" is
            relative to max(1, |limit|), as `tol` is: a limit smaller than one counts in its own unit. By default all
            count in their own units.
        tol: accuracy.
        time_limit: seconds; what is proved until then is returned.

    Example:
        >>> import cmdpkit as ck
        >>> impossible = ck.problems.paper().with_limits(utility=6.0)
        >>> found = ck.diagnose(impossible)
        >>> found.conflict, round(found.relaxations["utility"].attained, 4)
        (('utility',), 4.525)
    """
    check_model(cmdp)
    stated, cmdp = cmdp, cmdp.one_sided
    check_nonnegative(tol, "tol")
    if time_limit is not None:
        check_nonnegative(time_limit, "time_limit")
    sizes = check_units(stated, units)
    inner = cmdp if cmdp.lowering is None else cmdp.lowering.model
    inner.refuse_extremes("a diagnosis")
    started = time.perf_counter()

    def stop() -> bool:
        return cancelled() or (time_limit is not None and time.perf_counter() - started >= time_limit)

    result = solve(cmdp, tol=tol, time_limit=time_limit)
    found = _least(inner, sizes, result, stop)
    conflict, relaxations = None, {}
    if result.status is Status.INFEASIBLE:
        certificate = result.certificate
        conflict = Conflict((), certificate.infeasibility, certificate.infeasibility_margin, False)
        try:
            with until(stop):
                conflict = minimal_conflict(inner, conflict.weights, conflict.margin, stop)
                relaxations = _relaxations(inner, conflict, tol, stop)
        except Stopped:
            pass
    policy = found.policy
    if cmdp.lowering is not None and policy is not result.policy:
        policy = raised_policy(cmdp, policy)
    values = evaluate(cmdp, policy).constraint_values
    return Diagnosis(
        feasible=_verdict(result, conflict, tol),
        margin=np.array([-found.upper, -found.lower]),
        conflict=() if conflict is None else tuple(cmdp.names[i] for i in conflict.members),
        irreducible=conflict is not None and conflict.irreducible,
        weights=None if conflict is None else conflict.weights,
        proved_excess=None if conflict is None else conflict.margin,
        relaxations=relaxations,
        policy=policy,
        misses=np.maximum(cmdp.signs * (values - cmdp.limits), 0.0),
        values=values,
        units=sizes,
        result=result,
        model=cmdp,
    )


def _verdict(result: Result, conflict: Conflict | None, tol: float) -> bool | None:
    if conflict is not None:
        return False
    return True if result.certificate.feasible(tol) else None


def check_units(cmdp: CMDP, units: Any) -> Array:
    """(rows,) units of the limits, from what the user gave: by the names of limits, or of their ends."""
    sides = cmdp.one_sided
    sizes: Array = np.ones(sides.num_constraints)
    if units is None:
        return sizes
    if isinstance(units, str) and units == RELATIVE:
        return sides.tolerance_scales
    if not isinstance(units, Mapping):
        raise TypeError(f"units must be a mapping from names to numbers, or {RELATIVE!r}, not {units!r}")
    for name, unit in units.items():
        meant = [i for i, side in enumerate(sides.names) if name in (side, cmdp.names[cmdp.owners[i]])]
        if not meant:
            known = ", ".join(map(repr, cmdp.names)) or "none"
            raise ValueError(f"units: there is no constraint {name!r}; the model has {known}")
        size = check_number(unit, f"the unit of {name!r}")
        if size <= 0.0:
            raise ValueError(f"the unit of {name!r} must be positive, not {unit}")
        sizes[meant] = size
    return sizes


def _least(cmdp: CMDP, units: Array, result: Result, stop: Any) -> LeastMiss:
    """The policy that misses least, with every limit measured in its unit."""
    if not cmdp.num_constraints:
        return LeastMiss(-np.inf, -np.inf, result.policy, np.zeros(0))
    scaled = [
        replace(c, values=freeze(np.asarray(c.values) / unit), limit=c.limit / float(unit))
        for c, unit in zip(cmdp.rows, units, strict=True)
    ]
    try:
        with until(stop):
            return least_miss(cmdp._derived(scaled), stop=stop)
    except Stopped:
        return LeastMiss(-np.inf, np.inf, result.policy, np.zeros(cmdp.num_constraints))


def _relaxations(cmdp: CMDP, conflict: Conflict, tol: float, stop: Any) -> dict[str, Relaxation | None]:
    """Limits outside the conflict do not help alone; each inside is tried."""
    found: dict[str, Relaxation | None] = {}
    for i, name in enumerate(cmdp.names):
        if stop():
            break
        found[name] = relaxation(cmdp, i, tol, stop) if i in conflict.members else None
    return found
