"""The model: a constrained Markov decision process, validated when it is created and immutable afterwards.

Users state rewards to maximise or costs to minimise, and limits of either sense. Inside the package there is one sign
convention, that of the paper (eq. cmdp):

    minimise V_0(π)  subject to  V_i(π) ≤ 0,  i = 1..m

with V_0 = V_cost (or −V_reward), and V_i = value − limit for `AtMost`, limit − value for `AtLeast`, all in the
user's units. `Equal` and `Between` are one of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cmdpkit.checks import (
    ConstraintArray,
    CostArray,
    CostTable,
    PairTable,
    StateArray,
    check_initial,
    check_rows,
    check_transitions,
    freeze,
    longest_row,
    refreeze,
)
from cmdpkit.files import PathLike
from cmdpkit.model.absorbing import until_absorbed
from cmdpkit.model.criterion import check_criterion, check_limit_criterion
from cmdpkit.model.labels import Label, check_labels
from cmdpkit.model.limits import Limit, check_limits, check_new_limits
from cmdpkit.model.pairs import Pairs, check_available, initial_state
from cmdpkit.model.problem import Problem
from cmdpkit.model.quantities import check_table
from cmdpkit.model.stages import StagedTransitions, band_of, forward_blocks, is_by_stage, like_shapes, over_stages
from cmdpkit.model.storage import load_model, save_model
from cmdpkit.model.ways_in import WaysIn, spell_out
from cmdpkit.model.ways_out import WaysOut

NewLimit = float | tuple[float, float] | None
"""What `with_limits` takes for a limit: a number, (low, high), or None to remove it."""

LARGEST_RATIO = 1e70
"""Costs larger than this, or smaller than its inverse, are balanced before they are solved for."""

LARGEST_VALUE = 1e150
"""Largest value allowed: the product of two values must not overflow."""


class Lowering(NamedTuple):
    """The discounted model with the same policies and values as one with another criterion."""

    model: Any  # ScaledCMDP: its values from the start, multipliers and policies are those of the original
    sizes: StateArray  # w / W of its states, 0 where the process has ended: V = sizes · V', visits x = x' / sizes


class CMDP(WaysIn, WaysOut, Problem):
    """A constrained Markov decision process with S states, A actions and m constraints.

    Args:
        transitions: P(s' | s, a), as an (S, A, S) array or as a scipy.sparse (S·A, S) matrix with row s·A + a. With
            `available`, also an (N, S) array or matrix with a row for each of the N available pairs only. For a finite
            horizon also a list with such an array or matrix for each of the T stages, or a (T, S, A, S) array.
        reward: (S, A) array whose discounted sum (or average) is maximised; or
        cost: (S, A) array that is minimised in the same way. Give exactly one of the two. Also (S,), the same for all
            actions; (S, A, S), which may depend on the next state; or (N,), one number per available pair. For a
            finite horizon also (T, S, A), (T, S, A, S), or a list of T arrays, one for each stage.
        constraints: any number of `AtMost`, `AtLeast`, `Equal` and `Between`, with values of the same shapes.
        gamma: the discount factor, in [0, 1); 1 for totals until the process ends, which every policy must reach: a
            set of states that are never left and cost nothing.
        horizon: T, for totals over T steps (discounted if gamma is given). The policy then has a table for each step.
        average: True for long-run averages per step instead of discounted sums, in the objective and all limits.
        initial: distribution of the initial state, as (S,) or {state: probability}, or a single state; uniform by
            default.
        available: (S, A) booleans, or a scipy.sparse (S, A) matrix whose stored entries are the available pairs. What
            the other arrays hold at a missing pair does not matter. All are available by default.
        state_labels, action_labels: what states and actions are called: strings, tuples, anything hashable.
        objective_name: what the objective is called in reports and files.
        objective_per_step: state the objective per step, as (1 − γ) times its discounted sum. The optimal policies are
            the same; objective, bound and shadow prices are multiplied by 1 − γ, and `tol` is relative to them.
        action_axis: which axis of a three-dimensional array counts the actions: 1 for (S, A, S), the default, or 0 for
            (A, S, S). An array of shape (S, S, S) is read as (S, A, S) with a warning if this is not given.

    Example:
        Work pays 1 but wears the machine; at most 2 units of wear are allowed (discounted).

        >>> import numpy as np, cmdpkit as ck
        >>> stay = np.ones((1, 2, 1))
        >>> wear = ck.AtMost([[0.0, 1.0]], 2.0, name="wear")
        >>> cmdp = ck.CMDP(stay, reward=[[0.0, 1.0]], constraints=[wear], gamma=0.8)
        >>> cmdp
        CMDP(states=1, actions=2, constraints=['wear'], gamma=0.8)
        >>> round(ck.solve(cmdp).objective, 6)
        2.0
    """

    def __init__(
        self,
        transitions: Any,
        *,
        reward: ArrayLike | None = None,
        cost: ArrayLike | None = None,
        constraints: Iterable[Limit] = (),
        gamma: float | None = None,
        horizon: int | None = None,
        average: bool = False,
        initial: Any = None,
        available: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
        objective_name: str | None = None,
        objective_per_step: bool = False,
        action_axis: int | None = None,
    ) -> None:
        kind, table = _one_objective(reward, cost)
        self.criterion, self.gamma, self.horizon = check_criterion(gamma, horizon, average)
        settings = (available, state_labels, action_labels, action_axis)
        if isinstance(transitions, StagedTransitions):
            self.transitions: Any = transitions
            self.pairs = transitions.pairs
        elif is_by_stage(transitions):
            self.transitions, self.pairs = _check_stages(transitions, self.horizon, settings)
        else:
            self.transitions, self.pairs = _check_pairs(transitions, *settings)
        self.states, self.actions = self.pairs.states, self.pairs.actions
        discount = self.gamma if self.criterion == "discounted" else 0.0
        self.row_sums = _row_sums(self.transitions, discount, self.pairs)
        self.longest_row = max(map(longest_row, _each(self.transitions)))
        self.maximise = kind == "reward"
        self.objective: PairTable = check_table(table, self.pairs, self.transitions, kind, self.horizon)
        self.constraints = _check_constraints(constraints, self)
        self.initial: StateArray = check_initial(initial_state(initial, self.pairs), self.states)
        self._set_objective(objective_name, objective_per_step)
        if self.objective_per_step and self.criterion in ("total", "horizon"):
            raise ValueError(f"objective_per_step=True is for discounted sums; the criterion is the {self.value_name}")
        self._set_units()
        self._set_costs()
        self._share_tables()
        self.lowering = self._lowered()
        self._check_range()
        self._frozen = True

    def _set_costs(self) -> None:
        # Internal sign convention: costs (rows + 1, N) with V_i = ⟨costs_i⟩ − offset_i
        tables = like_shapes([self.objective, *(np.asarray(c.values) for c in self.rows)])
        costs = np.empty((self.num_rows + 1, tables[0].size))
        for cost, unit, table in zip(costs, self.units, tables, strict=True):
            np.multiply(unit, table.ravel(), out=cost)
        self.costs: CostTable = freeze(costs)
        self.cost_sizes: CostArray = freeze(np.maximum(self.costs.max(axis=1), -self.costs.min(axis=1)))  # max |c_i|
        # max − min of each of these costs over all (s, a): how much a single step can matter
        self.spans: CostArray = freeze(np.ptp(self.costs, axis=1))

    def _share_tables(self) -> None:
        """Keep the user's tables as views of the costs where both are the same numbers: large models exist once."""

        def shared(table: Any, row: int) -> Any:
            same = self.units[row] == 1.0 and np.size(table) == self.costs.shape[1]
            return self.costs[row].reshape(np.shape(table)) if same else table

        self.objective = shared(self.objective, 0)
        first = 1 + self.stated(np.arange(self.num_rows))
        limits = zip(self.constraints, first, strict=True)
        self.constraints = tuple(replace(limit, values=shared(limit.values, row)) for limit, row in limits)
        self._set_units()

    entry_error: ClassVar[int] = 0
    """By how many EPS the stored probabilities and costs may be off, each relative to itself; bounds count them."""

    def _lowered(self) -> Lowering | None:
        """The discounted model that has the same values, for the other criteria."""
        if self.criterion not in ("total", "horizon"):
            return None
        if self.horizon is None:
            scaled = until_absorbed(self.transitions, self.pairs, self.costs, self.initial)
        else:
            scaled = over_stages(self.transitions, self.pairs, self.initial, self.gamma, self.horizon)
        settings: dict[str, Any] = {"reward" if self.maximise else "cost": scaled.table(self.objective)}
        model = ScaledCMDP(
            scaled.transitions,
            constraints=[
                replace(c, values=scaled.table(np.asarray(c.values), c.stage)).in_stage(None) for c in self.constraints
            ],
            gamma=scaled.beta,
            objective_name=self.objective_name,
            initial=scaled.initial,
            available=None if scaled.pairs.is_full or self.horizon else scaled.pairs.sparse_mask,
            action_axis=1,
            **settings,
        )
        return Lowering(model, scaled.sizes)

    @property
    def state_labels(self) -> tuple[Label, ...] | None:
        return self.pairs.state_labels

    @property
    def action_labels(self) -> tuple[Label, ...] | None:
        return self.pairs.action_labels

    @property
    def changes_with_time(self) -> bool:
        """Whether transitions, costs or limited quantities differ between the stages of a horizon."""
        return isinstance(self.transitions, tuple) or self.costs.shape[1] != self.pairs.count

    @cached_property
    def blocks(self) -> tuple[int, ...] | None:
        """Where blocks of states begin that lead to later blocks only, None if not so."""
        return None if self.criterion == "average" else forward_blocks(self.transitions, self.pairs)

    @cached_property
    def band(self) -> tuple[int, int] | None:
        """How far below and above a state the states that follow it are numbered at most; None for dense models."""
        return band_of(self.transitions, self.pairs)

    def _check_range(self) -> None:
        """Check that values and their squares do not overflow."""
        if self.lowering is not None:
            return  # its model has been checked
        sizes = np.append(self.cost_sizes.max() / LARGEST_VALUE / self.step_weight, np.abs(self.limits) / LARGEST_VALUE)
        if sizes.max() > 1.0:
            raise ValueError(f"{self._sums} and limits must not exceed {LARGEST_VALUE:g}; use a larger unit")

    _sums: ClassVar[str] = "costs / (1 - gamma)"

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"a CMDP is frozen; create a new one instead of setting {name!r}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CMDP is frozen; {name!r} cannot be deleted")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies and unpickled models are frozen like the original."""
        for value in state.values():
            refreeze(value)
        for constraint in state["constraints"]:
            refreeze(constraint.values)
        self.__dict__.update(state)

    # -- the same model with other limits or another objective ---------------------------------------------------

    def with_limits(self, limits: Mapping[str, NewLimit] | None = None, /, **named: NewLimit) -> CMDP:
        """The same model with other limits, by name; None removes a limit. Nothing is copied or validated again.

        Args:
            limits: a mapping from names to limits, for names that are no Python identifiers.
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

    def with_objective(self, *, reward: ArrayLike | str | None = None, cost: ArrayLike | str | None = None) -> CMDP:
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
        kind, table = _one_objective(reward, cost)
        name = table if isinstance(table, str) else None
        return self._derived(self.constraints, self._table(table, kind), kind == "reward", objective_name=name)

    def with_criterion(self, *, gamma: float | None = None, horizon: int | None = None, average: bool = False) -> CMDP:
        """The same model under another criterion; the transitions and all tables are shared.

        A limit that is not per step keeps its number, which then means another thing.

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
    ) -> CMDP:
        """The model with other, validated limits, objective and attributes. Whatever stays is shared."""
        model = object.__new__(type(self))
        model.__dict__.update(
            {name: value for name, value in self.__dict__.items() if name not in ("_frozen", "blocks")}
        )
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
        return model

    def _lowering_of(self, constraints: tuple[Limit, ...]) -> Lowering | None:
        """The lowering with other limits on tables of this model; None if one of the tables is new."""
        assert self.lowering is not None
        model, sizes = self.lowering
        known = zip(self.constraints, model.constraints, strict=True)
        scaled = {(id(c.values), c.stage): d.values for c, d in known}
        if any((id(c.values), c.stage) not in scaled for c in constraints):
            return None
        limits = [replace(c, values=scaled[id(c.values), c.stage]).in_stage(None) for c in constraints]
        return Lowering(model._derived(limits), sizes)

    def tightened(self, margin: float | ConstraintArray) -> CMDP:
        """The model of eq. cmdp_zero: every row moved inwards by `margin`, one number or one per row."""
        margins = np.broadcast_to(np.asarray(margin, dtype=float), (self.num_rows,))
        single, moved = self.one_sided, self.limits - self.signs * margins
        return single._derived(
            [replace(row, limit=float(limit)) for row, limit in zip(single.rows, moved, strict=True)]
        )

    def started_in(self, state: int) -> CMDP:
        """The same model with one initial state."""
        return self._derived(self.constraints, initial=check_initial(state, self.states))

    @property
    def one_sided(self) -> CMDP:
        """The same model with every row as a constraint: `Equal` and `Between` become two, named with their sense."""
        if self.num_rows == self.num_constraints:
            return self
        sides = [(row, self.constraints[i]) for row, i in zip(self.rows, self.owners, strict=True)]
        return self._derived(
            [row if row is stated else replace(row, name=f"{row.name} {row.symbol}") for row, stated in sides]
        )

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

    def balanced(self) -> tuple[CMDP, Any]:
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

    counts: Any = None
    """How often each pair was tried, in the shape of `objective`; only known for a model made by `from_samples`."""

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the model to an `.npz` file, atomically and without pickle."""
        save_model(self, path)

    @classmethod
    def load(cls, path: PathLike) -> CMDP:
        """Read a model written by `save`, with all checks of the constructor."""
        return load_model(cls, path)


spell_out(CMDP)


def _one_objective(reward: Any, cost: Any) -> tuple[str, Any]:
    """Which of the two was given, and what."""
    if (reward is None) == (cost is None):
        given = "both were" if reward is not None else "neither was"
        raise ValueError(f"exactly one of reward (maximised) and cost (minimised) is needed; {given} given")
    return ("cost", cost) if reward is None else ("reward", reward)


class ScaledCMDP(CMDP):
    """A discounted model that was computed from another one (`CMDP.lowering`)."""

    entry_error = 4
    _sums = "costs times the expected number of steps"


def check_model(cmdp: Any) -> None:
    if not isinstance(cmdp, CMDP):
        raise TypeError(f"a cmdpkit.CMDP is needed, not {type(cmdp).__name__}")


def _check_pairs(
    transitions: Any, available: Any, state_labels: Any, action_labels: Any, action_axis: Any
) -> tuple[Any, Pairs]:
    """The transitions with one row per available pair, and those pairs."""
    matrix, states, actions = check_transitions(transitions, available is not None, action_axis)
    pairs = check_available(available, states, actions) if available is not None else Pairs(states, actions or 0)
    names = (check_labels(state_labels, states, "state"), check_labels(action_labels, pairs.actions, "action"))
    rows, every = matrix.shape[0], pairs.states * pairs.actions
    if rows not in (pairs.count, every):
        raise ValueError(
            f"the transitions have {rows} rows, but {pairs.count} of the {every} pairs of state and action are "
            f"available; give a row for each of the {pairs.count}, ordered by state and then action, or for all {every}"
        )
    if rows != pairs.count:
        matrix = refreeze(matrix[pairs.state.astype(np.int64) * pairs.actions + pairs.action])
    return matrix, pairs.named(*names)


def _row_sums(transitions: Any, discount: float, pairs: Pairs) -> tuple[float, float]:
    """The smallest and the largest sum of a row, after a check of all rows."""
    if isinstance(transitions, StagedTransitions):
        return transitions.row_sums
    if not isinstance(transitions, tuple):
        return check_rows(transitions, discount, pairs.pair_name, pairs.state_name)
    sums = []
    for t, matrix in enumerate(transitions):
        try:
            sums.append(check_rows(matrix, discount, pairs.pair_name, pairs.state_name))
        except ValueError as error:
            raise ValueError(f"at stage {t}, {error}") from None
    return min(low for low, _ in sums), max(high for _, high in sums)


def _each(transitions: Any) -> tuple[Any, ...]:
    """The matrices of all stages; one where they do not depend on the stage."""
    return transitions if isinstance(transitions, tuple) else (transitions,)


def _check_stages(transitions: Any, horizon: int | None, settings: tuple[Any, ...]) -> tuple[tuple[Any, ...], Pairs]:
    """The transitions of every stage, and the pairs, which are the same in all of them."""
    transitions = list(transitions)  # matrices are known by their ids
    if horizon is None:
        raise ValueError(
            f"the transitions have {len(transitions)} matrices, one for each stage; that needs "
            f"horizon={len(transitions)}"
        )
    if len(transitions) != horizon:
        raise ValueError(f"there are transitions for {len(transitions)} stages, but the horizon is {horizon}")
    known: dict[int, tuple[Any, Pairs]] = {}
    for t, given in enumerate(transitions):
        if id(given) in known:
            continue
        try:
            known[id(given)] = _check_pairs(given, *settings)
        except (ValueError, TypeError) as error:
            raise type(error)(f"at stage {t}, {error}") from None
        if not known[id(given)][1].same(known[id(transitions[0])][1]):
            raise ValueError(f"stage {t} has other states or actions than stage 0")
    return tuple(known[id(given)][0] for given in transitions), known[id(transitions[0])][1]


def _check_constraints(constraints: Any, cmdp: CMDP) -> tuple[Limit, ...]:
    """Check the limits and their tables of values."""
    limits = check_limits(constraints)
    for limit in limits:
        check_limit_criterion(limit, cmdp.criterion, cmdp.gamma, cmdp.horizon)
    known = (cmdp.pairs, cmdp.transitions)
    tables = [check_table(c.values, *known, f"constraint {c.name!r}", cmdp.horizon) for c in limits]
    return tuple(replace(limit, values=table) for limit, table in zip(limits, tables, strict=True))
