"""The tightest value of one limit that can be met together with the others.

The cost of the limit is minimised in place of the objective. Columns and proofs found on the way are added to the band.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.bounds import EPS
from cmdpkit.exact.band import Band, most_steps
from cmdpkit.exact.columns import ColumnSearch, Cut
from cmdpkit.exact.search import steps
from cmdpkit.model import CMDP, AtLeast, AtMost


def tightest(band: Band, axis: int) -> tuple[float, float]:
    """The smallest offset of a limit that can be met together with the others: proved, and attained.

    Infinite where the others cannot be met at all. The proof is added to the refutations.
    """
    model, unit = _exchanged(band.cmdp, axis)
    search = ColumnSearch(model, band.tol, band.stop, rigorous=True)
    search.choice = band.search.choice
    aim = 1e-2 * band.tol * max(float(model.fine_scales[0]), 0.0)
    for _ in steps(search):
        scale = max(1.0, abs(search.bound) if np.isfinite(search.bound) else 1.0)
        if search.upper - search.bound <= aim * scale or search.stuck or search.farkas is not None or band.stop():
            break
    _take(band, search, axis, unit)
    if search.farkas is not None:
        y = _without(search.farkas, axis)
        band.refuted.append(Cut(y, band.cmdp.offsets, search.farkas_margin))
        return np.inf, np.inf
    # V_i + Σ μ_j V_j ≥ bound for every policy: y = (1 for i, μ_j for the others) refutes smaller limits
    y = _without(search.multipliers, axis) * unit
    y[axis] = 1.0
    margin = unit * search.bound - EPS * abs(search.bound)
    offsets = band.cmdp.offsets.copy()
    offsets[axis] = 0.0
    band.refuted.append(Cut(y, offsets, margin))
    loose = band.cmdp.offsets.copy()
    loose[axis] = band.loosest[axis]
    # A mixture that meets the others only to `tol` may be tighter than what is proved of those that meet them.
    return margin, max(margin, band.upper(loose, objective=axis + 1).value)


def _exchanged(cmdp: CMDP, axis: int) -> tuple[CMDP, float]:
    """The model that minimises the cost of one limit, with a limit on the objective in its place that never binds.

    All m + 1 costs are there, in another order. Returns the unit of the new objective as well: V_i = unit · V_0.
    """
    c, limits = cmdp.rows[axis], list(cmdp.rows)
    kind: Any = AtLeast if cmdp.maximise else AtMost
    most = 1.01 * float(cmdp.cost_sizes[0]) * most_steps(cmdp) + 1e-3
    limits[axis] = kind(cmdp.objective, -most if cmdp.maximise else most, c.name, cmdp.objective_per_step)
    model = cmdp._derived(limits, np.asarray(c.values), c.sign < 0.0, objective_per_step=False)
    return model, float(abs(cmdp.units[axis + 1]))


def _take(band: Band, search: ColumnSearch, axis: int, unit: float) -> None:
    """Add the columns of the exchanged model to the band."""
    limits = np.append(0.0, search.cmdp.offsets)
    for column, values, errors in zip(search.columns, search.values, search.errors, strict=True):
        sums, error = values + limits, errors.copy()
        sums[[0, axis + 1]] = sums[axis + 1], unit * sums[0]
        error[[0, axis + 1]] = error[axis + 1], unit * error[0] + EPS * abs(sums[axis + 1])
        band.add(column, sums, error)


def _without(weights: Array, axis: int) -> Array:
    """Weights without that of the objective's own limit, whose term is never positive: leaving it out keeps a bound."""
    weights = weights.copy()
    weights[axis] = 0.0
    return weights
