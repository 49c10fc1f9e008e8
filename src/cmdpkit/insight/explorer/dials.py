"""What can be moved: a dial for every limit, and for the parameters of a built-in model."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from threading import Lock
from typing import Any

import numpy as np

from cmdpkit.evaluation import evaluate
from cmdpkit.model import CMDP
from cmdpkit.model.limits import Between, Limit
from cmdpkit.problems import CATALOGUE
from cmdpkit.problems._build import GAMMA
from cmdpkit.problems.places import places_of
from cmdpkit.problems.ranges import RANGES
from cmdpkit.solver import solve

STEPS = 200
"""A slider has about so many positions."""

ROOM = 0.1
"""A slider goes beyond what is possible and what matters by this part of its range, so that both ends can be seen."""

KEPT = 8
"""Models with other parameters that are kept."""

Setting = tuple[float, ...]
"""One number per dial."""


@dataclass(frozen=True)
class Dial:
    """A number that can be moved between `low` and `high`, from `value` on."""

    name: str
    group: str  # "limits" or "parameters"
    low: float
    high: float
    step: float
    value: float
    whole: bool = False

    def check(self, number: Any) -> float:
        """The number, if it is one and lies in the range."""
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not self.low <= number <= self.high:
            raise ValueError(f"{self.name} must be a number between {self.low:g} and {self.high:g}")
        if self.whole and number != int(number):
            raise ValueError(f"{self.name} must be a whole number")
        return float(number)


class Desk:
    """All dials of a model, and the model that belongs to a setting of them."""

    def __init__(
        self, cmdp: CMDP, name: str = "", parameters: Mapping[str, Any] | None = None, seconds: float = 10.0
    ) -> None:
        self.base, self.name = cmdp, name
        self.given = dict(parameters or {})
        self._limits = _limit_dials(cmdp, seconds)
        self._parameters = _parameter_dials(name, self.given)
        self.dials: tuple[Dial, ...] = (*(dial for _, _, dial in self._limits), *(d for _, _, d in self._parameters))
        if not self.dials:
            raise ValueError("there is nothing to move: the model has no limits, and no parameters that are known")
        self._models: OrderedDict[tuple[float, ...], CMDP] = OrderedDict()
        self._lock = Lock()

    @property
    def start(self) -> Setting:
        return tuple(dial.value for dial in self.dials)

    def check(self, values: Any) -> Setting:
        """The setting, if it has one number in its range per dial."""
        if not isinstance(values, (list, tuple)) or len(values) != len(self.dials):
            raise ValueError(f"a setting has {len(self.dials)} numbers")
        return tuple(dial.check(value) for dial, value in zip(self.dials, values, strict=True))

    def model(self, setting: Setting) -> CMDP:
        """The model with these parameters and limits; a ValueError says why there is none."""
        count = len(self._limits)
        cmdp = self._with_parameters(setting[count:])
        wanted: dict[str, Any] = {}
        for (constraint, end, _), value in zip(self._limits, setting[:count], strict=True):
            if end is None:
                wanted[constraint] = value
            else:
                low, high = wanted.get(constraint, (None, None))
                wanted[constraint] = (value, high) if end == 0 else (low, value)
        return cmdp.with_limits({name: value for name, value in wanted.items() if name in cmdp.names})

    def _with_parameters(self, values: Setting) -> CMDP:
        if values == tuple(dial.value for _, _, dial in self._parameters):
            return self.base
        with self._lock:
            if values not in self._models:
                self._models[values] = CATALOGUE[self.name](**self.parameters(values))
                while len(self._models) > KEPT:
                    self._models.popitem(last=False)
            return self._models[values]

    def parameters(self, values: Setting) -> dict[str, Any]:
        """The arguments of the built-in problem."""
        found = dict(self.given)
        known = signature(CATALOGUE[self.name]).parameters
        for (name, place, dial), value in zip(self._parameters, values, strict=True):
            number = int(value) if dial.whole else value
            if place is None:
                found[name] = number
            else:
                entries = list(found.get(name, known[name].default))
                entries[place] = number
                found[name] = tuple(entries)
        return found

    def axes(self, setting: Setting) -> Any:
        """The map of the states, if the model is built in and has one."""
        if self.name not in CATALOGUE:
            return None
        return places_of(self.name, self.parameters(setting[len(self._limits) :]))

    def command(self, setting: Setting, source: Sequence[str]) -> list[str]:
        """The command that writes the report of a setting; `source` is the model with its own flags."""
        words = ["cmdpkit", "report", *source]
        count = len(self._limits)
        changed = self.parameters(setting[count:]) if self.name else {}
        for name, value in changed.items():
            words += ["--set", f"{name}={value!r}"]
        table = source[0].lower().endswith(".csv")
        for limit in self.model(setting).constraints:
            bound = limit.bound
            text = ",".join(f"{x!r}" for x in bound) if isinstance(bound, list) else f"{bound!r}"
            # A table does not say on which side a limit is
            sense = limit.symbol if table and not isinstance(bound, list) else "="
            words += ["--limit", f"{limit.name}{sense}{text}"]
        return words


# -- limits -----------------------------------------------------------------------------------------------------------


def _limit_dials(cmdp: CMDP, seconds: float) -> list[tuple[str, int | None, Dial]]:
    """(constraint, which end of a `Between`, dial)."""
    found: list[tuple[str, int | None, Dial]] = []
    for limit, (low, high) in zip(cmdp.constraints, _reach(cmdp, seconds), strict=True):
        name = str(limit.name)
        if isinstance(limit, Between):
            ends = limit.ends
            dials = [_dial(f"{name}, {word}{limit.unit}", low, high, ends[k]) for k, word in enumerate(("low", "high"))]
            found += [(name, 0, dials[0]), (name, 1, dials[1])]
        else:
            value = float(limit.bound)  # type: ignore[arg-type]
            found.append((name, None, _dial(f"{name}{limit.unit}", low, high, value)))
    return found


def _dial(name: str, low: float, high: float, value: float) -> Dial:
    low, high = min(low, value), max(high, value)
    room = ROOM * (high - low) or 0.5 * max(1.0, abs(value))
    step = _round_step((high - low + 2.0 * room) / STEPS)
    return Dial(
        name, "limits", _rounded(low - room, step, math.floor), _rounded(high + room, step, math.ceil), step, value
    )


def _round_step(size: float) -> float:
    """1, 2 or 5 times a power of ten, near a size."""
    power = 10.0 ** math.floor(math.log10(size))
    return min((factor * power for factor in (1.0, 2.0, 5.0, 10.0)), key=lambda step: abs(math.log(step / size)))


def _rounded(value: float, step: float, way: Callable[[float], int]) -> float:
    return float(f"{way(value / step) * step:.12g}")


def _reach(cmdp: CMDP, seconds: float) -> list[tuple[float, float]]:
    """Per limit: between which values it matters, from the least possible value to that of the best free policy."""
    if not cmdp.num_constraints:
        return []
    free = cmdp.with_limits(dict.fromkeys(cmdp.names))
    share = seconds / (cmdp.num_constraints + 1)
    at_best = evaluate(cmdp, solve(free, tol=1e-3, time_limit=share).policy).constraint_values
    found = []
    for i, limit in enumerate(cmdp.constraints):
        values = [float(at_best[i]), *(_extreme(cmdp, free, i, way, share) for way in _tight_ways(limit))]
        finite = [x for x in values if math.isfinite(x)]
        found.append((min(finite), max(finite)))
    return found


def _tight_ways(limit: Limit) -> Sequence[str]:
    """In which directions a limit gets tight: of `Equal` and `Between` both."""
    return {"<=": ("cost",), ">=": ("reward",)}.get(limit.symbol, ("cost", "reward"))


def _extreme(cmdp: CMDP, free: CMDP, index: int, way: str, seconds: float) -> float:
    """The smallest or the largest value of a limited quantity, over all policies."""
    table = np.asarray(cmdp.constraints[index].values)
    if cmdp.constraints[index].stage is not None:
        return 0.0 if way == "cost" else float(table.max())
    settings: dict[str, Any] = {way: table}
    policy = solve(free.with_objective(**settings), tol=1e-3, time_limit=seconds).policy
    return float(evaluate(cmdp, policy).constraint_values[index])


# -- parameters -------------------------------------------------------------------------------------------------------


def _parameter_dials(name: str, given: Mapping[str, Any]) -> list[tuple[str, int | None, Dial]]:
    """(parameter, place in a list, dial)."""
    found: list[tuple[str, int | None, Dial]] = []
    if name not in CATALOGUE:
        return found
    known = signature(CATALOGUE[name]).parameters
    for parameter, (low, high, whole) in RANGES.get(name, {}).items():
        value = given.get(parameter, known[parameter].default)
        if parameter == "gamma" and given.get("average"):
            continue
        if parameter in ("rows", "columns") and given.get("layout") is not None:
            continue
        value = GAMMA if value is None else value
        entries = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [value]
        for place, entry in enumerate(entries):
            words = parameter.replace("_", " ") + (f" {place + 1}" if len(entries) > 1 else "")
            ends = min(low, float(entry)), max(high, float(entry))
            step = 1.0 if whole else _round_step((ends[1] - ends[0]) / STEPS)
            dial = Dial(words, "parameters", *ends, step, float(entry), whole)
            found.append((parameter, place if len(entries) > 1 else None, dial))
    return found
