"""Exact arithmetic on a model's own doubles. It shares no code with the package beyond reading the model's data.

A double is an integer over a power of two, so that every table is an array of Python integers and a common shift:
values = integers / 2**shift. Linear systems are solved by fraction-free elimination up to `SMALL` states. Beyond, a
fixed-point solution is refined until its exactly computed residual is below 2**-200 of the right-hand side: not
exact, but 40 digits finer than any double it is compared with.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

SMALL = 16
BITS = 200

Exact = Any  # an object array of Python integers or Fractions


def fractions(values: Any) -> Exact:
    """An array of doubles as an object array of Fractions."""
    array = np.asarray(values, dtype=float)
    result = np.empty(array.shape, dtype=object)
    result.ravel()[:] = [Fraction(float(value)) for value in array.ravel()]
    return result


def integers(values: Exact) -> tuple[Exact, int]:
    """Dyadic fractions as integers / 2**shift."""
    flat = [Fraction(value) for value in np.ravel(values)]
    shift = max((value.denominator.bit_length() - 1 for value in flat), default=0)
    result = np.empty(np.shape(values), dtype=object)
    result.ravel()[:] = [value.numerator << (shift - value.denominator.bit_length() + 1) for value in flat]
    return result, shift


def below(value: Fraction) -> float:
    """The largest double that is at most `value`."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, -np.inf))


def above(value: Fraction) -> float:
    """The smallest double that is at least `value`."""
    return -below(-value)


def solve(matrix: Exact, rhs: Exact) -> tuple[Exact, int]:
    """Numerators and the common, positive denominator of x with matrix · x = rhs, for a diagonally dominant matrix."""
    return _eliminate(matrix, rhs) if len(rhs) <= SMALL else _refine(matrix, rhs)


def _eliminate(matrix: Exact, rhs: Exact) -> tuple[Exact, int]:
    """Bareiss' elimination: all numbers stay integers, because the division by the last pivot leaves no remainder."""
    table = np.column_stack([matrix, rhs])
    for row in table:
        row //= gcd(*row)
    n, last = len(rhs), 1
    for k in range(n):
        pivot, others = table[k, k], np.arange(n) != k
        table[others, k:] = (pivot * table[others, k:] - table[others, k : k + 1] * table[k, k:]) // last
        last = pivot
    return (table[:, -1], last) if last > 0 else (-table[:, -1], -last)


def _refine(matrix: Exact, rhs: Exact) -> tuple[Exact, int]:
    """Iterative refinement: exact residuals, corrections in double precision, the solution in fixed point."""
    size, largest = _bits(matrix), _bits(rhs)
    bits = max(0, size - largest) + BITS + 60
    factors = scipy.linalg.lu_factor(_doubles(matrix, size))
    x, left = np.zeros(len(rhs), dtype=object), rhs << bits
    for _ in range(100):
        if _bits(left) <= largest + bits - BITS - 30:
            return x, 1 << bits
        correction = scipy.linalg.lu_solve(factors, _doubles(left, _bits(left)))
        x = x + _scaled(correction, _bits(left) - size)
        left = (rhs << bits) - matrix @ x
    raise ArithmeticError("the refinement of a linear system did not converge")


def _bits(table: Exact) -> int:
    return max(int(value).bit_length() for value in np.ravel(table))


def _doubles(table: Exact, size: int) -> Any:
    """table / 2**size"""
    return np.array([float(Fraction(int(v), 1 << size)) for v in np.ravel(table)]).reshape(np.shape(table))


def _scaled(values: Any, shift: int) -> Exact:
    """Doubles times 2**shift, rounded to integers."""
    result = np.empty(len(values), dtype=object)
    result[:] = [round(Fraction(float(v)) * (Fraction(2) ** shift)) for v in values]
    return result


class ExactModel:
    """V_0..V_m of policies, and minima of weighted sums of them, from the user's own tables and limits."""

    def __init__(self, cmdp: Any) -> None:
        self.shape = (cmdp.states, cmdp.actions)
        P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
        # An action that is not available does what the state's first available one does
        mask = np.asarray(cmdp.pairs.mask)
        self.own = np.where(mask, np.arange(self.shape[1]), mask.argmax(axis=1)[:, None])
        rows = (mask.ravel().cumsum() - 1).reshape(self.shape)[np.arange(self.shape[0])[:, None], self.own]
        self.transitions, self.shift = integers(fractions(P)[rows])
        gamma = Fraction(cmdp.gamma)
        self.gamma = gamma.numerator
        self.shift += gamma.denominator.bit_length() - 1  # of γ P
        self.initial = fractions(cmdp.initial)
        # V_i = sign (value − limit), where a limit per step bounds (1 − γ) times the discounted sum
        self.costs = [fractions(cmdp.objective).ravel()[rows] * (-1 if cmdp.maximise else 1)]
        self.offsets = [Fraction(0)]
        for limit in cmdp.rows:
            unit = int(limit.sign) * (1 - gamma if limit.per_step else 1)
            self.costs.append(fractions(limit.values).ravel()[rows] * unit)
            self.offsets.append(int(limit.sign) * Fraction(limit.limit))
        self.scales = [max(Fraction(1), abs(offset)) for offset in self.offsets[1:]]
        self._minima: dict[tuple[Fraction, ...], tuple[Fraction, Any]] = {}

    def sizes(self) -> list[Fraction]:
        """max |c_i| / (1 − γ) + |offset_i|: no V_i is larger, up to the rounding of row sums."""
        horizon = Fraction(1 << self.shift, (1 << self.shift) - self._largest_row())
        return [abs(c).max() * horizon + abs(o) for c, o in zip(self.costs, self.offsets, strict=True)]

    def _largest_row(self) -> int:
        return int((self.gamma * self.transitions.sum(axis=2)).max())

    def values(self, probabilities: Any) -> list[Fraction]:
        """V_0..V_m of a policy that is played with its probabilities divided by their sums.

        With sums σ and x the visits, x / σ solves (diag σ − γ πP)ᵀ y = ρ.
        """
        pi = fractions(probabilities)
        played, shift = integers(pi)
        chain = self.gamma * np.einsum("sa,sat->st", played, self.transitions)
        system = np.diag(played.sum(axis=1) << self.shift) - chain
        start, digits = integers(self.initial)
        visits, denominator = solve(system.T, start)
        unit = Fraction(1 << (self.shift + shift), denominator << digits)
        return [(visits * (pi * c).sum(axis=1)).sum() * unit - o for c, o in zip(self.costs, self.offsets, strict=True)]

    def minimum(self, weights: Any) -> Fraction:
        """min over all policies of Σ w_i V_i, by policy iteration that ends at an optimal policy."""
        return self._minimum(weights)[0]

    def minimiser(self, weights: Any) -> Any:
        """The deterministic policy with that minimum, as probabilities."""
        chosen = self._minimum(weights)[1]
        return np.eye(self.shape[1])[self.own[np.arange(self.shape[0]), chosen]]

    def _minimum(self, weights: Any) -> tuple[Fraction, Any]:
        key = tuple(Fraction(float(w)) for w in weights)
        if key not in self._minima:
            self._minima[key] = self._policy_iteration(key)
        return self._minima[key]

    def _policy_iteration(self, weights: tuple[Fraction, ...]) -> tuple[Fraction, Any]:
        cost, shift = integers(sum((w * c for w, c in zip(weights, self.costs, strict=True)), Fraction(0)))
        states = np.arange(self.shape[0])
        choice = self._guess(cost)
        identity = np.eye(len(states), dtype=int).astype(object) << self.shift
        while True:
            values, denominator = solve(identity - self.gamma * self.transitions[states, choice], cost[states, choice])
            # Q(s, a) = c(s, a) + γ Σ P V, with V = values · 2**self.shift / (denominator · 2**shift)
            q = cost * denominator + self.gamma * (self.transitions @ values)
            own = values << self.shift
            noise = 0 if len(states) <= SMALL else int(abs(own).max() + abs(cost).max()) >> (BITS - 20)
            best = q.argmin(axis=1)
            better = own - q[states, best] > noise
            if not better.any():
                break
            choice = np.where(better, best, choice)
        total = (self.initial * own).sum() / (denominator << shift)
        return total - sum(w * o for w, o in zip(weights, self.offsets, strict=True)), choice

    def _guess(self, cost: Exact) -> Any:
        """A good policy from a few rounds in double precision; only the time depends on it."""
        S = self.shape[0]
        costs, P = _doubles(cost, _bits(cost)), _doubles(self.gamma * self.transitions, self.shift)
        choice = costs.argmin(axis=1)
        for _ in range(30):
            at = (np.arange(S), choice)
            q = costs + P @ np.linalg.solve(np.eye(S) - P[at], costs[at])
            best = np.where(q.min(axis=1) < q[at] - 1e-12 * np.abs(q).max(), q.argmin(axis=1), choice)
            if (best == choice).all():
                break
            choice = best
        return choice
