"""What models and simulators have in common: sizes, the sense of the objective, the limits, and their units."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, CostArray, check_multipliers, freeze, refreeze
from cmdpkit.model.limits import Limit, OneSided
from cmdpkit.model.pairs import Pairs
from cmdpkit.tables import model_html


class Problem:
    """What models and simulators have in common: sizes, the sense of the objective, and the limits.

    The limits as stated are `constraints` (m,). Inside, each is one row V_i ≤ 0, or two for `Equal` and `Between`:
    `rows` are these one-sided limits, and `signs`, `limits`, `offsets` and `units` belong to them. `stated` and
    `stated_prices` lead back from rows to the limits as stated, `row_prices` the other way.

    `units` convert the user's quantities to costs in the internal sign convention, c_i = units_i · quantity_i: the
    sign of the objective or limit, times 1 − γ for what is stated per step. V_i is measured relative to `offsets`.
    """

    states: int
    actions: int
    pairs: Pairs
    gamma: float
    maximise: bool
    constraints: tuple[Limit, ...]
    criterion: str = "discounted"  # what values are: or "average", "total", "horizon"
    horizon: int | None = None  # T
    objective_name: str | None = None
    objective_per_step: bool = False
    spans: CostArray  # max − min of each cost, where the costs are known

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
        objective_name: str | None = None,
        objective_per_step: bool = False,
    ) -> Problem:
        """A problem of which only sizes and limits are known."""
        problem = Problem()
        problem.states, problem.actions, problem.gamma = states, actions, gamma
        problem.criterion, problem.horizon = criterion, horizon
        problem.pairs = Pairs(states, actions)
        problem.maximise, problem.constraints = maximise, constraints
        problem.objective_name, problem.objective_per_step = objective_name, objective_per_step
        problem._set_units()
        return problem

    def _set_objective(self, name: Any, per_step: Any) -> None:
        """Check and set what the objective is called, and whether it is stated per step."""
        if name is not None and (not isinstance(name, str) or not name or "\0" in name):
            raise TypeError(f"objective_name must be a non-empty string, not {name!r}")
        if not isinstance(per_step, (bool, np.bool_)):
            raise TypeError(f"objective_per_step must be True or False, not {per_step!r}")
        self.objective_name, self.objective_per_step = name, bool(per_step)

    def _set_units(self) -> None:
        sides = [c.sides() for c in self.constraints]
        self.rows: tuple[OneSided, ...] = tuple(side for pair in sides for side in pair)
        self.num_rows = len(self.rows)
        # Which constraint each row belongs to, and where the rows of each constraint begin
        self.owners: Any = refreeze(np.repeat(np.arange(len(sides)), [len(pair) for pair in sides]))
        self._first: Any = refreeze(np.searchsorted(self.owners, np.arange(len(sides))))
        # The constraints that have two rows, and (k, 2) these rows, which bound the same quantity from both sides
        self._both: Any = refreeze(np.array([i for i, pair in enumerate(sides) if len(pair) == 2], dtype=int))
        self.opposites: Any = refreeze(self._first[self._both][:, None] + [0, 1])
        self.signs: ConstraintArray = freeze(np.array([c.sign for c in self.rows], dtype=float))
        self.limits: ConstraintArray = freeze(np.array([c.limit for c in self.rows], dtype=float))
        self.offsets: Array = freeze(self.signs * self.limits)
        # A quantity per step is (1 − γ) V; that factor is included in the cost.
        share = self.step_weight
        per_step = [c.sign * (share if c.per_step else 1.0) for c in self.rows]
        self.units: CostArray = freeze(np.array([self.sense * (share if self.objective_per_step else 1.0), *per_step]))

    @property
    def num_constraints(self) -> int:
        """How many limits were stated."""
        return len(self.constraints)

    @property
    def step_weight(self) -> float:
        """What one step counts for in a mean over all steps: 1 − γ, and 1 in a long-run average.

        State visits sum to its inverse, and no value is larger than the largest cost divided by it.
        """
        return 1.0 if self.criterion == "average" else 1.0 - self.gamma

    @property
    def names(self) -> list[str]:
        """The constraints' names, in order."""
        return [str(c.name) for c in self.constraints]

    def constraint_index(self, name: Any) -> int:
        """The place of a constraint among all, by its name."""
        if name not in self.names:
            known = ", ".join(map(repr, self.names))
            raise ValueError(
                f"there is no constraint {name!r}; " + (f"the model has {known}" if known else "the model has none")
            )
        return self.names.index(name)

    # -- from rows to the limits as stated, and back -------------------------------------------------------------

    def stated(self, values: Any) -> Any:
        """Of a quantity that both rows of a constraint share (..., rows), one entry per constraint (..., m)."""
        return values if self.num_rows == self.num_constraints else values[..., self._first]

    def stated_prices(self, prices: Array) -> Array:
        """Prices of rows (..., rows) as prices of constraints (..., m): of two rows, the difference.

        What is proved with the former is proved with the latter: taking t ≥ 0 off both prices of a row pair raises the
        Lagrangian by t (high − low) ≥ 0.
        """
        if self.num_rows == self.num_constraints:
            return prices
        net = np.array(prices[..., self._first])
        net[..., self._both] -= prices[..., self._first[self._both] + 1]
        return net + 0.0

    def row_prices(self, prices: Array) -> Any:
        """Prices of constraints (m,) as prices of rows, none of which is negative."""
        if self.num_rows == self.num_constraints:
            return prices
        rows = np.maximum(prices, 0.0)[self.owners]
        rows[self._first[self._both] + 1] = np.maximum(-prices[self._both], 0.0)
        return rows

    def netted(self, prices: Array) -> Any:
        """Prices of rows of which at most one of two is positive: what they prove, these prove too."""
        return self.row_prices(self.stated_prices(prices))

    def check_prices(self, prices: Any, name: str) -> Any:
        """Multipliers that a user gave, one per constraint, as prices of rows."""
        signed = np.isin(np.arange(self.num_constraints), self._both)
        return self.row_prices(check_multipliers(prices, self.num_constraints, name, signed))

    @property
    def value_name(self) -> str:
        """What a value is, in words."""
        if self.criterion == "horizon":
            steps = f"{self.horizon} step{'s' if self.horizon != 1 else ''}"
            return f"expected {'total' if self.gamma == 1.0 else 'discounted sum'} over {steps}"
        names = {"average": "long-run average", "total": "expected total until the end"}
        return names.get(self.criterion, "expected discounted sum")

    @property
    def sense(self) -> float:
        """−1 for a reward, +1 for a cost: user's objective = sense · V_0."""
        return -1.0 if self.maximise else 1.0

    def user_objective(self, v_0: float) -> float:
        return self.sense * v_0 + 0.0  # + 0.0 turns −0.0 into 0.0

    def user_constraint_values(self, v: Array) -> Any:
        """Convert V_i (..., rows) (feasible: ≤ 0) to values (..., m) that compare with the user's limits."""
        return self.stated(self.signs * (v + self.offsets))

    def violations(self, v: ConstraintArray) -> Any:
        """By how much each constraint is missed, given V_i of the rows."""
        excess = np.maximum(v, 0.0)
        return excess if self.num_rows == self.num_constraints else np.maximum.reduceat(excess, self._first)

    def misses(self, values: ConstraintArray) -> Any:
        """By how much each constraint is missed, given the user's values."""
        low, high = np.array([c.ends for c in self.constraints]).reshape(-1, 2).T
        return np.maximum(np.maximum(values - high, low - values), 0.0)

    @property
    def tolerance_scales(self) -> ConstraintArray:
        """A violation of a row is measured relative to max(1, |limit|)."""
        return np.maximum(1.0, np.abs(self.limits))

    @property
    def fine_scales(self) -> CostArray:
        """(rows + 1,) what `tol` is relative to in solvers: as the user's definition, but no coarser than the costs.

        Costs of size 1e-6 would otherwise be solved only to the absolute accuracy `tol`. Constant costs have no size.
        """
        sizes = np.where(self.spans > 0.0, np.minimum(1.0, self.spans), 1.0)
        return sizes.clip(min=np.append(0.0, np.abs(self.limits)))

    def proof_scale(self, objective: float) -> float:
        """What `tol` is relative to in the gap of a policy with the given objective."""
        span = float(self.spans[0])
        return max(abs(objective), min(1.0, span) if span > 0.0 else 1.0)

    def _repr_html_(self) -> str:
        return model_html(self)

    def __repr__(self) -> str:
        sizes = f"states={self.states}, actions={self.actions}"
        time = f"gamma={self.gamma:g}" if self.gamma == 1.0 else f"gamma={self.gamma}"
        if self.criterion == "average":
            time = "average=True"
        elif self.horizon is not None:
            time = f"horizon={self.horizon}" + (f", {time}" if self.gamma < 1.0 else "")
        return f"{type(self).__name__}({sizes}, constraints={self.names}, {time})"
