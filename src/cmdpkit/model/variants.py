"""The same model with other limits, another objective or criterion, or in other units: whatever stays is shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from cmdpkit.checks import ConstraintArray, CostArray, CostTable, PairTable, check_initial, check_rows, freeze
from cmdpkit.model.criterion import check_criterion, check_limit_criterion
from cmdpkit.model.limits import Limit, check_new_limits
from cmdpkit.model.problem import Problem
from cmdpkit.model.quantities import check_table

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import Lowering

NewLimit = float | tuple[float, float] | None
"""What `with_limits` takes for a limit: a number, (low, high), or None to remove it."""

LARGEST_RATIO = 1e70
"""Costs larger than this, or smaller than its inverse, are balanced before they are solved for."""


class Variants(Problem):
    """The methods of `CMDP` that derive another model from it."""

    transitions: Any
    objective: PairTable
    costs: CostTable
    cost_sizes: CostArray
    lowering: Lowering | None

    def with_limits(self, limits: Mapping[str, NewLimit] | None = None, /, **named: NewLimit) -> Self:
        """The same model with other limits, by name; None removes a limit. Nothing is copied or validated again.

        Args:
            limits: a mapping from names to limits, for names that are not Python identifiers.
            **named: limits by name: a number, or (low, high) for `Between`.

        Example:
            >>> import cmdpkit as ck
            >>> cmdp = ck.problems.paper()
            >>> loose = cmdp.with_limits(utility=2.5)
            >>> round(ck.solve(loose).objective, 6)
            4.515866
        """
        wanted = check_new_limits(limits, named, self.names)
        new = [c.moved(wanted[str(c.name)]) if c.name in wanted else c for c in self.constraints]
        return self._derived([c for c in new if c is not None])

    def with_objective(self, *, reward: ArrayLike | str | None = None, cost: ArrayLike | str | None = None) -> Self:
        """The same model with another objective; the transitions and all limits are shared.

        Args:
            reward: (S, A) array whose discounted sum is maximised, or the name of a constraint whose table to take; or
            cost: the same, minimised. Give exactly one of the two.

        Example:
            >>> import cmdpkit as ck
            >>> cmdp = ck.problems.paper()
            >>> round(ck.solve(cmdp.with_objective(reward="utility")).objective, 6)  # the most that is possible
            4.525027
        """
        kind, table = one_objective(reward, cost)
        name = table if isinstance(table, str) else None
        return self._derived(self.constraints, self._table(table, kind), kind == "reward", objective_name=name)

    def with_criterion(self, *, gamma: float | None = None, horizon: int | None = None, average: bool = False) -> Self:
        """The same model under another criterion; the transitions and all tables are shared.

        A limit that is not per step keeps its number, which then means something else.

        Args:
            gamma: the discount factor of discounted sums, or 1 for totals until the end; or
            horizon: the number of steps; or
            average: True for long-run averages.

        Example:
            >>> import cmdpkit as ck
            >>> power = ck.solve(ck.problems.wireless().with_criterion(average=True)).constraint_values
            >>> print(power.round(6))
            [1.5]
        """
        criterion, discount, steps = check_criterion(gamma, horizon, average)
        if self.changes_with_time and steps != self.horizon:
            raise ValueError(f"the model changes with time, from stage to stage: its horizon must be {self.horizon}")
        if criterion == "discounted":
            check_rows(self.transitions, discount, self.pairs.pair_name, self.pairs.state_name)
        if criterion in ("total", "horizon") and self.objective_per_step:
            raise ValueError("the objective is stated per step, which is for discounts and averages; state a total")
        for limit in self.constraints:
            check_limit_criterion(limit, criterion, discount, steps)
        settings: dict[str, Any] = {"criterion": criterion, "gamma": discount, "horizon": steps}
        return self._derived(self.constraints, self.objective, **settings)

    @property
    def changes_with_time(self) -> bool:
        """Whether transitions, costs or limited quantities differ between the stages of a horizon."""
        return isinstance(self.transitions, tuple) or self.costs.shape[1] != self.pairs.count

    def _table(self, table: Any, kind: str) -> PairTable:
        """A table as given, or that of the constraint with this name."""
        if not isinstance(table, str):
            return check_table(table, self.pairs, self.transitions, kind, self.horizon)
        if table not in self.names:
            known = ", ".join(map(repr, self.names)) or "none"
            raise ValueError(f"{kind}={table!r} is not the name of a constraint; the model has {known}")
        return np.asarray(self.constraints[self.names.index(table)].values)

    def _derived(
        self,
        constraints: Iterable[Limit],
        objective: PairTable | None = None,
        maximise: bool | None = None,
        **others: Any,
    ) -> Self:
        """The model with other, validated limits, objective and attributes. Whatever stays is shared."""
        derived = object.__new__(type(self))
        model: Any = derived  # a CMDP, of which this class knows only a part
        own = {"_frozen", "blocks"} if others else {"_frozen"}  # blocks depend on the criterion
        model.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        model.constraints = tuple(constraints)
        if objective is not None:
            model.objective = objective
            model.maximise = self.maximise if maximise is None else maximise
        for name, value in others.items():
            setattr(model, name, value)
        model._set_units()
        kept = [(id(c.values), c.sign, c.per_step) for c in model.rows]
        if objective is not None or kept != [(id(c.values), c.sign, c.per_step) for c in self.rows]:
            model._set_costs()
        known = self.lowering is not None and objective is None and not others
        model.lowering = (self._lowering_of(model.constraints) if known else None) or model._lowered()
        model._check_range()
        model._frozen = True
        return derived

    def _lowering_of(self, constraints: tuple[Limit, ...]) -> Lowering | None:
        """The lowering with other limits on tables of this model; None if one of the tables is new."""
        assert self.lowering is not None
        model = self.lowering.model
        known = zip(self.constraints, model.constraints, strict=True)
        scaled = {(id(c.values), c.stage): d.values for c, d in known}
        if any((id(c.values), c.stage) not in scaled for c in constraints):
            return None
        limits = [replace(c, values=scaled[id(c.values), c.stage]).in_stage(None) for c in constraints]
        return self.lowering._replace(model=model._derived(limits))

    def tightened(self, margin: float | ConstraintArray) -> Self:
        """The model of eq. cmdp_zero: every row moved inwards by `margin`, one number or one per row."""
        margins = np.broadcast_to(np.asarray(margin, dtype=float), (self.num_rows,))
        single, moved = self.one_sided, self.limits - self.signs * margins
        return single._derived(
            [replace(row, limit=float(limit)) for row, limit in zip(single.rows, moved, strict=True)]
        )

    def started_in(self, state: int) -> Self:
        """The same model with one initial state."""
        return self._derived(self.constraints, initial=check_initial(state, self.states))

    @property
    def one_sided(self) -> Self:
        """The same model with every row as a constraint: `Equal` and `Between` become two, named with their sense."""
        if self.num_rows == self.num_constraints:
            return self
        sides = [(row, self.constraints[i]) for row, i in zip(self.rows, self.owners, strict=True)]
        return self._derived(
            [row if row is stated else replace(row, name=f"{row.name} {row.symbol}") for row, stated in sides]
        )

    # -- other units ----------------------------------------------------------------------------------------------

    @property
    def is_extreme(self) -> bool:
        """Whether products and quotients of the costs' sizes may leave the range of floating-point numbers."""
        sizes = self.cost_sizes[self.cost_sizes > 0.0]
        return bool(sizes.size and (sizes.min() < 1.0 / LARGEST_RATIO or sizes.max() > LARGEST_RATIO))

    def refuse_extremes(self, what: str) -> None:
        """Raise a ValueError that says which costs are too large or too small for `what`, if any."""
        names = ["the objective", *(f"constraint {row.name!r}" for row in self.rows)]
        for name, size in zip(names, self.cost_sizes, strict=True):
            if size > 0.0 and not 1.0 / LARGEST_RATIO <= size <= LARGEST_RATIO:
                exponent = int(np.floor(np.log10(size)))
                raise ValueError(
                    f"{name} has costs of size {size:.1e}, too {'large' if exponent > 0 else 'small'} for {what}: "
                    f"divide them, and the limit if there is one, by 1e{exponent} and multiply the results"
                )

    def balanced(self) -> tuple[Self, Any]:
        """The same model with every cost divided by a power of two near its size, and those powers (rows + 1,).

        Policies are the same, values are divided exactly. A cost and its limits share the power.
        """
        tables = [self.objective, *(np.asarray(c.values) for c in self.constraints)]
        sizes = np.array([np.abs(table).max() for table in tables])
        # A limit may be larger than its cost, but not by so much that quotients overflow
        limits = [max(abs(row.limit) for row in c.sides()) for c in self.constraints]
        sizes[1:] = np.maximum(sizes[1:], np.array(limits) / LARGEST_RATIO)
        exponents = np.where(sizes > 0.0, np.frexp(np.where(sizes > 0.0, sizes, 1.0))[1], 0)
        even = [freeze(np.ldexp(table, -exponent)) for table, exponent in zip(tables, exponents, strict=True)]
        scaled = [
            c.scaled(table, -int(exponent))
            for c, table, exponent in zip(self.constraints, even[1:], exponents[1:], strict=True)
        ]
        return self._derived(scaled, even[0]), np.append(exponents[0], exponents[1:][self.owners])


def one_objective(reward: Any, cost: Any) -> tuple[str, Any]:
    """Which of the two was given, and its value."""
    if (reward is None) == (cost is None):
        given = "both were" if reward is not None else "neither was"
        raise ValueError(f"exactly one of reward (maximised) and cost (minimised) is needed; {given} given")
    return ("cost", cost) if reward is None else ("reward", reward)
