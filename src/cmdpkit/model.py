"""The model: a constrained Markov decision process, validated at the door and frozen after it.

Users state rewards to maximise or costs to minimise, and limits of either sense. Everything inside the
package sees one convention, that of the paper (eq. cmdp):

    minimise V_0(π)  subject to  V_i(π) ≤ 0,  i = 1..m

with V_0 = V_cost (or −V_reward), and V_i = value − limit for `AtMost`, limit − value for `AtLeast`, all in the
user's units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from cmdpkit.checks import (
    Array,
    check_gamma,
    check_initial,
    check_number,
    check_rows,
    check_table,
    check_transitions,
    freeze,
    longest_row,
)
from cmdpkit.files import PathLike, load_arrays, save_arrays

LARGEST_VALUE = 1e150
"""No value may be larger: products of two of them must not overflow."""


@dataclass(frozen=True, eq=False)
class Limit:
    """A limit on the expected discounted sum of `values` (S, A); see `AtMost` and `AtLeast`."""

    values: ArrayLike | None  # None only for a simulator, which measures them itself
    limit: float
    name: str | None = None
    per_step: bool = False

    sign: ClassVar[float]  # +1 where more is worse, −1 where less is worse
    symbol: ClassVar[str]


class AtMost(Limit):
    """The expected discounted sum of `values` must not exceed `limit`.

    With `per_step=True` the limit bounds (1 − γ) times that sum: the average per step, weighted by the discount.
    """

    sign = 1.0
    symbol = "<="


class AtLeast(Limit):
    """The expected discounted sum of `values` must reach `limit`. See `AtMost` for `per_step`."""

    sign = -1.0
    symbol = ">="


class Statement:
    """What a model and a simulator have in common: sizes, the sense of the objective, and the limits.

    `units` (m + 1,) turn the user's quantities into the convention's costs, c_i = units_i · quantity_i: the sign of the
    objective or limit, times 1 − γ for a limit per step. `offsets` (m,) are what V_i is measured from.
    """

    states: int
    actions: int
    gamma: float
    maximise: bool
    constraints: tuple[Limit, ...]

    def _state(self) -> None:
        self.num_constraints = len(self.constraints)
        self.signs: Array = freeze(np.array([c.sign for c in self.constraints], dtype=float))
        self.limits: Array = freeze(np.array([c.limit for c in self.constraints], dtype=float))
        self.offsets: Array = freeze(self.signs * self.limits)
        # A limit per step bounds (1 − γ) V, so that factor goes into the cost.
        per_step = [c.sign * (1.0 - self.gamma if c.per_step else 1.0) for c in self.constraints]
        self.units: Array = freeze(np.array([self.sense, *per_step]))

    @property
    def names(self) -> list[str]:
        """The constraints' names, in order."""
        return [str(c.name) for c in self.constraints]

    @property
    def sense(self) -> float:
        """−1 for a reward, +1 for a cost: user's objective = sense · V_0."""
        return -1.0 if self.maximise else 1.0

    def user_objective(self, v_0: float) -> float:
        return self.sense * v_0 + 0.0  # + 0.0 turns −0.0 into 0.0

    def user_constraint_values(self, v: Array) -> Array:
        """From V_i (feasible: ≤ 0) to the values that the user compares with the limits."""
        return self.signs * (v + self.offsets)

    def violations(self, v: Array) -> Array:
        return np.maximum(v, 0.0)

    @property
    def tolerance_scales(self) -> Array:
        """A violation is measured relative to max(1, |limit|)."""
        return np.maximum(1.0, np.abs(self.limits))

    def __repr__(self) -> str:
        sizes = f"states={self.states}, actions={self.actions}"
        return f"{type(self).__name__}({sizes}, constraints={self.names}, gamma={self.gamma})"


class CMDP(Statement):
    """A constrained Markov decision process with S states, A actions and m constraints.

    Args:
        transitions: P(s' | s, a), as an (S, A, S) array or as a scipy.sparse (S·A, S) matrix with row s·A + a.
        reward: (S, A) array to maximise the discounted sum of; or
        cost: (S, A) array to minimise the discounted sum of. Give exactly one of the two.
        constraints: any number of `AtMost` and `AtLeast`.
        gamma: the discount factor, in [0, 1).
        initial: distribution of the first state (S,), or the index of the first state; uniform by default.

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
        gamma: float,
        initial: Any = None,
    ) -> None:
        if (reward is None) == (cost is None):
            given = "both" if reward is not None else "neither"
            raise ValueError(f"exactly one of reward (maximised) and cost (minimised) is needed; {given} was given")
        self.gamma = check_gamma(gamma)
        self.transitions, self.states, self.actions = check_transitions(transitions)
        self.row_sums = check_rows(self.transitions, self.actions, self.gamma)
        self.longest_row = longest_row(self.transitions)
        shape = (self.states, self.actions)
        self.maximise = reward is not None
        self.objective = check_table(reward if self.maximise else cost, shape, "reward" if self.maximise else "cost")
        self.constraints = _check_constraints(constraints, shape)
        self.initial = check_initial(initial, self.states)
        self._state()
        # The paper's convention: costs (m + 1, S·A) with V_i = ⟨costs_i⟩ − offset_i
        tables = np.stack([self.objective, *(np.asarray(c.values) for c in self.constraints)])
        self.costs: Array = freeze(self.units[:, None] * tables.reshape(self.num_constraints + 1, -1))
        self.cost_sizes: Array = freeze(np.maximum(self.costs.max(axis=1), -self.costs.min(axis=1)))  # max |c_i|
        # max − min of each of the m + 1 costs over all (s, a): how much a single step can matter
        self.spans: Array = freeze(np.ptp(self.costs, axis=1))
        self._check_range()
        self._frozen = True

    def _check_range(self) -> None:
        """Values and their squares must fit into a floating-point number."""
        sizes = np.append(
            self.cost_sizes.max() / LARGEST_VALUE / (1.0 - self.gamma), np.abs(self.limits) / LARGEST_VALUE
        )
        if sizes.max() > 1.0:
            raise ValueError(f"costs / (1 - gamma) and limits must not exceed {LARGEST_VALUE:g}; use a larger unit")

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"a CMDP is frozen; make a new one instead of setting {name!r}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CMDP is frozen; {name!r} cannot be deleted")

    @property
    def fine_scales(self) -> Array:
        """What `tol` is relative to in solvers: like the user's definition, but no coarser than the costs themselves.

        Costs of size 1e-6 would otherwise be solved only to the absolute accuracy `tol`.
        """
        return np.minimum(1.0, self.spans).clip(min=np.append(0.0, np.abs(self.limits)))

    def proof_scale(self, objective: float) -> float:
        """What `tol` is relative to in the gap of a policy with this objective."""
        return max(abs(objective), float(self.fine_scales[0]))

    def tightened(self, margin: float | Array) -> CMDP:
        """The model of eq. cmdp_zero: every limit moved inwards by `margin`, one number or one a constraint."""
        margins = np.broadcast_to(np.asarray(margin, dtype=float), (self.num_constraints,))
        moved = [
            type(c)(c.values, c.limit - c.sign * float(delta), c.name, c.per_step)
            for c, delta in zip(self.constraints, margins, strict=True)
        ]
        kind = "reward" if self.maximise else "cost"
        shape = (self.states, self.actions, self.states)
        transitions = self.transitions if sp.issparse(self.transitions) else self.transitions.reshape(shape)
        return CMDP(transitions, constraints=moved, gamma=self.gamma, initial=self.initial, **{kind: self.objective})

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write the model to an `.npz` file (no pickle), whole or not at all."""
        arrays: dict[str, Any] = {
            "version": np.array(1),
            "gamma": np.array(self.gamma),
            "initial": self.initial,
            "maximise": np.array(self.maximise),
            "objective": self.objective,
            "values": np.array([c.values for c in self.constraints]).reshape(-1, self.states, self.actions),
            "limits": self.limits,
            "at_least": self.signs < 0,
            "per_step": np.array([c.per_step for c in self.constraints], dtype=bool),
            "names": np.array(self.names, dtype=str),
        }
        if sp.issparse(self.transitions):
            matrix = self.transitions
            arrays |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        else:
            arrays["transitions"] = self.transitions
        save_arrays(path, "cmdpkit model", arrays)

    @classmethod
    def load(cls, path: PathLike) -> CMDP:
        """Read a model written by `save`; every check of the constructor is made again."""
        arrays = load_arrays(path, "cmdpkit model")
        try:
            return cls._from_arrays(arrays)
        except KeyError as error:
            raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{path} does not hold a valid model: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Any]) -> CMDP:
        if int(arrays["version"]) != 1:
            raise ValueError(f"its format version is {arrays['version']}, this cmdpkit reads version 1")
        objective = arrays["objective"]
        states, actions = objective.shape
        if "transitions" in arrays:
            transitions = arrays["transitions"].reshape(states, actions, states)
        else:
            parts = (arrays["data"], arrays["indices"], arrays["indptr"])
            transitions = sp.csr_array(parts, shape=(states * actions, states))
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
            initial=arrays["initial"],
            **{kind: objective},
        )


def check_model(cmdp: Any) -> None:
    if not isinstance(cmdp, CMDP):
        raise TypeError(f"a cmdpkit.CMDP is needed, not {type(cmdp).__name__}")


def _check_constraints(constraints: Any, shape: tuple[int, int]) -> tuple[Limit, ...]:
    """Limits with a table of values each."""
    return tuple(
        replace(limit, values=check_table(limit.values, shape, f"constraint {limit.name!r}"))
        for limit in check_limits(constraints)
    )


def check_limits(constraints: Any) -> tuple[Limit, ...]:
    """Limits with a name, a finite limit and a truth value `per_step` each; their values are not looked at."""
    if isinstance(constraints, Limit) or not isinstance(constraints, Iterable):
        raise TypeError(f"constraints must be a list: constraints=[AtMost(...)], not {type(constraints).__name__}")
    checked: list[Limit] = []
    for i, constraint in enumerate(constraints):
        if not isinstance(constraint, (AtMost, AtLeast)):
            raise TypeError(f"constraint {i} is a {type(constraint).__name__}; use cmdpkit.AtMost or cmdpkit.AtLeast")
        name = constraint.name if constraint.name is not None else f"constraint {i + 1}"
        if not isinstance(name, str) or not name or "\0" in name:
            raise TypeError(f"the name of constraint {i} must be a non-empty string, not {name!r}")
        if not isinstance(constraint.per_step, (bool, np.bool_)):
            raise TypeError(f"per_step of constraint {name!r} must be True or False, not {constraint.per_step!r}")
        limit = check_number(constraint.limit, f"the limit of constraint {name!r}")
        checked.append(type(constraint)(constraint.values, limit, name, bool(constraint.per_step)))
    names = [c.name for c in checked]
    twice = sorted({str(n) for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"constraint names must differ; used more than once: {', '.join(map(repr, twice))}")
    return tuple(checked)
