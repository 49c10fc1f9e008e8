"""What models and simulators have in common: sizes, the sense of the objective, the limits, and their units."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, CostArray, freeze
from cmdpkit.model.limits import Limit
from cmdpkit.model.pairs import Pairs


class Problem:
    """What models and simulators have in common: sizes, the sense of the objective, and the limits.

    `units` (m + 1,) convert the user's quantities to costs in the internal sign convention, c_i = units_i · quantity_i:
    the sign of the objective or limit, times 1 − γ for a limit per step. V_i is measured relative to `offsets` (m,).
    """

    states: int
    actions: int
    pairs: Pairs
    gamma: float
    maximise: bool
    constraints: tuple[Limit, ...]
    criterion: str = "discounted"  # what values are: or "total", until the process ends; or "horizon", over T steps
    horizon: int | None = None  # T

    @classmethod
    def described(
        cls,
        *,
        states: int,
        actions: int,
        gamma: float,
        maximise: bool,
        constraints: tuple[Limit, ...],
        criterion: str = "discounted",
        horizon: int | None = None,
    ) -> Problem:
        """A problem of which only sizes and limits are known."""
        problem = Problem()
        problem.states, problem.actions, problem.gamma = states, actions, gamma
        problem.criterion, problem.horizon = criterion, horizon
        problem.pairs = Pairs(states, actions)
        problem.maximise, problem.constraints = maximise, constraints
        problem._set_units()
        return problem

    def _set_units(self) -> None:
        self.num_constraints = len(self.constraints)
        self.signs: ConstraintArray = freeze(np.array([c.sign for c in self.constraints], dtype=float))
        self.limits: ConstraintArray = freeze(np.array([c.limit for c in self.constraints], dtype=float))
        self.offsets: Array = freeze(self.signs * self.limits)
        # A limit per step bounds (1 − γ) V; that factor is included in the cost.
        per_step = [c.sign * (1.0 - self.gamma if c.per_step else 1.0) for c in self.constraints]
        self.units: CostArray = freeze(np.array([self.sense, *per_step]))

    @property
    def names(self) -> list[str]:
        """The constraints' names, in order."""
        return [str(c.name) for c in self.constraints]

    @property
    def value_name(self) -> str:
        """What a value is, in words."""
        if self.criterion == "horizon":
            steps = f"{self.horizon} step{'s' if self.horizon != 1 else ''}"
            return f"expected {'total' if self.gamma == 1.0 else 'discounted sum'} over {steps}"
        return "expected total until the end" if self.criterion == "total" else "expected discounted sum"

    @property
    def sense(self) -> float:
        """−1 for a reward, +1 for a cost: user's objective = sense · V_0."""
        return -1.0 if self.maximise else 1.0

    def user_objective(self, v_0: float) -> float:
        return self.sense * v_0 + 0.0  # + 0.0 turns −0.0 into 0.0

    def user_constraint_values(self, v: ConstraintArray) -> ConstraintArray:
        """Convert V_i (feasible: ≤ 0) to values that compare with the user's limits."""
        return self.signs * (v + self.offsets)

    def violations(self, v: ConstraintArray) -> ConstraintArray:
        return np.maximum(v, 0.0)

    @property
    def tolerance_scales(self) -> ConstraintArray:
        """A violation is measured relative to max(1, |limit|)."""
        return np.maximum(1.0, np.abs(self.limits))

    def __repr__(self) -> str:
        sizes = f"states={self.states}, actions={self.actions}"
        time = f"gamma={self.gamma:g}" if self.gamma == 1.0 else f"gamma={self.gamma}"
        if self.horizon is not None:
            time = f"horizon={self.horizon}" + (f", {time}" if self.gamma < 1.0 else "")
        return f"{type(self).__name__}({sizes}, constraints={self.names}, {time})"
