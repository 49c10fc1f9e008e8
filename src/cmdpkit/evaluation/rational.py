"""Small models in exact arithmetic: values of policies and minima of Lagrangians, for proofs that rounding defeats.

A double is an integer over a power of two, so that a table is an array of Python integers with a common shift. Linear
systems are solved in double precision and refined with exact residuals until those are below 2**-BITS of the right-hand
side. What is left of them is counted in every error and bound: a refinement that fails makes them useless, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.bounds import horizon_bound
from cmdpkit.model import CMDP

BITS = 640
"""Residuals are reduced to this many bits below the right-hand side: scales may be 1e150 apart."""

MOST_STATES, MOST_NUMBERS = 64, 20_000
"""Largest model that is solved in exact arithmetic: states, and entries of its transitions."""

REFINEMENTS = 60
"""A correction is good to some 33 bits."""

POLICIES = 500
"""Policy iteration ends long before this; the bound is valid wherever it stops."""

Integers = Any
"""An object array of Python integers."""


def is_small(cmdp: CMDP) -> bool:
    """Whether exact arithmetic is fast enough for the model, and its numbers are the user's own."""
    fast = cmdp.states <= MOST_STATES and cmdp.pairs.count * cmdp.states <= MOST_NUMBERS
    return fast and cmdp.entry_error == 0 and (cmdp.criterion == "average" or horizon_bound(cmdp) < np.inf)


def below(value: Fraction) -> float:
    """The largest double that is at most `value`."""
    if abs(value) >= Fraction(np.finfo(float).max):
        return float(np.finfo(float).max) if value > 0 else -np.inf
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, -np.inf))


def above(value: Fraction) -> float:
    """The smallest double that is at least `value`."""
    return -below(-value) + 0.0


class Table(NamedTuple):
    """numbers / 2**shift"""

    numbers: Integers
    shift: int

    @classmethod
    def of(cls, values: Any) -> Table:
        """Doubles, or Fractions whose denominators are powers of two."""
        flat = [Fraction(value) for value in np.ravel(values).tolist()]
        shift = max((value.denominator.bit_length() - 1 for value in flat), default=0)
        numbers = np.empty(np.shape(values), dtype=object)
        numbers.ravel()[:] = [value.numerator << (shift - value.denominator.bit_length() + 1) for value in flat]
        return cls(numbers, shift)


class Visits(NamedTuple):
    """Discounted visits to the states, numbers / 2**shift, and a bound on the 1-norm of their error."""

    numbers: Integers
    shift: int
    error: Fraction


class Least(NamedTuple):
    """A deterministic policy with a small Lagrangian, and a lower bound on that of all policies."""

    choice: Any  # (S,)
    bound: Fraction


class RationalModel:
    """V_0..V_m of policies and minima of Σ w_i V_i, from the numbers that the user has stated."""

    def __init__(self, cmdp: CMDP) -> None:
        self.cmdp, self.pairs = cmdp, cmdp.pairs
        P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
        gamma = Fraction(cmdp.gamma)
        transitions = Table.of(P.reshape(self.pairs.count, cmdp.states))
        self.ahead = gamma.numerator * transitions.numbers  # γ P
        self.shift = transitions.shift + gamma.denominator.bit_length() - 1
        self.initial = Table.of(cmdp.initial)
        self.sums = self.ahead.sum(axis=1)
        largest = Fraction(int(self.sums.max()), 1 << self.shift)
        # At least Σ_k (γ P_π)ᵏ 1, for every policy; averages have no use for it
        self.horizon = Fraction(0) if cmdp.criterion == "average" else 1 / (1 - largest)
        # V_i = sign · (value − limit); what is stated per step is (1 − γ) times the discounted sum
        units = [Fraction(int(cmdp.sense)) * (1 - gamma if cmdp.objective_per_step else 1)]
        units += [Fraction(int(row.sign)) * (1 - gamma if row.per_step else 1) for row in cmdp.rows]
        self.offsets = [Fraction(0), *(Fraction(float(o)) for o in cmdp.offsets)]
        self.costs = []
        for unit, values in zip(units, [cmdp.objective, *(row.values for row in cmdp.rows)], strict=True):
            table = Table.of(np.asarray(values, dtype=float).ravel())
            self.costs.append(Table(unit.numerator * table.numbers, table.shift + unit.denominator.bit_length() - 1))

    # -- one policy ---------------------------------------------------------------------------------------------

    def visits(self, played: Table) -> Visits:
        """Visits to the states under a policy (N,) whose probabilities are divided by their sums σ, over these sums.

        y = x / σ solves (diag σ − γ πP)ᵀ y = ρ. With a residual r, ‖σ · (y − ŷ)‖₁ ≤ ‖r‖₁ Σ_k (γ P_π)ᵏ 1.
        """
        first, shift = self.pairs.first[:-1], self.shift + played.shift
        chain = np.add.reduceat(played.numbers[:, None] * self.ahead, first, axis=0)
        sums = np.add.reduceat(played.numbers, first)
        y, bits, rest = solved((np.diag(sums << self.shift) - chain).T, shift, self.initial.numbers)
        bits += self.initial.shift
        least = Fraction(int(sums.min()), 1 << played.shift)
        return Visits(y, bits, Fraction(int(abs(rest).sum()), 1 << (bits + shift)) * self.horizon / least)

    def values(self, played: Table, visits: Visits) -> tuple[list[Fraction], list[Fraction]]:
        """V_0..V_m of a policy, and bounds on their errors."""
        values, errors = [], []
        for cost, offset in zip(self.costs, self.offsets, strict=True):
            mean = np.add.reduceat(played.numbers * cost.numbers, self.pairs.first[:-1])
            unit = Fraction(1, 1 << (played.shift + cost.shift))
            values.append(Fraction(int((visits.numbers * mean).sum()), 1 << visits.shift) * unit - offset)
            errors.append(visits.error * int(abs(mean).max()) * unit)
        return values, errors

    def chosen(self, choice: Any) -> Table:
        """The probabilities (N,) of a deterministic policy."""
        numbers = np.zeros(self.pairs.count, dtype=object)
        numbers[self.pairs.rows(choice)] = 1
        return Table(numbers, 0)

    # -- all policies -------------------------------------------------------------------------------------------

    def minimise(self, weights: Any, choice: Any = None, stop: Callable[[], bool] = bool) -> Least:
        """Howard's policy iteration on Σ w_i V_i, with MacQueen's bound at its end, or where `stop` ends it."""
        pairs, exact = self.pairs, [Fraction(float(w)) for w in weights]
        cost = self.weighted(exact)
        choice = np.zeros(pairs.states, dtype=np.int64) if choice is None else np.array(choice, dtype=np.int64)
        for _ in range(POLICIES):
            rows = pairs.rows(choice)
            identity = np.diag(np.full(pairs.states, 1 << self.shift, dtype=object))
            value, bits, _ = solved(identity - self.ahead[rows], self.shift, cost.numbers[rows])
            # c + γ P V − V of every pair, in units of 2**-(bits + self.shift + cost.shift)
            gain = (cost.numbers << (bits + self.shift)) + self.ahead @ value - (value << self.shift)[pairs.state]
            least = np.minimum.reduceat(gain, pairs.first[:-1])
            noise = int(abs(value).max() << self.shift) >> (BITS // 2)
            better = least < -noise
            if not better.any() or stop():
                break
            choice = np.where(better, self.first_least(gain, least), choice)
        unit = Fraction(1, 1 << (bits + cost.shift))
        bound = Fraction(int((self.initial.numbers * value).sum()), 1 << self.initial.shift) * unit
        missing = Fraction(min(int(least.min()), 0), 1 << self.shift) * unit
        mass = Fraction(int(self.initial.numbers.sum()), 1 << self.initial.shift)
        bound += mass * missing * self.horizon
        return Least(choice, bound - sum(w * o for w, o in zip(exact, self.offsets, strict=True)))

    def weighted(self, weights: list[Fraction]) -> Table:
        """Σ w_i c_i of all pairs."""
        used = [(w, c) for w, c in zip(weights, self.costs, strict=True) if w]
        shifts = [w.denominator.bit_length() - 1 + c.shift for w, c in used]
        total, shift = np.zeros(self.pairs.count, dtype=object), max(shifts, default=0)
        for (w, c), own in zip(used, shifts, strict=True):
            total = total + ((w.numerator * c.numbers) << (shift - own))
        return Table(total, shift)

    def first_least(self, gain: Integers, least: Integers) -> Any:
        """Which of the actions of every state has the least gain."""
        first = self.pairs.first[:-1]
        candidates = np.flatnonzero(gain == least[self.pairs.state])
        return candidates[np.searchsorted(candidates, first)] - first


def solved(matrix: Integers, shift: int, rhs: Integers) -> tuple[Integers, int, Integers]:
    """x and bits with (matrix / 2**shift) · (x / 2**bits) ≈ rhs, and the exact residual times 2**(bits + shift).

    Where the matrix is singular in double precision, x is what it is: the residual says how bad.
    """
    bits, size = BITS + 64, _length(rhs)
    x, left = np.zeros(len(rhs), dtype=object), rhs << (bits + shift)
    try:
        inverse = np.linalg.inv(_doubles(matrix, shift))
    except np.linalg.LinAlgError:
        return x, bits, left
    for _ in range(REFINEMENTS):
        length = _length(left)
        if length <= size + bits + shift - BITS:
            break
        with np.errstate(all="ignore"):
            correction = inverse @ _doubles(left, length)
        if not np.isfinite(correction).all():
            break
        x = x + _integers(correction, length - shift)
        left = (rhs << (bits + shift)) - matrix @ x
    return x, bits, left


def _length(numbers: Integers) -> int:
    return max(int(number).bit_length() for number in np.ravel(numbers))


def _doubles(numbers: Integers, shift: int) -> Array:
    """numbers / 2**shift"""
    return np.array([_quotient(int(n), shift) for n in np.ravel(numbers)]).reshape(np.shape(numbers))


def _quotient(number: int, shift: int) -> float:
    spare = max(abs(number).bit_length() - 64, 0)
    return float(np.ldexp(float(number >> spare), spare - shift))


def _integers(values: Array, shift: int) -> Integers:
    """values · 2**shift, rounded."""
    mantissas, exponents = np.frexp(values)
    result = np.empty(len(values), dtype=object)
    for i, (mantissa, exponent) in enumerate(zip(mantissas.tolist(), exponents.tolist(), strict=True)):
        whole, places = int(mantissa * 2.0**53), exponent - 53 + shift
        result[i] = whole << places if places >= 0 else whole >> -places
    return result
