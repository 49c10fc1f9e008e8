"""Exploring a function of one state and action: every state that can be reached is numbered when it is found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cmdpkit.model.listing import IntArray, Listing

OBJECTIVE = "the objective"
"""The name of the first quantity; limits cannot have it, since they are named by users."""

REPORT_SECONDS = 0.2

Progress = Callable[[int, int], None]


class Report:
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


def explore(
    function: Callable[[Any, Any], Iterable[Any]],
    starts: Sequence[Hashable],
    actions: Any,
    names: Sequence[str],
    max_states: int,
    report: Report,
) -> tuple[Listing, IntArray]:
    """The transitions, and the numbers of the initial states."""
    found = list(starts)
    index = {state: s for s, state in enumerate(found)}
    always = None if callable(actions) else list(checked_actions(actions))
    action_index = {action: a for a, action in enumerate(always or [])}
    pair_state: list[int] = []
    pair_action: list[int] = []
    lengths: list[int] = []
    following: list[int] = []
    numbers: list[Any] = []  # probability, reward and costs of each outcome, one after the other
    for s, state in enumerate(found):  # the list grows while it is read
        for action in actions(state) if always is None else always:
            before = len(following)
            outcomes = function(state, action)
            if outcomes is None:
                raise _no_outcome(state, action, "None")
            for outcome in outcomes:
                try:
                    if outcome[0] == 0.0:  # it leads nowhere, and must not add a state
                        continue
                    next_state = outcome[1]
                    n = index.get(next_state)
                    numbers += (outcome[0], outcome[2])
                    if names:
                        numbers += _costs_of(outcome[3], names)
                except (TypeError, ValueError, IndexError, KeyError) as error:
                    raise _bad_outcome(state, action, outcome, _what_is_wrong(outcome, names)) from error
                if n is None:
                    n = index[next_state] = len(found)
                    found.append(next_state)
                following.append(n)
            pair_state.append(s)
            pair_action.append(action_index.setdefault(action, len(action_index)))
            lengths.append(len(following) - before)
        if len(found) > max_states:
            raise too_many(len(found), max_states)
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


def _what_is_wrong(outcome: Any, names: Sequence[str]) -> str:
    if not isinstance(outcome, (tuple, list)):
        return "the function must return a list of outcomes, which are tuples"
    return f"the costs ({', '.join(map(repr, names))}) are missing" if names and len(outcome) == 3 else ""


def _bad_outcome(state: Any, action: Any, outcome: Any, problem: str = "") -> ValueError:
    return ValueError(
        f"function({state!r}, {action!r}) returned {outcome!r} as an outcome; {problem + '; ' if problem else ''}an "
        "outcome is (probability, next state, reward, costs), with a hashable next state, and costs as a tuple in the "
        "order of the limits or a dict by name"
    )


def _no_outcome(state: Any, action: Any, returned: str) -> ValueError:
    return ValueError(
        f"function({state!r}, {action!r}) returned {returned}; return a list of at least one outcome, or leave the "
        "action out by actions=, a function of the state that lists the available ones"
    )


def too_many(found: int, max_states: int) -> ValueError:
    return ValueError(
        f"more than max_states = {max_states:,} states can be reached ({found:,} so far); does the function bound "
        "every variable of the state? Otherwise pass a larger max_states"
    )


def checked_actions(actions: Any) -> Sequence[Hashable]:
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
        raise _no_outcome(found[states[pair]], names[chosen[pair]], "no outcome")
    _, first, count = np.unique(states * len(names) + chosen, return_index=True, return_counts=True)
    if count.max() > 1:
        pair = first[count.argmax()]
        raise ValueError(f"actions({found[states[pair]]!r}) lists the action {names[chosen[pair]]!r} more than once")
    return states, chosen
