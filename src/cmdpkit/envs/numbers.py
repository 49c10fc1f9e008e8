"""The numbers in the code that makes an environment: they tell two apart that answer alike in their first steps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np

MOST = 1_000
"""Numbers that are listed; a function may close over a whole table."""


def numbers_of(make: Any) -> list[str]:
    """Numbers in the code of a function or class, in what it closes over, and in what it uses from its own module.

    A speed limit that has been changed in a cost function shows here, and perhaps in no step of an untrained policy.

    Example:
        >>> top = 0.5
        >>> numbers_of(lambda step: step.observation[0] > 2.5 * top)
        ['0.0', '2.5', '0.5']
    """
    found: list[str] = []
    _visit(make, found, set())
    return found


def _visit(thing: Any, found: list[str], seen: set[int]) -> None:
    if isinstance(thing, int | float | np.number):
        found.append(repr(float(thing)))
    elif isinstance(thing, partial):
        _visit_all((thing.func, thing.args, thing.keywords), found, seen)
    elif isinstance(thing, tuple | list | dict | FunctionType | type) and id(thing) not in seen:
        seen.add(id(thing))
        if isinstance(thing, tuple | list | dict):
            _visit_all(thing.values() if isinstance(thing, dict) else thing, found, seen)
        elif isinstance(thing, type):
            own = [x for name, x in vars(thing).items() if not name.startswith("__") or isinstance(x, FunctionType)]
            _visit_all(own, found, seen)
        else:
            _visit_code(thing.__code__, thing, found, seen)
            closed = [cell.cell_contents for cell in thing.__closure__ or () if _is_full(cell)]
            # `closed` itself is not visited: another list may get its id
            _visit_all((thing.__defaults__, thing.__kwdefaults__, *closed), found, seen)


def _visit_all(things: Iterable[Any], found: list[str], seen: set[int]) -> None:
    for thing in things:
        if len(found) < MOST:
            _visit(thing, found, seen)


def _visit_code(code: CodeType, owner: FunctionType, found: list[str], seen: set[int]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _visit_code(constant, owner, found, seen)
        else:
            _visit(constant, found, seen)
    used = [owner.__globals__.get(name) for name in code.co_names]
    foreign = [isinstance(x, FunctionType | type) and x.__module__ != owner.__module__ for x in used]
    _visit_all([x for x, away in zip(used, foreign, strict=True) if not away], found, seen)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # it has not been assigned yet
        return False
