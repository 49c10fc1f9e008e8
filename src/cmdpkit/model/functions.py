"""Models from a function that tells what an action does in a state, explored from the initial states."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import Array, as_floats, check_count, check_number
from cmdpkit.model.limits import Limit
from cmdpkit.model.listing import (
    IntArray,
    Listing,
    assemble,
    indices_of,
    limit_columns,
    limit_list,
    suggestion,
)

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP

OBJECTIVE = "the objective"
"""The name of the first quantity; limits cannot have it, since they are named by users."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the upper bits of its multiples are spread evenly over a hash table."""

BATCH = 1 << 18
"""Pairs per call of a vectorised function: large enough for NumPy, small enough for the memory."""

REPORT_SECONDS = 0.2

Progress = Callable[[int, int], None]


def from_function(
    cls: type[CMDP],
    function: Callable[..., Any],
    initial: Any,
    *,
    actions: Any,
    available: Callable[..., Any] | None,
    minimise: bool,
    constraints: Iterable[Any],
    gamma: float,
    max_states: int,
    vectorised: bool,
    absorbing: Any,
    progress: bool | Progress,
) -> CMDP:
    """See `CMDP.from_function`."""
    with _collector_paused():
        check_count(max_states, "max_states", 1)
        limits, names = named_costs(constraints)
        report = _Report(progress)
        starts = _initial_states(initial)
        if vectorised:
            listing, origins = _explore_arrays(function, list(starts), actions, available, names, max_states, report)
        elif available is None:
            listing, origins = _explore(function, list(starts), actions, names, max_states, report)
        else:
            raise ValueError("available is for vectorised functions; let actions be a function of the state instead")
        report.finish(listing.states)
        listing, origins = _sorted_if_whole(listing, origins)
        ends = indices_of(absorbing, listing.state_labels, listing.states, "absorbing")
        parts = assemble(listing, merge=True, absorbing=ends, remedy="return every next state")
        distribution = np.zeros(parts.states)
        distribution[origins] = [check_number(p, f"the probability of initial state {s!r}") for s, p in starts.items()]
        known = parts.arguments(
            objective=OBJECTIVE, maximise=not minimise, constraints=limits, gamma=gamma, initial=distribution
        )
        return cls(**known)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """While states are found, all of them are kept: looking for garbage among them took a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _initial_states(initial: Any) -> dict[Hashable, float]:
    """The initial states and their probabilities, from one state or a mapping."""
    starts = dict(initial) if isinstance(initial, Mapping) else None
    if starts is None:
        try:
            starts = {initial.item() if isinstance(initial, np.generic) else initial: 1.0}
        except TypeError:
            raise TypeError(
                f"initial must be a state or a dict of states with their probabilities, not {initial!r}; states are "
                "hashable: use a tuple in place of a list or an array"
            ) from None
    if not starts:
        raise ValueError("initial is an empty dict; at least one initial state is needed")
    return starts


def named_costs(constraints: Any) -> tuple[list[Any], list[str]]:
    """The limits, each with the name of its quantity as values, and these names in the order of the costs."""
    limits: list[Any] = []
    for i, limit in enumerate(limit_list(constraints)):
        if isinstance(limit, Limit) and limit.values is None:
            limit = replace(limit, values=limit.name if limit.name is not None else f"constraint {i + 1}")
        if isinstance(limit, Limit) and not isinstance(limit.values, str):
            raise ValueError(
                f"the function computes the costs itself: limit {i + 1} needs the name of a cost in place of values, "
                "as in AtMost('wear', 4.0)"
            )
        limits.append(limit)
    return limits, limit_columns(limits)


class _Report:
    """Tells at intervals how many states were explored and found."""

    def __init__(self, progress: bool | Progress) -> None:
        self.show: Progress | None = progress if callable(progress) else (_print_progress if progress else None)
        self.printed = progress is True
        self.next = time.monotonic() + REPORT_SECONDS

    def __call__(self, explored: int, found: int) -> None:
        if self.show is not None and time.monotonic() >= self.next:
            self.show(explored, found)
            self.next = time.monotonic() + REPORT_SECONDS

    def finish(self, states: int) -> None:
        if self.show is not None:
            self.show(states, states)
        if self.printed:
            print(file=sys.stderr)


def _print_progress(explored: int, found: int) -> None:
    print(f"\rexplored {explored:,} of {found:,} states found", end="", file=sys.stderr, flush=True)


# -- one state and action at a time ------------------------------------------------------------------------------------


def _explore(
    function: Callable[[Any, Any], Iterable[Any]],
    starts: Sequence[Hashable],
    actions: Any,
    names: Sequence[str],
    max_states: int,
    report: _Report,
) -> tuple[Listing, IntArray]:
    """The transitions, and the numbers of the initial states."""
    found = list(starts)
    index = {state: s for s, state in enumerate(found)}
    always = None if callable(actions) else list(_checked_actions(actions))
    action_index = {action: a for a, action in enumerate(always or [])}
    pair_state: list[int] = []
    pair_action: list[int] = []
    lengths: list[int] = []
    following: list[int] = []
    numbers: list[Any] = []  # probability, reward and costs of each outcome, one after the other
    for s, state in enumerate(found):  # the list grows while it is read
        for action in actions(state) if always is None else always:
            before = len(following)
            for outcome in function(state, action):
                try:
                    if outcome[0] == 0.0:  # it leads nowhere, and must not add a state
                        continue
                    next_state = outcome[1]
                    n = index.get(next_state)
                    numbers += (outcome[0], outcome[2])
                    if names:
                        numbers += _costs_of(outcome[3], names)
                except (TypeError, ValueError, IndexError, KeyError) as error:
                    raise _bad_outcome(state, action, outcome) from error
                if n is None:
                    n = index[next_state] = len(found)
                    found.append(next_state)
                following.append(n)
            pair_state.append(s)
            pair_action.append(action_index.setdefault(action, len(action_index)))
            lengths.append(len(following) - before)
        if len(found) > max_states:
            raise _too_many(len(found), max_states)
        if not s & 255:
            report(s, len(found))
    pairs = _checked_pairs(found, action_index, pair_state, pair_action, lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    states, chosen = pairs[0][owner], pairs[1][owner]
    width = 2 + len(names)
    try:
        table = np.array(numbers, dtype=float).reshape(-1, width)
    except (TypeError, ValueError):
        at = next(i for i, entry in enumerate(numbers) if not isinstance(entry, (int, float, np.number)))
        what = ["probability", "reward", *map(repr, names)][at % width]
        label = list(action_index)[chosen[at // width]]
        raise _bad_outcome(found[states[at // width]], label, numbers[at], f"its {what} is not a number") from None
    columns = dict(zip([OBJECTIVE, *names], np.ascontiguousarray(table.T)[1:], strict=True))
    listing = Listing(
        states,
        chosen,
        np.array(following, dtype=np.int64),
        table[:, 0].copy(),
        columns,
        len(found),
        len(action_index),
        tuple(found),
        tuple(action_index),
    )
    return listing, np.arange(len(starts))


def _costs_of(costs: Any, names: Sequence[str]) -> Any:
    """The costs of an outcome, in the order of their names."""
    if isinstance(costs, Mapping):
        return [costs[name] for name in names]
    if len(names) == 1 and not isinstance(costs, (tuple, list, np.ndarray)):
        return (costs,)
    if len(costs) != len(names):
        raise ValueError(f"{len(costs)} costs, but the limits refer to {len(names)}")
    return costs


def _bad_outcome(state: Any, action: Any, outcome: Any, problem: str = "") -> ValueError:
    return ValueError(
        f"function({state!r}, {action!r}) returned {outcome!r} as an outcome; {problem + '; ' if problem else ''}an "
        "outcome is (probability, next state, reward, costs), with a hashable next state, and costs as a tuple in the "
        "order of the limits or a dict by name"
    )


def _too_many(found: int, max_states: int) -> ValueError:
    return ValueError(
        f"more than max_states = {max_states:,} states can be reached ({found:,} so far); does the function bound "
        "every variable of the state? Otherwise pass a larger max_states"
    )


def _checked_actions(actions: Any) -> Sequence[Hashable]:
    if isinstance(actions, str) or not isinstance(actions, (Sequence, np.ndarray, range)) or not len(actions):
        raise TypeError(f"actions must be a list of actions, or a function of the state, not {actions!r}")
    labels = actions.tolist() if isinstance(actions, np.ndarray) else list(actions)
    if len(set(labels)) != len(labels):
        raise ValueError(f"actions must differ: {labels}")
    return labels


def _checked_pairs(found: Any, action_index: Any, state: Any, action: Any, lengths: Any) -> tuple[IntArray, IntArray]:
    """The pairs as arrays; refuse pairs without an outcome, and actions that are listed twice."""
    if not lengths:
        raise ValueError(f"no action is available in the initial state {found[0]!r}")
    states, chosen = np.array(state, dtype=np.int64), np.array(action, dtype=np.int64)
    names = list(action_index)
    if min(lengths) == 0:
        pair = lengths.index(0)
        raise ValueError(
            f"function({found[states[pair]]!r}, {names[chosen[pair]]!r}) returned no outcome; return at least one, or "
            "leave the action out by actions=, a function of the state that lists the available ones"
        )
    _, first, count = np.unique(states * len(names) + chosen, return_index=True, return_counts=True)
    if count.max() > 1:
        pair = first[count.argmax()]
        raise ValueError(f"actions({found[states[pair]]!r}) lists the action {names[chosen[pair]]!r} more than once")
    return states, chosen


def _sorted_if_whole(listing: Listing, origins: IntArray) -> tuple[Listing, IntArray]:
    """States that are whole numbers are sorted, as in tables; others stay in the order in which they were found."""
    labels = listing.state_labels
    if labels is None or not all(type(label) is int for label in labels):
        return listing, origins
    try:
        values = np.array(labels, dtype=np.int64)
    except OverflowError:
        return listing, origins
    order = np.argsort(values)
    number = np.empty_like(order)
    number[order] = np.arange(order.size)
    ordered = values[order]
    plain = ordered[0] == 0 and ordered[-1] == ordered.size - 1
    labels = None if plain else tuple(ordered.tolist())
    renumbered = replace(listing, state=number[listing.state], following=number[listing.following], state_labels=labels)
    return renumbered, number[origins]


# -- arrays of states --------------------------------------------------------------------------------------------------


class _Numbering:
    """Numbers states that are whole numbers (n,) or rows of them (n, d), in the order in which they are found."""

    def __init__(self, width: int | None, max_states: int) -> None:
        self.width, self.max_states = width, max_states
        self.bits = 63 // (width or 1)
        self.count = 0
        self.blocks: list[IntArray] = []
        self._resize(1 << 10)

    def codes(self, states: IntArray) -> IntArray:
        """The numbers of states; new ones are added."""
        keys = self._keys(states)
        if 4 * (self.count + keys.size) > self.mask:
            old, used = self.keys, self.numbers >= 0
            numbers = self.numbers[used]
            self._resize(16 * (self.count + keys.size))
            self._find(old[used], numbers)
        found, new = self._find(keys)
        if new.size:
            self.blocks.append(states[new])
        if self.count > self.max_states:
            raise _too_many(self.count, self.max_states)
        return found

    def _resize(self, least: int) -> None:
        """An empty hash table: keys and numbers by slot, −1 where a slot is free."""
        size = 1 << int(least - 1).bit_length()
        self.mask, self.shift = size - 1, np.uint64(65 - size.bit_length())
        self.keys = np.zeros(size, dtype=np.int64)
        self.numbers = np.full(size, -1, dtype=np.int64)
        self.claims = np.zeros(size, dtype=np.int64)

    def _find(self, keys: IntArray, given: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """Open addressing, all keys at once: the number of each key, and which of them were new.

        Of the keys that meet in a free slot the last one takes it; the others compare with it and move on. New keys
        take the next numbers, or those `given`.
        """
        found = np.empty(keys.size, dtype=np.int64)
        added = []
        spread = keys.view(np.uint64) * GOLDEN
        slots = ((spread ^ (spread >> np.uint64(32))) * GOLDEN >> self.shift).view(np.int64)
        waiting = np.arange(keys.size)
        while waiting.size:
            at = slots[waiting]
            free = self.numbers[at] < 0
            if free.any():
                places, candidates = at[free], waiting[free]
                self.claims[places] = candidates
                winners = candidates[self.claims[places] == candidates]
                self.keys[slots[winners]] = keys[winners]
                numbers = np.arange(self.count, self.count + winners.size) if given is None else given[winners]
                self.numbers[slots[winners]] = numbers
                if given is None:
                    self.count += winners.size
                    added.append(winners)
            same = self.keys[at] == keys[waiting]
            found[waiting[same]] = self.numbers[at[same]]
            waiting = waiting[~same]
            slots[waiting] = (slots[waiting] + 1) & self.mask
        return found, np.concatenate(added) if added else waiting

    def _keys(self, states: IntArray) -> IntArray:
        if self.width is None:
            return states
        half = 1 << (self.bits - 1)
        if states.size and not -half <= states.min() <= states.max() < half:
            raise ValueError(
                f"the entries of a state with {self.width} numbers must be at least {-half} and below {half}; one is "
                f"{states.min() if states.min() < -half else states.max()}. Number such states yourself, or let the "
                "function take one state at a time"
            )
        keys = states[:, 0] + half
        for column in states.T[1:]:
            keys = (keys << self.bits) | (column + half)
        return keys


def _explore_arrays(
    function: Callable[[Any, Any], Any],
    starts: Sequence[Any],
    actions: Any,
    available: Callable[[Any], Any] | None,
    names: Sequence[str],
    max_states: int,
    report: _Report,
) -> tuple[Listing, IntArray]:
    """The transitions, and the numbers of the initial states."""
    labels = tuple(_checked_actions(actions))
    first = np.array(starts)
    if first.dtype.kind not in "iu" or first.ndim > 2:
        raise TypeError(f"states of a vectorised function are whole numbers or tuples of them, not {starts[0]!r}")
    numbering = _Numbering(first.shape[1] if first.ndim == 2 else None, max_states)
    origins = numbering.codes(first.astype(np.int64))
    calls: list[_Call] = []
    explored, block = 0, 0
    while block < len(numbering.blocks):
        frontier = np.concatenate(numbering.blocks[block:])
        block = len(numbering.blocks)
        for part in np.array_split(frontier, -(-frontier.shape[0] * len(labels) // BATCH)):
            calls.append(_call(function, part, explored, labels, available, names, numbering))
            explored += part.shape[0]
            report(explored, numbering.count)
    found = np.concatenate(numbering.blocks)
    rows = [np.concatenate(columns) for columns in zip(*calls, strict=True)]
    return Listing(
        rows[0],
        rows[1],
        rows[2],
        rows[3],
        dict(zip([OBJECTIVE, *names], rows[4:], strict=True)),
        found.shape[0],
        len(labels),
        tuple(found.tolist()) if found.ndim == 1 else tuple(zip(*found.T.tolist(), strict=True)),
        labels,
    ), origins


_Call = tuple[Any, ...]


def _call(
    function: Callable[[Any, Any], Any],
    states: IntArray,
    offset: int,
    labels: Sequence[Hashable],
    available: Callable[[Any], Any] | None,
    names: Sequence[str],
    numbering: _Numbering,
) -> _Call:
    """One call of a vectorised function: state, action, next state, probability, reward and costs of its outcomes."""
    size, count = states.shape[0], len(labels)
    if available is None:
        at, chosen = np.repeat(np.arange(size), count), np.tile(np.arange(count), size)
    else:
        mask = np.asarray(available(states))
        if mask.shape != (size, count) or mask.dtype != bool:
            raise ValueError(
                f"available returned an array of {mask.dtype} of shape {mask.shape} for {size} states; it must return "
                f"booleans of shape ({size}, {count})"
            )
        at, chosen = np.nonzero(mask)
    outcome = function(states[at], chosen)
    if not isinstance(outcome, tuple) or len(outcome) not in (4, 5) or (names and len(outcome) == 4):
        raise ValueError(
            "a vectorised function returns the tuple (row, probability, next states, reward, costs), where row tells "
            "to which of the given pairs an outcome belongs"
        )
    row = np.asarray(outcome[0])
    if row.dtype.kind not in "iu" or row.ndim != 1 or (row.size and not 0 <= row.min() <= row.max() < at.size):
        raise ValueError(f"the rows returned by the function must be whole numbers from 0 to {at.size - 1}")
    empty = np.flatnonzero(np.bincount(row, minlength=at.size) == 0)
    if empty.size:
        state = states[at[empty[0]]].tolist()
        raise ValueError(
            f"the function returned no outcome for state {state}, action {labels[chosen[empty[0]]]!r}; return at least "
            "one, or leave the pair out by available=, a function of the states that returns booleans"
        )
    following = np.asarray(outcome[2])
    if following.shape != (row.size, *states.shape[1:]) or following.dtype.kind not in "iu":
        raise ValueError(
            f"the next states returned by the function are {following.dtype} of shape {following.shape}; they must be "
            f"whole numbers of shape {(row.size, *states.shape[1:])}"
        )
    columns = [outcome[1], outcome[3], *_costs(outcome[4] if names else (), names)]
    numbers = [
        _number_column(c, row.size, name) for c, name in zip(columns, ["probability", "reward", *names], strict=True)
    ]
    if not numbers[0].all():  # outcomes with probability zero lead nowhere, and must not add states
        happens = numbers[0] != 0.0
        row, following, numbers = row[happens], following[happens], [column[happens] for column in numbers]
    codes = numbering.codes(following.astype(np.int64, copy=False))
    # Half the memory of 64 bits, which is what joining millions of outcomes takes
    short = [column.astype(np.int32) for column in (at[row] + offset, chosen[row], codes)]
    return *short, *numbers


def _costs(costs: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(costs, Mapping):
        missing = [name for name in names if name not in costs]
        if missing:
            hint = suggestion(missing[0], list(costs), "costs")
            raise ValueError(f"the function returned no cost {missing[0]!r}; {hint}")
        return [costs[name] for name in names]
    if len(names) == 1 and np.ndim(costs) <= 1 and not isinstance(costs, tuple):
        return [costs]
    if len(costs) != len(names):
        raise ValueError(f"the function returned {len(costs)} costs, but the limits refer to {len(names)}")
    return list(costs)


def _number_column(column: Any, size: int, name: str) -> Array:
    array = as_floats(column, name)
    if array.ndim == 0:
        return np.full(size, float(array))
    if array.shape != (size,):
        raise ValueError(
            f"the function returned {name} of shape {array.shape}; it must have one entry per outcome, ({size},)"
        )
    return array
