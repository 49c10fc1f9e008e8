"""The state-action pairs of a model, in the order of states and then actions, and what they are called.

A number for every pair is an array of shape (S, A) where all actions are available everywhere, and (N,) where only N
pairs exist: memory and time follow the pairs. Both have the same pairs in the same order, so elementwise arithmetic is
the same, and what differs (sums over the actions of a state, say) is written here and nowhere else.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, PairTable, refreeze
from cmdpkit.model.labels import Label, index_of, is_hashable, labels_from_json, labels_to_json

SHORT, MANY = 16, 500
"""At least MANY rows of at most SHORT numbers are compared 3 to 50 times as fast column by column."""


class Pairs:
    """Which actions are available in which states.

    Args:
        states, actions: how many there are.
        first: (S + 1,) where the pairs of each state begin; None if all actions are available everywhere.
        action: (N,) the action of each pair, increasing within a state.
        state_labels, action_labels: what the states and actions are called; None for their numbers.
    """

    def __init__(
        self,
        states: int,
        actions: int,
        first: Any = None,
        action: Any = None,
        state_labels: tuple[Label, ...] | None = None,
        action_labels: tuple[Label, ...] | None = None,
    ) -> None:
        self.states, self.actions = states, actions
        self.state_labels, self.action_labels = state_labels, action_labels
        self.is_full = first is None
        self._first, self._action = refreeze(first), refreeze(action)
        self.count: int = states * actions if first is None else int(first[-1])
        self.shape: tuple[int, ...] = (states, actions) if first is None else (self.count,)
        self._heads: Any = None
        self._state: Any = None
        self._keys: Any = None  # s·A + a of each pair

    @property
    def first(self) -> Any:
        """(S + 1,) where the pairs of each state begin."""
        return np.arange(self.states + 1) * self.actions if self._first is None else self._first

    @property
    def action(self) -> Any:
        """(N,) the action of each pair."""
        return np.tile(np.arange(self.actions), self.states) if self._action is None else self._action

    @property
    def state(self) -> Any:
        """(N,) the state of each pair."""
        if self.is_full:
            return np.repeat(np.arange(self.states), self.actions)
        if self._state is None:
            self._state = refreeze(np.repeat(np.arange(self.states, dtype=np.int32), np.diff(self._first)))
        return self._state

    def of(self, rows: Any) -> tuple[Any, Any]:
        """The states and the actions of some pairs."""
        if self.is_full:
            return rows // self.actions, rows % self.actions
        return self.state[rows].astype(np.int64), self._action[rows].astype(np.int64)

    def find(self, states: Any, actions: Any) -> Any:
        """The pairs of some states and actions, which must exist."""
        keys = np.asarray(states, dtype=np.int64) * self.actions + actions
        if self.is_full:
            return keys
        if self._keys is None:
            self._keys = self.state.astype(np.int64) * self.actions + self._action
        return np.searchsorted(self._keys, keys)

    @property
    def heads(self) -> Any:
        """`first` for compiled code, kept."""
        if self._heads is None:
            self._heads = refreeze(self.first.astype(np.int64, copy=False))
        return self._heads

    @property
    def largest(self) -> int:
        """The largest number of actions in a state."""
        return self.actions if self.is_full else int(np.diff(self._first).max())

    # -- arithmetic over the actions of each state --------------------------------------------------------------

    def like(self, values: Array) -> PairTable:
        """An array with one row per pair, in the shape of a pair table."""
        return np.asarray(values.reshape(*self.shape, *values.shape[1:]))

    def sum(self, table: PairTable) -> Any:
        if self.is_full:
            return np.einsum("sa...->s...", table)  # four times as fast as table.sum(axis=1) for few actions
        return np.add.reduceat(table, self._first[:-1], axis=0)

    def max(self, table: PairTable) -> Any:
        return _fold(np.maximum, table) if self.is_full else np.maximum.reduceat(table, self._first[:-1], axis=0)

    def min(self, table: PairTable) -> Any:
        return _fold(np.minimum, table) if self.is_full else np.minimum.reduceat(table, self._first[:-1], axis=0)

    def argmin(self, table: PairTable) -> Any:
        """(S,) which of a state's own actions is least, counted from 0; the first of several."""
        if self.is_full:
            return table.argmin(axis=1)
        least = np.flatnonzero(table == self.over(self.min(table)))  # at least one pair in every state
        return self.rank(least[np.searchsorted(least, self._first[:-1])])

    def over(self, values: Array) -> Any:
        """A number per state, such that it combines with pair tables."""
        return values[:, None] if self.is_full else values[self.state]

    def expect(self, probabilities: PairTable, tables: Array) -> Array:
        """(S, n) Σ_a π(a|s) c_i(s, a) of n tables, given as (n, N)."""
        if self.is_full and self.count < MANY:
            return np.asarray(np.einsum("isa,sa->si", tables.reshape(-1, *self.shape), probabilities))
        expected = np.empty((self.states, len(tables)))
        for table, column in zip(tables, expected.T, strict=True):  # no product of large tables is kept
            if self.is_full:
                np.einsum("sa,sa->s", table.reshape(self.shape), probabilities, out=column)
            else:
                column[:] = np.add.reduceat(table * probabilities, self._first[:-1])
        return expected

    def mean(self, table: Array) -> Array:
        """(S,) the mean over the actions of each state, from a table (N,)."""
        if self.is_full:
            return np.asarray(self.sum(self.like(table)) / self.actions)
        return np.asarray(np.add.reduceat(table, self._first[:-1]) / np.diff(self._first))

    # -- choices: one of each state's own actions, counted from 0 ------------------------------------------------

    def rows(self, choice: Any) -> Any:
        """(S,) the pairs of a deterministic choice."""
        return (self.heads if self.is_full else self._first)[:-1] + choice

    def at(self, tables: Array, choice: Any) -> Array:
        """(S, n) the entries of n tables, given as (n, N), at a deterministic choice."""
        rows, found = self.rows(choice), np.empty((self.states, len(tables)))
        for table, column in zip(tables, found.T, strict=True):
            column[:] = table[rows]
        return found

    def rank(self, rows: Any) -> Any:
        """(S,) the choice whose pairs are `rows`."""
        return rows - (np.arange(self.states) * self.actions if self.is_full else self._first[:-1])

    def one_hot(self, choice: Any) -> PairTable:
        """The probabilities of a deterministic choice."""
        flat = np.zeros(self.count)
        flat[self.rows(choice)] = 1.0
        return self.like(flat)

    def uniform(self) -> PairTable:
        if self.is_full:
            return np.full(self.shape, 1.0 / self.actions)
        return np.asarray(1.0 / self.over(np.diff(self._first).astype(float)))

    # -- tables for people --------------------------------------------------------------------------------------

    def table(self, values: PairTable, missing: float) -> PairTable:
        """(S, A), with `missing` where there is no pair."""
        if self.is_full:
            return values.reshape(self.states, self.actions)
        table = np.full((self.states, self.actions), missing)
        table[self.state, self._action] = values
        return table

    def taken(self, table: Array) -> PairTable:
        """The entries of an (S, A) table at the pairs that exist."""
        return table if self.is_full else table[self.state, self._action]

    @property
    def mask(self) -> Any:
        """(S, A) booleans: is the action available?"""
        return self.table(np.ones(self.shape), 0.0) > 0.0

    @property
    def sparse_mask(self) -> Any:
        """The same as a sparse matrix whose stored entries are the pairs."""
        return sp.csr_array(
            (np.ones(self.count, dtype=bool), self.action, self.first), shape=(self.states, self.actions)
        )

    def same(self, other: Pairs) -> bool:
        """Whether both have the same pairs, whatever they are called."""
        if self is other or (self.states, self.actions) != (other.states, other.actions):
            return self is other
        if self.is_full or other.is_full:
            return self.is_full and other.is_full
        return np.array_equal(self._first, other._first) and np.array_equal(self._action, other._action)

    # -- names --------------------------------------------------------------------------------------------------

    def state_name(self, state: int) -> str:
        """How messages call a state: its number, or its label."""
        return str(int(state)) if self.state_labels is None else repr(self.state_labels[int(state)])

    def action_name(self, action: int) -> str:
        return str(int(action)) if self.action_labels is None else repr(self.action_labels[int(action)])

    def pair_name(self, row: int) -> str:
        state = int(np.searchsorted(self.first, row, "right")) - 1
        action = row % self.actions if self.is_full else self._action[row]
        return f"state {self.state_name(state)}, action {self.action_name(action)}"

    def state_index(self, label: Any) -> int:
        """The number of a state, given its label; without labels, its number."""
        return index_of(label, self.state_labels, self.states, "state")

    def action_index(self, label: Any) -> int:
        return index_of(label, self.action_labels, self.actions, "action")

    def named(self, state_labels: Any, action_labels: Any) -> Pairs:
        """The same pairs with other names."""
        return Pairs(self.states, self.actions, self._first, self._action, state_labels, action_labels)

    # -- files --------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """For `.npz` files; nothing for a model without names whose actions are available everywhere."""
        arrays: dict[str, Any] = {}
        if not self.is_full:
            arrays |= {"pair_first": self._first, "pair_action": self._action, "pair_actions": np.array(self.actions)}
        for name, labels in (("state_labels", self.state_labels), ("action_labels", self.action_labels)):
            if labels is not None:
                arrays[name] = np.array(labels_to_json(labels, name))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], states: int, actions: int) -> Pairs:
        """Read what `arrays` wrote, with validation."""
        actions = int(arrays.get("pair_actions", actions))
        names = [
            None if name not in arrays else labels_from_json(str(arrays[name]), size, name)
            for name, size in (("state_labels", states), ("action_labels", actions))
        ]
        if "pair_first" not in arrays:
            return cls(states, actions, None, None, *names)
        first, action = (np.asarray(arrays[name]) for name in ("pair_first", "pair_action"))
        mask = sp.csr_array((np.ones(action.size), action, first), shape=(states, actions))
        mask.check_format(full_check=True)
        return check_available(mask, states, actions).named(*names)


def _fold(larger_or_smaller: np.ufunc, table: PairTable) -> Any:
    """The largest or smallest number of each row: action by action, where rows are short and many."""
    states, actions = table.shape[:2]
    if actions > SHORT or states < MANY:
        return larger_or_smaller.reduce(table, axis=1)
    best = table[:, 0].copy()
    for a in range(1, actions):
        larger_or_smaller(best, table[:, a], out=best)
    return best


def check_available(available: Any, states: int, actions: int | None) -> Pairs:
    """The pairs of a mask: (S, A) booleans, or a sparse (S, A) matrix whose stored entries are the pairs."""
    if sp.issparse(available):
        stored, mask = available.nnz, sp.csr_array(available, copy=True)
        mask.sum_duplicates()  # which sorts as well
        if mask.nnz < stored:
            raise ValueError("available has an entry twice; every pair of state and action may be stored once")
        shape, first, action = mask.shape, mask.indptr, mask.indices
    else:
        table = np.asarray(available)
        if table.dtype != bool:
            raise TypeError(
                f"available must hold True and False, not {table.dtype}; use available.astype(bool), or a scipy.sparse "
                "matrix whose stored entries are the available pairs"
            )
        shape = table.shape
        if table.ndim == 2:
            first, action = np.append(0, np.cumsum(table.sum(axis=1))), np.nonzero(table)[1]
    if len(shape) != 2 or shape[0] != states or (actions is not None and shape[1] != actions):
        wanted = f"({states}, {'A' if actions is None else actions})"
        raise ValueError(f"available has shape {shape}; the transitions say that it must have shape {wanted}")
    counts = np.diff(first)
    if not counts.all():
        none = np.flatnonzero(counts == 0)
        others = f" ({none.size} such states)" if none.size > 1 else ""
        raise ValueError(
            f"state {none[0]} has no available action{others}; give every state at least one: a final state stays "
            "where it is, at no cost"
        )
    if action.size == states * shape[1]:
        return Pairs(states, shape[1])
    return Pairs(states, shape[1], first.astype(np.int64), action.astype(np.int32))


def initial_state(initial: Any, pairs: Pairs) -> Any:
    """The initial state or distribution in numbers: a label becomes an index, {label: probability} an array."""
    if isinstance(initial, dict):
        distribution = np.zeros(pairs.states)
        for label, probability in initial.items():
            distribution[pairs.state_index(label)] = probability
        return distribution
    labels = pairs.state_labels
    if labels is None or initial is None:
        if isinstance(initial, str):
            raise ValueError(f"initial is {initial!r}, but the model has no state_labels; use the number of a state")
        return initial
    named = isinstance(initial, (str, bytes)) or (_is_whole(initial) and any(map(_is_whole, labels)))
    return pairs.state_index(initial) if named or (is_hashable(initial) and initial in labels) else initial


def _is_whole(label: Any) -> bool:
    return isinstance(label, Integral) and not isinstance(label, bool)
