"""Non-negative least squares for a handful of unknowns, without the import of scipy.optimize."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array


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
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
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
