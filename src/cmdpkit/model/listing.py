"""Transitions listed one per row, as tables, functions and logs give them, and the model they describe.

Every way into a model other than plain arrays ends here: the rows are checked, sorted by state and action, and turned
into the arguments of `CMDP`. Errors name the row, the state and the action in the words of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cmdpkit.checks import ROW_SUM_TOLERANCE, Array, StateArray, such_entries
from cmdpkit.model.references import SHOWN, name_of, named_limits, some, suggestion

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Listing:
    """Transitions one per row: from `state` by `action` to `following` with `probability`.

    `quantities` are what the rows earn and cost: one number per row, which may depend on the next state.
    """

    state: IntArray
    action: IntArray
    following: IntArray
    probability: Array
    quantities: Mapping[str, Array]
    states: int
    actions: int
    state_labels: tuple[Hashable, ...] | None = None
    action_labels: tuple[Hashable, ...] | None = None
    where: Callable[[IntArray], str] = field(default=lambda rows: "")
    """Names rows for error messages, as in "model.csv, line 7: "."""

    def state_name(self, s: Any) -> str:
        return name_of(self.state_labels, s)

    def pair_name(self, row: Any) -> str:
        action = name_of(self.action_labels, self.action[row])
        return f"state {self.state_name(self.state[row])}, action {action}"


@dataclass(frozen=True, eq=False)
class Parts:
    """The pairs that exist, ordered by state, then action, with their transitions (N, S) and quantities (N,)."""

    transitions: Any
    pair_state: IntArray
    pair_action: IntArray
    quantities: Mapping[str, Array]
    states: int
    actions: int
    state_labels: tuple[Hashable, ...] | None = None
    action_labels: tuple[Hashable, ...] | None = None

    @property
    def is_full(self) -> bool:
        return self.pair_state.size == self.states * self.actions

    def arguments(
        self, objective: str, maximise: bool, initial: StateArray, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The arguments of `CMDP`, with the limits of `options` by the names of their quantities."""
        tables = {name: self.table(name) for name in self.quantities}
        known: dict[str, Any] = {
            **options,
            "transitions": self._given_transitions(),
            "reward" if maximise else "cost": tables[objective],
            "constraints": named_limits(options["constraints"], tables),
            "initial": initial,
            "state_labels": self.state_labels,
            "action_labels": self.action_labels,
        }
        if not self.is_full:
            places = (np.ones(self.pair_state.size, dtype=bool), (self.pair_state, self.pair_action))
            known["available"] = sp.csr_array(places, shape=(self.states, self.actions))
        known["action_axis"] = 1
        return known

    def _given_transitions(self) -> Any:
        """Dense if at least half of the entries are not zero."""
        matrix = self.transitions
        if 2 * matrix.nnz < matrix.shape[0] * matrix.shape[1]:
            return matrix
        dense = matrix.toarray()
        return dense.reshape(self.states, self.actions, self.states) if self.is_full else dense

    def table(self, name: str) -> Array:
        """A quantity in the shape of pair tables: (S, A) if all pairs exist, otherwise (N,)."""
        column = self.quantities[name]
        return column.reshape(self.states, self.actions) if self.is_full else column


def assemble(
    listing: Listing, *, merge: bool, absorbing: Sequence[int] | bool = False, remedy: str = "list every next state"
) -> Parts:
    """Check the rows and gather them by pair.

    Rows of the same state, action and next state are added with `merge`, otherwise refused. The states that are never
    left must be `absorbing` (all of them, with True): they stay where they are, by the first action, at no cost.
    """
    listing = _with_loops(listing, absorbing)
    _check_numbers(listing)
    keys, pair = _numbered(
        listing.state.astype(np.int64) * listing.actions + listing.action, listing.states * listing.actions
    )
    _check_sums(listing, pair, keys.size, remedy, merge)
    places = (listing.probability, (pair, listing.following))
    matrix = sp.coo_array(places, shape=(keys.size, listing.states)).tocsr()  # adds duplicates
    if matrix.nnz < pair.size and not merge:
        _refuse_duplicates(listing, pair)
    if not matrix.data.all():
        matrix.eliminate_zeros()
    return Parts(
        matrix,
        keys // listing.actions,
        keys % listing.actions,
        {name: _expected(column, listing.probability, pair, keys.size) for name, column in listing.quantities.items()},
        listing.states,
        listing.actions,
        listing.state_labels,
        listing.action_labels,
    )


def _numbered(keys: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """The different keys in order, and the position of each row's key among them."""
    if size > 8 * keys.size + 1000:
        found, position = np.unique(keys, return_inverse=True)
        return found, position.astype(np.int64)
    seen = np.zeros(size, dtype=bool)
    seen[keys] = True
    return np.flatnonzero(seen), (np.cumsum(seen, dtype=np.int64) - 1)[keys]


def _with_loops(listing: Listing, absorbing: Sequence[int] | bool) -> Listing:
    """Add a loop to every absorbing state; refuse other states that are never left."""
    if not listing.state.size:
        raise ValueError("there are no transitions: at least one row is needed")
    left = np.zeros(listing.states, dtype=bool)
    left[listing.state] = True
    stuck = np.flatnonzero(~left)
    if absorbing is True:
        ends = stuck
    else:
        ends = np.asarray(absorbing if absorbing is not False else [], dtype=np.int64)
        both = ends[left[ends]] if ends.size else ends
        if both.size:
            rows = np.flatnonzero(listing.state == both[0])[:SHOWN]
            raise ValueError(
                f"{listing.where(rows)}state {listing.state_name(both[0])} is absorbing, but has transitions of its "
                "own; remove it from absorbing, or remove its rows"
            )
        missing = np.setdiff1d(stuck, ends)
        if missing.size:
            _refuse_stuck(listing, missing)
    if not ends.size:
        return listing
    zeros = np.zeros(ends.size)

    def longer(column: Any, added: Any) -> Any:
        return np.concatenate([column, added])

    return replace(
        listing,
        state=longer(listing.state, ends),
        action=longer(listing.action, np.zeros(ends.size, dtype=np.int64)),
        following=longer(listing.following, ends),
        probability=longer(listing.probability, np.ones(ends.size)),
        quantities={name: longer(column, zeros) for name, column in listing.quantities.items()},
    )


def _refuse_stuck(listing: Listing, missing: IntArray) -> None:
    first = np.flatnonzero(listing.following == missing[0])[:1]
    names = some((listing.state_name(s) for s in missing), missing.size)
    place = listing.where(first) if first.size else ""
    what = "state" if missing.size == 1 else f"{missing.size} states:"
    labels = listing.state_labels
    if labels is not None and isinstance(labels[missing[0]], str):
        lost = set(missing.tolist())
        hint = suggestion(labels[missing[0]], [label for s, label in enumerate(labels) if s not in lost], "")
        names += f" ({hint})" if hint.startswith("did you mean") else ""
    raise ValueError(
        f"{place}no action leads out of {what} {names}; if the process ends there, say so with absorbing=True (or a "
        "list of these states): it then stays at no cost. Otherwise add the missing transitions, or correct the label"
    )


def _check_numbers(listing: Listing) -> None:
    p = listing.probability
    bad = ~((p >= 0.0) & (p <= 1.0 + ROW_SUM_TOLERANCE))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        percent = "; divide percentages by 100" if 1.0 < p[row] <= 100.0 else ""
        raise ValueError(
            f"{listing.where(np.array([row]))}{listing.pair_name(row)}: the probability of state "
            f"{listing.state_name(listing.following[row])} is {p[row]} ({such_entries(bad)}); it must be a number "
            f"from 0 to 1{percent}"
        )
    for name, column in listing.quantities.items():
        bad = ~np.isfinite(column)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"{listing.where(np.array([row]))}{listing.pair_name(row)}: {name} is {column[row]} "
                f"({such_entries(bad)}); every entry must be a finite number"
            )


def _check_sums(listing: Listing, pair: IntArray, pairs: int, remedy: str, merge: bool) -> None:
    sums = np.bincount(pair, listing.probability, pairs)
    off = np.abs(sums - 1.0)
    worst = int(off.argmax())
    if off[worst] > ROW_SUM_TOLERANCE:
        rows = np.flatnonzero(pair == worst)
        if not merge and np.unique(listing.following[rows]).size < rows.size:
            _refuse_duplicates(listing, pair)
        raise ValueError(
            f"{listing.where(rows)}{listing.pair_name(rows[0])}: the probabilities sum to {sums[worst]:.12g}, not 1 "
            f"({(off > ROW_SUM_TOLERANCE).sum()} of {pairs} pairs are off); {remedy}, or divide by the sum if the "
            "difference is rounding"
        )


def _refuse_duplicates(listing: Listing, pair: IntArray) -> None:
    order = np.lexsort([listing.following, pair])
    same = (np.diff(pair[order]) == 0) & (np.diff(listing.following[order]) == 0)
    at = int(np.flatnonzero(same)[0])
    rows = order[at : at + 2]
    raise ValueError(
        f"{listing.where(rows)}{listing.pair_name(rows[0])}, next state "
        f"{listing.state_name(listing.following[rows[0]])} is listed more than once ({such_entries(same)}); add the "
        "probabilities up in one row, or correct the label"
    )


def _expected(column: Array, probability: Array, pair: IntArray, pairs: int) -> Array:
    """Σ p · value per pair, and exactly the value where it is the same in all rows of the pair."""
    some_value = np.empty(pairs)
    some_value[pair] = column
    same = column == some_value[pair]
    if same.all():
        return some_value
    varies = np.zeros(pairs, dtype=bool)
    varies[pair[~same]] = True
    return np.where(varies, np.bincount(pair, probability * column, pairs), some_value)
