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
from cmdpkit.exact.master import LEVEL, best_mixture, level_point
from cmdpkit.model import CMDP, Pairs

PASSES = 100
"""Greedy passes at most; a dozen are usual."""

ROUGH = 1e-5
"""While no mixture meets the limits, the local problem is solved no better than to this (scaled)."""

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


class Viewpoint(NamedTuple):
    """A policy that has been evaluated: the centre of a local model."""

    policy: Blend
    state_values: Array  # (S, m + 1)
    visits: Array  # (S,)
    values: Array  # (m + 1,) V_0..V_m from the start


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
        self.table = advantages(cmdp, view.state_values)
        self.seen: list[Any] = []  # choices of the greedy policies
        self.values = [view.values / scales]  # of the viewpoint itself and of each greedy policy
        self.repeated = False  # the last greedy policy has the values of one that was known

    def look(self, prices: Array) -> Array:
        """The greedy policy at these prices, under the local model: its predicted V_0..V_m."""
        weights = np.append(1.0, prices * self.scales[0] / self.scales[1:])
        choice, change = greedy(
            self.cmdp.pairs, self.table, weights, self.view.visits, is_compiled(self.cmdp.transitions)
        )
        self.seen.append(choice.astype(np.min_scalar_type(self.cmdp.actions), copy=False))
        values = (self.view.values + change) / self.scales
        self.repeated = any((values == known).all() for known in self.values)
        self.values.append(values)
        return values

    def blend(self, limits: Array, cap: float, accuracy: float) -> tuple[Blend, Array]:
        """The best policy near the viewpoint for these limits, a mixture of greedy ones, and its predicted V_0..V_m."""
        basis = None
        for _ in range(PASSES):
            values = np.array(self.values)
            mixture = best_mixture(values[:, 0], values[:, 1:].T, limits, cap, basis)
            weights, prices, basis = mixture.weights, np.minimum(mixture.prices, cap), mixture.basis
            at_prices = self.look(prices)
            if self.repeated or mixture.value - (at_prices[0] + prices @ (at_prices[1:] - limits)) <= accuracy:
                break  # what is left after a policy that is in the mixture's table already is rounding
        base, used = self.view.policy, np.flatnonzero(weights[1:] > 1e-12)
        choices = [*base.choices, *(self.seen[j] for j in used)]
        shares = np.append(weights[0] * base.weights, weights[1:][used])
        kept = np.flatnonzero(shares > 1e-12)
        return Blend([choices[j] for j in kept], shares[kept] / shares[kept].sum()), weights @ values


def outlook(
    local: LocalDual,
    cuts: Array,
    start: Array,
    bound: float,
    upper: float,
    cap: float,
    margin: float,
    enough: float = 1e-13,
    share: float = ACCURACY,
) -> Outlook:
    """Maximise min(local dual, known cuts) over prices in [0, cap] by a level method.

    Args:
        local: the local dual. All other numbers are scaled like its values.
        cuts: (n, m + 1) values V_0..V_m of known policies.
        start: prices to start from.
        bound, upper: bounds on the optimum; the distance says how exact the answer must be.
        cap: largest price.
        margin: distance that the blend keeps from the limits, because the prediction will miss.
        enough: the answer need not be more exact than this, or than
        share: this part of the distance of the bounds.
    """
    best, center, prices = -np.inf, start, start
    nothing, basis = np.zeros(len(start)), None
    closing = False  # the level method has ended, and its last question is the model's own maximum
    for _ in range(PASSES):
        cuts = np.vstack([cuts, local.look(prices)])
        value = float((cuts[:, 0] + cuts[:, 1:] @ prices).min())
        idle = local.repeated and value <= best  # the model knew this cut: what it promises beyond is rounding
        if value > best:
            best, center = value, prices
        if closing or idle:
            break
        model = best_mixture(cuts[:, 0], cuts[:, 1:].T, nothing, cap, basis)
        basis = model.basis
        left = upper - bound if np.isfinite(upper) else max(abs(model.value - bound), ROUGH)
        accuracy = max(share * left, enough)
        closing = model.value - best <= accuracy
        level = best + LEVEL * (model.value - best)
        between = None if closing else level_point(center, cuts[:, 0], cuts[:, 1:].T, level, cap)
        prices = np.minimum(model.prices, cap) if between is None else between
    return Outlook(center, best, *local.blend(nothing - margin, cap, accuracy))
