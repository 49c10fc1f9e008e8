"""Options: a default, a domain and one line of help for each setting that a user may change.

The fields of a settings class or a rule are declared with `option`. Keyword arguments, their validation, command-line
flags and the tables in the documentation are all derived from these declarations. Importing this module imports
neither NumPy nor SciPy, which keeps `--help` fast.

Example:
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     step: float = option(1.0, POSITIVE, "Size of a step.")
    >>> options_of(Settings)["step"].help
    'Size of a step.'
    >>> validated(Settings, {"step": -1.0})
    Traceback (most recent call last):
    ...
    ValueError: step must be positive, got -1.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Domain:
    """The values that an option may take.

    Args:
        words: a description of the domain, for the documentation.
        check: called with the value, the option's name and the number of constraints (None if unknown); returns the
            value as the code expects it, or raises a ValueError or TypeError.
        kind: how the command line reads it: "number", "whole", "flag", "choice", "numbers" (one or a list), "list"
            (of numbers, also of one), or None for options that have no flag.
        choices: of the kind "choice".
    """

    words: str
    check: Callable[[Any, str, int | None], Any]
    kind: str | None = "number"
    choices: tuple[str, ...] = ()


def option(default: Any, domain: Domain, help: str, learners: tuple[str, ...] | None = None) -> Any:
    """A dataclass field that is an option; with a default of None the method chooses the value.

    `learners` restricts an option of a rule to some of the learners that the rule runs with.
    """
    return field(default=default, metadata={"domain": domain, "help": help, "learners": learners})


@dataclass(frozen=True)
class Option:
    """One option, as declared."""

    name: str
    default: Any
    domain: Domain
    help: str
    learners: tuple[str, ...] | None = None  # None: all that the rule runs with

    def serves(self, *learners: str) -> bool:
        """Whether the option means something to one of the learners."""
        return self.learners is None or bool(set(learners) & set(self.learners))


def options_of(settings: type) -> dict[str, Option]:
    """The options that a settings class or a rule declares, by name."""
    declared: list[Field[Any]] = [f for f in fields(settings) if "domain" in f.metadata]
    return {f.name: Option(f.name, _default(f), **f.metadata) for f in declared}


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default


def validated(settings: type, given: Mapping[str, Any], constraints: int | None = None) -> Any:
    """An instance of `settings` with every given value checked; None means the default."""
    known = options_of(settings)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(known)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    return settings(**{name: known[name].domain.check(value, name, constraints) for name, value in chosen.items()})


def revalidated(settings: Any, constraints: int | None = None) -> Any:
    """A copy of an instance made by the user, with every value checked."""
    from dataclasses import replace

    given = {name: getattr(settings, name) for name in options_of(type(settings))}
    plain = validated(type(settings), given, constraints)
    return replace(settings, **{name: getattr(plain, name) for name, value in given.items() if value is not None})


# -- domains ---------------------------------------------------------------------------------------------------------


def _number(value: Any, name: str, _: int | None) -> float:
    from cmdpkit.checks import check_number

    return check_number(value, name)


def _positive(value: Any, name: str, _: int | None) -> float:
    from cmdpkit.checks import check_positive

    return check_positive(value, name)


def _nonnegative(value: Any, name: str, _: int | None) -> float:
    from cmdpkit.checks import check_nonnegative

    return check_nonnegative(value, name)


def _above_one(value: Any, name: str, _: int | None) -> float:
    number = _number(value, name, None)
    if number <= 1.0:
        raise ValueError(f"{name} must be greater than 1, got {value}")
    return number


def _fraction(value: Any, name: str, _: int | None) -> float:
    number = _number(value, name, None)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
    return number


def _part(value: Any, name: str, _: int | None) -> float:
    from cmdpkit.checks import check_positive

    number = check_positive(value, name)
    if number > 1.0:
        raise ValueError(f"{name} must be at most 1, got {value!r}")
    return number


def _gamma(value: Any, name: str, _: int | None) -> float:
    from cmdpkit.checks import check_gamma

    return check_gamma(value)


def _cap(value: Any, name: str, _: int | None) -> float:
    import math
    import numbers

    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value) or value < 0.0:
        raise ValueError(f"{name} must be a nonnegative number (infinity is allowed), got {value!r}")
    return float(value)


def _whole(value: Any, name: str, _: int | None) -> int:
    from cmdpkit.checks import check_count

    return check_count(value, name, least=1)


def _flag(value: Any, name: str, _: int | None) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _each(value: Any, name: str, constraints: int | None, zero: bool) -> Any:
    import numpy as np

    from cmdpkit.checks import as_floats

    table = as_floats(value, name)
    allowed = table.ndim <= 1 if constraints is None else table.shape in ((), (constraints,))
    if not allowed:
        count = "constraint" if constraints is None else f"of the {constraints} constraints"
        raise ValueError(f"{name} must be one number, or one number for each {count}, got shape {table.shape}")
    if not np.isfinite(table).all() or (table < 0.0).any() or (not zero and (table == 0.0).any()):
        raise ValueError(f"{name} must be {'finite and nonnegative' if zero else 'positive and finite'}, got {value}")
    return table


def _sizes(value: Any, name: str, _: int | None) -> tuple[float, ...]:
    import numpy as np

    from cmdpkit.checks import as_floats

    table = as_floats(value, name)
    if table.ndim != 1 or not table.size or not np.isfinite(table).all() or (table <= 0.0).any():
        raise ValueError(f"{name} must be a list of positive numbers, got {value}")
    return tuple(table.tolist())


def _widths(value: Any, name: str, _: int | None) -> tuple[int, ...]:
    from cmdpkit.checks import check_count

    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list of layer sizes, as in [128, 128], got {value!r}")
    return tuple(check_count(size, f"{name}[{i}]", least=1) for i, size in enumerate(value))


def _anything(value: Any, name: str, _: int | None) -> Any:
    return value


NUMBER = Domain("a number", _number)
POSITIVE = Domain("a positive number", _positive)
NONNEGATIVE = Domain("a nonnegative number", _nonnegative)
ABOVE_ONE = Domain("a number greater than 1", _above_one)
FRACTION = Domain("a number in [0, 1]", _fraction)
PART = Domain("a positive number of at most 1", _part)
GAMMA = Domain("a number in [0, 1)", _gamma)
CAP = Domain("a nonnegative number, or infinity", _cap)
WHOLE = Domain("a whole number of at least 1", _whole, "whole")
FLAG = Domain("True or False", _flag, "flag")
POSITIVE_EACH = Domain(
    "a positive number, or one per constraint", lambda value, name, m: _each(value, name, m, zero=False), "numbers"
)
NONNEGATIVE_EACH = Domain(
    "a nonnegative number, or one per constraint",
    lambda value, name, m: _each(value, name, m, zero=True),
    "numbers",
)
SIZES = Domain("a list of positive numbers", _sizes, "list")
WIDTHS = Domain("a list of whole numbers", _widths, "list")
OBJECT = Domain("checked where it is used", _anything, None)


def choice(*names: str) -> Domain:
    """One of the given words."""

    def check(value: Any, name: str, _: int | None) -> str:
        if value not in names:
            one = "" if len(names) == 1 else "one of "
            raise ValueError(f"{name} must be {one}{', '.join(map(repr, names))}, got {value!r}")
        return str(value)

    return Domain(", ".join(map(repr, names)), check, "choice", names)
