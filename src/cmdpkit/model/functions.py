"""Models from a function that tells what an action does in a state, explored from the initial states."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import check_count, check_number
from cmdpkit.model.exploration import OBJECTIVE, Progress, Report, explore
from cmdpkit.model.limits import Limit
from cmdpkit.model.listing import IntArray, Listing, assemble
from cmdpkit.model.references import indices_of, limit_columns, limit_list
from cmdpkit.model.vectorised import explore_arrays

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP


def from_function(
    cls: type[CMDP],
    function: Callable[..., Any],
    initial: Any,
    options: Mapping[str, Any],
    *,
    actions: Any,
    available: Callable[..., Any] | None,
    minimise: bool,
    max_states: int,
    vectorised: bool,
    absorbing: Any,
    progress: bool | Progress,
) -> CMDP:
    """See `CMDP.from_function`."""
    with _collector_paused():
        check_count(max_states, "max_states", 1)
        limits, names = named_costs(options["constraints"])
        report = Report(progress)
        starts = _initial_states(initial)
        if vectorised:
            listing, origins = explore_arrays(function, list(starts), actions, available, names, max_states, report)
        elif available is None:
            listing, origins = explore(function, list(starts), actions, names, max_states, report)
        else:
            raise ValueError("available is for vectorised functions; let actions be a function of the state instead")
        report.finish(listing.states)
        listing, origins = _sorted_if_whole(listing, origins)
        ends = indices_of(absorbing, listing.state_labels, listing.states, "absorbing")
        parts = assemble(listing, merge=True, absorbing=ends, remedy="return every next state")
        distribution = np.zeros(parts.states)
        distribution[origins] = [check_number(p, f"the probability of initial state {s!r}") for s, p in starts.items()]
        stated = {**options, "constraints": limits}
        return cls(**parts.arguments(OBJECTIVE, not minimise, distribution, stated))


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
