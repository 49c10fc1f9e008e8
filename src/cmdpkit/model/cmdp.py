"""The model: a constrained Markov decision process, validated when it is created and immutable afterwards.

Users state rewards to maximise or costs to minimise, and limits of either sense. Inside the package there is one sign
convention, that of the paper (eq. cmdp):

    minimise V_0(π)  subject to  V_i(π) ≤ 0,  i = 1..m

with V_0 = V_cost (or −V_reward), and V_i = value − limit for `AtMost`, limit − value for `AtLeast`, all in the
user's units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
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
from cmdpkit.model.limits import AtLeast, AtMost, Limit, check_limits
from cmdpkit.model.pairs import Label, Pairs, check_available, check_labels, check_table, initial_state
from cmdpkit.model.problem import Problem
from cmdpkit.model.stages import over_stages

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
        reward: (S, A) array whose discounted sum is maximised; or
        cost: (S, A) array whose discounted sum is minimised. Give exactly one of the two. Also (S,), the same for all
            actions; (S, A, S), which may depend on the next state; or (N,), one number per available pair.
        constraints: any number of `AtMost` and `AtLeast`, with values of the same shapes.
        gamma: the discount factor, in [0, 1); or 1 for totals until the process ends, which every policy must reach: a
            set of states that are never left and cost nothing.
        horizon: T, for totals over T steps (discounted if gamma is given). The policy then has a table for each step.
        initial: distribution of the initial state, as (S,) or {state: probability}, or a single state; uniform by
            default.
        available: (S, A) booleans, or a scipy.sparse (S, A) matrix whose stored entries are the available pairs. What
            the other arrays hold at a missing pair does not matter. All are available by default.
        state_labels, action_labels: what states and actions are called: strings, tuples, anything hashable.

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
        initial: Any = None,
        available: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
    ) -> None:
        if (reward is None) == (cost is None):
            given = "both were" if reward is not None else "neither was"
            raise ValueError(f"exactly one of reward (maximised) and cost (minimised) is needed; {given} given")
        self.criterion, self.gamma, self.horizon = _check_criterion(gamma, horizon)
        self.transitions, self.pairs = _check_pairs(transitions, available, state_labels, action_labels)
        self.states, self.actions = self.pairs.states, self.pairs.actions
        discount = self.gamma if self.criterion == "discounted" else 0.0
        self.row_sums = check_rows(self.transitions, discount, self.pairs.pair_name, self.pairs.state_name)
        self.longest_row = longest_row(self.transitions)
        self.maximise = reward is not None
        kind, table = ("reward", reward) if self.maximise else ("cost", cost)
        self.objective: PairTable = check_table(table, self.pairs, self.transitions, kind)
        self.constraints = _check_constraints(constraints, self.pairs, self.transitions, self.criterion)
        self.initial: StateArray = check_initial(initial_state(initial, self.pairs), self.states)
        self._set_units()
        # Internal sign convention: costs (m + 1, N) with V_i = ⟨costs_i⟩ − offset_i
        tables = np.stack([self.objective, *(np.asarray(c.values) for c in self.constraints)])
        self.costs: CostTable = freeze(self.units[:, None] * tables.reshape(self.num_constraints + 1, -1))
        self.cost_sizes: CostArray = freeze(np.maximum(self.costs.max(axis=1), -self.costs.min(axis=1)))  # max |c_i|
        # max − min of each of the m + 1 costs over all (s, a): how much a single step can matter
        self.spans: CostArray = freeze(np.ptp(self.costs, axis=1))
        self.lowering = self._lowered()
        if self.lowering is None:
            self._check_range()
        self._frozen = True

    entry_error: ClassVar[int] = 0
    """By how many EPS the stored probabilities and costs may be off, each relative to itself; bounds count them."""

    def _lowered(self) -> Lowering | None:
        """The discounted model that has the same values, for the other criteria."""
        if self.criterion == "discounted":
            return None
        if self.horizon is None:
            scaled = until_absorbed(self.transitions, self.pairs, self.costs, self.initial)
        else:
            scaled = over_stages(self.transitions, self.pairs, self.initial, self.gamma, self.horizon)
        settings: dict[str, Any] = {"reward" if self.maximise else "cost": scaled.table(self.objective)}
        model = ScaledCMDP(
            scaled.transitions,
            constraints=[replace(c, values=scaled.table(np.asarray(c.values))) for c in self.constraints],
            gamma=scaled.beta,
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

    def _check_range(self) -> None:
        """Check that values and their squares do not overflow."""
        sizes = np.append(
            self.cost_sizes.max() / LARGEST_VALUE / (1.0 - self.gamma), np.abs(self.limits) / LARGEST_VALUE
        )
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
        """(m + 1,) what `tol` is relative to in solvers: as the user's definition, but no coarser than the costs.

        Costs of size 1e-6 would otherwise be solved only to the absolute accuracy `tol`.
        """
        return np.minimum(1.0, self.spans).clip(min=np.append(0.0, np.abs(self.limits)))

    def proof_scale(self, objective: float) -> float:
        """What `tol` is relative to in the gap of a policy with the given objective."""
        return max(abs(objective), float(self.fine_scales[0]))

    def tightened(self, margin: float | ConstraintArray) -> CMDP:
        """The model of eq. cmdp_zero: every limit moved inwards by `margin`, one number or one per constraint."""
        margins = np.broadcast_to(np.asarray(margin, dtype=float), (self.num_constraints,))
        moved = [
            type(c)(c.values, c.limit - c.sign * float(delta), c.name, c.per_step)
            for c, delta in zip(self.constraints, margins, strict=True)
        ]
        return self._with(self.objective, moved)

    @property
    def is_extreme(self) -> bool:
        """Whether products and quotients of the costs' sizes may leave the range of floating-point numbers."""
        sizes = self.cost_sizes[self.cost_sizes > 0.0]
        return bool(sizes.size and (sizes.min() < 1.0 / LARGEST_RATIO or sizes.max() > LARGEST_RATIO))

    def balanced(self) -> tuple[CMDP, Any]:
        """The same model with every cost divided by a power of two near its size, and those powers (m + 1,).

        Policies are the same, values are divided exactly. A cost and its limit share the power.
        """
        tables = [self.objective, *(np.asarray(c.values) for c in self.constraints)]
        sizes = np.array([np.abs(table).max() for table in tables])
        # A limit may be larger than its cost, but not by so much that quotients overflow
        sizes[1:] = np.maximum(sizes[1:], np.abs(self.limits) / LARGEST_RATIO)
        exponents = np.where(sizes > 0.0, np.frexp(np.where(sizes > 0.0, sizes, 1.0))[1], 0)
        even = [np.ldexp(table, -exponent) for table, exponent in zip(tables, exponents, strict=True)]
        limits = [
            type(c)(table, float(np.ldexp(c.limit, -exponent)), c.name, c.per_step)
            for c, table, exponent in zip(self.constraints, even[1:], exponents[1:], strict=True)
        ]
        return self._with(even[0], limits), exponents

    def _with(self, objective: PairTable, constraints: Iterable[Limit]) -> CMDP:
        """The same model with another objective, of the same sense, and other constraints."""
        pairs, transitions = self.pairs, self.transitions
        if pairs.is_full and not sp.issparse(transitions):
            transitions = transitions.reshape(self.states, self.actions, self.states)
        settings: dict[str, Any] = {"reward" if self.maximise else "cost": objective}
        return type(self)(
            transitions,
            constraints=constraints,
            gamma=self.gamma,
            horizon=self.horizon,
            initial=self.initial,
            available=None if pairs.is_full else pairs.sparse_mask,
            state_labels=pairs.state_labels,
            action_labels=pairs.action_labels,
            **settings,
        )

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the model to an `.npz` file, atomically and without pickle."""
        named = self.pairs.arrays()
        arrays: dict[str, Any] = {
            "version": np.array(3 if self.horizon is not None else 2 if named else 1),
            "gamma": np.array(self.gamma),
            "initial": self.initial,
            "maximise": np.array(self.maximise),
            "objective": self.objective,
            "values": np.array([c.values for c in self.constraints]).reshape(-1, *self.pairs.shape),
            "limits": self.limits,
            "at_least": self.signs < 0,
            "per_step": np.array([c.per_step for c in self.constraints], dtype=bool),
            "names": np.array(self.names, dtype=str),
            **named,
            **({} if self.horizon is None else {"horizon": np.array(self.horizon)}),
        }
        if sp.issparse(self.transitions):
            matrix = self.transitions
            arrays |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        else:
            arrays["transitions"] = self.transitions
        save_arrays(path, "cmdpkit model", arrays)

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
        columns = ("values", "limits", "names", "at_least", "per_step")
        constraints = [
            (AtLeast if at_least else AtMost)(values, float(limit), name=str(name), per_step=bool(per_step))
            for values, limit, name, at_least, per_step in zip(*(arrays[c] for c in columns), strict=True)
        ]
        kind = "reward" if arrays["maximise"] else "cost"
        return cls(
            transitions,
            constraints=constraints,
            gamma=float(arrays["gamma"]),
            horizon=int(arrays["horizon"]) if "horizon" in arrays else None,
            initial=arrays["initial"],
            available=None if pairs.is_full else pairs.sparse_mask,
            state_labels=pairs.state_labels,
            action_labels=pairs.action_labels,
            **{kind: objective},
        )


class ScaledCMDP(CMDP):
    """A discounted model that was computed from another one (`CMDP.lowering`)."""

    entry_error = 4
    _sums = "costs times the expected number of steps"


def check_model(cmdp: Any) -> None:
    if not isinstance(cmdp, CMDP):
        raise TypeError(f"a cmdpkit.CMDP is needed, not {type(cmdp).__name__}")


def _check_criterion(gamma: Any, horizon: Any) -> tuple[str, float, int | None]:
    """The criterion, its discount factor and its horizon."""
    if horizon is not None:
        steps = check_count(horizon, "horizon", least=1)
        whole = gamma is None or check_number(gamma, "gamma") == 1.0
        return "horizon", 1.0 if whole else check_gamma(gamma), steps
    if gamma is None:
        raise TypeError(
            "gamma is needed: a discount factor below 1, or 1 for totals until the process ends; or horizon, a number "
            "of steps"
        )
    return ("total", 1.0, None) if check_number(gamma, "gamma") == 1.0 else ("discounted", check_gamma(gamma), None)


def _check_pairs(transitions: Any, available: Any, state_labels: Any, action_labels: Any) -> tuple[Any, Pairs]:
    """The transitions with one row per available pair, and those pairs."""
    matrix, states, actions = check_transitions(transitions, available is not None)
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


def _check_constraints(constraints: Any, pairs: Pairs, transitions: Any, criterion: str) -> tuple[Limit, ...]:
    """Check the limits and their tables of values."""
    limits = check_limits(constraints)
    for limit in limits:
        if limit.per_step and criterion != "discounted":
            hint = "multiply the limit by the horizon" if criterion == "horizon" else "state a limit on the total"
            raise ValueError(
                f"constraint {limit.name!r} has per_step=True, a limit on (1 - gamma) times a discounted sum; {hint}"
            )
    return tuple(
        replace(limit, values=check_table(limit.values, pairs, transitions, f"constraint {limit.name!r}"))
        for limit in limits
    )
