"""PID-Lagrangian (Stooke, Achiam and Abbeel 2020): the multiplier as a PID controller of the violation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import ConstraintArray
from cmdpkit.options import NONNEGATIVE_EACH, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.registry import register


class State(NamedTuple):
    """The multipliers, and the controller's memory: the integral of the violation and its last value."""

    multipliers: ConstraintArray
    integral: ConstraintArray
    last: ConstraintArray


@register("pid-lagrangian", multipliers=False, neural={"kp": 5e-3, "ki": 5e-4, "kd": 5e-3, "inner_steps": 2})
@dataclass(frozen=True)
class PIDLagrangian:
    """The multiplier reacts to the violation, its sum and its increase, all measured at the new policy.

        I ← (I + V)₊,   λ ← (K_P V + K_I I + K_D (V − V_before)₊)₊

    This is Algorithm 2 of the paper, one controller per limit, with objective and costs divided by 1 + Σ λ_i. The value
    before the first is that of the initial policy and not 0, and signals are not smoothed.
    """

    kp: float | ConstraintArray | None = option(
        None, NONNEGATIVE_EACH, "Proportional gain; the default follows the model's scale."
    )
    ki: float | ConstraintArray | None = option(
        None, NONNEGATIVE_EACH, "Integral gain; the default follows the model's scale."
    )
    kd: float | ConstraintArray | None = option(
        None, NONNEGATIVE_EACH, "Derivative gain; the default follows the model's scale."
    )

    def start(self, view: View) -> State:
        return State(np.zeros_like(view.values), np.zeros_like(view.values), view.values)

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        lam = state.multipliers
        # (c₀ + Σ λᵢ cᵢ) / (1 + Σ λᵢ), with λᵢ in its unit: large multipliers must not lead to large steps
        total = 1.0 + float((lam if view.scales is None else lam / view.units).sum())
        return Weights(1.0 / total, lam / total), state

    def observe(self, state: State, view: View) -> State:
        v = view.values
        kp = view.dual_step(6.0) if self.kp is None else self.kp
        ki = view.dual_step(1.0) if self.ki is None else self.ki
        kd = view.dual_step(6.0) if self.kd is None else self.kd
        # I ← (I + V)₊
        integral = np.maximum(0.0, state.integral + v)
        # λ ← (K_P V + K_I I + K_D (V − V_before)₊)₊
        lam = np.maximum(0.0, kp * v + ki * integral + kd * np.maximum(0.0, v - state.last))
        return State(lam, integral, v)
