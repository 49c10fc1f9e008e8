"""The model: a constrained Markov decision process, validated when it is created and immutable afterwards.

Users state rewards to maximise or costs to minimise, and limits of either sense. Inside the package there is one sign
convention, that of the paper (eq. cmdp):

    minimise V_0(π)  subject to  V_i(π) ≤ 0,  i = 1..m

with V_0 = V_cost (or −V_reward), and V_i = value − limit for `AtMost`, limit − value for `AtLeast`, all in the
user's units. `Equal` and `Between` are one of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cmdpkit.checks import (
    CostArray,
    CostTable,
    PairTable,
    StateArray,
    check_initial,
    freeze,
    refreeze,
)
from cmdpkit.files import PathLike
from cmdpkit.model.absorbing import until_absorbed
from cmdpkit.model.criterion import check_criterion, check_limit_criterion
from cmdpkit.model.labels import Label
from cmdpkit.model.limits import Limit, check_limits
from cmdpkit.model.pairs import initial_state
from cmdpkit.model.quantities import check_table, compact
from cmdpkit.model.stages import band_of, forward_blocks, like_shapes, over_stages
from cmdpkit.model.storage import load_model, save_model
from cmdpkit.model.transitions import check_pairs, check_row_sums, longest_row_of
from cmdpkit.model.variants import Variants, one_objective
from cmdpkit.model.ways_in import WaysIn, spell_out
from cmdpkit.model.ways_out import WaysOut

LARGEST_VALUE = 1e150
"""Largest value allowed: the product of two values must not overflow."""


class Lowering(NamedTuple):
    """The discounted model with the same policies and values as one with another criterion."""

    model: Any  # ScaledCMDP: its values from the start, multipliers and policies are those of the original
    sizes: StateArray  # w / W of its states, 0 where the process has ended: V = sizes · V', visits x = x' / sizes


class CMDP(WaysIn, WaysOut, Variants):
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
        kind, table = one_objective(reward, cost)
        self.criterion, self.gamma, self.horizon = check_criterion(gamma, horizon, average)
        settings = (available, state_labels, action_labels, action_axis)
        self.transitions, self.pairs = check_pairs(transitions, self.horizon, settings)
        self.states, self.actions = self.pairs.states, self.pairs.actions
        discount = self.gamma if self.criterion == "discounted" else 0.0
        self.row_sums = check_row_sums(self.transitions, discount, self.pairs)
        self.longest_row = longest_row_of(self.transitions)
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
            return self.costs[row].reshape(np.shape(table)) if same else compact(table)

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

    @cached_property
    def blocks(self) -> tuple[int, ...] | None:
        """Where the blocks begin whose states lead to later blocks only; None if there are no such blocks."""
        return None if self.criterion == "average" else forward_blocks(self.transitions, self.pairs)

    @cached_property
    def band(self) -> tuple[int, int] | None:
        """By how much the numbers of following states are smaller and larger, at most; None for dense models."""
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


class ScaledCMDP(CMDP):
    """A discounted model that was computed from another one (`CMDP.lowering`)."""

    entry_error = 4
    _sums = "costs times the expected number of steps"


def check_model(cmdp: Any) -> None:
    if not isinstance(cmdp, CMDP):
        raise TypeError(f"a cmdpkit.CMDP is needed, not {type(cmdp).__name__}")


def _check_constraints(constraints: Any, cmdp: CMDP) -> tuple[Limit, ...]:
    """Check the limits and their tables of values."""
    limits = check_limits(constraints)
    for limit in limits:
        check_limit_criterion(limit, cmdp.criterion, cmdp.gamma, cmdp.horizon)
    known = (cmdp.pairs, cmdp.transitions)
    tables = [check_table(c.values, *known, f"constraint {c.name!r}", cmdp.horizon) for c in limits]
    return tuple(replace(limit, values=table) for limit, table in zip(limits, tables, strict=True))
