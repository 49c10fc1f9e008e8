"""Regression of small networks by Adam, compiled: the calls of a minibatch's parts take longer than the parts.

Imported only to fit critics; the compiled code is cached. Products are those of the BLAS that SciPy comes with, in
blocks so small that it does not divide them among threads, which is ruinous on a busy machine.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

ALONE = 1 << 18
"""Products of so many multiplications are made by one thread (OpenBLAS: 4 · 65,536)."""
WIDEST = ALONE // 32
"""Most weights of a layer. Blocks of larger layers have too few rows to be fast."""

ZERO, ONE, TWO = (np.float32(x) for x in (0.0, 1.0, 2.0))
QUARTER, FAR = np.float32(0.25), np.float32(9.0)  # tanh of 9 is 1 in single precision
TOP = tuple(np.float32(x) for x in (135135.0, 17325.0, 378.0))
BOTTOM = tuple(np.float32(x) for x in (135135.0, 62370.0, 3150.0, 28.0))
KEEP_1, ADD_1, KEEP_2, ADD_2, TINY = (np.float32(x) for x in (0.9, 0.1, 0.999, 0.001, 1e-8))


def pace(rate: float, step: int) -> np.float32:
    """Adam's rate with the corrections of the moments' bias: rate · √(1 − 0.999ᵗ) / (1 − 0.9ᵗ)."""
    return np.float32(rate * math.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step))


@njit(cache=True, error_model="numpy")
def descend(theta, gradient, first, second, length):  # pragma: no cover - compiled
    """Adam: m ← 0.9 m + 0.1 g, v ← 0.999 v + 0.001 g², θ ← θ − length · m / (√v + ε)."""
    for i in range(theta.size):
        g = gradient[i]
        m, v = KEEP_1 * first[i] + ADD_1 * g, KEEP_2 * second[i] + ADD_2 * (g * g)
        first[i], second[i] = m, v
        theta[i] -= length * (m / (np.sqrt(v) + TINY))


@njit(cache=True, error_model="numpy")
def squash(x):  # pragma: no cover - compiled
    """x ← tanh x, to 4e-7 of it, by Lambert's continued fraction at x/4 and tanh 2y = 2 tanh y / (1 + tanh² y), twice.

    Without branches and calls it takes a twentieth of the time of the library's function.
    """
    for i in range(x.size):
        y = QUARTER * max(-FAR, min(FAR, x[i]))
        s = y * y
        t = y * (TOP[0] + s * (TOP[1] + s * (TOP[2] + s)))
        t /= BOTTOM[0] + s * (BOTTOM[1] + s * (BOTTOM[2] + s * BOTTOM[3]))
        t = TWO * t / (ONE + t * t)
        x[i] = TWO * t / (ONE + t * t)


@njit(cache=True, error_model="numpy")
def epoch(x, targets, sizes, smooth, minibatch, theta, first, second, paces):  # pragma: no cover - compiled
    """One pass over the rows: a step of Adam on mean (y − target)² per minibatch.

    Args:
        x: (N, width) inputs.
        targets: (N, outputs).
        sizes: of the layers.
        smooth: whether the hidden layers are tanh; otherwise they are ReLUs.
        minibatch: rows per step.
        theta: the parameters, as `Network.layers` divides them; written, as are the next two.
        first, second: Adam's moments.
        paces: Adam's rate in each step.
    """
    gradient, room = np.empty_like(theta), np.empty_like(theta)
    hidden = np.empty((sizes.size, minibatch * sizes.max()), dtype=np.float32)
    slopes = np.empty_like(hidden)
    for step, begin in enumerate(range(0, len(x), minibatch)):
        rows = min(minibatch, len(x) - begin)
        hidden[0, : rows * sizes[0]] = x[begin : begin + rows].ravel()
        _activate(theta, sizes, smooth, hidden, rows)
        # ∂/∂y mean (y − target)²
        size = rows * sizes[-1]
        away = hidden[-1, :size] - targets[begin : begin + rows].ravel()
        slopes[-1, :size] = away * (TWO / np.float32(size))
        _differentiate(theta, sizes, smooth, hidden, slopes, rows, gradient, room)
        descend(theta, gradient, first, second, paces[step])


@njit(cache=True, error_model="numpy")
def _activate(theta, sizes, smooth, hidden, rows):  # pragma: no cover - compiled
    """Write h_1, ..., h_{L−1} and y."""
    start = 0
    for layer in range(1, sizes.size):
        a, b = sizes[layer - 1], sizes[layer]
        bias = theta[start + b * a : start + b * a + b]
        after = _table(hidden[layer], rows, b)
        # z_l = h_{l−1} W_lᵀ + b_l
        _product(_table(hidden[layer - 1], rows, a), _table(theta[start:], b, a).T, after, ALONE // (a * b))
        for row in range(rows):
            for j in range(b):
                after[row, j] += bias[j]
        if layer < sizes.size - 1:
            z = hidden[layer, : rows * b]
            if smooth:
                squash(z)
            else:
                z[:] = np.maximum(z, ZERO)
        start += a * b + b


@njit(cache=True, error_model="numpy")
def _differentiate(theta, sizes, smooth, hidden, slopes, rows, gradient, room):  # pragma: no cover - compiled
    """Write Jᵀu to `gradient`, where u is the last of the slopes; the others are overwritten."""
    start = theta.size
    for layer in range(sizes.size - 1, 0, -1):
        a, b = sizes[layer - 1], sizes[layer]
        start -= a * b + b
        before, slope = _table(hidden[layer - 1], rows, a), _table(slopes[layer], rows, b)
        # ∂W_l = δ_lᵀ h_{l−1},   ∂b_l = Σ δ_l,   δ_{l−1} = δ_l W_l where h_{l−1} > 0, or times 1 − h_{l−1}²
        block = ALONE // (a * b)
        _sum_of_products(slope, before, _table(gradient[start:], b, a), _table(room, b, a), block)
        g_bias = gradient[start + b * a : start + b * a + b]
        g_bias[:] = ZERO
        for row in range(rows):
            for j in range(b):
                g_bias[j] += slope[row, j]
        if layer > 1:
            back = _table(slopes[layer - 1], rows, a)
            _product(slope, _table(theta[start:], b, a), back, block)
            for row in range(rows):
                for k in range(a):
                    h = before[row, k]
                    back[row, k] *= ONE - h * h if smooth else np.float32(h > ZERO)


@njit(cache=True, error_model="numpy")
def _table(numbers, rows, columns):  # pragma: no cover - compiled
    return numbers[: rows * columns].reshape(rows, columns)


@njit(cache=True, error_model="numpy")
def _product(x, y, out, block):  # pragma: no cover - compiled
    """out = x y, in blocks of rows."""
    for row in range(0, len(x), block):
        np.dot(x[row : row + block], y, out[row : row + block])


@njit(cache=True, error_model="numpy")
def _sum_of_products(x, y, out, room, block):  # pragma: no cover - compiled
    """out = xᵀ y, in blocks of rows."""
    np.dot(x[:block].T, y[:block], out)
    for row in range(block, len(x), block):
        np.dot(x[row : row + block].T, y[row : row + block], room)
        out += room
