"""Where the states of the built-in models lie: two coordinates of each, for maps of policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmdpkit.problems.delivery import delivery
from cmdpkit.problems.grid import cells_of, grid
from cmdpkit.problems.queues import two_queues
from cmdpkit.problems.wireless import wireless

Places = tuple[tuple[str, str], NDArray[np.int64]]
"""The names of the vertical and the horizontal coordinate, and (S, 2) coordinates; −1 for a state without a place."""


def places_of(name: str, parameters: Mapping[str, Any]) -> Places | None:
    """The places of the states of a built-in model, made with these parameters; None if it has no map."""
    if name not in _PLACES:
        return None
    make, find = _PLACES[name]
    bound = signature(make).bind_partial(**parameters)
    bound.apply_defaults()
    return find(bound.arguments)


def _lattice(rows: int, columns: int) -> NDArray[np.int64]:
    return np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)


def _queues(given: Mapping[str, Any]) -> Places:
    return ("queue 1", "queue 2"), _lattice(given["capacity"] + 1, given["capacity"] + 1)


def _cells(given: Mapping[str, Any]) -> Places:
    return ("row", "column"), np.argwhere(cells_of(given["rows"], given["columns"], given["layout"]) != "#")


def _floor(given: Mapping[str, Any]) -> Places:
    at = _lattice(given["rows"], given["columns"])
    return ("row", "column"), np.concatenate([at, [[-1, -1]]])


def _buffer(given: Mapping[str, Any]) -> Places:
    return ("backlog", "channel"), _lattice(given["buffer"] + 1, len(given["gains"]))


_PLACES: dict[str, tuple[Callable[..., Any], Callable[[Mapping[str, Any]], Places]]] = {
    "two_queues": (two_queues, _queues),
    "grid": (grid, _cells),
    "delivery": (delivery, _floor),
    "wireless": (wireless, _buffer),
}
