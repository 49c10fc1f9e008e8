"""Non-negative least squares for a handful of unknowns, without the import of scipy.optimize, and nearest points."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array

APART = 1e-6
"""Two columns are told apart by hand if the square of their sine is larger than this."""

WIDE = 1e100
"""Tables whose largest entry is beyond this, or below its inverse, are left to LAPACK, which scales them."""


def nonnegative_least_squares(matrix: Array, target: Array) -> Array:
    """min |matrix·x − target| over x ≥ 0 by the active sets of Lawson and Hanson.

    The residual falls with every change of the active set, so that no set comes twice. One that does shows that only
    rounding is left.
    """
    x = np.zeros(matrix.shape[1])
    if not (np.isfinite(matrix).all() and np.isfinite(target).all()):  # overflow: zero is as good as anything
        return x
    free = np.zeros(x.size, dtype=bool)
    slopes, seen = matrix.T @ target, {free.tobytes()}
    for _ in range(3 * x.size):
        if free.all() or slopes[~free].max() <= 1e-13 * np.abs(matrix).max():
            break
        free[np.where(free, -np.inf, slopes).argmax()] = True
        while True:
            trial = np.zeros(x.size)
            trial[free] = _least_squares(matrix[:, free], target)
            negative = free & (trial <= 0.0)
            if not negative.any():
                break
            # As far towards the trial point as x stays positive; what becomes zero there is fixed
            step = min(
                old / (old - new) if old > 0.0 else 0.0 for old, new in zip(x[negative], trial[negative], strict=True)
            )
            x += step * (trial - x)
            free &= x > 1e-14 * x.max()
            x[~free] = 0.0
        x, residual = trial, target - matrix @ trial
        if free.tobytes() in seen:
            break
        seen.add(free.tobytes())
        slopes = matrix.T @ residual
    return x


def _least_squares(matrix: Array, target: Array) -> Array:
    """min |matrix·x − target|, by hand for one or two columns: most of the active sets have no more."""
    count, largest = matrix.shape[1], float(np.abs(matrix).max(initial=0.0))
    if count in (1, 2) and 1.0 / WIDE < largest < WIDE:  # else squares could overflow, or vanish
        first, last = matrix[:, 0], matrix[:, -1]
        size = float(first @ first)
        share = float(first @ last) / size if size > 0.0 else 1.0
        rest = last - share * first
        if count == 1 and size > 0.0:
            return np.array([float(first @ target) / size])
        if size > 0.0 and float(rest @ rest) > APART * float(last @ last):
            second = float(rest @ target) / float(rest @ rest)
            return np.array([float(first @ target) / size - share * second, second])
    return np.asarray(np.linalg.lstsq(matrix, target, rcond=None)[0])


def level_point(center: Array, costs: Array, rows: Array, level: float, cap: float) -> Array | None:
    """The point y in [0, cap] nearest to `center` at which every cut c_j + y·v_j is at least `level`; None if none is.

    A least-distance problem, solved as non-negative least squares (Lawson and Hanson 1974, chapter 23).
    """
    m = len(center)
    if m == 1:
        return _on_level(float(center[0]), costs, rows[0], level, cap)
    cuts = np.vstack([rows.T, np.eye(m), -np.eye(m)])
    need = np.concatenate([level - costs - center @ rows, -center, center - cap])
    if need.max() <= 0.0:
        return center
    system, target = np.vstack([cuts.T, need]), np.append(np.zeros(m), 1.0)
    residual = system @ nonnegative_least_squares(system, target) - target
    if -residual[-1] < 1e-12:
        return None
    return np.asarray(np.clip(center - residual[:-1] / residual[-1], 0.0, cap))


def _on_level(center: float, costs: Array, row: Array, level: float, cap: float) -> Array | None:
    """The same for one price: the points at or above the level are an interval."""
    rising, falling = row > 0.0, row < 0.0
    low = float(((level - costs[rising]) / row[rising]).max(initial=0.0))
    high = float(((level - costs[falling]) / row[falling]).min(initial=cap))
    if low > high or (costs[row == 0.0] < level).any():
        return None
    return np.array([min(max(center, low), high)])
