"""Numbering the labels in the columns of a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from cmdpkit.model.labels import Distinct
from cmdpkit.model.listing import IntArray
from cmdpkit.model.reading import Table, plain_column
from cmdpkit.model.references import suggestion

LONG_COLUMN = 100_000
"""Entries from which pandas numbers labels, if it is in use."""


def encode(
    table: Table, names: Sequence[str], given: Iterable[Hashable] | None
) -> tuple[list[IntArray], tuple[Hashable, ...] | None, int]:
    """Number the labels of columns that share them; also returns the labels (None for 0, 1, ...) and their number.

    Whole numbers are sorted, other labels come in the order in which they first appear; `given` labels set the order.
    """
    columns = [_label_column(table, name) for name in names]
    if given is None and all(map(_is_integer, columns)):
        return _encode_integers(columns)
    if table.first_line is not None:  # text of a file: numbers and words in the same column are all words
        columns = [column.astype(str) if _is_integer(column) else column for column in columns]
    codes, labels = _factorised(np.concatenate([column.astype(object, copy=False) for column in columns]))

    def refuse(code: int, problem: str) -> None:
        at = int(np.flatnonzero(codes == code)[0])
        name, row = names[at // table.rows], np.array([at % table.rows])
        raise ValueError(f"{table.where(row)}{name} is {problem}")

    for code, label in enumerate(labels):
        if label is None or label == "" or label != label:
            refuse(code, "missing; every row needs a state, an action and a next state")
    if table.first_line is None and len(set(map(type, labels))) > 1:
        _refuse_lookalikes(labels, refuse)
    if given is None:
        order = Distinct(labels) if table.first_line is not None else tuple(labels)
    else:
        order = tuple(given)
        index = {label: code for code, label in enumerate(order)}
        if len(index) != len(order):
            raise ValueError(f"the labels given for the column {names[0]} must differ, but some are listed twice")
        for code, label in enumerate(labels):
            if label not in index:
                refuse(code, f"{label!r}, which is not a given label; {suggestion(label, order, 'given labels')}")
        codes = np.array([index[label] for label in labels], dtype=np.int64)[codes]
    plain = order[0] == 0 and order == tuple(range(len(order)))
    return np.split(codes, len(names)), None if plain else order, len(order)


def _refuse_lookalikes(labels: list[Hashable], refuse: Callable[[int, str], None]) -> None:
    """Labels such as 1 and "1", which would be two states."""
    shown: dict[str, Hashable] = {}
    for code, label in enumerate(labels):
        other = shown.setdefault(str(label), label)
        if type(other) is not type(label):
            refuse(code, f"{label!r}, and elsewhere {other!r}: use the same type everywhere")


def _is_integer(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "iu"


def _label_column(table: Table, name: str) -> Any:
    column = plain_column(table.column(name))
    if column.ndim != 1:
        raise ValueError(f"the column {name!r} has shape {column.shape}; a column has one entry per row")
    return column


def _encode_integers(columns: Sequence[Any]) -> tuple[list[IntArray], tuple[Hashable, ...] | None, int]:
    low, high = min(int(c.min()) for c in columns), max(int(c.max()) for c in columns)
    if high - low > 4 * sum(column.size for column in columns) + 1000:
        labels, codes = np.unique(np.concatenate(columns), return_inverse=True)
        encoded = np.split(codes.astype(np.int64), np.cumsum([c.size for c in columns])[:-1])
    else:
        seen = np.zeros(high - low + 1, dtype=bool)
        for column in columns:
            seen[column - low] = True
        number = np.cumsum(seen, dtype=np.int64) - 1
        labels = np.flatnonzero(seen) + low
        complete = low == 0 and labels.size == high + 1
        encoded = [c.astype(np.int64, copy=False) if complete else number[c - low] for c in columns]
    plain = labels[0] == 0 and labels[-1] == labels.size - 1
    return encoded, None if plain else tuple(labels.tolist()), int(labels.size)


def _factorised(column: Any) -> tuple[IntArray, list[Hashable]]:
    """Codes of a column of objects, and its labels in the order in which they first appear."""
    if column.size > LONG_COLUMN and "pandas" in sys.modules:
        # Rows of the same state follow one another in most tables: only the first of them is looked up.
        changes = np.append(True, column[1:] != column[:-1]).astype(bool)
        runs = np.cumsum(changes, dtype=np.int64) - 1
        codes, found = sys.modules["pandas"].factorize(column[changes])
        missing = codes < 0
        codes = np.where(missing, found.size, codes) if missing.any() else codes
        return codes.astype(np.int64, copy=False)[runs], [*found.tolist(), *([None] if missing.any() else [])]
    index: dict[Hashable, int] = {}
    try:
        numbered = [index.setdefault(label, len(index)) for label in column.tolist()]
    except TypeError as error:
        raise TypeError(f"states and actions must be hashable: {error}; use tuples in place of lists") from error
    return np.array(numbered, dtype=np.int64), list(index)
