"""What a column search leaves behind for the next one, on a model with other limits or another objective.

The discounted sums of a policy do not depend on the limits: as long as transitions and costs stay, every column keeps
its values. Where they change, the columns of the best mixture are evaluated again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.model import CMDP, StagedTransitions


@dataclass(frozen=True, eq=False)
class Memory:
    """Columns of a search with the sums of their costs, and where the search ended."""

    cmdp: CMDP
    columns: tuple[Any, ...]
    sums: Array  # (n, m + 1) discounted sums of all costs, limits not subtracted
    weights: Array  # (n,) of the best mixture; zeros if none met the limits
    choice: Any  # (S,) the oracle's last policy


def remember(search: ColumnSearch) -> Memory | None:
    """The memory of a search; None before its first column."""
    if not search.columns:
        return None
    sums = np.array(search.values)
    sums[:, 1:] += search.cmdp.offsets
    weights = np.zeros(len(sums))
    if search.mixture is not None:  # columns that came after it have no weight
        weights[: search.mixture.weights.size] = search.mixture.weights
    return Memory(search.cmdp, tuple(search.columns), sums, weights, search.choice)


def recall(search: ColumnSearch, memory: Memory) -> None:
    """Give a search the columns of an earlier one."""
    rows = known_rows(search.cmdp, memory.cmdp)
    if rows is None:
        for j in np.flatnonzero(memory.weights > 0.0):
            search.evaluate(memory.columns[j])
        return
    search.choice = memory.choice
    for column, sums in zip(memory.columns, memory.sums, strict=True):
        search.add(column, np.append(sums[rows[0]], sums[rows[1:]] - search.cmdp.offsets))


def known_rows(cmdp: CMDP, old: CMDP) -> list[int] | None:
    """Where the costs of a model stand among those of an older one with the same chains; None if one is new."""
    if not same_chains(cmdp, old):
        return None
    if cmdp.costs is old.costs:
        return list(range(len(cmdp.costs)))
    rows = [next((k for k, known in enumerate(old.costs) if np.array_equal(known, c)), None) for c in cmdp.costs]
    return None if None in rows else [k for k in rows if k is not None]


def same_chains(cmdp: CMDP, old: CMDP) -> bool:
    """Whether policies visit the same states equally often in both models."""
    if (cmdp.criterion, cmdp.gamma) != (old.criterion, old.gamma) or not cmdp.pairs.same(old.pairs):
        return False
    if cmdp.initial is not old.initial and not np.array_equal(cmdp.initial, old.initial):
        return False
    if cmdp.transitions is old.transitions:
        return True
    parts = [_parts(model.transitions) for model in (cmdp, old)]
    return len(parts[0]) == len(parts[1]) and all(np.array_equal(a, b) for a, b in zip(*parts, strict=True))


def _parts(matrix: Any) -> tuple[Any, ...]:
    if isinstance(matrix, StagedTransitions):
        return matrix.parts()
    return (matrix.data, matrix.indices, matrix.indptr) if hasattr(matrix, "indptr") else (matrix,)
