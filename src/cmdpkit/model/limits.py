"""Limits on expected discounted sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from cmdpkit.checks import check_number


@dataclass(frozen=True, eq=False)
class Limit:
    """A limit on the expected discounted sum of `values` (S, A); see `AtMost` and `AtLeast`."""

    values: ArrayLike | None  # None only for a simulator, which computes them itself
    limit: float
    name: str | None = None
    per_step: bool = False

    sign: ClassVar[float]  # +1 where more is worse, −1 where less is worse
    symbol: ClassVar[str]


class AtMost(Limit):
    """The expected discounted sum of `values` must not exceed `limit`.

    With `per_step=True` the limit bounds (1 − γ) times that sum: the average per step, weighted by the discount.
    """

    sign = 1.0
    symbol = "<="


class AtLeast(Limit):
    """The expected discounted sum of `values` must reach `limit`. See `AtMost` for `per_step`."""

    sign = -1.0
    symbol = ">="


def check_limits(constraints: Any) -> tuple[Limit, ...]:
    """Check the names, limits and flags of all constraints; their tables of values are not checked."""
    if isinstance(constraints, Limit) or not isinstance(constraints, Iterable):
        raise TypeError(f"constraints must be a list: constraints=[AtMost(...)], not {type(constraints).__name__}")
    checked: list[Limit] = []
    for i, constraint in enumerate(constraints):
        if not isinstance(constraint, (AtMost, AtLeast)):
            raise TypeError(f"constraint {i} is a {type(constraint).__name__}; use cmdpkit.AtMost or cmdpkit.AtLeast")
        name = constraint.name if constraint.name is not None else f"constraint {i + 1}"
        if not isinstance(name, str) or not name or "\0" in name:
            raise TypeError(f"the name of constraint {i} must be a non-empty string, not {name!r}")
        if not isinstance(constraint.per_step, (bool, np.bool_)):
            raise TypeError(f"per_step of constraint {name!r} must be True or False, not {constraint.per_step!r}")
        limit = check_number(constraint.limit, f"the limit of constraint {name!r}")
        checked.append(type(constraint)(constraint.values, limit, name, bool(constraint.per_step)))
    names = [c.name for c in checked]
    twice = sorted({str(n) for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"constraint names must differ; used more than once: {', '.join(map(repr, twice))}")
    return tuple(checked)


def check_new_limits(limits: Any, named: Mapping[str, Any], known: list[str]) -> dict[str, float | None]:
    """New limits by name, from a mapping and from keywords; None removes a limit."""
    if limits is not None and not isinstance(limits, Mapping):
        raise TypeError(f"limits must be a mapping from names to numbers, not {type(limits).__name__}")
    twice = [name for name in limits or () if name in named]
    if twice:
        raise ValueError(f"the limit {twice[0]!r} was given twice")
    wanted = {**(limits or {}), **named}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        names = ", ".join(map(repr, known)) or "none"
        raise ValueError(f"there is no constraint {unknown[0]!r}; the model has {names}")
    return {
        name: None if value is None else check_number(value, f"the limit of constraint {name!r}")
        for name, value in wanted.items()
    }
