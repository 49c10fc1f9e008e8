"""Compiled rollouts of a known model: alias tables, many chains at once, one random stream per block of rollouts.

Imported only when a model is simulated. The compiled code is cached on disk, for later processes too.

A policy fixes in every state the joint distribution of (action, next state). It is drawn with one 64-bit number from
an alias table (Walker 1974): the high half picks an entry, the low half decides between the entry's own outcome and
its alias. An entry is 16 bytes, and a step touches one cache line of the table:

    word 0: threshold << 32 | own next state        word 1: alias next state << 32 | own action << 16 | alias action

Chains are advanced in lockstep, `LANES` at a time, to overlap memory latencies.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, uint64

LANES = 8
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LOW = np.uint64(0xFFFFFFFF)


@njit(cache=True, inline="always")
def _mix(z):  # pragma: no cover - compiled
    """splitmix64: a 64-bit bijection whose values on a counter are pseudo-random."""
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@njit(cache=True)
def build_alias(weights, threshold, alias):  # pragma: no cover - compiled
    """Vose's method for one distribution: `threshold` in [0, 2³²], and the index of each entry's alias."""
    n = weights.size
    scale = n / weights.sum()
    scaled = weights * scale
    small, large = np.empty(n, np.int64), np.empty(n, np.int64)
    smalls = larges = 0
    for i in range(n):
        alias[i] = i
        if scaled[i] < 1.0:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls > 0 and larges > 0:
        smalls -= 1
        s, g = small[smalls], large[larges - 1]
        threshold[s] = scaled[s]
        alias[s] = g
        scaled[g] -= 1.0 - scaled[s]
        if scaled[g] < 1.0:
            larges -= 1
            small[smalls] = g
            smalls += 1
    while larges > 0:
        larges -= 1
        threshold[large[larges]] = 1.0
    while smalls > 0:
        smalls -= 1
        threshold[small[smalls]] = 1.0


@njit(cache=True)
def build_tables(heads, indptr, indices, data, pi, table, base):  # pragma: no cover - compiled
    """The joint alias table of (action, next state) in every state; `base[s]` is where state s begins.

    The actions of a state are counted from 0, whatever they are called; its pairs begin at heads[s].
    """
    states = heads.size - 1
    for s in range(states):
        first, last = indptr[heads[s]], indptr[heads[s + 1]]
        n = last - first
        base[s] = first
        weights, threshold, alias = np.empty(n), np.empty(n), np.empty(n, np.int64)
        choice = np.empty(n, np.uint64)
        for a in range(heads[s + 1] - heads[s]):
            for j in range(indptr[heads[s] + a], indptr[heads[s] + a + 1]):
                weights[j - first] = pi[heads[s] + a] * data[j]
                choice[j - first] = a
        build_alias(weights, threshold, alias)
        for i in range(n):
            own, other = uint64(indices[first + i]), uint64(indices[first + alias[i]])
            limit = uint64(min(threshold[i] * 4294967296.0, 4294967295.0))
            table[first + i, 0] = (limit << uint64(32)) | own
            table[first + i, 1] = (other << uint64(32)) | (choice[i] << uint64(16)) | choice[alias[i]]
    base[states] = indptr[heads[states]]


@njit(cache=True)
def build_starts(indptr, indices, data, table):  # pragma: no cover - compiled
    """The alias table of every row of a sparse matrix: threshold << 32 | own column, and the alias's column."""
    for row in range(indptr.size - 1):
        first, n = indptr[row], indptr[row + 1] - indptr[row]
        threshold, alias = np.empty(n), np.empty(n, np.int64)
        build_alias(data[first : first + n], threshold, alias)
        for i in range(n):
            limit = uint64(min(threshold[i] * 4294967296.0, 4294967295.0))
            table[first + i, 0] = (limit << uint64(32)) | uint64(indices[first + i])
            table[first + i, 1] = uint64(indices[first + alias[i]])


@njit(cache=True)
def _block(heads, table, base, costs, starts, head, start, discount_0, gamma, horizon, rollouts, key, sums, squares):
    # pragma: no cover - compiled
    """Rollouts from one distribution of first states, all from the stream `key`; returns the steps taken.

    A return is start + discount_0 · Σ_l γ^l cost(s_l, a_l) over `horizon` steps. With horizon −1 a rollout continues
    with probability γ after every step, without discounting; discount_0 and γ are then probabilities of continuing.
    """
    quantities = costs.shape[1]
    # All states have as many actions, or heads[s] says where their pairs begin
    even, actions = heads[0] < 0, uint64(max(-heads[0], 0))
    state, random = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    length = np.empty(LANES, np.int64)
    returns = np.empty((LANES, quantities))
    begin_start, size_start = uint64(head[0]), uint64(head[1] - head[0])
    done = steps = 0
    while done < rollouts:
        lanes = min(LANES, rollouts - done)
        longest = 0
        for c in range(lanes):
            random[c] = _mix(key + uint64(done + c) * GOLDEN)
            z = _mix(random[c])
            entry = begin_start + (((z >> uint64(32)) * size_start) >> uint64(32))
            word = starts[entry, 0]
            state[c] = word & LOW if (z & LOW) < (word >> uint64(32)) else starts[entry, 1]
            length[c] = horizon
            if horizon < 0:
                random[c] += GOLDEN
                u = (np.float64(_mix(random[c]) >> uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
                # P(length > l) = discount_0 · γ^l
                length[c] = 0 if u > discount_0 else 1 + int(np.log(u / discount_0) / np.log(gamma))
            longest = max(longest, length[c])
            steps += length[c]
            for i in range(quantities):
                returns[c, i] = start[i]
        discount = discount_0 if horizon >= 0 else 1.0
        for t in range(longest):
            for c in range(lanes):
                if t >= length[c]:
                    continue
                random[c] += GOLDEN
                z = _mix(random[c])
                s = state[c]
                begin = uint64(base[s])
                entry = begin + (((z >> uint64(32)) * (uint64(base[s + uint64(1)]) - begin)) >> uint64(32))
                word, other = table[entry, 0], table[entry, 1]
                own = (z & LOW) < (word >> uint64(32))
                action = (other >> uint64(16)) & uint64(0xFFFF) if own else other & uint64(0xFFFF)
                pair = (s * actions if even else uint64(heads[s])) + action
                for i in range(quantities):
                    returns[c, i] += discount * costs[pair, i]
                state[c] = word & LOW if own else other >> uint64(32)
            if horizon >= 0:
                discount *= gamma
        for c in range(lanes):
            for i in range(quantities):
                sums[i] += returns[c, i]
                squares[i] += returns[c, i] * returns[c, i]
        done += lanes
    return steps


@njit(cache=True, parallel=True)
def rollouts_parallel(
    pairs, table, base, costs, starts, heads, first, discount_0, gamma, horizon, counts, keys, sums, squares, steps
):  # pragma: no cover - compiled
    """Stream b belongs to start b // (streams per start) and writes row b of sums, squares and steps."""
    shared = counts.size // (heads.size - 1)
    for b in prange(counts.size):
        r = b // shared
        chain, return_0 = (pairs, table, base, costs, starts, heads[r : r + 2]), (first[r], discount_0, gamma, horizon)
        steps[b] = _block(*chain, *return_0, counts[b], keys[b], sums[b], squares[b])


@njit(cache=True)
def rollouts_serial(
    pairs, table, base, costs, starts, heads, first, discount_0, gamma, horizon, counts, keys, sums, squares, steps
):  # pragma: no cover - compiled
    """The same, single-threaded."""
    shared = counts.size // (heads.size - 1)
    for b in range(counts.size):
        r = b // shared
        chain, return_0 = (pairs, table, base, costs, starts, heads[r : r + 2]), (first[r], discount_0, gamma, horizon)
        steps[b] = _block(*chain, *return_0, counts[b], keys[b], sums[b], squares[b])
