"""What values are: discounted sums, totals until the end or over a horizon, or long-run averages."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import check_count, check_gamma, check_number
from cmdpkit.model.limits import ONE_CRITERION, Limit
from cmdpkit.model.problem import Problem


def check_criterion(gamma: Any, horizon: Any, average: Any) -> tuple[str, float, int | None]:
    """The criterion, its discount factor and its horizon. A long-run average has no discount: 1 in all look-aheads."""
    if not isinstance(average, (bool, np.bool_)):
        raise TypeError(f"average must be True or False, not {average!r}")
    if average and (gamma is not None or horizon is not None):
        other, what = (f"gamma={gamma!r}", "discount") if horizon is None else (f"horizon={horizon!r}", "horizon")
        raise ValueError(f"a long-run average has no {what}: leave out {other}, or average=True. {ONE_CRITERION}")
    if average:
        return "average", 1.0, None
    if horizon is not None:
        steps = check_count(horizon, "horizon", least=1)
        whole = gamma is None or check_number(gamma, "gamma") == 1.0
        return "horizon", 1.0 if whole else check_gamma(gamma), steps
    if gamma is None:
        raise TypeError(
            "gamma is needed: a discount factor below 1, or 1 for totals until the process ends; or horizon, a number "
            "of steps; or average=True for long-run averages"
        )
    return ("total", 1.0, None) if check_number(gamma, "gamma") == 1.0 else ("discounted", check_gamma(gamma), None)


def check_limit_criterion(limit: Limit, criterion: str, gamma: float, horizon: int | None) -> None:
    """Check that a limit is one on the model's criterion."""
    if limit.per_step and criterion in ("total", "horizon"):
        hint = "multiply the limit by the horizon" if criterion == "horizon" else "state a limit on the total"
        raise ValueError(
            f"constraint {limit.name!r} has per_step=True, a limit on (1 - gamma) times a discounted sum; {hint}"
        )
    if limit.stage is None:
        return
    if horizon is None:
        raise ValueError(
            f"constraint {limit.name!r} is for stage {limit.stage}, but the model has no stages: give horizon"
        )
    if limit.stage >= horizon:
        raise ValueError(f"constraint {limit.name!r} is for stage {limit.stage}; the stages are 0 to {horizon - 1}")
    if gamma < 1.0:
        raise ValueError(
            f"constraint {limit.name!r} is for one stage, whose value is not discounted; with gamma = {gamma:g} "
            "leave out stage, or gamma"
        )


def refuse_averages(problem: Problem, what: str) -> None:
    """What knows discounted models only says so."""
    if problem.criterion == "average":
        raise ValueError(
            f"{what} knows discounted models only, and this model has average=True; solve it with 'auto', 'columns', "
            "'lp' or 'pmd-pd', or give it a gamma close to 1"
        )
