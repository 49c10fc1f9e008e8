"""Number of rollouts and of steps per estimate: practical values, and those of Theorem 3."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.rules.theory import Theorem3, check_alpha
from cmdpkit.settings import Sampling
from cmdpkit.simulators import Simulator

CUT_OFF = 0.01
"""By default a rollout is long enough that the discount of the truncated part is at most this."""


@dataclass(frozen=True)
class Practical:
    """The same number of rollouts and steps in every estimate."""

    rollouts: int
    value_count: int
    horizon: int | None

    def value_rollouts(self) -> tuple[int, int | None]:
        return self.value_count, self.horizon

    def action_rollouts(self, weights: Array, divergence: float, inner_steps: int) -> tuple[int, int | None]:
        return self.rollouts, self.horizon


@dataclass(frozen=True)
class ByTheorem:
    """The numbers of Theorem 3, for costs within `low`..`high` (internal sign, limits spread over the steps)."""

    theorem: Theorem3
    low: Array
    high: Array

    def value_rollouts(self) -> tuple[int, int | None]:
        return self.theorem.value_rollouts(float((self.high - self.low)[1:].max()))

    def action_rollouts(self, weights: Array, divergence: float, inner_steps: int) -> tuple[int, int | None]:
        size = np.maximum(np.abs(self.low), np.abs(self.high))
        width = float(np.abs(weights) @ (self.high - self.low))
        return self.theorem.action_rollouts(width, float(np.abs(weights) @ size), divergence, inner_steps)


def rollout_horizon(gamma: float) -> int:
    # γ^N ≤ 0.01
    return 1 if gamma == 0.0 else max(1, math.ceil(math.log(CUT_OFF) / math.log(gamma)))


def cost_bounds(simulator: Simulator) -> tuple[Array, Array]:
    """Smallest and largest cost of one step (internal sign, limits spread over the steps)."""
    ends = simulator.units[:, None] * simulator.bounds
    spread = np.append(0.0, simulator.step_weight * simulator.offsets)
    return ends.min(axis=1) - spread, ends.max(axis=1) - spread


def theorem_3(simulator: Simulator, sampling: Sampling, slater: float | None) -> Theorem3:
    """Theorem 3 for a simulator; raises an error if its assumptions do not hold."""
    check_alpha(simulator.num_rows, simulator.gamma, sampling.schedule == "paper")
    if simulator.bounds is None:
        raise ValueError("schedule='theory' needs Simulator(..., bounds=...), the range of the quantities of one step")
    if slater is None:
        raise ValueError("schedule='theory' needs Sampling(slater=...), the margin by which all limits can be met")
    if slater <= 0.0:
        raise ValueError("schedule='theory' needs a policy strictly inside all limits, but this model has none")
    low, high = cost_bounds(simulator)
    largest = np.maximum(np.abs(low), np.abs(high))
    if largest.max() > 1.0 + 1e-12:
        i = int(largest.argmax())
        what = "the objective" if i == 0 else f"constraint {simulator.rows[i - 1].name!r} less its limit per step"
        raise ValueError(
            f"the theorem needs costs of size at most 1, but {what} reaches {largest[i]:.6g}; divide it by that number"
        )
    sizes = (simulator.gamma, simulator.num_rows, simulator.states, simulator.actions)
    assert sampling.epsilon is not None
    printed = sampling.schedule == "paper"
    return Theorem3(*sizes, sampling.epsilon, 1.0 - sampling.confidence, slater, printed=printed)
