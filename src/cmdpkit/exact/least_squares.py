"""Non-negative least squares for a handful of unknowns, without the import of scipy.optimize."""

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
