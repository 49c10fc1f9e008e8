"""The dual function as one policy sees it: curvature for the price of a look one step ahead.

G(λ) = min_π L(π, λ) is concave and made of pieces, one per policy: on a large model it is nearly smooth, and cuts alone
approach its maximum slowly. But a policy π gives more than its own cut. With its advantages A_i and its state visits
x, every policy π′ near it has

    V_i(π′) ≈ V_i(π) + Σ_s x(s) Σ_a π′(a|s) A_i(s, a),

and the best of them at any price costs one greedy pass over the table of advantages instead of an MDP solve. The
maximum over the prices, bounded by the cuts that are known, is where the oracle is asked next: Newton's method for G.
The mixture of greedy policies that supports the maximum, action by action, is a randomised policy close to the
constrained optimum. Its values miss the prediction by second order only: a good column, and the next viewpoint.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import advantages, greedy, is_compiled
from cmdpkit.exact.least_squares import level_point
from cmdpkit.exact.master import LEVEL, Program
from cmdpkit.model import CMDP, Pairs

PASSES = 100
"""Greedy passes at most; a dozen are usual."""

PLAIN, SMALL_PLAIN, STEP = 2, 3, 0.6
"""Up to so many limits the next prices are this far on the way from the best ones to the maximum of the model. The
second number is for models too small for compiled code, whose greedy passes cost little."""

ROUGH = 1e-5
"""While no mixture meets the limits, the local problem is solved no better than to this (scaled)."""

BESIDE = 0.05
"""Where prices are nearly known, the first looks are at prices higher by this part as well."""

ACCURACY = 0.05
"""The local problem is solved to this part of what is left between the bounds (measured)."""


class Blend(NamedTuple):
    """A randomised policy that makes choices[j] with probability weights[j], in every state anew."""

    choices: list[Any]  # of (S,), which of its actions each state takes
    weights: Array

    def probabilities(self, pairs: Pairs) -> PairTable:
        """π(a|s) of all pairs."""
        flat = np.zeros(pairs.count)
        for choice, weight in zip(self.choices, self.weights, strict=True):
            flat[pairs.rows(choice)] += weight
        return pairs.like(flat)


def as_blend(pairs: Pairs, pi: PairTable, most: int) -> Blend | None:
    """A policy as a blend of at most so many choices, one for every part of [0, 1] that a draw may hit; else None."""
    flat, heads = pi.ravel(), pairs.heads
    choice = pairs.argmin(-pi).astype(np.min_scalar_type(pairs.actions))
    mixed = np.flatnonzero(flat[pairs.rows(choice)] < 1.0)
    if mixed.size > most:
        return None
    sums = {int(s): np.cumsum(flat[heads[s] : heads[s + 1]]) for s in mixed}
    ends = np.unique(np.concatenate([[0.0, 1.0], *(part[(part > 0.0) & (part < 1.0)] for part in sums.values())]))
    if ends.size > most + 1:
        return None
    choices = []
    for middle in 0.5 * (ends[1:] + ends[:-1]):
        chosen = choice.copy()
        for s, part in sums.items():
            chosen[s] = min(int(np.searchsorted(part, middle)), part.size - 1)
        choices.append(chosen)
    return Blend(choices, np.diff(ends))


class Viewpoint(NamedTuple):
    """A policy that has been evaluated: the centre of a local model."""

    policy: Blend
    state_values: Array  # (S, m + 1)
    visits: Array  # (S,)
    values: Array  # (m + 1,) V_0..V_m from the start
    table: Array | None = None  # (N, m + 1) its advantages, if they are known


class Summit(NamedTuple):
    """The maximum of the dual function under the local model."""

    prices: Array  # scaled like the columns
    value: float  # scaled
    accuracy: float  # to which it was found


class Outlook(NamedTuple):
    """The maximum of the dual function under the local model, and the policy there."""

    prices: Array  # scaled like the columns
    value: float  # of the dual function there, scaled
    blend: Blend
    predicted: Array  # scaled V_0..V_m of the blend


class LocalDual:
    """V_0..V_m of policies near a viewpoint, in units of `scales`, and the best mixture of those that were seen."""

    def __init__(self, cmdp: CMDP, view: Viewpoint, scales: Array) -> None:
        self.cmdp, self.view, self.scales = cmdp, view, scales
        self.table = advantages(cmdp, view.state_values) if view.table is None else view.table
        self.seen: list[Any] = []  # choices of the greedy policies
        self.values = [view.values / scales]  # of the viewpoint itself and of each greedy policy
        self.plain = PLAIN if is_compiled(cmdp.transitions) else SMALL_PLAIN
        self.repeated = False  # the last greedy policy has the values of one that was known
        self._known = {self.values[0].tobytes()}
        self._units, self._compiled = scales[0] / scales, is_compiled(cmdp.transitions)
        self._small = np.min_scalar_type(cmdp.actions)

    def look(self, prices: Array) -> Array:
        """The greedy policy at these prices, under the local model: its predicted V_0..V_m."""
        weights = self._units.copy()
        weights[1:] *= prices
        choice, change = greedy(self.cmdp.pairs, self.table, weights, self.view.visits, self._compiled)
        self.seen.append(choice.astype(self._small))
        values = (self.view.values + change) / self.scales
        self.repeated = values.tobytes() in self._known
        self._known.add(values.tobytes())
        self.values.append(values)
        return values

    def blend(self, limits: Array, cap: float, accuracy: float) -> tuple[Blend, Array]:
        """The best policy near the viewpoint for these limits, a mixture of greedy ones, and its predicted V_0..V_m."""
        program = Program(np.array(self.values), limits, cap)
        for _ in range(PASSES):
            value, prices = program.solve()
            prices = np.minimum(prices, cap)
            at_prices = self.look(prices)
            if self.repeated or value - (at_prices[0] + prices @ (at_prices[1:] - limits)) <= accuracy:
                break  # what is left after a policy that is in the mixture's table already is rounding
            program.add(at_prices)
        return self.mixed(program.mixture().weights)

    def mixed(self, weights: Array) -> tuple[Blend, Array]:
        """The mixture of the viewpoint and the first greedy policies, and its predicted V_0..V_m."""
        base, used = self.view.policy, np.flatnonzero(weights[1:] > 1e-12)
        choices = [*base.choices, *(self.seen[j] for j in used)]
        shares = np.append(weights[0] * base.weights, weights[1:][used])
        kept = np.flatnonzero(shares > 1e-12)
        values = np.array(self.values[: weights.size])
        return Blend([choices[j] for j in kept], shares[kept] / shares[kept].sum()), weights @ values


def near_outlook(
    local: LocalDual, start: Array, left: float, cap: float, margin: Array, enough: float, share: float
) -> Outlook:
    """The same near the end of a search, where known cuts add nothing: prices and policy by one column generation.

    Args:
        local, start, cap, margin, enough, share: as in `outlook`.
        left: distance between the bounds on the optimum.
    """
    limits, program = -margin, Program(np.array(local.values), -margin, cap)
    accuracy = max(share * (left if np.isfinite(left) else ROUGH), enough)
    best, center = -np.inf, start
    asked = [start, *(start + BESIDE * np.diag(start)[start > 0.0])]
    for _ in range(PASSES):
        idle = True
        for prices in asked:
            cut = local.look(prices)
            program.add(cut)
            value = float(cut[0] + (cut[1:] - limits) @ prices)
            idle = idle and local.repeated and value <= best
            if value > best:
                best, center = value, prices
        most, farthest = program.solve()
        if idle or most - best <= accuracy:
            break
        asked = [_between(local, program, center, np.minimum(farthest, cap), best, most, limits)]
    return Outlook(center, best + float(limits @ center), *local.mixed(program.mixture().weights))


def outlook(
    local: LocalDual,
    cuts: Array,
    start: Array,
    bound: float,
    upper: float,
    cap: float,
    margin: Array | float,
    enough: float = 1e-13,
    share: float = ACCURACY,
) -> Outlook:
    """The maximum of the dual function as the local model and known cuts see it, and the policy there.

    Args:
        local: the local dual. All other numbers are scaled like its values.
        margin: distance that the blend keeps from the limits, because the prediction will miss.
        cuts, start, bound, upper, cap, enough, share: as in `summit`.
    """
    found = summit(local, cuts, start, bound, upper, cap, enough, share)
    limits = np.zeros(len(start)) - margin
    return Outlook(found.prices, found.value, *local.blend(limits, cap, found.accuracy))


def summit(
    local: LocalDual,
    cuts: Array,
    start: Array,
    bound: float,
    upper: float,
    cap: float,
    enough: float = 1e-13,
    share: float = ACCURACY,
) -> Summit:
    """Maximise min(local dual, known cuts) over prices in [0, cap] by cutting planes.

    The local dual is asked between the best prices so far and those of the cuts' own maximum: somewhere on the way for
    few limits (in-out separation), else at the nearest prices on a level (the level method), which takes fewer
    questions and a quadratic program for each.

    Args:
        local: the local dual. All other numbers are scaled like its values.
        cuts: (n, m + 1) values V_0..V_m of known policies.
        start: prices to start from.
        bound, upper: bounds on the optimum; the distance says how exact the answer must be.
        cap: largest price.
        enough: the answer need not be more exact than this, or than
        share: this part of the distance of the bounds.
    """
    best, center, prices = -np.inf, start, start
    model = Program(cuts, np.zeros(len(start)), cap)
    closing = False  # the last question is the model's own maximum
    for _ in range(PASSES):
        cut = local.look(prices)
        model.add(cut)
        value = min(float(cut[0] + cut[1:] @ prices), float((cuts[:, 0] + cuts[:, 1:] @ prices).min()))
        idle = local.repeated and value <= best  # the model knew this cut: what it promises beyond is rounding
        if value > best:
            best, center = value, prices
        if closing or idle:
            break
        most, farthest = model.solve()
        left = upper - bound if np.isfinite(upper) else max(abs(most - bound), ROUGH)
        accuracy = max(share * left, enough)
        closing, farthest = most - best <= accuracy, np.minimum(farthest, cap)
        prices = farthest if closing else _between(local, model, center, farthest, best, most)
    return Summit(center, best, accuracy)


def _between(
    local: LocalDual, model: Program, center: Array, farthest: Array, best: float, most: float, limits: Any = 0.0
) -> Array:
    """Prices between the best ones and those of the model's maximum."""
    if center.size <= local.plain:
        return np.asarray(center + STEP * (farthest - center))
    known = model.columns
    rows, level = (known[:, 1:] - limits).T, best + LEVEL * (most - best)
    between = level_point(center, known[:, 0], rows, level, model.cap)
    return farthest if between is None else between
