"""Compiled steps of GMRES on the slices of a block: one pass over memory each, and sums in a fixed order.

`basis` is (vectors, states, columns), every column with a space of its own; w and others are (states, columns).
"""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def next_vector(basis, count, w, h, scale):  # pragma: no cover
    """basis[count] = (w − Σ_i h_i basis_i) / scale."""
    for s in range(w.shape[0]):
        for c in range(w.shape[1]):
            rest = w[s, c]
            for i in range(count):
                rest -= h[i, c] * basis[i, s, c]
            basis[count, s, c] = rest / scale[c]


@njit(cache=True, nogil=True)
def inner_products(basis, count, w, sums):  # pragma: no cover
    """basis_i · w for the first `count` vectors, w · w, and the square of the last vector, per column."""
    for i in range(count + 2):
        for c in range(w.shape[1]):
            sums[i, c] = 0.0
    for s in range(w.shape[0]):
        for i in range(count):
            for c in range(w.shape[1]):
                sums[i, c] += basis[i, s, c] * w[s, c]
        for c in range(w.shape[1]):
            sums[count, c] += w[s, c] * w[s, c]
            sums[count + 1, c] += basis[count - 1, s, c] * basis[count - 1, s, c]


@njit(cache=True, nogil=True)
def combine(basis, weights, out, keep):  # pragma: no cover
    """out = keep · out + Σ_i weights_i basis_i."""
    for s in range(out.shape[0]):
        for c in range(out.shape[1]):
            total = keep * out[s, c]
            for i in range(weights.shape[0]):
                total += weights[i, c] * basis[i, s, c]
            out[s, c] = total
