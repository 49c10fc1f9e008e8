"""The next multipliers to try where the oracle is cheap: a level method on the dual function itself.

Over the stages of a finite horizon the oracle is one backward sweep, which gives a policy, its values and the bound. A
local model (local.py) takes a table over all pairs and a dozen passes over it, and costs more than several sweeps. So
the oracle is asked at every point of the level method: where the cuts that are known promise a given part of the
improvement that they promise at most, as near as possible to the best multipliers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.least_squares import level_point
from cmdpkit.exact.master import best_mixture

LEVEL = 0.3
"""The part of the promised improvement (measured: docs/decisions.md)."""

FIRST_CAP = 0.5
"""No price is larger at first, scaled like the columns; the cap doubles whenever a price reaches it."""


class LevelMethod:
    """Prices at which to ask next, one after another. All numbers are scaled like the columns.

    Args:
        start: (m,) prices near which to begin.
    """

    def __init__(self, start: Array) -> None:
        self.cap = max(FIRST_CAP, 2.0 * float(start.max(initial=0.0)))
        self._basis: Any = None

    def next(self, cuts: Array, best: float, center: Array) -> Array:
        """The prices nearest to `center` at which all cuts (n, m + 1) are at least the level.

        `best` is the largest value of the dual function so far, at `center`.
        """
        costs, rows = cuts[:, 0], cuts[:, 1:].T
        model = best_mixture(costs, rows, np.zeros(center.size), self.cap, self._basis)
        self._basis = model.basis
        point = level_point(center, costs, rows, best + LEVEL * (model.value - best), self.cap)
        prices = np.minimum(model.prices, self.cap) if point is None else point
        if float(prices.max()) > 0.99 * self.cap:
            self.cap *= 2.0
        return prices
