"""Compiled sweeps over large sparse models. Imported only where they pay off; the compiled code is cached.

All matrices are CSR with unsigned indices, which compile to half the instructions of signed ones. Every kernel works
only on the states `first` to `last`, whose pairs begin at `heads`: blocks of states can run in several threads, and the
result for a state does not depend on the blocks. Tables with two or four columns are kept in registers, which is two to
three times as fast as a loop over the columns; three are padded to four.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from cmdpkit.evaluation.prefetch import AHEAD, prefetch

ONE, FAR = np.uint64(1), np.uint64(AHEAD)


@njit(cache=True, nogil=True)
def bellman(heads, most, indptr, indices, data, cost, gamma, after, value, noise, backup, choice, first, last):
    # pragma: no cover
    """backup(s) = min_a c(s, a) + γ Σ P V′; `choice` changes to the minimum where that gains more than `noise`.

    V′ are the values of the states that follow: V itself, or those of a block and of its halo. Returns the extremes of
    backup − V, and the number of choices that changed.
    """
    q = np.empty(most)
    low, high, moved = np.inf, -np.inf, 0
    row = heads[first]
    k = uint64(indptr[row])
    for s in range(first, last):
        actions = heads[s + 1] - row
        for a in range(actions):
            end = uint64(indptr[row + 1])
            ahead = 0.0
            while k < end:
                ahead += data[k] * after[indices[k]]
                k += ONE
            q[a] = cost[row] + gamma * ahead
            row += 1
        best = q[0]
        for a in range(1, actions):
            best = min(best, q[a])
        if best < q[choice[s]] - noise:
            moved += 1
            for a in range(actions):
                if q[a] == best:
                    choice[s] = a
                    break
        backup[s] = best
        low = min(low, best - value[s])
        high = max(high, best - value[s])
    return low, high, moved


@njit(cache=True, nogil=True)
def follow(heads, choice, indptr, indices, data, cost, gamma, value, out, first, last):  # pragma: no cover
    """out(s) = c(s, a) + γ Σ P V with a = choice(s): rows of the model are read where they are."""
    for s in range(first, last):
        row = heads[s] + choice[s]
        k, end = uint64(indptr[row]), uint64(indptr[row + 1])
        ahead = 0.0
        while k < end:
            ahead += data[k] * value[indices[k]]
            k += ONE
        out[s] = cost[row] + gamma * ahead


@njit(cache=True, nogil=True)
def bellman_in_place(heads, indptr, indices, data, cost, gamma, value, choice, backwards):  # pragma: no cover
    """V(s) ← min_a c(s, a) + γ Σ P V, one state after the other, and the greedy choice. The extremes of the change."""
    states = heads.size - 1
    low, high = np.inf, -np.inf
    for j in range(states):
        s = states - 1 - j if backwards else j
        row = heads[s]
        k = uint64(indptr[row])
        best, arg = np.inf, row
        for r in range(row, heads[s + 1]):
            end = uint64(indptr[r + 1])
            ahead = 0.0
            while k < end:
                ahead += data[k] * value[indices[k]]
                k += ONE
            q = cost[r] + gamma * ahead
            if q < best:
                best, arg = q, r
        low, high = min(low, best - value[s]), max(high, best - value[s])
        value[s], choice[s] = best, arg - row
    return low, high


@njit(cache=True, nogil=True)
def follow_in_place(heads, choice, indptr, indices, data, cost, gamma, value, backwards, sweeps):  # pragma: no cover
    """V(s) ← c(s, a) + γ Σ P V with a = choice(s), one state after the other, so many times."""
    states = heads.size - 1
    for _ in range(sweeps):
        for j in range(states):
            s = states - 1 - j if backwards else j
            row = heads[s] + choice[s]
            k, end = uint64(indptr[row]), uint64(indptr[row + 1])
            ahead = 0.0
            while k < end:
                ahead += data[k] * value[indices[k]]
                k += ONE
            value[s] = cost[row] + gamma * ahead


@njit(cache=True, nogil=True)
def ahead_one(heads, indptr, indices, data, cost, gamma, after, values, minus, out, low, high, first, last):
    # pragma: no cover
    """new = c + γ P V′ in the rows of the states, for one column; out = new − minus · V, extremes of new − V.

    V′ are the values of the states that follow: V itself, or those of the next stage.
    """
    lowest, highest = np.inf, -np.inf
    row = heads[first]
    k = uint64(indptr[row])
    for s in range(first, last):
        v = values[s, 0]
        for _ in range(heads[s + 1] - row):
            ahead = 0.0
            end = uint64(indptr[row + 1])
            while k < end:
                ahead += data[k] * after[indices[k], 0]
                k += ONE
            new = cost[row, 0] + gamma * ahead
            out[row, 0] = new - minus * v
            lowest, highest = min(lowest, new - v), max(highest, new - v)
            row += 1
    low[0], high[0] = lowest, highest


@njit(cache=True, nogil=True)
def ahead_two(heads, indptr, indices, data, cost, gamma, after, values, minus, out, low, high, first, last):
    # pragma: no cover
    """The same for two columns."""
    l0 = l1 = np.inf
    h0 = h1 = -np.inf
    row = heads[first]
    k, stop = uint64(indptr[row]), uint64(indptr[heads[last]])
    far = k + FAR
    for s in range(first, last):
        v0, v1 = values[s, 0], values[s, 1]
        for _ in range(heads[s + 1] - row):
            a0 = a1 = 0.0
            end = uint64(indptr[row + 1])
            while k < end:
                if far < stop:
                    prefetch(after, uint64(indices[far]))
                    far += ONE
                p, t = data[k], indices[k]
                a0 += p * after[t, 0]
                a1 += p * after[t, 1]
                k += ONE
            a0 = cost[row, 0] + gamma * a0
            a1 = cost[row, 1] + gamma * a1
            out[row, 0] = a0 - minus * v0
            out[row, 1] = a1 - minus * v1
            l0, h0 = min(l0, a0 - v0), max(h0, a0 - v0)
            l1, h1 = min(l1, a1 - v1), max(h1, a1 - v1)
            row += 1
    low[0], low[1] = l0, l1
    high[0], high[1] = h0, h1


@njit(cache=True, nogil=True)
def ahead_four(heads, indptr, indices, data, cost, gamma, after, values, minus, out, low, high, first, last):
    # pragma: no cover
    """The same for four columns; those that `cost` lacks are zero."""
    n = cost.shape[1]
    l0 = l1 = l2 = l3 = np.inf
    h0 = h1 = h2 = h3 = -np.inf
    row = heads[first]
    k, stop = uint64(indptr[row]), uint64(indptr[heads[last]])
    far = k + FAR
    for s in range(first, last):
        v0, v1, v2, v3 = values[s, 0], values[s, 1], values[s, 2], values[s, 3]
        for _ in range(heads[s + 1] - row):
            a0 = a1 = a2 = a3 = 0.0
            end = uint64(indptr[row + 1])
            while k < end:
                if far < stop:
                    prefetch(after, uint64(indices[far]))
                    far += ONE
                p, t = data[k], indices[k]
                a0 += p * after[t, 0]
                a1 += p * after[t, 1]
                a2 += p * after[t, 2]
                a3 += p * after[t, 3]
                k += ONE
            a0 = cost[row, 0] + gamma * a0
            a1 = cost[row, 1] + gamma * a1
            a2 = (cost[row, 2] if n > 2 else 0.0) + gamma * a2
            a3 = (cost[row, 3] if n > 3 else 0.0) + gamma * a3
            out[row, 0] = a0 - minus * v0
            out[row, 1] = a1 - minus * v1
            out[row, 2] = a2 - minus * v2
            out[row, 3] = a3 - minus * v3
            l0, h0 = min(l0, a0 - v0), max(h0, a0 - v0)
            l1, h1 = min(l1, a1 - v1), max(h1, a1 - v1)
            l2, h2 = min(l2, a2 - v2), max(h2, a2 - v2)
            l3, h3 = min(l3, a3 - v3), max(h3, a3 - v3)
            row += 1
    low[0], low[1], low[2], low[3] = l0, l1, l2, l3
    high[0], high[1], high[2], high[3] = h0, h1, h2, h3


@njit(cache=True, nogil=True)
def ahead_many(heads, indptr, indices, data, cost, gamma, after, values, minus, out, low, high, first, last):
    # pragma: no cover
    """The same for any number of columns."""
    n = values.shape[1]
    ahead = np.empty(n)
    for i in range(n):
        low[i], high[i] = np.inf, -np.inf
    row = heads[first]
    k = uint64(indptr[row])
    for s in range(first, last):
        for _ in range(heads[s + 1] - row):
            for i in range(n):
                ahead[i] = 0.0
            end = uint64(indptr[row + 1])
            while k < end:
                p, t = data[k], indices[k]
                for i in range(n):
                    ahead[i] += p * after[t, i]
                k += ONE
            for i in range(n):
                new = cost[row, i] + gamma * ahead[i]
                change = new - values[s, i]
                out[row, i] = new - minus * values[s, i]
                low[i] = min(low[i], change)
                high[i] = max(high[i], change)
            row += 1


@njit(cache=True, nogil=True)
def mix(values, weights, out):  # pragma: no cover
    """out = Σ_i w_i values_i, row by row, always in this order."""
    n = weights.size
    for s in range(out.size):
        total = weights[0] * values[s, 0]
        for i in range(1, n):
            total += weights[i] * values[s, i]
        out[s] = total


@njit(cache=True, nogil=True)
def start_sums(initial, backup, value):  # pragma: no cover
    """ρ · backup, ρ · value, Σ value, max |backup| and max |value|, in one pass."""
    after, now, total, most, largest = 0.0, 0.0, 0.0, 0.0, 0.0
    for s in range(initial.size):
        after += initial[s] * backup[s]
        now += initial[s] * value[s]
        total += value[s]
        most = max(most, abs(backup[s]))
        largest = max(largest, abs(value[s]))
    return after, now, total, most, largest


@njit(cache=True, nogil=True)
def copy_columns(table, columns, out):  # pragma: no cover
    """The first columns of a table, where one has more columns than the other: NumPy is slow on short rows."""
    for s in range(out.shape[0]):
        for i in range(columns):
            out[s, i] = table[s, i]


@njit(cache=True, nogil=True)
def gather_columns(table, rows, columns, out):  # pragma: no cover
    """The same for some rows."""
    for k in range(rows.size):
        for i in range(columns):
            out[k, i] = table[rows[k], i]


@njit(cache=True, nogil=True)
def greedy_four(heads, table, weights, visits, choice, total, first, last):  # pragma: no cover
    """choice(s) = argmin_a Σ_i w_i table((s, a), i); `total` = Σ_s visits(s) table((s, choice(s)), ·)."""
    w0, w1, w2, w3 = weights
    t0 = t1 = t2 = t3 = 0.0
    row = heads[first]
    for s in range(first, last):
        best, arg = np.inf, row
        for r in range(row, heads[s + 1]):
            q = w0 * table[r, 0] + w1 * table[r, 1] + w2 * table[r, 2] + w3 * table[r, 3]
            if q < best:
                best, arg = q, r
        choice[s] = arg - row
        x = visits[s]
        t0 += x * table[arg, 0]
        t1 += x * table[arg, 1]
        t2 += x * table[arg, 2]
        t3 += x * table[arg, 3]
        row = heads[s + 1]
    total[0], total[1], total[2], total[3] = t0, t1, t2, t3


@njit(cache=True, nogil=True)
def greedy_two(heads, table, weights, visits, choice, total, first, last):  # pragma: no cover
    """The same for two columns."""
    w0, w1 = weights
    t0 = t1 = 0.0
    row = heads[first]
    for s in range(first, last):
        best, arg = np.inf, row
        for r in range(row, heads[s + 1]):
            q = w0 * table[r, 0] + w1 * table[r, 1]
            if q < best:
                best, arg = q, r
        choice[s] = arg - row
        t0 += visits[s] * table[arg, 0]
        t1 += visits[s] * table[arg, 1]
        row = heads[s + 1]
    total[0], total[1] = t0, t1


@njit(cache=True, nogil=True)
def greedy_many(heads, table, weights, visits, choice, total, first, last):  # pragma: no cover
    """The same for any number of columns."""
    n = weights.size
    for i in range(n):
        total[i] = 0.0
    row = heads[first]
    for s in range(first, last):
        best, arg = np.inf, row
        for r in range(row, heads[s + 1]):
            q = 0.0
            for i in range(n):
                q += weights[i] * table[r, i]
            if q < best:
                best, arg = q, r
        choice[s] = arg - row
        for i in range(n):
            total[i] += visits[s] * table[arg, i]
        row = heads[s + 1]
