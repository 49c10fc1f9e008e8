"""Exploring a function of arrays of states and actions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from cmdpkit.checks import Array, as_floats
from cmdpkit.model.exploration import OBJECTIVE, Report, checked_actions
from cmdpkit.model.labels import Distinct
from cmdpkit.model.listing import IntArray, Listing
from cmdpkit.model.numbering import Numbering
from cmdpkit.model.references import suggestion

BATCH = 1 << 18
"""Pairs per call of a vectorised function: large enough for NumPy, small enough for the memory."""


def explore_arrays(
    function: Callable[[Any, Any], Any],
    starts: Sequence[Any],
    actions: Any,
    available: Callable[[Any], Any] | None,
    names: Sequence[str],
    max_states: int,
    report: Report,
) -> tuple[Listing, IntArray]:
    """The transitions, and the numbers of the initial states."""
    labels = tuple(checked_actions(actions))
    first = np.array(starts)
    if first.dtype.kind not in "iu" or first.ndim > 2:
        raise TypeError(f"states of a vectorised function are whole numbers or tuples of them, not {starts[0]!r}")
    numbering = Numbering(first.shape[1] if first.ndim == 2 else None, max_states)
    origins = numbering.codes(first.astype(np.int64))
    calls: list[_Call] = []
    explored, block = 0, 0
    while block < len(numbering.blocks):
        frontier = np.concatenate(numbering.blocks[block:])
        block = len(numbering.blocks)
        parts = -(-frontier.shape[0] * len(labels) // BATCH)
        for part in np.array_split(frontier, parts) if parts > 1 else [frontier]:
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
        Distinct(found.tolist() if found.ndim == 1 else zip(*found.T.tolist(), strict=True)),
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
    numbering: Numbering,
) -> _Call:
    """One call of a vectorised function: state, action, next state, probability, reward and costs of its outcomes."""
    size, count = states.shape[0], len(labels)
    if available is None:
        at, chosen = np.repeat(np.arange(size), count), np.full((size, count), np.arange(count)).ravel()
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
