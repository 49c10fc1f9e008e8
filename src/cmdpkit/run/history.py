"""The history of a run: named columns, one row per iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.run.budget import Snapshot

OTHER_NAMES = {"reward": "objective", "costs": "constraint_values", "steps": "samples"}
"""Former column names of training runs. They still work."""


ORACLE_COLUMNS = ("objective", "violation", "bound", "multipliers", "time")
"""The history of an exact method, one row per oracle call."""


class History:
    """One row per iteration: `history["objective"]` or `history.objective` is a column, `len()` counts the rows.

    All learners: `objective`, `violation` (largest) and `time` are (K,); `constraint_values` and `multipliers` (the
    rule's λ) are (K, m), all in the user's sense and units. First-order methods also have `inner_steps`; `samples`
    counts transitions or environment steps, if any. Row k describes π_{k+1}, the policy after the step; in a training
    run it describes the policy before the step.

    Tabular learners: `average_objective`, `average_constraint_values` and `average_violation` are those of the average
    of π_1..π_{k+1}. The neural learner: `divergence` and `verdict` of the trust-region step, and `explained`
    (K, m + 1), the fraction of the variance of the returns that the critics explained. Exact methods have one row per
    oracle call, with the `bound` proved so far.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def _column(self, name: str) -> Array | None:
        columns: dict[str, Array] = self.__dict__.get("_columns", {})
        return columns.get(name, columns.get(OTHER_NAMES.get(name, name)))

    def __getitem__(self, name: str) -> Array:
        column = self._column(name)
        if column is None:
            raise KeyError(f"the history has no column {name!r}; it has {', '.join(self._columns)}")
        return column

    def __getattr__(self, name: str) -> Array:
        # Copying and unpickling look up special names before there are columns.
        column = None if name.startswith("_") else self._column(name)
        if column is None:
            raise AttributeError(
                f"the history has no column {name!r}; it has {', '.join(self.__dict__.get('_columns', ()))}"
            )
        return column

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._column(name) is not None

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self._columns)})"


def oracle_row(news: Snapshot) -> tuple[Array, ...]:
    """Copies: what a callback does to the news must not reach the history."""
    return tuple(np.copy(getattr(news, name)) for name in ORACLE_COLUMNS)


def oracle_history(rows: Sequence[tuple[Array, ...]]) -> History:
    columns = zip(*rows, strict=True) if rows else ((),) * len(ORACLE_COLUMNS)
    return History(dict(zip(ORACLE_COLUMNS, columns, strict=True)))
