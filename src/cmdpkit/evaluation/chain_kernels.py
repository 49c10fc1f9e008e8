"""The chains of policies on large sparse models, compiled. Imported only where it pays off; see `kernels.py`."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def count_mixed(heads, indptr, weights, starts):  # pragma: no cover
    """Where the entries of each state begin if the rows of its pairs are put together, those of weight 0 left out."""
    total = 0
    for s in range(heads.size - 1):
        starts[s] = total
        for row in range(heads[s], heads[s + 1]):
            if weights[row] != 0.0:
                total += indptr[row + 1] - indptr[row]
    starts[heads.size - 1] = total


@njit(cache=True, nogil=True)
def fill_mixed(heads, indptr, indices, data, weights, starts, to, values, first, last):  # pragma: no cover
    """These entries, and their probabilities times the weight of the pair."""
    k = uint64(starts[first])
    for row in range(heads[first], heads[last]):
        weight = weights[row]
        if weight != 0.0:
            end = uint64(indptr[row + 1])
            j = uint64(indptr[row])
            while j < end:
                to[k] = indices[j]
                values[k] = data[j] * weight
                j += ONE
                k += ONE


@njit(cache=True, nogil=True)
def fill_band(heads, indptr, indices, data, weights, gamma, down, across, start, band, first, last):
    # pragma: no cover
    """I − γ P_π with the weights π(a|s), on zeros: entry (s, t) is at start + s · down + t · across."""
    step = uint64(across)
    for s in range(first, last):
        own = uint64(start + s * down)
        band[own + uint64(s) * step] = 1.0
        for row in range(heads[s], heads[s + 1]):
            weight = gamma * weights[row]
            if weight != 0.0:
                end = uint64(indptr[row + 1])
                j = uint64(indptr[row])
                while j < end:
                    band[own + uint64(indices[j]) * step] -= weight * data[j]
                    j += ONE


@njit(cache=True, nogil=True)
def flow(indptr, indices, data, visits, out, first, last):  # pragma: no cover
    """out = P_πᵀ x for the visits x to some of the states, without the transposed matrix."""
    for s in range(out.size):
        out[s] = 0.0
    k = uint64(indptr[first])
    for s in range(first, last):
        x = visits[s]
        end = uint64(indptr[s + 1])
        while k < end:
            out[indices[k]] += data[k] * x
            k += ONE


@njit(cache=True, nogil=True, fastmath=True)
def gmres_cycle(indptr, indices, data, gamma, rest, steps, aim):  # pragma: no cover
    """Minimise |rest − (I − γ P) x|₂ over x in the Krylov space of `steps` dimensions; stop at `aim`.

    Arnoldi's method with modified Gram-Schmidt and Givens rotations, written out: BLAS threads would synchronise in
    thousands of short products.
    """
    n = rest.size
    basis = np.empty((steps + 1, n))
    h = np.zeros((steps + 1, steps))
    cosine, sine, g = np.zeros(steps), np.zeros(steps), np.zeros(steps + 1)
    g[0] = np.sqrt(np.sum(rest * rest))
    basis[0] = rest / g[0]
    used = 0
    for j in range(steps):
        new, old = basis[j + 1], basis[j]
        k = uint64(indptr[0])
        for s in range(n):
            ahead = 0.0
            end = uint64(indptr[s + 1])
            while k < end:
                ahead += data[k] * old[indices[k]]
                k += ONE
            new[s] = old[s] - gamma * ahead
        for i in range(j + 1):
            dot = 0.0
            for s in range(n):
                dot += new[s] * basis[i, s]
            h[i, j] = dot
            for s in range(n):
                new[s] -= dot * basis[i, s]
        size = 0.0
        for s in range(n):
            size += new[s] * new[s]
        size = np.sqrt(size)
        for i in range(j):
            h[i, j], h[i + 1, j] = (
                cosine[i] * h[i, j] + sine[i] * h[i + 1, j],
                cosine[i] * h[i + 1, j] - sine[i] * h[i, j],
            )
        length = np.sqrt(h[j, j] * h[j, j] + size * size)
        used = j + 1
        if length == 0.0:
            used = j
            break
        cosine[j], sine[j] = h[j, j] / length, size / length
        h[j, j] = length
        g[j], g[j + 1] = cosine[j] * g[j], -sine[j] * g[j]
        if abs(g[j + 1]) <= aim or size == 0.0:
            break
        for s in range(n):
            new[s] /= size
    x = np.zeros(n)
    for i in range(used - 1, -1, -1):
        for j in range(i + 1, used):
            g[i] -= h[i, j] * g[j]
        g[i] /= h[i, i]
        for s in range(n):
            x[s] += g[i] * basis[i, s]
    return x
