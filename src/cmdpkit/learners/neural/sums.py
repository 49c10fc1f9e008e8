"""Discounted sums along trajectories, compiled: a step of NumPy takes longer than all numbers of a rollout."""

from __future__ import annotations

from numba import njit


@njit(cache=True, error_model="numpy")
def discount(y, ended, gamma):  # pragma: no cover - compiled
    """y_t ← y_t + γ y_{t+1} where no episode ended with step t, from the last to the first; y is (T, n, k)."""
    steps, n, k = y.shape
    for t in range(steps - 2, -1, -1):
        for i in range(n):
            if not ended[t, i]:
                for j in range(k):
                    y[t, i, j] += gamma * y[t + 1, i, j]
