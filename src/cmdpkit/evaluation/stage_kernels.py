"""Compiled sweeps over all stages of a finite horizon that have the same transitions, in one call.

Tables over the stages are those of the discounted model (model/stages.py): state s of stage t is t·S + s, its pairs
begin at t·N. Sums may be taken in any order, which the bounds allow, and which is faster for long rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

ONE = np.uint64(1)
ANY_ORDER = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def induct(heads, indptr, indices, data, costs, scales, weights, discounts, value, values, choice, first, last):
    # pragma: no cover
    """The least values of w·c, the choice that has them, and V_0..V_m of that choice, from stage last − 1 to `first`.

    Values of stage `last` are known. The costs of a stage are a multiple of `costs`, which are those of a single stage
    or of all of them.
    """
    states, count, n = heads.size - 1, heads[heads.size - 1], weights.size
    cost, single = np.empty(count), costs.shape[1] == count
    for t in range(last - 1, first - 1, -1):
        now, then, shift, discount, scale = t * states, (t + 1) * states, t * count, discounts[t], scales[t]
        if single:
            shift = 0
        if t == last - 1 or not single:
            for r in range(count):
                cost[r] = weights[0] * costs[0, shift + r]
            for i in range(1, n):
                for r in range(count):
                    cost[r] += weights[i] * costs[i, shift + r]
        after = value[then : then + states]
        k = uint64(indptr[0])
        for s in range(states):
            best, arg = np.inf, heads[s]
            for r in range(heads[s], heads[s + 1]):
                end = uint64(indptr[r + 1])
                ahead = 0.0
                while k < end:
                    ahead += data[k] * after[indices[k]]
                    k += ONE
                q = scale * cost[r] + discount * ahead
                if q < best:
                    best, arg = q, r
            value[now + s], choice[now + s] = best, arg - heads[s]
            for i in range(n):
                values[now + s, i] = scale * costs[i, shift + arg]
            _add_ahead(indptr, indices, data, arg, discount, values, then, values, now + s)


@njit(cache=True, nogil=True, fastmath=ANY_ORDER, inline="always")
def _add_ahead(indptr, indices, data, row, share, values, then, out, state):  # pragma: no cover
    """out(state) += share · Σ P(s'|row) V(s'), with the values of the next stage from `then` on."""
    k, end = uint64(indptr[row]), uint64(indptr[row + 1])
    if values.shape[1] == 4:
        a0 = a1 = a2 = a3 = 0.0
        while k < end:
            p, j = data[k], then + indices[k]
            a0 += p * values[j, 0]
            a1 += p * values[j, 1]
            a2 += p * values[j, 2]
            a3 += p * values[j, 3]
            k += ONE
        out[state, 0] += share * a0
        out[state, 1] += share * a1
        out[state, 2] += share * a2
        out[state, 3] += share * a3
    else:
        while k < end:
            p, j = share * data[k], then + indices[k]
            for i in range(values.shape[1]):
                out[state, i] += p * values[j, i]
            k += ONE


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def back(indptr, indices, data, rows, states, shares, ends, heads, discounts, values, out, first, last):
    # pragma: no cover
    """out += discount · P_π x from stage last − 1 to `first`; with x as `out`, a system is solved.

    (rows, states, shares) are the pairs that π takes; those of stage t are from ends[t] to ends[t + 1].
    """
    size, count = heads.size - 1, heads[heads.size - 1]
    for t in range(last - 1, first - 1, -1):
        for j in range(ends[t], ends[t + 1]):
            row, share = rows[j] - t * count, discounts[t] * shares[j]
            _add_ahead(indptr, indices, data, row, share, values, (t + 1) * size, out, states[j])


@njit(cache=True, nogil=True)
def forth(indptr, indices, data, rows, states, shares, ends, heads, discounts, visits, out, first, last):
    # pragma: no cover
    """out += discount · P_πᵀ x from stage `first` to last − 1; with x as `out`, a system is solved."""
    size, count = heads.size - 1, heads[heads.size - 1]
    for t in range(first, last):
        after = out[(t + 1) * size : (t + 2) * size]
        for j in range(ends[t], ends[t + 1]):
            x, row = discounts[t] * shares[j] * visits[states[j]], rows[j] - t * count
            k, end = uint64(indptr[row]), uint64(indptr[row + 1])
            while k < end:
                after[indices[k]] += data[k] * x
                k += ONE
