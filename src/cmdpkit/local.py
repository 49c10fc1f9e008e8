"""The dual function as one policy sees it: curvature for the price of a look one step ahead.

G(λ) = min_π L(π, λ) is concave and made of pieces, one a policy: on a large model it is nearly smooth, and cuts alone
approach its maximum slowly. But the policy π that is best at λ tells more than its own cut. With its advantages A_i
and its state visits x, every policy π′ near it has

    V_i(π′) ≈ V_i(π) + Σ_s x(s) A_i(s, π′(s)),

and the best of them at any price y costs one greedy pass over the table of advantages instead of an MDP solve. Their
maximum over y, bounded by the cuts that are known, is where the oracle is asked next: Newton's method for G. The
mixture of greedy policies that supports the maximum is a randomised policy close to the constrained optimum; its
values miss the prediction by second order only, which makes it a good column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import advantages, greedy, is_compiled
from cmdpkit.master import LEVEL, best_mixture, level_point
from cmdpkit.model import CMDP

PASSES = 200
"""Greedy passes at most; a few dozen are usual."""

ACCURACY = 0.05
"""The local problem is solved to this part of what is left between the bounds (measured)."""


class Blend(NamedTuple):
    """A randomised policy that takes action choices[j][s] in state s with probability weights[j]."""

    choices: list[Any]  # of (S,) actions
    weights: Array

    def probabilities(self, actions: int) -> Array:
        """π(a|s) as (S, A)."""
        table = np.zeros((self.choices[0].size, actions))
        states = np.arange(len(table))
        for choice, weight in zip(self.choices, self.weights, strict=True):
            table[states, choice] += weight
        return table


class LocalDual:
    """V_0..V_m of policies near the one with these state values (S, m + 1), state visits (S,) and values (m + 1,)."""

    def __init__(self, cmdp: CMDP, state_values: Array, visits: Array, values: Array) -> None:
        self.actions = cmdp.actions
        self.values = values
        self.visits = visits
        self.table = advantages(cmdp, state_values)
        self.compiled = is_compiled(cmdp.transitions)

    def greedy(self, weights: Array) -> tuple[Any, Array]:
        """The policy that is best for the weights as far as one sees from here, and its predicted V_0..V_m."""
        choice, change = greedy(self.table, weights, self.visits, self.compiled)
        return choice, self.values + change


class Outlook(NamedTuple):
    """Where the dual function has its maximum as far as one sees, and the policy there."""

    prices: Array  # scaled like the columns
    blend: Blend | None


def outlook(
    local: LocalDual, scales: Array, cuts: Array, start: Array, bound: float, upper: float, cap: float
) -> Outlook:
    """Maximise min(local dual, known cuts) over prices in [0, cap] by a level method.

    Args:
        local: the local dual.
        scales: (m + 1,) units in which columns, prices and bounds are given.
        cuts: (n, m + 1) scaled values V_0..V_m of known policies.
        start: scaled prices to start from.
        bound, upper: scaled bounds on the optimum; the distance says how exact the answer must be.
        cap: largest scaled price.
    """
    known = len(cuts)
    choices: list[Any] = []
    best, center, prices = -np.inf, start, start
    nothing = np.zeros(len(start))
    closing = False  # the level method has ended, and its last question is the model's own maximum
    for _ in range(PASSES):
        choice, values = local.greedy(np.append(1.0, prices * scales[0] / scales[1:]))
        choices.append(choice.astype(np.min_scalar_type(local.actions), copy=False))
        cuts = np.vstack([cuts, values / scales])
        value = float((cuts[:, 0] + cuts[:, 1:] @ prices).min())
        if value > best:
            best, center = value, prices
        model = best_mixture(cuts[:, 0], cuts[:, 1:].T, nothing, cap)
        if closing:
            break
        closing = model.value - best <= max(ACCURACY * min(upper - bound, model.value - bound), 1e-13)
        level = best + LEVEL * (model.value - best)
        between = None if closing else level_point(center, cuts[:, 0], cuts[:, 1:].T, level, cap)
        prices = np.minimum(model.prices, cap) if between is None else between
    support = [j for j in np.flatnonzero(model.weights > 1e-12) if j >= known]
    if not support:
        return Outlook(center, None)
    weights = model.weights[support]
    return Outlook(center, Blend([choices[j - known] for j in support], weights / weights.sum()))
