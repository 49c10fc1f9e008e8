"""Rigorous long-run averages of a policy, from any guess of its bias.

Whatever h is, the average of a policy from any state is a mean of (c_π + P_π h − h)(s) over the states s of the
recurrent class in which it ends, so it lies between the least and the largest of them. Where the start can end in
several classes, the averages are weighted by the probabilities of ending in each, whose errors are bounded by the
expected time until then. docs/theory.md ("Long-run averages") derives each line.
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
        # A sum over the successors in a row of P_π, each of them and the cost a sum over actions
        terms = longest_row(system.chain) + 2 * pairs.largest + 14
        # Probabilities are played, and successors drawn, as if divided by their sums
        slack = np.abs(pairs.sum(pi) - 1.0) + (pairs.largest + 2) * EPS + row_slack(cmdp)
        rounding = 1.01 * (terms * EPS + slack)[:, None]
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
    among = sp.csr_array(system.chain)[inside][:, inside]
    steps = 1.1 * system.times[inside]
    proved = steps - (1.0 + rounding[inside, 0]) * (among @ steps) - rounding[inside, 0] * steps >= 1.01
    if not (proved.all() and (steps >= 0.0).all()):
        return cmdp.initial @ gain, np.full(gain.shape[1], np.inf)
    largest = np.max([off[label == k].max(axis=0) for k in ranges], axis=0)
    off[inside] = largest + 1.01 * steps[:, None] * residual[inside].max(axis=0, initial=0.0)
    rounded = (cmdp.states + 4) * EPS * (cmdp.initial @ np.abs(gain)) + cmdp.states * TINY
    return cmdp.initial @ gain, 1.01 * (cmdp.initial @ off) + rounded
