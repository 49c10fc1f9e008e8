"""Unconstrained MDPs on blocks: policy iteration with rigorous bounds, as in exact/mdp.py, by sweeps alone.

The driver sees sums over blocks; values and policies stay where the blocks are. Several sweeps are submitted at a time:
as many as the contraction so far says are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.bounds import EPS, TINY, StartSums, backup_rounding, down, start_bound, up, value_interval
from cmdpkit.evaluation.patience import breathe
from cmdpkit.evaluation.system import rounding_floor
from cmdpkit.exact.mdp import LOOSE, MAX_ROUNDS
from cmdpkit.sharded.crew import Crew, Step
from cmdpkit.sharded.krylov import SLOW, improve_values, improve_visits
from cmdpkit.sharded.shard import BackupSums, Swept

FIRST_BATCH, LARGEST_BATCH = 4, 16
"""Sweeps that are submitted before the first look at their numbers, and at most at a time."""

FIRST_SWEEPS = 60
"""Backups of value iteration, at most, before the first policy: they see as far as the number of steps."""

MIXES, AHEAD = 0.75, 1e-3
"""Value iteration comes first where a backup leaves at most this part of its error; it ends at that part of what is
left."""

MOST_SWEEPS = 100_000
"""Sweeps of one evaluation, at most: with γ = 0.999 some 20,000 are needed where nothing mixes."""

LEAST = 1e-300
"""Errors are divided by what is allowed, which is 0 for costs that are zero, and by no less than this."""

PATIENCE = 3
"""Batches of sweeps without progress after which the error is taken to be rounding."""


class Backup(NamedTuple):
    """A Bellman backup of all blocks."""

    bound: float  # on min_π w·V(π), rounding included
    now: float  # w·V of the values that were backed up
    low: float
    high: float
    moved: int
    total: float


class Minimum(NamedTuple):
    """A policy (the crew's current choice) that is nearly minimal for L_w, with its values and a proved bound."""

    values: Array  # (m + 1,) V_0..V_m, limits subtracted
    bound: float
    evaluations: int


class Oracle:
    """Minimises w·V for one w after another, each from the policy and the values at which the last one ended.

    Args:
        crew: the blocks.
        accuracy: (m + 1,) error that is allowed in V_0..V_m of an answer.
    """

    def __init__(self, crew: Crew, accuracy: Array) -> None:
        self.crew, self.model = crew, crew.model
        self.accuracy = np.asarray(accuracy, dtype=float)
        self.begun = False  # there is a policy
        self.astray = False  # other policies were followed since it was evaluated
        self.start = np.zeros(self.model.num_rows + 1)  # ρ · V_i of the last values
        self.largest = np.zeros(self.model.num_rows + 1)  # max |V_i| of the last values
        self.mixes = True  # value iteration contracts quickly
        self.sweeps = 0
        self.backups = 0

    def minimise(self, weights: Array, gap: float = 0.0, hopeless: float = -np.inf) -> Minimum:
        """Howard's policy iteration on L_w, until L_w(π) is within `gap` of the bound or no policy is better."""
        exact = self.begun
        if self.astray:
            self.crew.each("resume")
            exact, self.astray = self._evaluate(weights, 0.0), False
        if not self.begun:
            self._first_policy(weights)
            exact = self._evaluate(weights, LOOSE * float(np.abs(weights) @ self.model.cost_sizes) / self._share)
        bound, evaluations, least, looked = -np.inf, 1, np.inf, not self.mixes
        while True:
            breathe()
            backup = self.backup(weights)
            bound = max(bound, backup.bound)
            left = backup.now - bound
            idle = exact and backup.total >= least
            settled = not backup.moved or left <= gap or backup.now < hopeless or evaluations >= MAX_ROUNDS or idle
            if settled and exact:
                break
            if settled:  # the policy stays: now find its values as exactly as is asked
                exact = self._evaluate(weights, 0.0)
            elif not looked:  # where chains mix, backups find the policy sooner than the values of others
                looked = True
                bound = max(bound, self._look_ahead(weights, max(0.5 * gap, AHEAD * left)))
                self.crew.each("adopt")
                exact = self._evaluate(weights, 0.0 if self.mixes else LOOSE * left)
            else:
                least = min(least, backup.total) if exact else np.inf
                self.crew.each("adopt")
                exact = self._evaluate(weights, LOOSE * left)
            evaluations += 1
        return Minimum(self.start - np.append(0.0, self.model.offsets), bound, evaluations)

    @property
    def _share(self) -> float:
        return 1.0 - self.model.gamma

    # -- backups --------------------------------------------------------------------------------------------------

    def backup(self, weights: Array) -> Backup:
        """TV and the bound that it proves, for V = Σ w_i V_i of the last values."""
        # Keep the action where the gain is rounding: ties must not make the iteration wander.
        noise = 1e-14 * float(np.abs(weights) @ (self.largest + self.model.cost_sizes))
        return self._reduced(weights, self.crew.each("backup", weights, noise, False, False))

    def _reduced(self, weights: Array, parts: list[BackupSums]) -> Backup:
        model = self.model
        self.backups += 1
        low, high = min(p.low for p in parts), max(p.high for p in parts)
        largest, now = max(p.largest for p in parts), sum(p.now for p in parts)
        rounding = backup_rounding(model, weights, largest)
        sums = StartSums(sum(p.start for p in parts), sum(p.size for p in parts), model.mass)
        bound = start_bound(model, weights, sums, down(low - rounding), 1.01 * rounding * model.mass)
        offset = float((weights[1:] * model.offsets).sum())
        return Backup(bound, now - offset, low, high, sum(p.moved for p in parts), sum(p.total for p in parts))

    def _first_policy(self, weights: Array) -> None:
        """The greedy choice after some steps of value iteration, which sees that far."""
        enough = LOOSE * float(np.abs(weights) @ self.model.cost_sizes)
        self._iterate(weights, self.crew.submit("forget_mix", send=True, join=True), enough, FIRST_SWEEPS)
        self.crew.each("adopt")
        self.begun = True

    def _look_ahead(self, weights: Array, enough: float) -> float:
        """Value iteration from the last values, to within `enough`; returns a bound, and sees whether chains mix."""
        step = self.crew.submit("backup", weights, 0.0, False, True, send=True, join=True)
        return self._iterate(weights, step, enough, FIRST_SWEEPS)

    def _iterate(self, weights: Array, step: Step, enough: float, most: int) -> float:
        """Value iteration until the values are within `enough`, or contract too slowly; the bound of the last one."""
        factor, batch, done = self.model.gamma / self._share, FIRST_BATCH, 0
        while True:
            breathe()
            calls = [(weights, 0.0, True, True)] * batch
            step, found = self.crew.repeat("backup", calls, step, send=True, join=True)
            parts = [self._reduced(weights, numbers) for numbers in found]
            done += batch
            first, last = (factor * (parts[i].high - parts[i].low) / 2.0 for i in (0, -1))
            rate = (last / first) ** (1.0 / max(1, batch - 1)) if 0.0 < last < first else float(last > 0.0)
            self.mixes = rate <= MIXES
            if last <= enough or done >= most or (self.begun and not self.mixes):
                return parts[-1].bound
            batch = needed(last / enough, first / enough, max(1, batch - 1))

    # -- values ---------------------------------------------------------------------------------------------------

    def _evaluate(self, weights: Array, error: float) -> bool:
        """V_0..V_m of the current policy, with an error of w·V of at most `error`; True if as exact as is asked."""
        model = self.model
        wanted = np.maximum(self.accuracy, rounding_floor(model))
        most = 1e-3 * model.cost_sizes / self._share
        share = error / weights.size / np.maximum(weights, 1e-30 + error * 1e-30)
        accuracy = np.maximum(wanted, np.minimum(share, most))
        self.evaluate(accuracy)
        return bool((accuracy <= wanted).all())

    def evaluate(self, accuracy: Array) -> None:
        """V_0..V_m of the current policy to within `accuracy`, or as close as rounding allows, from the last values."""
        factor = self.model.gamma / self._share
        # |V^π − (TV + middle)| ≤ γ/(1 − γ) · span(D) / 2
        _, low, high, step = self._sweep_until(self._error_of(accuracy))
        parts = self.crew.fetch(self.crew.submit("settle", factor * (high + low) / 2.0, after=step))
        self.start = np.sum([start for start, _ in parts], axis=0)
        self.largest = np.max([largest for _, largest in parts], axis=0)

    def _error_of(self, accuracy: Array) -> Callable[[Array], Array]:
        """The error of values after a sweep that changes them by a span, in units of what is allowed.

        Nothing is allowed for costs that are zero, and nothing is missing.
        """
        allowed = np.maximum(accuracy, LEAST)
        return lambda span: np.asarray(self.model.gamma / self._share * span / 2.0 / allowed)

    def _sweep_until(
        self, error_of: Callable[[Array], Array], measure: bool = False
    ) -> tuple[list[Swept], Array, Array, Step]:
        """Sweep until the error (in units of what is allowed) is at most one; the last numbers, and the last step."""
        step = self.crew.submit("announce", send=True)
        batch, done, errors, krylov = FIRST_BATCH, 0, [math.inf], True
        while True:
            breathe()
            calls = [(False,)] * (batch - 1) + [(measure,)]
            step, found = self.crew.repeat("sweep", calls, step, send=True)
            done += batch
            self.sweeps += batch
            spans = []
            for parts in found:
                low, high = np.min([p.low for p in parts], axis=0), np.max([p.high for p in parts], axis=0)
                spans.append(high - low)
            error = float(error_of(spans[-1]).max())
            errors.append(error)
            stalled = len(errors) > PATIENCE + 1 and min(errors[-PATIENCE:]) >= min(errors[:-PATIENCE])
            if error <= 1.0 or stalled or done >= MOST_SWEEPS:
                return found[-1], low, high, step
            before = float(error_of(spans[0]).max()) if batch > 1 else errors[-2]
            left = sweeps_left(error, before, max(1, batch - 1))
            batch = min(left, LARGEST_BATCH)
            if left > SLOW and krylov:
                step, krylov, products = improve_values(self.crew, step, error_of, left)
                self.sweeps, batch = self.sweeps + products, FIRST_BATCH

    # -- proofs ---------------------------------------------------------------------------------------------------

    def prove(self, name: str, accuracy: Array) -> tuple[Array, Array]:
        """(m + 1,) values of a kept policy from the start, limits not subtracted, and rigorous bounds on their errors.

        They end within `accuracy`, or as close as rounding allows.
        """
        model, self.astray = self.model, True
        parts = self.crew.each("follow", name)
        slack, longest = max(p[0] for p in parts), max(p[1] for p in parts)
        last, low, high, _ = self._sweep_until(self._error_of(accuracy), True)
        start, size = (np.sum([p.sums[i] for p in last], axis=0) for i in range(2))
        largest = np.max([p.sums[2] for p in last], axis=0)
        # A sum over the successors in a row of P_π, each of them and the cost a sum over actions; probabilities that
        # are stored may be off by rounding, and are played as if they summed to one
        terms = longest + 2 * model.largest + 12
        slack = slack + (model.largest + 2) * EPS
        values, errors = np.empty(start.size), np.empty(start.size)
        for i in range(start.size):
            rounding = up(1.01 * (terms * EPS + slack) * float(model.cost_sizes[i] + 2.0 * largest[i]) + terms * TINY)
            sums = StartSums(float(start[i]), float(size[i]), model.mass)
            lower, upper = value_interval(model, sums, (float(low[i]), float(high[i])), rounding)
            middle = 0.5 * (lower + upper)
            values[i], errors[i] = middle, up(max(upper - middle, middle - lower))
        return values, np.where(np.isfinite(errors), errors, np.inf)

    def visits(self, name: str, accuracy: float) -> None:
        """State visits of a kept policy, to within `accuracy` of their mass."""
        self.astray = True
        self.crew.each("follow", name)
        self.flow(accuracy)

    def flow(self, accuracy: float) -> None:
        """State visits of the policy that is followed."""
        step = self.crew.submit("depart", back=True)
        batch, done, before, krylov = FIRST_BATCH, 0, math.inf, True
        while True:
            breathe()
            step, found = self.crew.repeat("flow", [(False,)] * batch, step, back=True)
            # |x − x^π| ≤ |r| / (1 − γ) in the 1-norm, and the mass is 1 / (1 − γ)
            errors = [sum(parts) / accuracy for parts in found]
            done += batch
            self.sweeps += batch
            if errors[-1] <= 1.0 or errors[-1] >= before or done >= MOST_SWEEPS:
                return
            left, before = sweeps_left(errors[-1], errors[0], max(1, batch - 1)), errors[-1]
            batch = min(left, LARGEST_BATCH)
            if left > SLOW and krylov:
                step, krylov, products = improve_visits(self.crew, step, accuracy, left)
                self.sweeps, batch = self.sweeps + products, FIRST_BATCH


def needed(error: float, before: float, sweeps: int) -> int:
    """How many more sweeps the next batch has, at the contraction of the last ones."""
    return min(sweeps_left(error, before, sweeps), LARGEST_BATCH)


def sweeps_left(error: float, before: float, sweeps: int) -> int:
    """How many more sweeps are needed, at the contraction of the last ones; a few if there was none."""
    rate = (error / before) ** (1.0 / sweeps) if 0.0 < error < before < math.inf else 1.0
    if rate >= 1.0:
        return FIRST_BATCH
    return max(math.ceil(math.log(error) / -math.log(rate)), 1)
