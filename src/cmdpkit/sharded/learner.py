"""The learner of a sharded model: the loop of primal_dual.py with the policy in slices, and sums over blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, ConstraintArray
from cmdpkit.evaluation.patience import breathe
from cmdpkit.learners.tabular import reference_span
from cmdpkit.rules.base import View, Weights, refuse
from cmdpkit.sharded.crew import Crew, Step
from cmdpkit.sharded.mirror import Normaliser
from cmdpkit.sharded.oracle import FIRST_BATCH, LEAST, MOST_SWEEPS, Oracle, needed

FLOOR = -700.0
"""Log-probabilities are raised to this before a step, from which an action can recover."""

FINEST = 1e-9
"""Evaluations are not asked to be more accurate than this, relative to the largest value."""

BACKUPS = 200
"""Soft backups before a mirror step, at most."""


class Reply(NamedTuple):
    """The predicted outcome of a mirror step. See `Response` in rules/base.py."""

    soft_minimum: float
    values: ConstraintArray
    gram: Array


class ShardedLearner:
    """Mirror descent with values from sweeps over the blocks.

    Args:
        crew: the blocks.

    It has no policy before `begin` or `restore`.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew, self.model = crew, crew.model
        self.oracle = Oracle(crew, np.zeros(self.model.num_rows + 1))  # for its sweeps
        self.scales = reference_span(self.model.spans)
        self.accuracy = 1e-3
        self.step = 1.0 / float(self.scales[0])
        self._cold = True  # there are no soft values to start from
        self._advanced = self._parted = False

    def begin(self) -> None:
        """Start from the uniform policy."""
        self.crew.each("begin")
        self._move()

    @property
    def _largest(self) -> Array:
        return np.asarray(self.model.cost_sizes / self.model.step_weight)

    def _move(self) -> None:
        """Evaluate the policy: its visits, which give its values."""
        self.crew.each("take")
        self.oracle.flow(max(self.accuracy, FINEST))
        self._take_in()
        self._advanced = self._parted = False

    def _take_in(self) -> None:
        """What the visits say about the policy."""
        parts = self.crew.each("worth")
        values = np.sum([p[0] for p in parts], axis=0)
        self.objective, self.v = float(values[0]), values[1:] - self.model.offsets
        self.normaliser: list[Normaliser] = [p[1] for p in parts]
        self.divergence = float(sum(p[2] for p in parts))

    def look(self) -> ShardedView:
        return ShardedView(self.objective, self.v, self.scales, self.model.gamma, self)

    def improve(self, weights: Weights) -> int:
        """One mirror step on c̃, anchored as `weights.anchor` says; none where it returns to its anchor."""
        refuse(self, weights, "radius", "entropy", "allowed_growth", "optimistic")
        self.accuracy = FINEST if weights.accuracy is None else max(weights.accuracy, FINEST)
        self.crew.each("hold", weights.anchor, FLOOR)
        steps = 1 if weights.inner_steps is None else weights.inner_steps
        mix = np.array([weights.objective, *weights.constraints])
        step = self.step if weights.step is None else weights.step
        for _ in range(steps):
            error = max(self.accuracy * float((np.abs(mix) * self._largest).sum()), LEAST)
            if weights.anchor == "keep":
                self.crew.each("take")  # raised to the floor
            after = self._soft_values(mix, 1.0 / step, error)
            if weights.visit_error is not None:
                after = self._backed_up(mix, step, weights.visit_error, after)
            self.crew.fetch(self.crew.submit("mirror", mix, step, after=after))
        self._move()
        return steps

    def _soft_values(self, mix: Array, alpha: float, error: float) -> Step | None:
        """Sweep until the values of Σ_a π (c̃ + α log(π/π_k)) are within `error`."""
        crew, factor = self.crew, self.model.gamma / self.model.step_weight
        step = crew.submit("seek", mix, alpha, self._cold, send=True)
        self._cold = False
        batch, done, before = FIRST_BATCH, 0, math.inf
        while True:
            breathe()
            step, found = crew.repeat("soft_sweep", [()] * batch, step, send=True)
            ends = [(min(p[0] for p in parts), max(p[1] for p in parts)) for parts in found]
            errors = [factor * (high - low) / 2.0 / error for low, high in ends]
            done += batch
            if errors[-1] <= 1.0 or errors[-1] >= before or done >= MOST_SWEEPS:
                low, high = ends[-1]
                crew.fetch(crew.submit("soft_settle", factor * (high + low) / 2.0, after=step))
                return None
            batch, before = needed(errors[-1], errors[0], max(1, batch - 1)), errors[-1]

    def _backed_up(self, mix: Array, step: float, allowed: float, after: Step | None) -> Step | None:
        """Soft Bellman backups, which contract to the proximal step, while what held visits cost is too much."""
        last = math.inf
        for _ in range(BACKUPS):
            breathe()
            after = self.crew.submit("soft_backup", mix, step, after=after, send=True)
            error = held(self.crew.fetch(after))
            if error <= allowed or error >= last:
                break
            last = error
        return after

    def advance(self) -> None:
        """The advantages of all costs, in the blocks."""
        if not self._advanced:
            self.oracle.evaluate(np.maximum(self.accuracy, FINEST) * self._largest)
            self.crew.each("advance")
            self._advanced = True

    def part(self) -> None:
        """Where a step from the anchor starts, in the blocks."""
        if not self._parted:
            self._cold = True
            self._soft_values(np.zeros(self.model.num_rows + 1), 1.0, 1e-9 + 1e-6 * abs(self.divergence))
            self.crew.each("part", FLOOR)
            self._cold = self._parted = True

    def state(self) -> dict[str, Any]:
        """Between two steps; everything else is in the blocks."""
        self.advance()
        return {"accuracy": self.accuracy, "cold": self._cold}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state()` was taken; the blocks have been restored."""
        self.accuracy, self._cold = float(state["accuracy"]), bool(state["cold"])
        self.crew.each("take")
        self._take_in()
        self._advanced, self._parted = True, False


def held(parts: list[Normaliser]) -> float:
    """max_s ℓ(s)/(1 − γ) − Σ_s x(s) ℓ(s), as Σ_s x(s) = 1/(1 − γ)."""
    highest = max(p.highest for p in parts)
    return float(sum(highest * p.visits - p.visited for p in parts))


@dataclass(frozen=True)
class ShardedView(View):
    """The view of a policy in slices. Advantages are computed on first use."""

    learner: ShardedLearner | None = None

    @cached_property
    def _scaled(self) -> ConstraintArray:
        return np.asarray(self.units * self.values)

    def response(self, prices: ConstraintArray, step: float, keep_anchor: bool = False) -> Reply:
        learner = self.learner
        assert learner is not None
        learner.advance()
        if keep_anchor:
            learner.part()
        parts = learner.crew.each("respond", np.asarray(prices), self.units, step, keep_anchor, FLOOR)
        soft, values, gram = (np.sum([p[i] for p in parts], axis=0) for i in range(3))
        return Reply(float(soft), self._scaled + values, gram)

    @property
    def visit_error(self) -> float:
        assert self.learner is not None
        return held(self.learner.normaliser)

    @property
    def divergence(self) -> float:
        assert self.learner is not None
        return self.learner.divergence

    def greedy_gain(self, multipliers: ConstraintArray) -> float:
        assert self.learner is not None
        self.learner.advance()
        return float(sum(self.learner.crew.each("gain", np.append(1.0, multipliers))))
