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

LONGEST = 10**9
"""Sums of at most so many costs are bounded: rounding errors add up."""


def averages_with_errors(cmdp: CMDP, pi: PairTable, plan: Plan) -> tuple[Array, Array]:
    """(m + 1,) long-run averages of all costs from the start, limits not subtracted, and a bound on each error."""
    system = AverageSystem(cmdp, pi, plan=plan)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing, and says so
        gain, bias = system.gains(cmdp.pairs.expect(pi, cmdp.costs))
        least, most = _changes(cmdp, pi, system, bias)
        label, visited = _classes(cmdp, pi)
        classes = np.unique(label[visited & (label >= 0)])
        ranges = [(least[label == k].min(axis=0), most[label == k].max(axis=0)) for k in classes]
        if len(ranges) == 1:
            values, errors = _around(np.asarray(cmdp.initial @ gain), *ranges[0])
        else:
            several = dict(zip(classes, ranges, strict=True))
            values, errors = _from_several(cmdp, system, gain, label, several, _rounding(cmdp, pi, system)[:, None])
        return values, np.where(np.isfinite(errors) & np.isfinite(values), errors, np.inf)


def bias_bound(cmdp: CMDP, pi: PairTable) -> float:
    """B: the expected sum of T costs from the start is within B (max c − min c) of T times their average.

    For every cost of the model and all T up to `LONGEST`; infinite where that cannot be proved. B is the largest span
    of a bias, relative to that of the cost; with several classes, or too many rounding errors, see `return_time`.
    """
    label, visited = _classes(cmdp, pi)
    if np.unique(label[visited & (label >= 0)]).size == 1:
        system, some = AverageSystem(cmdp, pi), cmdp.spans > 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            bias = system.gains(cmdp.pairs.expect(pi, cmdp.costs)).bias
            least, most = _changes(cmdp, pi, system, bias)
            # Σ_t c_t = Σ_t d(s_t) + h(s_0) − h(s_T), and both d and the average lie between the least and the largest d
            off = LONGEST * (most[visited].max(axis=0) - least[visited].min(axis=0))[some] / cmdp.spans[some]
            spans = np.ptp(bias[visited], axis=0)[some] / cmdp.spans[some]
        if np.isfinite(spans).all() and (off <= np.maximum(spans, 1.0)).all():
            return 1.01 * float((spans + off).max(initial=0.0))
    return return_time(cmdp, pi)


def return_time(cmdp: CMDP, pi: PairTable) -> float:
    """The same for costs of any kind and all T, from the times of visits to a state of each class that marks it.

    It is the largest expected number of steps to such a state, and with several classes those from the start in
    addition. Infinite where such times cannot be proved.
    """
    system, (label, visited) = AverageSystem(cmdp, pi), _classes(cmdp, pi)
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


def _classes(cmdp: CMDP, pi: PairTable) -> tuple[Any, Any]:
    """(S,) the recurrent class of each state, −1 for transient ones, and whether it can be visited from the start."""
    moves = mixed_chain(cmdp, (pi > 0.0).astype(float))  # without the underflow of a product
    return recurrent_classes(moves)[1], reachable(moves, cmdp.initial)


def _changes(cmdp: CMDP, pi: PairTable, system: AverageSystem, bias: Array) -> tuple[Array, Array]:
    """(S, n) bounds on c_π + P_π h − h, from both sides."""
    pairs, terms = cmdp.pairs, _terms(cmdp, system)
    change = pairs.expect(pi, cmdp.costs) + drift(system.chain, bias)
    size = pairs.expect(pi, np.abs(cmdp.costs)) + drift(system.chain, bias, absolute=True)
    rounding = _rounding(cmdp, pi, system)[:, None]
    error = rounding * size + terms * TINY
    return change - error, change + error


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
