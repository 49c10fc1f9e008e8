"""Models whose costs are so large or so small that quotients of them overflow: solved in units of powers of two.

Dividing by a power of two is exact. Where a multiplier leaves the range of floating point on the way back, the nearest
one that does not is taken, and its bound is computed anew.
"""

from __future__ import annotations

import math

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.bounds import down
from cmdpkit.exact.mdp import minimise
from cmdpkit.model import CMDP


class Balance:
    """A model with all costs near one in size, and the way back to the units of the original."""

    def __init__(self, cmdp: CMDP) -> None:
        self.cmdp = cmdp
        self.even, self.exponents = cmdp.balanced()

    def dual(self, multipliers: Array, bound: float) -> tuple[Array, float]:
        """Multipliers and their bound on V_0, in the original units."""
        own, even = _carried(multipliers, self.exponents[0] - self.exponents[1:])
        if not (even == multipliers).all() or not math.isfinite(bound):
            bound = minimise(self.even, np.append(1.0, even)).bound
        return own, _scaled(bound, int(self.exponents[0]))

    def farkas(self, weights: Array, margin: float) -> tuple[Array, float] | None:
        """Farkas weights and their margin in the original units; None where they prove nothing there."""
        common = int(self.exponents[1:][weights > 0.0].min(initial=2_000))
        own, even = _carried(weights, common - self.exponents[1:])
        if not (even == weights).all():
            margin = minimise(self.even, np.append(0.0, even)).bound
        proved = _scaled(margin, common)
        return (own, proved) if 0.0 < proved < math.inf else None


def _carried(values: Array, exponents: Array) -> tuple[Array, Array]:
    """values · 2^exponents as far as floating point reaches, and what they are exactly in the old units."""
    moved = np.minimum(np.ldexp(values, exponents), np.finfo(float).max)
    back = np.ldexp(moved, -exponents)
    return moved, np.where(np.isfinite(back), back, 0.0)


def _scaled(bound: float, exponent: int) -> float:
    """bound · 2^exponent, rounded down."""
    return down(float(np.ldexp(bound, exponent))) if math.isfinite(bound) else bound
