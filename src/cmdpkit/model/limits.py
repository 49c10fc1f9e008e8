"""Limits on expected discounted sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from cmdpkit.checks import check_count, check_number

ONE_CRITERION = (
    "A model has one criterion, for its objective and all limits: gamma, horizon or average of the CMDP. An optimal "
    "policy for a mixture of them would have to remember the time. Choose one for all, or a gamma close to 1, and look "
    "at the others with long_run_averages(cmdp, policy) or evaluate(cmdp.with_criterion(...), policy)"
)


@dataclass(frozen=True, eq=False)
class Limit:
    """A limit on the expected discounted sum of `values` (S, A): `AtMost`, `AtLeast`, `Equal` or `Between`.

    With `per_step=True` it bounds (1 − γ) times that sum: the average per step, weighted by the discount.
    """

    values: ArrayLike | None  # None only for a simulator, which computes them itself

    def __new__(cls, *values: Any, **settings: Any) -> Any:
        """A limit has no criterion of its own."""
        own = [name for name in ("average", "gamma", "horizon") if name in settings]
        if own:
            raise TypeError(f"{cls.__name__} takes no {own[0]!r}. {ONE_CRITERION}")
        return object.__new__(cls)

    if TYPE_CHECKING:  # fields of all of them, after the numbers of the limit

        @property
        def name(self) -> str | None: ...
        @property
        def per_step(self) -> bool: ...
        @property
        def stage(self) -> int | None: ...

    @property
    def unit(self) -> str:
        """What follows the name in tables."""
        return " per step" if self.per_step else "" if self.stage is None else f" at stage {self.stage}"

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest value allowed, −∞ or ∞ where there is none."""
        raise NotImplementedError

    @property
    def symbol(self) -> str:
        """The sense, as shown in tables."""
        raise NotImplementedError

    @property
    def bound(self) -> float | list[float]:
        """The number that was stated, or the two of `Between`, as plain data."""
        raise NotImplementedError

    def sides(self) -> tuple[OneSided, ...]:
        """The one-sided limits that say the same: solvers know no others."""
        raise NotImplementedError

    def scaled(self, values: ArrayLike, exponent: int) -> Limit:
        """The limit times 2^exponent, on a table that was multiplied by as much."""
        raise NotImplementedError

    def moved(self, limit: Any) -> Limit | None:
        """The same with another limit: a number, or (low, high) for `Between`; None for None."""
        if limit is None:
            return None
        if not isinstance(self, Between):
            if isinstance(limit, (tuple, list)):
                raise ValueError(f"the limit of constraint {self.name!r} is one number, not {limit!r}")
            number: dict[str, Any] = {"limit": limit}
            return check_limits([replace(self, **number)])[0]
        if not isinstance(limit, (tuple, list)) or len(limit) != 2:
            raise ValueError(f"the limit of constraint {self.name!r} is (low, high), not {limit!r}")
        return check_limits([replace(self, low=limit[0], high=limit[1])])[0]

    def in_stage(self, stage: int | None) -> Limit:
        """The same limit on one stage of a horizon, or on all of it."""
        changed: dict[str, Any] = {"stage": stage}
        return replace(self, **changed)

    def slack(self, value: float) -> float:
        """The distance of a value from the nearer end; negative where it lies outside."""
        low, high = self.ends
        return min(high - value, value - low)

    def __str__(self) -> str:
        bound = self.bound
        return f"{self.symbol} {bound:.6g}" if isinstance(bound, float) else f"{bound[0]:.6g} to {bound[1]:.6g}"


@dataclass(frozen=True, eq=False)
class OneSided(Limit):
    """Base of `AtMost` and `AtLeast`."""

    limit: float
    name: str | None = None
    per_step: bool = False
    stage: int | None = None

    sign: ClassVar[float]  # +1 where more is worse, −1 where less is worse

    @property
    def bound(self) -> float:
        return self.limit

    def sides(self) -> tuple[OneSided, ...]:
        return (self,)

    def scaled(self, values: ArrayLike, exponent: int) -> OneSided:
        return replace(self, values=values, limit=math.ldexp(self.limit, exponent))


class AtMost(OneSided):
    """The expected discounted sum of `values` must not exceed `limit`.

    With `per_step=True` the limit bounds (1 − γ) times that sum: the average per step, weighted by the discount. With
    `stage=t` it bounds the expected value of `values` at stage t of a finite horizon alone; the first is stage 0.
    """

    sign = 1.0
    symbol = "<="

    @property
    def ends(self) -> tuple[float, float]:
        return -math.inf, self.limit


class AtLeast(OneSided):
    """The expected discounted sum of `values` must reach `limit`. See `AtMost` for `per_step`."""

    sign = -1.0
    symbol = ">="

    @property
    def ends(self) -> tuple[float, float]:
        return self.limit, math.inf


@dataclass(frozen=True, eq=False)
class Equal(Limit):
    """The expected discounted sum of `values` must equal `limit`, to `tol`. See `AtMost` for `per_step`.

    Its shadow price is positive where the optimum would rather have more, negative where it would rather have less.
    """

    limit: float
    name: str | None = None
    per_step: bool = False
    stage: int | None = None

    symbol = "=="

    @property
    def ends(self) -> tuple[float, float]:
        return self.limit, self.limit

    @property
    def bound(self) -> float:
        return self.limit

    def sides(self) -> tuple[OneSided, ...]:
        return _both_sides(self)

    def scaled(self, values: ArrayLike, exponent: int) -> Equal:
        return replace(self, values=values, limit=math.ldexp(self.limit, exponent))


@dataclass(frozen=True, eq=False)
class Between(Limit):
    """The expected discounted sum of `values` must lie between `low` and `high`. See `AtMost` for `per_step`.

    Its shadow price is positive where `high` binds, negative where `low` does.
    """

    low: float
    high: float
    name: str | None = None
    per_step: bool = False
    stage: int | None = None

    symbol = "between"

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def bound(self) -> list[float]:
        return [self.low, self.high]

    def sides(self) -> tuple[OneSided, ...]:
        return _both_sides(self)

    def scaled(self, values: ArrayLike, exponent: int) -> Limit:
        low, high = (math.ldexp(end, exponent) for end in self.ends)
        if low == high:  # both are so small that they are the same there
            return Equal(values, low, self.name, self.per_step, self.stage)
        return replace(self, values=values, low=low, high=high)


def _both_sides(limit: Limit) -> tuple[OneSided, ...]:
    low, high = limit.ends
    rest = (limit.name, limit.per_step, limit.stage)
    return tuple(side(limit.values, end, *rest) for side, end in ((AtMost, high), (AtLeast, low)))


def check_limits(constraints: Any) -> tuple[Limit, ...]:
    """Check the names, limits and flags of all constraints; their tables of values are not checked."""
    if isinstance(constraints, Limit) or not isinstance(constraints, Iterable):
        raise TypeError(f"constraints must be a list: constraints=[AtMost(...)], not {type(constraints).__name__}")
    checked: list[Limit] = []
    for i, constraint in enumerate(constraints):
        if not isinstance(constraint, (AtMost, AtLeast, Equal, Between)):
            what = f"constraint {i + 1} is of type {type(constraint).__name__}"
            raise TypeError(f"{what}; use cmdpkit.AtMost, AtLeast, Equal or Between")
        name = constraint.name if constraint.name is not None else f"constraint {i + 1}"
        if not isinstance(name, str) or not name or "\0" in name:
            raise TypeError(f"the name of constraint {i + 1} must be a non-empty string, not {name!r}")
        if not isinstance(constraint.per_step, (bool, np.bool_)):
            raise TypeError(f"per_step of constraint {name!r} must be True or False, not {constraint.per_step!r}")
        if constraint.stage is not None:
            check_count(constraint.stage, f"the stage of constraint {name!r}", least=0)
        numbers: dict[str, Any] = _numbers(constraint, name)
        checked.append(replace(constraint, name=name, per_step=bool(constraint.per_step), **numbers))
    names = [c.name for c in checked]
    twice = sorted({str(n) for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"constraint names must differ; used more than once: {', '.join(map(repr, twice))}")
    return tuple(checked)


def _numbers(constraint: AtMost | AtLeast | Equal | Between, name: str) -> dict[str, float]:
    """The numbers of a limit, checked."""
    if not isinstance(constraint, Between):
        return {"limit": check_number(constraint.limit, f"the limit of constraint {name!r}")}
    low, high = (check_number(getattr(constraint, end), f"{end} of constraint {name!r}") for end in ("low", "high"))
    if low == high:
        raise ValueError(f"low and high of constraint {name!r} are both {low:g}; use cmdpkit.Equal(values, {low:g})")
    if low > high:
        raise ValueError(f"low of constraint {name!r} is {low:g}, above high, {high:g}; exchange them")
    return {"low": low, "high": high}


def check_new_limits(limits: Any, named: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """New limits by name, from a mapping and from keywords, of constraints that exist."""
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
    return wanted
