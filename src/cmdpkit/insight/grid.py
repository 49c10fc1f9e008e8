"""The optimum as a function of two limits, on a grid."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.band import Band
from cmdpkit.exact.tightest import tightest
from cmdpkit.insight.curves import Surface, in_users_sense
from cmdpkit.insight.line import SPLIT
from cmdpkit.model import CMDP


def surface(
    cmdp: CMDP, band: Band, axes: list[int], wanted: list[Array] | None, stop: Any, started: float, points: int
) -> Surface:
    values: list[Array] = [np.zeros(0), np.zeros(0)]
    try:
        with until(stop):
            values = wanted if wanted is not None else _box(cmdp, band, axes, points)
            for near in (True, False, False):  # as along a line: most points are met by mixtures of their neighbours
                for offsets in _grid(cmdp, axes, values):
                    if not stop():
                        band.improve(offsets, 1.0, near)
            for offsets in _grid(cmdp, axes, values):
                band.step_inside(offsets)
    except Stopped:
        pass
    return _surface_result(cmdp, band, axes, values, time.perf_counter() - started)


def _box(cmdp: CMDP, band: Band, axes: list[int], points: int) -> list[Array]:
    """Per limit, from the tightest value with the other one dropped to the loosest that can matter."""
    loose = cmdp.offsets.copy()
    loose[axes] = band.loosest[axes]
    free = Band(band.model(loose), band.tol, axes, band.stop)
    free.improve(loose, SPLIT)
    least = [tightest(free, axis)[1] for axis in axes]
    band.adopt(free)
    if not np.isfinite(least).all():
        return [np.sort(cmdp.limits[axis : axis + 1]) for axis in axes]
    corners = [free.upper(loose), *(free.upper(loose, objective=axis + 1) for axis in axes)]
    sums = np.array(free.sums)
    ends = [
        max(float(corner.weights @ sums[:, axis + 1]) for corner in corners if corner.weights is not None)
        for axis in axes
    ]
    return [
        np.sort(cmdp.signs[axis] * np.linspace(low + 1e-9 * abs(high - low), max(low, high), points))
        for axis, low, high in zip(axes, least, ends, strict=True)
    ]


def _grid(cmdp: CMDP, axes: list[int], values: list[Array]) -> Iterator[Array]:
    """The offsets of all grid points, the loosest first, neighbours after each other."""
    first, second = (np.sort(cmdp.signs[axis] * part)[::-1] for axis, part in zip(axes, values, strict=True))
    for j, x in enumerate(first):
        for y in second if j % 2 == 0 else second[::-1]:
            offsets = cmdp.offsets.copy()
            offsets[axes] = x, y
            yield offsets


def _surface_result(cmdp: CMDP, band: Band, axes: list[int], values: list[Array], seconds: float) -> Surface:
    shape = (values[0].size, values[1].size)
    lower, upper, prices = np.full(shape, -np.inf), np.full(shape, np.inf), np.full((*shape, 2), np.nan)
    infeasible, relaxed = np.zeros(shape, dtype=bool), False
    for j, k in np.ndindex(*shape):
        offsets = cmdp.offsets.copy()
        offsets[axes] = cmdp.signs[axes] * [values[0][j], values[1][k]]
        found = band.upper(offsets)
        upper[j, k], relaxed = found.value, relaxed or found.relaxed
        lower[j, k], multipliers = band.lower(offsets)
        if np.isfinite(found.value):
            prices[j, k] = multipliers[axes]
        elif band.refutation(offsets)[0] > 0.0:
            infeasible[j, k], lower[j, k] = True, np.inf
    feasible = np.isfinite(upper)
    scales = np.array([cmdp.proof_scale(u) for u in upper[feasible]])
    gap = float(((upper[feasible] - lower[feasible]) / scales).max(initial=0.0))
    gap = gap if (feasible | infeasible).all() else np.inf
    bounds = in_users_sense(cmdp, lower, upper)
    return Surface(
        names=(cmdp.names[axes[0]], cmdp.names[axes[1]]),
        limits=(values[0], values[1]),
        objectives=np.where(feasible, cmdp.sense * upper, np.nan),
        lower=bounds[0],
        upper=bounds[1],
        prices=prices,
        feasible=feasible,
        infeasible=infeasible,
        gap=gap,
        violation=0.5 * band.tol if relaxed else 0.0,
        tol=band.tol,
        solves=band.solves,
        time=seconds,
        model=cmdp,
        band=band,
    )
