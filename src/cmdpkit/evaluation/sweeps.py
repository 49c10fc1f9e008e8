"""Sweeps for chains that mix: V ← c_π + γ P_π V for all right-hand sides at once, with MacQueen's bounds.

After one sweep with D = TV − V, the values lie within TV + γ/(1 − γ) [min D, max D]. Only the span of D counts, and it
shrinks as the chain mixes, not with γ: with ten random successors per state, to a third at every sweep. The middle of
the interval is added once, at the end. Occupancies are the transposed problem, with the total mass in that role.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import looking_ahead, padded, padded_width, parts
from cmdpkit.evaluation.patience import Hurry, breathe
from cmdpkit.evaluation.threads import in_blocks

TRIAL = 30
"""Number of sweeps after which the contraction is measured, over the last ten."""

SHORT_TRIAL = 15
"""The same where time is up, over the last two."""

BRIEF = 6
"""The same where values to a few digits will do, over the last five."""

FIRST_TRIAL, HOPELESS = 10, 3.0
"""After so many sweeps it is seen whether more than so many times those that are allowed would be needed."""

FEW = 60
"""A chain that needs no more sweeps than this to full accuracy mixes well."""

DAMPING = 0.9
"""Sweeps of a long-run average keep a tenth of the old values, without which a periodic chain would not converge."""

MANY = 3_000_000
"""From this many entries on visits are swept in two halves."""

PATIENCE = 5
"""Number of sweeps without progress after which the error is taken to be rounding."""

UNSEEN = 1
"""Sweeps in between that are not looked at, without compiled code: to look at one takes as long as to make it."""


class Swept(NamedTuple):
    """Result of the sweeps; `reached` says whether the accuracy was met, or limited by rounding only."""

    values: Array
    reached: bool


def sweep_values(
    chain: Any,
    gamma: float,
    cost: Array,
    guess: Array | None,
    accuracy: Array,
    most: float,
    compiled: bool,
    weight: float = 1.0,
    brief: bool = False,
) -> Swept:
    """V (S, n) = c_π + γ P_π V to within `accuracy` (n,), or as close as `most` sweeps get; P_π is weight · chain.

    Where it is sure that few sweeps reach it, `brief` ones end there: values to five digits or so.
    """
    n = cost.shape[1]
    unseen = 0 if compiled else UNSEEN
    sweep, values = _sweep(chain, gamma * weight, cost, guess, compiled, unseen)
    spare = np.empty_like(values)
    factor = gamma / (1.0 - gamma)
    scale = factor / 2.0 / np.maximum(accuracy, 1e-300)
    watch, hurry = Watch(most, 1 + unseen), Hurry()
    while True:
        breathe()
        low, high = sweep(values, spare)
        values, spare = spare, values
        # |V^π − (TV + middle)| ≤ γ/(1 − γ) · span(D) / 2
        error = float(np.maximum.reduce(scale * (high - low)[:n]))
        if error <= 1.0 or watch.gives_up(error) or watch.may_end(hurry) or (brief and watch.is_sure()):
            del sweep, spare  # of a large model, before there is a copy
            values += factor * (high + low) / 2.0
            return Swept(np.ascontiguousarray(values[:, :n]), error <= 1.0 or watch.reached)


def _sweep(
    chain: Any, gamma: float, cost: Array, guess: Array | None, compiled: bool, unseen: int = 0
) -> tuple[Any, Array]:
    """A function that sweeps values into another array and returns the extremes of the change; and the first values.

    Without compiled code it makes `unseen` sweeps before.
    """
    cost = np.ascontiguousarray(cost)
    if not compiled:
        start = np.zeros(cost.shape) if guess is None else np.array(guess, order="C")
        return _plain(chain, gamma, cost, unseen), start
    look = looking_ahead(chain, gamma, cost)
    start = np.zeros((len(cost), padded_width(cost.shape[1]))) if guess is None else padded(guess)
    return lambda values, out: look(values, values, out), start


def _plain(chain: Any, gamma: float, cost: Array, unseen: int) -> Any:
    change = np.empty(cost.shape[::-1])  # by columns: NumPy is slow on short rows

    def ahead(values: Array) -> Array:
        after: Array = chain @ values
        after *= gamma
        after += cost
        return after

    def sweep(values: Array, out: Array) -> tuple[Array, Array]:
        for _ in range(unseen):
            values = ahead(values)
        out[...] = ahead(values)
        np.subtract(out.T, values.T, out=change)
        return np.minimum.reduce(change, axis=1), np.maximum.reduce(change, axis=1)

    return sweep


class Watch:
    """Predicts from errors, one for `each` so many sweeps, whether `most` suffice, and detects rounding."""

    def __init__(self, most: float, each: int = 1) -> None:
        self.most, self.each = most, each
        self.errors: list[float] = []
        self.reached = False  # the accuracy is limited by rounding only, or by the time that was left

    @property
    def sweeps(self) -> int:
        """How many have been made."""
        return self.each * len(self.errors)

    def gives_up(self, error: float) -> bool:
        errors = self.errors
        errors.append(error)
        n, last = self.sweeps, -(PATIENCE // -self.each)
        if n > 3 * PATIENCE and min(errors[-last:]) >= min(errors[:-last]):
            self.reached = True
            return True
        if n == FIRST_TRIAL and self._needed(5) > HOPELESS * self.most:
            return True
        if n < TRIAL or n % 10:
            return n >= self.most
        return self._is_slow(10)

    def may_end(self, hurry: Hurry) -> bool:
        """Where time is up, sweeps end as soon as it is known whether they converge."""
        if self.sweeps < SHORT_TRIAL or not hurry():
            return False
        self.reached = not self._is_slow(2)
        return self.reached or self.sweeps >= TRIAL

    def is_sure(self) -> bool:
        """Whether few sweeps more would be enough; they then count as made."""
        if self.sweeps == BRIEF and self._needed(5) <= FEW:
            self.reached = True
        return self.reached

    def _is_slow(self, last: int) -> bool:
        """Whether more than `most` sweeps are needed, at the contraction of the last ones."""
        return self._needed(last) > self.most

    def _needed(self, last: int) -> float:
        """Sweeps in all, at the contraction of the last ones."""
        error, back = self.errors[-1], last // self.each
        rate = (error / self.errors[-1 - back]) ** (1.0 / (back * self.each))
        return math.inf if rate >= 1.0 else self.sweeps + math.log(error) / -math.log(rate)


def sweep_occupancy(
    chain: Any, gamma: float, initial: Array, guess: Array | None, accuracy: float, most: float, compiled: bool
) -> Swept:
    """x = ρ + γ P_πᵀ x, to within `accuracy` of its total mass."""
    visits = initial / (1.0 - gamma) if guess is None else guess.copy()
    flow, after = (_compiled_flow if compiled else _plain_flow)(chain), np.empty_like(visits)
    unseen, total, started = 0 if compiled else UNSEEN, np.add.reduce, initial.sum()
    watch, hurry = Watch(most, 1 + unseen), Hurry()
    while True:
        breathe()
        for _ in range(unseen):
            flow(visits, after)
            after *= gamma
            after += initial
            visits, after = after, visits
        flow(visits, after)
        # The mass must balance, Σx = Σρ + γ Σ P_πᵀ x: scale x so that it does
        scale = started / (total(visits) - gamma * total(after))
        after *= gamma * scale  # in place: fresh arrays of a large model are slow to come by
        after += initial
        visits *= scale
        visits -= after
        # |x − x^π| ≤ |r| / (1 − γ) in the 1-norm, and the mass is 1 / (1 − γ)
        error = float(total(np.abs(visits, out=visits)) / accuracy)
        visits, after = after, visits
        if error <= 1.0 or watch.gives_up(error) or watch.may_end(hurry):
            return Swept(visits, error <= 1.0 or watch.reached)


def sweep_gains(
    chain: Any, cost: Array, guess: Array | None, accuracy: Array | float, most: float, compiled: bool
) -> tuple[Swept, Array]:
    """h (S, n) with h ≈ c_π − g + P_π h, and g (n,) to within `accuracy`, which lies between min D and max D."""
    n = cost.shape[1]
    sweep, values = _sweep(chain, 1.0, cost, guess, compiled)
    spare = np.empty_like(values)
    allowed = np.maximum(accuracy, 16.0 * np.finfo(float).eps * np.abs(cost).max(axis=0, initial=0.0))
    watch, hurry = Watch(most), Hurry()
    while True:
        breathe()
        low, high = sweep(values, spare)
        # h ← (1 − τ) h + τ (c_π − g + P_π h), with the middle of the interval for g
        middle = 0.5 * (low + high)
        spare -= middle
        spare *= DAMPING
        values *= 1.0 - DAMPING
        values += spare
        error = float((0.5 * (high - low)[:n] / np.maximum(allowed, 1e-300)).max(initial=0.0))
        if error <= 1.0 or watch.gives_up(error) or watch.may_end(hurry):
            reached = error <= 1.0 or watch.reached
            return Swept(np.ascontiguousarray(values[:, :n]), reached), middle[:n]


def sweep_stationary(chain: Any, start: Array, accuracy: float, most: float, compiled: bool) -> Swept:
    """μ = P_πᵀ μ with Σ μ = 1, for a chain with one recurrent class, to within about `accuracy`."""
    visits, last = start / start.sum(), 0.0
    flow, moved = (_compiled_flow if compiled else _plain_flow)(chain), np.empty_like(visits)
    allowed = max(accuracy, 16.0 * float(np.finfo(float).eps))
    watch, hurry = Watch(most), Hurry()
    while True:
        breathe()
        flow(visits, moved)
        after = DAMPING * moved + (1.0 - DAMPING) * visits
        after /= after.sum()
        change = float(np.abs(after - visits).sum())
        # What is left is a geometric series of such steps
        rate = min(change / last, 0.999) if last > 0.0 else 0.5
        visits, last = after, change
        error = change / (1.0 - rate) / allowed
        if error <= 1.0 or watch.gives_up(error) or watch.may_end(hurry):
            return Swept(visits, error <= 1.0 or watch.reached)


def _plain_flow(chain: Any) -> Any:
    transposed = chain.T

    def flow(visits: Array, out: Array) -> None:
        out[...] = transposed @ visits

    return flow


def _compiled_flow(chain: Any) -> Any:
    """P_πᵀ x. From a certain size on two halves of the states are added up, whether two threads compute them or one."""
    from cmdpkit.evaluation import chain_kernels

    matrix, states = parts(chain), chain.shape[0]
    halves = 2 if chain.nnz >= MANY else 1
    other = np.empty(states if halves == 2 else 0)

    def flow(visits: Array, out: Array) -> None:
        def from_some(first: int, last: int) -> None:
            chain_kernels.flow(*matrix, visits, other if first else out, first, last)

        in_blocks(from_some, states, chain.nnz, halves)
        if halves == 2:
            out += other

    return flow
