"""Maps: the two coordinates of each state, from labels or as given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.model import Problem

MOST_CELLS = 100_000
"""Larger maps are not drawn."""


@dataclass(frozen=True, eq=False)
class Map:
    """Two coordinates per state: `names` of the vertical and the horizontal axis, `at` (S, 2), −1 for no place."""

    names: tuple[str, str]
    at: Any
    low: Any  # (2,) the smallest coordinates

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.at.max(axis=0) - self.low + 1
        return int(rows), int(columns)

    @property
    def ticks(self) -> tuple[list[int], list[int]]:
        """The coordinates along both axes."""
        first, second = (list(range(int(low), int(low) + n)) for low, n in zip(self.low, self.shape, strict=True))
        return first, second

    def spread(self, values: Any, missing: float = np.nan) -> Any:
        """(S,) values as a table over the map."""
        table = np.full(self.shape, missing, dtype=float)
        known = (self.at >= 0).all(axis=1) if (self.at < 0).any() else slice(None)
        rows, columns = (self.at[known] - self.low).T
        table[rows, columns] = np.asarray(values, dtype=float)[known]
        return table

    def states(self) -> Any:
        """The number of the state at each place, −1 where there is none."""
        return self.spread(np.arange(len(self.at)), -1).astype(int)


def find_map(problem: Problem, axes: Any = None) -> Map | None:
    """The map of a problem's states: as given, or from labels that are pairs of whole numbers; None if it has none.

    Args:
        axes: the names of two coordinates with the number of values of each, as in {"queue 1": 16, "queue 2": 16},
            where the second coordinate changes faster; or (names, coordinates), with coordinates of shape (S, 2).
    """
    if axes is None:
        return _from_labels(problem.pairs.state_labels)
    names, at = _lattice(axes) if isinstance(axes, Mapping) else axes
    table = np.asarray(at)
    if len(names) != 2 or table.shape != (problem.states, 2) or table.dtype.kind not in "iu":
        raise ValueError(
            f"axes must give two whole coordinates for each of {problem.states} states; they have shape {table.shape}"
        )
    return _map((str(names[0]), str(names[1])), table)


def _lattice(axes: Mapping[str, int]) -> tuple[tuple[str, ...], Any]:
    sizes = list(axes.values())
    if len(sizes) != 2 or not all(isinstance(n, (int, np.integer)) and n >= 1 for n in sizes):
        raise ValueError(f"axes must name two coordinates with the number of values of each, not {axes!r}")
    return tuple(axes), np.stack(np.divmod(np.arange(sizes[0] * sizes[1]), sizes[1]), axis=1)


def _from_labels(labels: Any) -> Map | None:
    if labels is None or not all(
        isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, (int, np.integer)) and x >= 0 for x in at)
        for at in labels
    ):
        return None
    return _map(("first coordinate", "second coordinate"), np.array(labels, dtype=np.int64).reshape(-1, 2))


def _map(names: tuple[str, str], at: Any) -> Map | None:
    placed = at[(at >= 0).all(axis=1)]
    if not placed.size or len(np.unique(placed, axis=0)) < len(placed):
        return None
    found = Map(names, at, placed.min(axis=0))
    rows, columns = found.shape
    return found if rows > 1 and columns > 1 and rows * columns <= MOST_CELLS else None
