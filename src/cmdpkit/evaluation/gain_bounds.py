"""Rigorous long-run averages of a policy, from any guess of its bias.

Whatever h is, the average of a policy from any state is a mean of (c_π + P_π h − h)(s) over the states s of the
recurrent class in which it ends, so it lies between the least and the largest of them. Where the start can end in
several classes, the averages are weighted by the probabilities of ending in each, whose errors are bounded by the
expected time until then. How far sums of finitely many costs are from their average follows from such times as well.
docs/theory.md ("Long-run averages") derives each line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, PairTable, longest_row
from cmdpkit.evaluation.average import reachable, recurrent_classes
from cmdpkit.evaluation.bounds import EPS, TINY, row_slack
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.gains import AverageSystem, drift
from cmdpkit.evaluation.system import Plan
from cmdpkit.model import CMDP


def averages_with_errors(cmdp: CMDP, pi: PairTable, plan: Plan) -> tuple[Array, Array]:
    """(m + 1,) long-run averages of all costs from the start, limits not subtracted, and a bound on each error."""
    pairs, system = cmdp.pairs, AverageSystem(cmdp, pi, plan=plan)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing, and says so
        cost = pairs.expect(pi, cmdp.costs)
        gain, bias = system.gains(cost)
        change = cost + drift(system.chain, bias)
        terms = _terms(cmdp, system)
        rounding = _rounding(cmdp, pi, system)[:, None]
        size = pairs.expect(pi, np.abs(cmdp.costs)) + drift(system.chain, bias, absolute=True)
        error = rounding * size + terms * TINY
        moves = mixed_chain(cmdp, (pi > 0.0).astype(float))  # without the underflow of a product
        _, label = recurrent_classes(moves)
        classes = np.unique(label[reachable(moves, cmdp.initial) & (label >= 0)])
        ranges = [((change - error)[label == k].min(axis=0), (change + error)[label == k].max(axis=0)) for k in classes]
        if len(ranges) == 1:
            values, errors = _around(np.asarray(cmdp.initial @ gain), *ranges[0])
        else:
            values, errors = _from_several(cmdp, system, gain, label, dict(zip(classes, ranges, strict=True)), rounding)
        return values, np.where(np.isfinite(errors) & np.isfinite(values), errors, np.inf)


def bias_bound(cmdp: CMDP, pi: PairTable) -> float:
    """B: the expected sum of T costs from the start is within B (max c − min c) of T times their average, for any T.

    B is the largest expected number of steps to a state that marks its class, and with several classes those from the
    start in addition. Infinite where such times cannot be proved.
    """
    system = AverageSystem(cmdp, pi)
    moves = mixed_chain(cmdp, (pi > 0.0).astype(float))
    _, label = recurrent_classes(moves)
    visited = reachable(moves, cmdp.initial)
    marks = system.marks[visited[system.marks]]
    classes = np.unique(label[visited & (label >= 0)])
    if not np.array_equal(np.sort(label[marks]), classes):  # parts that are hardly ever left look like classes
        return np.inf
    on_the_way = np.array(visited)
    on_the_way[marks] = False
    inside = np.flatnonzero(on_the_way)
    if not inside.size:
        return 0.0
    steps = _proved_steps(system, inside, _rounding(cmdp, pi, system)[inside])
    if steps is None:
        return np.inf
    at_first = 0.0 if classes.size == 1 else float(cmdp.initial[inside] @ steps)
    return 1.01 * (float(steps.max()) + at_first)


def _terms(cmdp: CMDP, system: AverageSystem) -> int:
    """Operations in a sum over the successors in a row of P_π, each of them and the cost a sum over actions."""
    return longest_row(system.chain) + 2 * cmdp.pairs.largest + 14


def _rounding(cmdp: CMDP, pi: PairTable, system: AverageSystem) -> Array:
    """(S,) the relative error of such a sum."""
    pairs = cmdp.pairs
    # Probabilities are played, and successors drawn, as if divided by their sums
    slack = np.abs(pairs.sum(pi) - 1.0) + (pairs.largest + 2) * EPS + row_slack(cmdp)
    return np.asarray(1.01 * (_terms(cmdp, system) * EPS + slack))


def _proved_steps(system: AverageSystem, inside: Any, rounding: Array) -> Array | None:
    """t ≥ 0 with t − P_π t ≥ 1 among the states `inside`: no fewer than the expected steps until they are left."""
    among = sp.csr_array(system.chain)[inside][:, inside]
    with np.errstate(over="ignore", invalid="ignore"):
        steps = 1.1 * system.times[inside]
        proved = steps - (1.0 + rounding) * (among @ steps) - rounding * steps >= 1.01
    return steps if proved.all() and (steps >= 0.0).all() else None


def _around(value: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The value, or the nearest between `low` and `high`, and its largest distance from what lies between them."""
    value = np.clip(value, low, high)  # a start that is left with probability 1e-20 looks like a class of its own
    return value, 1.01 * np.maximum(high - value, value - low) + 4.0 * EPS * np.abs(value)


def _from_several(
    cmdp: CMDP, system: AverageSystem, gain: Array, label: Any, ranges: dict[Any, Any], rounding: Array
) -> tuple[Array, Array]:
    """Averages of the classes, weighted by the probabilities of ending in each of them."""
    gain, off, transient = np.array(gain), np.zeros_like(gain), label < 0
    for k, (low, high) in ranges.items():
        gain[label == k] = 0.5 * (low + high)
        off[label == k] = 0.51 * (high - low) + 4.0 * EPS * np.abs(low)
    # Transient states: G = P_π G up to a residual, which counts once for every step before a class is entered
    residual = np.abs(system.chain @ gain - gain) + rounding * (system.chain @ np.abs(gain) + np.abs(gain))
    inside = np.flatnonzero(transient)
    steps = _proved_steps(system, inside, rounding[inside, 0])
    if steps is None:
        return cmdp.initial @ gain, np.full(gain.shape[1], np.inf)
    largest = np.max([off[label == k].max(axis=0) for k in ranges], axis=0)
    off[inside] = largest + 1.01 * steps[:, None] * residual[inside].max(axis=0, initial=0.0)
    rounded = (cmdp.states + 4) * EPS * (cmdp.initial @ np.abs(gain)) + cmdp.states * TINY
    return cmdp.initial @ gain, 1.01 * (cmdp.initial @ off) + rounded
