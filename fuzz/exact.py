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


def own_transitions(cmdp: Any) -> tuple[Exact, Any]:
    """P (S, A, S), where an action that is not available does what the first one does that is, and which that is."""
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    rows, own = _own_rows(cmdp)
    return fractions(P)[rows], own


def own_costs(cmdp: Any, step: Fraction) -> tuple[list[Exact], list[Fraction], list[int | None]]:
    """Costs (S, A), offsets and stages of V_i = sign · (value − limit), where a limit per step bounds step · value."""
    rows, _ = _own_rows(cmdp)
    costs, offsets = [fractions(cmdp.objective).ravel()[rows] * (-1 if cmdp.maximise else 1)], [Fraction(0)]
    for limit in cmdp.rows:
        unit = int(limit.sign) * (step if limit.per_step else 1)
        costs.append(fractions(limit.values).ravel()[rows] * unit)
        offsets.append(int(limit.sign) * Fraction(limit.limit))
    return costs, offsets, [None, *(limit.stage for limit in cmdp.rows)]


def _own_rows(cmdp: Any) -> tuple[Any, Any]:
    mask = np.asarray(cmdp.pairs.mask)
    own = np.where(mask, np.arange(cmdp.actions), mask.argmax(axis=1)[:, None])
    return (mask.ravel().cumsum() - 1).reshape(mask.shape)[np.arange(cmdp.states)[:, None], own], own


def ended(P: Exact, costs: list[Exact]) -> Any:
    """(S,) booleans: the largest set of states that no action leaves and in which nothing costs anything."""
    inside = np.array([all(not c[s].any() for c in costs) for s in range(len(P))])
    moves = (P > 0).any(axis=1)
    while (leaving := inside & moves[:, ~inside].any(axis=1)).any():
        inside &= ~leaving
    return inside


class ExactModel:
    """V_0..V_m of policies, and minima of weighted sums of them, from the user's own tables and limits.

    Sums are discounted, until the end (`gamma=1`: without the states in which the process has ended), or over a horizon
    (one copy of the states for every stage). Long-run averages are in averages.py.
    """

    def __init__(self, cmdp: Any) -> None:
        P, self.own = own_transitions(cmdp)
        self.given, self.horizon = P.shape[:2], cmdp.horizon
        gamma = Fraction(cmdp.gamma)
        self.discounted = gamma < 1 and cmdp.horizon is None
        self.costs, self.offsets, stages = own_costs(cmdp, 1 - gamma)
        self.initial = fractions(cmdp.initial)
        self.kept = np.ones(self.given[0], dtype=bool)
        if cmdp.criterion == "total":
            P = self._until_the_end(P)
        elif cmdp.horizon is not None:
            P = self._over_stages(P, stages)
        self.shape = P.shape[:2]
        self.transitions, self.shift = integers(P)
        self.gamma = gamma.numerator
        self.shift += gamma.denominator.bit_length() - 1  # of γ P
        self.scales = [max(Fraction(1), abs(offset)) for offset in self.offsets[1:]]
        self._minima: dict[tuple[Fraction, ...], tuple[Fraction, Any]] = {}

    def _until_the_end(self, P: Exact) -> Exact:
        """Leave out the states in which the process has ended."""
        self.kept = ~ended(P, self.costs)
        if not self.kept.any():  # nothing costs anything
            self.kept[0], P = True, P * 0
        kept = self.kept
        self.costs, self.initial, self.own = [c[kept] for c in self.costs], self.initial[kept], self.own[kept]
        return P[kept][:, :, kept]

    def _over_stages(self, P: Exact, stages: list[int | None]) -> Exact:
        """State s at stage t is number t S + s; after the last stage there is nothing."""
        (S, A), T = self.given, self.horizon
        big = np.full((T * S, A, T * S), Fraction(0), dtype=object)
        for t in range(T - 1):
            big[t * S : (t + 1) * S, :, (t + 1) * S : (t + 2) * S] = P
        number = np.repeat(np.arange(T), S)[:, None]
        self.costs = [
            np.tile(c, (T, 1)) if stage is None else np.where(number == stage, np.tile(c, (T, 1)), Fraction(0))
            for c, stage in zip(self.costs, stages, strict=True)
        ]
        self.initial = np.append(self.initial, np.full((T - 1) * S, Fraction(0), dtype=object))
        self.own = np.tile(self.own, (T, 1))
        return big

    def _probabilities(self, policy: Any) -> Any:
        """The rows of this model's states, given those of the user's states, or of all stages."""
        table, (S, A) = np.asarray(policy, dtype=float), self.given
        if table.ndim == 3:
            table = table.reshape(-1, A)
        if self.horizon is not None and len(table) == S:
            return np.tile(table, (self.horizon, 1))
        return table[self.kept] if len(table) == S else table

    def sizes(self) -> list[Fraction]:
        """max |c_i| times the longest time, and |offset_i|: no V_i is larger, up to the rounding of row sums."""
        time = Fraction(1 << self.shift, (1 << self.shift) - self._largest_row()) if self.discounted else self._time()
        return [abs(c).max() * time + abs(o) for c, o in zip(self.costs, self.offsets, strict=True)]

    def _time(self) -> Fraction:
        """The longest expected time, where it is not 1 / (1 − γ)."""
        return -self._least(np.full(self.shape, -1, dtype=object), 0)[0]

    def _largest_row(self) -> int:
        return int((self.gamma * self.transitions.sum(axis=2)).max())

    def values(self, probabilities: Any) -> list[Fraction]:
        """V_0..V_m of a policy that is played with its probabilities divided by their sums.

        With sums σ and x the visits, x / σ solves (diag σ − γ πP)ᵀ y = ρ.
        """
        pi = fractions(self._probabilities(probabilities))
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
        total, choice = self._least(cost, shift)
        return total - sum(w * o for w, o in zip(weights, self.offsets, strict=True)), choice

    def _least(self, cost: Exact, shift: int) -> tuple[Fraction, Any]:
        """The least expected sum of cost / 2**shift from the start, with its policy."""
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
        return (self.initial * own).sum() / (denominator << shift), choice

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
