"""The model: a constrained Markov decision process, validated when it is created and immutable afterwards.

Users state rewards to maximise or costs to minimise, and limits of either sense. Inside the package there is one sign
convention, that of the paper (eq. cmdp):

    minimise V_0(π)  subject to  V_i(π) ≤ 0,  i = 1..m

with V_0 = V_cost (or −V_reward), and V_i = value − limit for `AtMost`, limit − value for `AtLeast`, all in the
user's units. `Equal` and `Between` are one of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from cmdpkit.checks import (
    ConstraintArray,
    CostArray,
    CostTable,
    PairTable,
    StateArray,
    check_count,
    check_gamma,
    check_initial,
    check_number,
    check_rows,
    check_transitions,
    freeze,
    longest_row,
    refreeze,
)
from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.model.absorbing import until_absorbed
from cmdpkit.model.limits import (
    ONE_CRITERION,
    AtLeast,
    AtMost,
    Between,
    Equal,
    Limit,
    check_limits,
    check_new_limits,
)
from cmdpkit.model.pairs import Label, Pairs, check_available, check_labels, check_table, initial_state
from cmdpkit.model.problem import Problem
from cmdpkit.model.stages import forward_blocks, over_stages

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


class CMDP(Problem):
    """A constrained Markov decision process with S states, A actions and m constraints.

    Args:
        transitions: P(s' | s, a), as an (S, A, S) array or as a scipy.sparse (S·A, S) matrix with row s·A + a. With
            `available`, also an (N, S) array or matrix with a row for each of the N available pairs only.
        reward: (S, A) array whose discounted sum (or average) is maximised; or
        cost: (S, A) array that is minimised in the same way. Give exactly one of the two. Also (S,), the same for all
            actions; (S, A, S), which may depend on the next state; or (N,), one number per available pair.
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
        self.criterion, self.gamma, self.horizon = _check_criterion(gamma, horizon, average)
        self.transitions, self.pairs = _check_pairs(transitions, available, state_labels, action_labels, action_axis)
        self.states, self.actions = self.pairs.states, self.pairs.actions
        discount = self.gamma if self.criterion == "discounted" else 0.0
        self.row_sums = check_rows(self.transitions, discount, self.pairs.pair_name, self.pairs.state_name)
        self.longest_row = longest_row(self.transitions)
        self.maximise = kind == "reward"
        self.objective: PairTable = check_table(table, self.pairs, self.transitions, kind)
        self.constraints = _check_constraints(constraints, self)
        self.initial: StateArray = check_initial(initial_state(initial, self.pairs), self.states)
        self._set_objective(objective_name, objective_per_step)
        if self.objective_per_step and self.criterion in ("total", "horizon"):
            raise ValueError(f"objective_per_step=True is for discounted sums; the criterion is the {self.value_name}")
        self._set_units()
        self._set_costs()
        self.lowering = self._lowered()
        self._check_range()
        self._frozen = True

    def _set_costs(self) -> None:
        # Internal sign convention: costs (rows + 1, N) with V_i = ⟨costs_i⟩ − offset_i
        tables = np.stack([self.objective, *(np.asarray(c.values) for c in self.rows)])
        self.costs: CostTable = freeze(self.units[:, None] * tables.reshape(self.num_rows + 1, -1))
        self.cost_sizes: CostArray = freeze(np.maximum(self.costs.max(axis=1), -self.costs.min(axis=1)))  # max |c_i|
        # max − min of each of these costs over all (s, a): how much a single step can matter
        self.spans: CostArray = freeze(np.ptp(self.costs, axis=1))

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
            available=None if scaled.pairs.is_full else scaled.pairs.sparse_mask,
            **settings,
        )
        return Lowering(model, scaled.sizes)

    @property
    def state_labels(self) -> tuple[Label, ...] | None:
        return self.pairs.state_labels

    @property
    def action_labels(self) -> tuple[Label, ...] | None:
        return self.pairs.action_labels

    @cached_property
    def blocks(self) -> tuple[int, ...] | None:
        """Where blocks of states begin that lead to later blocks only, as the stages of a horizon; None if not so."""
        return None if self.criterion == "average" else forward_blocks(self.transitions, self.pairs)

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

    @property
    def fine_scales(self) -> CostArray:
        """(rows + 1,) what `tol` is relative to in solvers: as the user's definition, but no coarser than the costs.

        Costs of size 1e-6 would otherwise be solved only to the absolute accuracy `tol`.
        """
        return np.minimum(1.0, self.spans).clip(min=np.append(0.0, np.abs(self.limits)))

    def proof_scale(self, objective: float) -> float:
        """What `tol` is relative to in the gap of a policy with the given objective."""
        return max(abs(objective), float(self.fine_scales[0]))

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
        criterion, discount, steps = _check_criterion(gamma, horizon, average)
        if criterion == "discounted":
            check_rows(self.transitions, discount, self.pairs.pair_name, self.pairs.state_name)
        if criterion in ("total", "horizon") and self.objective_per_step:
            raise ValueError("the objective is stated per step, which is for discounts and averages; state a total")
        for limit in self.constraints:
            _check_criterion_of(limit, criterion, discount, steps)
        settings: dict[str, Any] = {"criterion": criterion, "gamma": discount, "horizon": steps}
        return self._derived(self.constraints, self.objective, **settings)

    def _table(self, table: Any, kind: str) -> PairTable:
        """A table as given, or that of the constraint with this name."""
        if not isinstance(table, str):
            return check_table(table, self.pairs, self.transitions, kind)
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

    # -- ways in ------------------------------------------------------------------------------------------------

    counts: Any = None
    """How often each pair was tried, in the shape of `objective`; only known for a model made by `from_samples`."""

    @classmethod
    def from_table(
        cls,
        source: Any,
        *,
        reward: str | None = None,
        cost: str | None = None,
        constraints: Iterable[Limit] = (),
        gamma: float,
        initial: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
        absorbing: Any = False,
        unreachable: str = "warn",
        columns: Mapping[str, str] | None = None,
    ) -> CMDP:
        """A model from a tidy table with one row per transition.

        The columns are state, action, next_state, probability, reward (or cost), and one per further cost. Pairs of
        state and action that have no row are not available. A reward may depend on the next state: its expected value
        is taken.

        Args:
            source: the path of a CSV file in UTF-8 with a header line, a pandas or polars frame, or a dict of columns.
                Large files need pandas to be read fast.
            reward, cost: the name of the column to maximise or to minimise; by default the column `reward` or `cost`.
            constraints: limits whose values are names of columns, as in `AtMost("wear", 4.0)`, or arrays.
            gamma: the discount factor.
            initial: a state, {state: probability}, or a distribution; uniform by default.
            state_labels, action_labels: all labels, in the order that the model is to have. By default whole numbers
                are sorted, and other labels come in the order in which they first appear (states before next states).
                The labels 0, 1, ... are the same as none. In a file, labels are text unless all are whole numbers.
            absorbing: True, or a list of states: where no row leads out of a state, the process stays there forever,
                at no reward or cost, by the first action. Otherwise such states are refused.
            unreachable: what to do about states that cannot be reached from the initial ones: "warn" and keep them,
                "keep", "drop" or "refuse".
            columns: the names of the columns where they differ, as in {"next_state": "to"}.

        Example:
            >>> import cmdpkit as ck
            >>> table = {
            ...     "state": ["good", "good", "good", "bad"],
            ...     "action": ["run", "run", "rest", "repair"],
            ...     "next_state": ["good", "bad", "good", "good"],
            ...     "probability": [0.9, 0.1, 1.0, 1.0],
            ...     "reward": [1.0, 1.0, 0.0, -2.0],
            ...     "wear": [1.0, 1.0, 0.0, 0.0],
            ... }
            >>> cmdp = ck.CMDP.from_table(table, constraints=[ck.AtMost("wear", 4.0)], gamma=0.9, initial="good")
            >>> cmdp.state_labels, cmdp.action_labels
            (('good', 'bad'), ('run', 'rest', 'repair'))
            >>> round(ck.solve(cmdp).objective, 6)
            3.28
        """
        from cmdpkit.model.tables import from_table

        settings: dict[str, Any] = {"reward": reward, "cost": cost, "absorbing": absorbing, "unreachable": unreachable}
        settings |= {"state_labels": state_labels, "action_labels": action_labels, "columns": columns}
        return from_table(cls, source, constraints=constraints, gamma=gamma, initial=initial, **settings)

    @classmethod
    def from_samples(
        cls,
        source: Any,
        *,
        reward: str | None = None,
        cost: str | None = None,
        constraints: Iterable[Limit] = (),
        gamma: float,
        initial: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
        absorbing: Any = False,
        unreachable: str = "warn",
        columns: Mapping[str, str] | None = None,
    ) -> CMDP:
        """A model estimated from logged transitions: frequencies as probabilities, means as rewards and costs.

        The log has one row per step with the columns state, action, next_state, reward (or cost), and one per further
        cost. Actions that were never tried in a state are not available there, and no prior is added; `counts` tells
        how often each pair was tried. States in which the log ends are never left: list them as `absorbing` if the
        process ends there. All arguments are those of `from_table`.

        Example:
            >>> import cmdpkit as ck
            >>> log = {
            ...     "state": ["good", "good", "good", "bad"],
            ...     "action": ["run", "run", "run", "repair"],
            ...     "next_state": ["good", "good", "bad", "good"],
            ...     "reward": [1.0, 1.0, 1.0, -2.0],
            ... }
            >>> cmdp = ck.CMDP.from_samples(log, gamma=0.9, initial="good")
            >>> cmdp.counts
            array([3, 1])
            >>> cmdp.to_table()["probability"].round(3)
            array([0.667, 0.333, 1.   ])
        """
        from cmdpkit.model.samples import from_samples

        settings: dict[str, Any] = {"reward": reward, "cost": cost, "absorbing": absorbing, "unreachable": unreachable}
        settings |= {"state_labels": state_labels, "action_labels": action_labels, "columns": columns}
        return from_samples(cls, source, constraints=constraints, gamma=gamma, initial=initial, **settings)

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        initial: Any,
        *,
        actions: Any,
        available: Callable[[Any], Any] | None = None,
        minimise: bool = False,
        constraints: Iterable[Limit] = (),
        gamma: float,
        absorbing: Any = False,
        max_states: int = 10_000_000,
        vectorised: bool = False,
        progress: bool | Callable[[int, int], None] = False,
    ) -> CMDP:
        """A model from a function that tells what an action does in a state, explored from the initial states.

        Args:
            function: called with (state, action); returns a list of outcomes (probability, next state, reward, costs).
                States are anything hashable. Costs are a tuple in the order of the limits or a dict by name, and may be
                left out without limits. Outcomes with the same next state are added, those with probability zero are
                left out.
            initial: the initial state, or {state: probability}.
            actions: the list of all actions, or a function that returns those available in a state.
            available: for vectorised functions: called with an array of n states, returns (n, A) booleans.
            minimise: whether the third entry of an outcome is a cost to minimise in place of a reward.
            constraints: limits with the name of a cost, as in `AtMost("wear", 4.0)`.
            gamma: the discount factor.
            absorbing: as in `from_table`, for states in which no action is available.
            max_states: the exploration stops with an error when it finds more states.
            vectorised: whether `function` takes and returns arrays. It is called with an array of n states, of shape
                (n,) or (n, d) and type int64, and the array of the n numbers of the actions; it returns the tuple
                (row, probability, next states, reward, costs) with one entry per outcome, where row (0 to n − 1) tells
                to which of the n pairs the outcome belongs. Costs are a list of arrays or a dict by name.
            progress: True to print how many states were explored and found, or a function called with both numbers.

        States that are whole numbers are sorted; others are kept in the order in which they are found.

        Example:
            A machine wears out, and repairs cost money.

            >>> import cmdpkit as ck
            >>> def machine(age, action):
            ...     if action == "repair":
            ...         return [(1.0, 0, -2.0, (1.0,))]
            ...     return [(0.8, age, 3.0 - age, (0.0,)), (0.2, min(age + 1, 5), 3.0 - age, (0.0,))]
            >>> cmdp = ck.CMDP.from_function(
            ...     machine, 0, actions=["run", "repair"], constraints=[ck.AtMost("repairs", 0.5)], gamma=0.9
            ... )
            >>> cmdp
            CMDP(states=6, actions=2, constraints=['repairs'], gamma=0.9)
        """
        from cmdpkit.model.functions import from_function

        settings: dict[str, Any] = {"available": available, "minimise": minimise, "max_states": max_states}
        settings |= {"vectorised": vectorised, "absorbing": absorbing, "progress": progress}
        return from_function(cls, function, initial, actions=actions, constraints=constraints, gamma=gamma, **settings)

    @classmethod
    def from_gymnasium(
        cls,
        env: Any,
        *,
        cost: Any = None,
        constraints: Iterable[Limit] = (),
        gamma: float,
        initial: Any = None,
    ) -> CMDP:
        """The exact model of a Gymnasium environment with a table `env.unwrapped.P` (FrozenLake, CliffWalking, Taxi).

        States and actions have the numbers of the environment. A state in which an episode ends keeps the process
        forever, at no reward or cost; if episodes end in a state that others pass through, they end in an additional
        state "end" instead. Time limits are not part of the model.

        Args:
            env: the environment.
            cost: a function of (state, action, next state, reward, terminated), or a dict of such functions by name.
            constraints: limits with the name of a cost, as in `AtMost("falls", 0.1)`.
            gamma: the discount factor.
            initial: as for `CMDP`; by default the environment's own distribution.

        Example:
            >>> import gymnasium, cmdpkit as ck
            >>> env = gymnasium.make("CliffWalking-v1")
            >>> near = ck.AtMost("near the cliff", 2.0)  # the states 24 to 35 lie along the cliff
            >>> cmdp = ck.CMDP.from_gymnasium(
            ...     env, cost=lambda s, a, n, r, ended: float(24 <= s < 36), constraints=[near], gamma=0.95
            ... )
            >>> round(ck.solve(cmdp).objective, 3)
            -10.657
        """
        from cmdpkit.model.gymnasium import from_gymnasium

        return from_gymnasium(cls, env, cost=cost, constraints=constraints, gamma=gamma, initial=initial)

    @classmethod
    def from_matrices(
        cls,
        matrices: Any,
        *,
        reward: Any = None,
        cost: Any = None,
        constraints: Iterable[Limit] = (),
        gamma: float,
        initial: Any = None,
        available: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
    ) -> CMDP:
        """A model from one transition matrix per action, as in pymdptoolbox: actions come first.

        Args:
            matrices: an (A, S, S) array, or a list of A matrices (S, S), dense or scipy.sparse.
            reward, cost: (S,), (S, A) or (A, S, S), or a list with one (S,) or (S, S) array or matrix per action.
            constraints: limits with values of the same shapes.
            gamma, initial, available, state_labels, action_labels: as for `CMDP`.

        Example:
            >>> import numpy as np, cmdpkit as ck
            >>> wait, cut = [[0.1, 0.9], [0.1, 0.9]], [[1.0, 0.0], [1.0, 0.0]]
            >>> cmdp = ck.CMDP.from_matrices([wait, cut], reward=[[0.0, 0.0], [4.0, 2.0]], gamma=0.9)
            >>> cmdp.transitions
            array([[0.1, 0.9], [1. , 0. ], [0.1, 0.9], [1. , 0. ]])
        """
        from cmdpkit.model.matrices import from_matrices

        settings = {"available": available, "state_labels": state_labels, "action_labels": action_labels}
        settings |= {"reward": reward, "cost": cost, "initial": initial}
        return from_matrices(cls, matrices, constraints=constraints, gamma=gamma, **settings)

    @classmethod
    def from_quantecon(
        cls,
        ddp: Any,
        *,
        constraints: Iterable[Limit] = (),
        gamma: float | None = None,
        initial: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
    ) -> CMDP:
        """A model from a `DiscreteDP` of QuantEcon, in either of its forms.

        Actions with reward −inf are not available. The discount factor is `ddp.beta` unless `gamma` is given. Values of
        limits have the shapes of `CMDP`, or one entry per pair in the order of `ddp.s_indices`.

        Example:
            >>> import numpy as np, cmdpkit as ck
            >>> from quantecon.markov import DiscreteDP
            >>> rewards = [[5.0, 10.0], [-1.0, -np.inf]]
            >>> ddp = DiscreteDP(rewards, [[[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0], [0.5, 0.5]]], beta=0.95)
            >>> cmdp = ck.CMDP.from_quantecon(ddp, initial=0)
            >>> round(ck.solve(cmdp).objective, 4), ddp.solve().v.round(4).tolist()
            (-8.5714, [-8.5714, -20.0])
        """
        from cmdpkit.model.matrices import from_quantecon

        settings: dict[str, Any] = {"state_labels": state_labels, "action_labels": action_labels, "initial": initial}
        return from_quantecon(cls, ddp, constraints=constraints, gamma=gamma, **settings)

    @classmethod
    def from_storm(
        cls,
        source: Any,
        *,
        reward: str | None = None,
        cost: str | None = None,
        constraints: Iterable[Limit] = (),
        gamma: float,
        initial: Any = None,
        constants: Any = None,
    ) -> CMDP:
        """A model from a PRISM, JANI, DRN or UMB file, or from a sparse MDP or DTMC of stormpy 2.

        States are called by the values of their variables, as in "x=1, y=2", where the model has them; actions by the
        labels of their choices, or "choice 0", "choice 1", ... where there are none. A label that a state has several
        times is numbered, as in "go (2)".

        Args:
            source: the path of a file, or a model.
            reward, cost: the name of the reward model to maximise or to minimise.
            constraints: limits whose values are the name of a reward model, or of a label, which counts the steps in
                its states.
            gamma: the discount factor.
            initial: as for `CMDP`; by default the initial state of the model.
            constants: values of the undefined constants of a PRISM or JANI file, as in "N=3" or {"N": 3}.

        Example:
            >>> import tempfile, pathlib, cmdpkit as ck
            >>> program = '''
            ... mdp
            ... module machine
            ...   worn : bool init false;
            ...   [run] !worn -> 0.9 : true + 0.1 : (worn'=true);
            ...   [repair] worn -> (worn'=false);
            ... endmodule
            ... rewards "output" [run] true : 1; endrewards
            ... label "down" = worn;
            ... '''
            >>> path = pathlib.Path(tempfile.mkdtemp(), "machine.prism")
            >>> _ = path.write_text(program)
            >>> cmdp = ck.CMDP.from_storm(path, reward="output", constraints=[ck.AtMost("down", 2.0)], gamma=0.9)
            >>> cmdp.state_labels, cmdp.action_labels
            (('worn=False', 'worn=True'), ('run', 'repair'))
        """
        from cmdpkit.model.storm import from_storm

        settings: dict[str, Any] = {"reward": reward, "cost": cost, "initial": initial, "constants": constants}
        return from_storm(cls, source, constraints=constraints, gamma=gamma, **settings)

    # -- ways out -----------------------------------------------------------------------------------------------

    def to_table(self, path: PathLike | None = None) -> dict[str, Any] | None:
        """The model as a tidy table, which `from_table` reads: a dict of columns, or a CSV file with `path`.

        The columns are state, action, next_state, probability, reward or cost, and one per limit, by its name. Numbers
        are written exactly. Limits, discount factor and initial distribution are not part of the table, and the labels
        in a file are text or whole numbers.
        """
        from cmdpkit.model.tables import to_table

        return to_table(self, path)

    def to_frame(self) -> Any:
        """The table of `to_table` as a pandas DataFrame."""
        from cmdpkit.model.tables import to_frame

        return to_frame(self)

    def to_drn(self, path: PathLike, initial: Any = None) -> None:
        """Write the model as a DRN file for the model checker Storm, with a reward model per limit.

        The format has one initial state: `initial`, or that of the model. It has no discount factor and no limits;
        they are mentioned in comments, like the labels of the states.
        """
        from cmdpkit.model.storm import to_drn

        to_drn(self, path, initial)

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the model to an `.npz` file, atomically and without pickle."""
        named, more = self.pairs.arrays(), self._extras()
        arrays: dict[str, Any] = {
            "version": np.array(3 if more else 2 if named else 1),
            "gamma": np.array(self.gamma),
            "initial": self.initial,
            "maximise": np.array(self.maximise),
            "objective": self.objective,
            "values": np.array([c.values for c in self.constraints]).reshape(-1, *self.pairs.shape),
            "limits": self.stated(self.limits),
            "at_least": self.stated(self.signs) < 0,
            "per_step": np.array([c.per_step for c in self.constraints], dtype=bool),
            "names": np.array(self.names, dtype=str),
            **named,
            **more,
        }
        if sp.issparse(self.transitions):
            matrix = self.transitions
            arrays |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        else:
            arrays["transitions"] = self.transitions
        save_arrays(path, "cmdpkit model", arrays)

    def _extras(self) -> dict[str, Any]:
        """For files: what models had not at first."""
        extras: dict[str, Any] = {"average": np.array(True)} if self.criterion == "average" else {}
        if self.horizon is not None:
            extras["horizon"] = np.array(self.horizon)
            extras["stages"] = np.array([-1 if c.stage is None else c.stage for c in self.constraints], dtype=int)
        if self.objective_name is not None:
            extras["objective_name"] = np.array(self.objective_name)
        if self.objective_per_step:
            extras["objective_per_step"] = np.array(True)
        if self.num_rows > self.num_constraints:
            # The least value allowed where it is not what `at_least` says; `limits` are then the largest ones.
            lows = [c.ends[0] if isinstance(c, (Equal, Between)) else np.nan for c in self.constraints]
            extras["lows"] = np.array(lows)
        return extras

    @classmethod
    def load(cls, path: PathLike) -> CMDP:
        """Read a model written by `save`, with all checks of the constructor."""
        arrays = load_arrays(path, "cmdpkit model")
        try:
            return cls._from_arrays(arrays)
        except KeyError as error:
            raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{path} does not hold a valid model: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> CMDP:
        if int(arrays["version"]) not in (1, 2, 3):
            raise ValueError(f"its format version is {arrays['version']}, this cmdpkit reads versions 1 to 3")
        objective = arrays["objective"]
        states = arrays["pair_first"].size - 1 if "pair_first" in arrays else len(objective)
        pairs = Pairs.from_arrays(arrays, states, objective.shape[-1])
        if objective.shape != pairs.shape:
            raise ValueError(f"its objective has shape {objective.shape}, not {pairs.shape}")
        if "transitions" in arrays:
            transitions = arrays["transitions"]
            transitions = transitions.reshape(states, -1, states) if pairs.is_full else transitions
        else:
            parts = (arrays["data"], arrays["indices"], arrays["indptr"])
            transitions = sp.csr_array(parts, shape=(pairs.count, states))
            transitions.check_format(full_check=True)
        columns = [arrays[name] for name in ("values", "limits", "names", "at_least", "per_step")]
        lows = arrays.get("lows", np.full(len(arrays["limits"]), np.nan))
        constraints = [_limit_from(*row) for row in zip(lows, *columns, strict=True)]
        if "stages" in arrays:
            stages = [None if t < 0 else int(t) for t in arrays["stages"]]
            constraints = [c.in_stage(t) for c, t in zip(constraints, stages, strict=True)]
        kind = "reward" if arrays["maximise"] else "cost"
        return cls(
            transitions,
            constraints=constraints,
            **_stored_criterion(arrays),
            initial=arrays["initial"],
            available=None if pairs.is_full else pairs.sparse_mask,
            state_labels=pairs.state_labels,
            action_labels=pairs.action_labels,
            objective_name=str(arrays["objective_name"]) if "objective_name" in arrays else None,
            objective_per_step=bool(arrays.get("objective_per_step", False)),
            action_axis=1,
            **{kind: objective},
        )


def refuse_averages(problem: Problem, what: str) -> None:
    """What knows discounted models only says so."""
    if problem.criterion == "average":
        raise ValueError(
            f"{what} knows discounted models only, and this model has average=True; solve it with 'auto', 'columns', "
            "'lp' or 'pmd-pd', or give it a gamma close to 1"
        )


def _limit_from(low: Any, values: Any, limit: Any, name: Any, at_least: Any, per_step: Any) -> Limit:
    """A limit as `CMDP.save` writes it."""
    rest: dict[str, Any] = {"name": str(name), "per_step": bool(per_step)}
    if np.isnan(low):
        return (AtLeast if at_least else AtMost)(values, float(limit), **rest)
    return Equal(values, float(limit), **rest) if low == limit else Between(values, float(low), float(limit), **rest)


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


def _stored_criterion(arrays: dict[str, Any]) -> dict[str, Any]:
    if "average" in arrays:
        return {"average": True}
    return {"gamma": float(arrays["gamma"]), "horizon": int(arrays["horizon"]) if "horizon" in arrays else None}


def check_model(cmdp: Any) -> None:
    if not isinstance(cmdp, CMDP):
        raise TypeError(f"a cmdpkit.CMDP is needed, not {type(cmdp).__name__}")


def _check_criterion(gamma: Any, horizon: Any, average: Any) -> tuple[str, float, int | None]:
    """The criterion, its discount factor and its horizon. A long-run average has no discount: 1 in all look-aheads."""
    if not isinstance(average, (bool, np.bool_)):
        raise TypeError(f"average must be True or False, not {average!r}")
    if average and (gamma is not None or horizon is not None):
        other, what = (f"gamma={gamma!r}", "discount") if horizon is None else (f"horizon={horizon!r}", "horizon")
        raise ValueError(f"a long-run average has no {what}: leave out {other}, or average=True. {ONE_CRITERION}")
    if average:
        return "average", 1.0, None
    if horizon is not None:
        steps = check_count(horizon, "horizon", least=1)
        whole = gamma is None or check_number(gamma, "gamma") == 1.0
        return "horizon", 1.0 if whole else check_gamma(gamma), steps
    if gamma is None:
        raise TypeError(
            "gamma is needed: a discount factor below 1, or 1 for totals until the process ends; or horizon, a number "
            "of steps; or average=True for long-run averages"
        )
    return ("total", 1.0, None) if check_number(gamma, "gamma") == 1.0 else ("discounted", check_gamma(gamma), None)


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


def _check_constraints(constraints: Any, cmdp: CMDP) -> tuple[Limit, ...]:
    """Check the limits and their tables of values."""
    limits = check_limits(constraints)
    for limit in limits:
        _check_criterion_of(limit, cmdp.criterion, cmdp.gamma, cmdp.horizon)
    tables = [check_table(c.values, cmdp.pairs, cmdp.transitions, f"constraint {c.name!r}") for c in limits]
    return tuple(replace(limit, values=table) for limit, table in zip(limits, tables, strict=True))


def _check_criterion_of(limit: Limit, criterion: str, gamma: float, horizon: int | None) -> None:
    """Check that a limit is one on the model's criterion."""
    if limit.per_step and criterion in ("total", "horizon"):
        hint = "multiply the limit by the horizon" if criterion == "horizon" else "state a limit on the total"
        raise ValueError(
            f"constraint {limit.name!r} has per_step=True, a limit on (1 - gamma) times a discounted sum; {hint}"
        )
    if limit.stage is None:
        return
    if horizon is None:
        raise ValueError(
            f"constraint {limit.name!r} is for stage {limit.stage}, but the model has no stages: give horizon"
        )
    if limit.stage >= horizon:
        raise ValueError(f"constraint {limit.name!r} is for stage {limit.stage}; the stages are 0 to {horizon - 1}")
    if gamma < 1.0:
        raise ValueError(
            f"constraint {limit.name!r} is for one stage, whose value is not discounted; with gamma = {gamma:g} "
            "leave out stage, or gamma"
        )
