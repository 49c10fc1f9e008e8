"""`frontier`: the optimum as a function of one limit or two, certified everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array, check_count, check_nonnegative, check_number
from cmdpkit.cluster import check_cluster, elsewhere, using
from cmdpkit.evaluation.patience import cancelled
from cmdpkit.evaluation.threads import OneBlasThread
from cmdpkit.exact.band import Band
from cmdpkit.insight.grid import surface
from cmdpkit.insight.line import curve
from cmdpkit.model import CMDP, check_model


def frontier(
    cmdp: CMDP,
    limit: str | Sequence[str],
    limits: Any = None,
    *,
    tol: float = 1e-4,
    points: int = 11,
    time_limit: float | None = None,
    cluster: str | None = None,
) -> Any:
    """The optimum as a function of one limit (a `Frontier`) or two (a `Surface`), certified everywhere.

    Args:
        cmdp: the model. All other limits stay as they are.
        limit: the name of the limit to vary, or two names for a surface. The two ends of `Equal` and `Between` vary
            apart, as "power <=" and "power >=".
        limits: values at which the optimum is wanted; two lists of values for a surface. By default the range is found:
            from the tightest value that can be met to where the limit stops binding, refined until the bounds are
            within `tol` everywhere in it. Values that cannot be met are marked, and the proof is kept.
        tol: largest distance between the bounds, relative as in `solve`.
        points: points per axis of a surface, if `limits` are not given.
        time_limit: seconds; what is proved until then is returned.
        cluster: "local", "auto" or the address of a Ray cluster, one worker of which computes the frontier, to the same
            numbers: its solves build on each other, and are not made side by side. See docs/cluster.md.

    Example:
        >>> import cmdpkit as ck
        >>> curve = ck.frontier(ck.problems.paper(), "utility")
        >>> low, high = curve.at(3.0)  # the optimum at a utility of 3 is proved to lie between them
        >>> low <= 4.46244363625 <= high, high - low < 1e-3
        (True, True)
        >>> round(float(curve.limits[-1]), 4)  # no policy has more utility
        4.525
    """
    check_model(cmdp)
    stated, cmdp = cmdp, cmdp.one_sided
    if not isinstance(limit, Iterable):
        raise TypeError(f"limit must be the name of a limit, or two names, not {limit!r}")
    names = (limit,) if isinstance(limit, str) else tuple(limit)
    axes = _axes(stated, names)
    check_nonnegative(tol, "tol")
    if tol == 0.0:
        raise ValueError("tol must be positive: the bounds meet only up to rounding")
    check_count(points, "points", least=2)
    if time_limit is not None:
        check_nonnegative(time_limit, "time_limit")
    inner = cmdp if cmdp.lowering is None else cmdp.lowering.model
    inner.refuse_extremes("a frontier")
    wanted = _values(limits, names)
    with using(check_cluster(cluster)):
        found = elsewhere(_compute, (inner, tol, axes, wanted, points, time_limit), f"the frontier of {names}")
    return replace(found, model=cmdp)


def _compute(what: tuple[CMDP, float, list[int], list[Array] | None, int, float | None]) -> Any:
    inner, tol, axes, wanted, points, time_limit = what
    started = time.perf_counter()

    def stop() -> bool:
        return cancelled() or (time_limit is not None and time.perf_counter() - started >= time_limit)

    make: Callable[..., Any] = surface if len(axes) == 2 else curve
    with OneBlasThread(inner):
        return make(inner, Band(inner, tol, axes, stop), axes, wanted, stop, started, points)


def _axes(cmdp: CMDP, names: Sequence[Any]) -> list[int]:
    """The rows that vary, by their names as constraints of one side."""
    if len(names) not in (1, 2) or len(set(names)) < len(names):
        raise ValueError(f"a frontier is over one limit or two different ones, not {names!r}")
    sides = cmdp.one_sided.names
    for name in names:
        if name in sides:
            continue
        if name in cmdp.names:
            kind = type(cmdp.constraints[cmdp.names.index(name)]).__name__
            raise ValueError(
                f"{name!r} is {kind} and has two ends, which vary apart: say which one, "
                f"'{name} <=' (at most) or '{name} >=' (at least)"
            )
        known = ", ".join(map(repr, sides)) or "none"
        raise ValueError(f"there is no constraint {name!r}; the model has {known}")
    return [sides.index(name) for name in names]


def _values(limits: Any, names: Sequence[str]) -> list[Array] | None:
    """The limits that were given, sorted, per axis."""
    if limits is None:
        return None
    if isinstance(limits, str) or not isinstance(limits, Iterable):
        raise TypeError(f"limits must be a list of numbers, not {type(limits).__name__}")
    lists = [limits] if len(names) == 1 else list(limits)
    if len(lists) != len(names):
        raise ValueError(f"limits must be two lists, one for {names[0]!r} and one for {names[1]!r}")
    for name, values in zip(names, lists, strict=True):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"the limits of {name!r} must be a list of numbers, not {type(values).__name__}")
    found = [
        np.unique([check_number(x, f"a limit of {name!r}") for x in values])
        for name, values in zip(names, lists, strict=True)
    ]
    if any(values.size == 0 for values in found):
        raise ValueError("limits must not be empty")
    return found
