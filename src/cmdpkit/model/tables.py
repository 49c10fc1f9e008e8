"""Models from and to tidy tables: one row per transition, in a CSV file, a pandas or polars frame, or a dict."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.files import PathLike, write_csv
from cmdpkit.model.listing import (
    IntArray,
    Listing,
    assemble,
    indices_of,
    limit_columns,
    limit_list,
    settled,
    some,
    suggestion,
)

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP

SMALL_FILE = 2_000_000
"""Bytes up to which the csv module reads a file faster than pandas is imported."""

LONG_COLUMN = 100_000
"""Entries from which pandas numbers labels, if it is in use."""

WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")

KEYS = ("state", "action", "next_state")


class Table:
    """Named columns of any source, and how its rows are called in error messages."""

    def __init__(self, columns: Mapping[str, Any], title: str = "", first_line: int | None = None) -> None:
        self.columns = columns
        self.title = title
        self.first_line = first_line

    def where(self, rows: IntArray) -> str:
        """The name of rows, as in "model.csv, lines 3, 4: "; rows added by the importer itself have none."""
        noun, first = ("row", 0) if self.first_line is None else ("line", self.first_line)
        numbers = [str(first + int(row)) for row in rows if row < self.rows]
        if not numbers:
            return ""
        lines = f"{noun}{'s' if len(numbers) > 1 else ''} {some(numbers, len(numbers))}: "
        return f"{self.title}, {lines}" if self.title else lines

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str) -> Any:
        if name not in self.columns:
            place = f"{self.title} has" if self.title else "the table has"
            raise ValueError(f"{place} no column {name!r}; {suggestion(name, list(self.columns), 'columns')}")
        return self.columns[name]

    def numbers(self, name: str) -> Array:
        """A column of numbers. NaN is left for the checks that can name the state and the action."""
        column = _plain(self.column(name))
        if column.dtype.kind in "fiub":
            return np.asarray(column, dtype=np.float64)
        numbers = np.empty(column.size)
        for row, entry in enumerate(column.tolist()):
            try:
                numbers[row] = np.nan if entry is None else float(entry)
            except (TypeError, ValueError):
                place = self.where(np.array([row]))
                raise ValueError(f"{place}{name} is {entry!r}, which is not a number") from None
        return numbers


def read_table(source: Any, columns: Mapping[str, str] | None = None) -> Table:
    """A table from a path, a frame, or a mapping of columns; `columns` maps our names to those of the source."""
    if isinstance(source, (str, os.PathLike)):
        table = _read_csv(source)
    elif isinstance(source, Mapping):
        table = Table(dict(source))
    elif hasattr(source, "columns") and hasattr(source, "__getitem__"):
        names = [str(name) for name in source.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the table has more than one column {twice[0]!r}; rename or remove one of them")
        table = Table({str(name): source[name] for name in source.columns})
    else:
        raise TypeError(
            f"a table is a path, a pandas or polars frame, or a dict of columns, not {type(source).__name__}"
        )
    if not table.columns:
        raise ValueError("the table has no columns")
    if columns is not None:
        renamed = {theirs: ours for ours, theirs in columns.items()}
        for theirs in renamed:
            table.column(theirs)
        table.columns = {renamed.get(name, name): column for name, column in table.columns.items()}
    lengths = {name: len(column) for name, column in table.columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a table have the same length; these have {lengths}")
    return table


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _read_csv(path: PathLike) -> Table:
    """Entries of the label columns are whole numbers if all of a column are, otherwise text as it stands."""
    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    large = Path(path).stat().st_size > SMALL_FILE and importlib.util.find_spec("pandas") is not None
    columns = _large_csv(path) if large else _small_csv(path)
    return Table(columns, Path(path).name, first_line=2)


def _header(path: PathLike, line: Sequence[str]) -> list[str]:
    names = [name.strip() for name in line]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has more than one column {twice[0]!r}; rename or remove one of them")
    return names


def _small_csv(path: PathLike) -> dict[str, Any]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            names = _header(path, next(reader, []))
            lines = list(reader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}; save it as CSV in UTF-8") from error
    while lines and not lines[-1]:
        lines.pop()
    for row, line in enumerate(lines):
        if len(line) != len(names):
            raise ValueError(f"{path}, line {row + 2} has {len(line)} entries, the header has {len(names)}")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*lines, strict=True)), strict=True)) if lines else {}
    if not columns:
        return {name: np.array([]) for name in names}
    return {name: _typed(column) for name, column in columns.items()}


def _typed(column: list[str]) -> Any:
    """Whole numbers, floating-point numbers or text, whichever fits all entries."""
    if all(map(WHOLE.fullmatch, column)):
        return np.array(list(map(int, column)), dtype=np.int64)
    return np.array(column, dtype=object)


def _large_csv(path: PathLike) -> dict[str, Any]:
    import pandas as pd

    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True)
        names = _header(path, next(reader, []))
        sample = [line for line, _ in zip(reader, range(100), strict=False) if line]
    settings: dict[str, Any] = {
        "header": 0,
        "names": names,
        "na_filter": False,
        "skipinitialspace": True,
        "skip_blank_lines": _ends_blank(path),
        "encoding": "utf-8-sig" if _has_mark(path) else "utf-8",  # the former is slower
        "index_col": False,
    }
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        settings["float_precision"] = "round_trip"  # the default of later versions
    text = {
        name: object
        for i, name in enumerate(names)
        if not all(len(line) > i and _is_number(line[i]) for line in sample)
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # numbers and words in the same column: see below
            frame = pd.read_csv(path, dtype=text, **settings)
        # Entries that look like numbers at first, but are labels: they are kept as they are written.
        labels = [n for n in KEYS if n in frame and n not in text and frame[n].dtype.kind != "i"]
        for name in labels:
            frame[name] = pd.read_csv(path, usecols=[name], dtype=object, **settings)[name]
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    return {name: frame[name] for name in frame.columns}


def _has_mark(path: PathLike) -> bool:
    """Whether the file starts with a byte order mark, as spreadsheets write it."""
    with open(path, "rb") as file:
        return file.read(3) == b"\xef\xbb\xbf"


def _ends_blank(path: PathLike) -> bool:
    """Whether empty lines follow the last row. Others are errors, named by their number."""
    with open(path, "rb") as file:
        file.seek(-min(4, os.fstat(file.fileno()).st_size), os.SEEK_END)
        return file.read().replace(b"\r", b"").endswith(b"\n\n")


def _is_number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


# -- labels ------------------------------------------------------------------------------------------------------------


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

    order = tuple(labels) if given is None else tuple(given)
    index = {label: code for code, label in enumerate(order)}
    if len(index) != len(order):
        raise ValueError(f"the labels given for the column {names[0]} must differ, but some are listed twice")
    for code, label in enumerate(labels):
        if label is None or label == "" or label != label:
            refuse(code, "missing; every row needs a state, an action and a next state")
        if label not in index:
            refuse(code, f"{label!r}, which is not a given label; {suggestion(label, order, 'given labels')}")
    if given is not None:
        codes = np.array([index[label] for label in labels], dtype=np.int64)[codes]
    return np.split(codes, len(names)), None if order == tuple(range(len(order))) else order, len(order)


def _is_integer(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "iu"


def _label_column(table: Table, name: str) -> Any:
    column = _plain(table.column(name))
    if column.ndim != 1:
        raise ValueError(f"the column {name!r} has shape {column.shape}; a column has one entry per row")
    return column


def _plain(column: Any) -> Any:
    """A column as a NumPy array: of numbers, or of objects."""
    if hasattr(column, "to_numpy"):
        array = column.to_numpy()
        return array if array.dtype.kind in "fiub" else np.asarray(array, dtype=object)
    if isinstance(column, np.ndarray):
        return column if column.dtype.kind in "fiub" else column.astype(object)
    entries = list(column)
    if entries and all(isinstance(entry, (bool, int, float, np.number)) for entry in entries):
        return np.array(entries)
    return np.fromiter(entries, dtype=object, count=len(entries))


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
        codes, found = sys.modules["pandas"].factorize(column)
        missing = codes < 0
        codes = np.where(missing, found.size, codes) if missing.any() else codes
        return codes.astype(np.int64, copy=False), [*found.tolist(), *([None] if missing.any() else [])]
    index: dict[Hashable, int] = {}
    try:
        numbered = [index.setdefault(label, len(index)) for label in column.tolist()]
    except TypeError as error:
        raise TypeError(f"states and actions must be hashable: {error}; use tuples in place of lists") from error
    return np.array(numbered, dtype=np.int64), list(index)


# -- in and out --------------------------------------------------------------------------------------------------------


def from_table(
    cls: type[CMDP],
    source: Any,
    *,
    reward: str | None,
    cost: str | None,
    constraints: Iterable[Any],
    gamma: float,
    initial: Any,
    state_labels: Iterable[Hashable] | None,
    action_labels: Iterable[Hashable] | None,
    absorbing: Any,
    unreachable: str,
    columns: Mapping[str, str] | None,
) -> CMDP:
    """See `CMDP.from_table`."""
    constraints = limit_list(constraints)
    table = read_table(source, columns)
    table.column("probability")  # a log without it is for from_samples
    objective, maximise = objective_column(table, reward, cost, constraints)
    listing = listed(table, [objective, *limit_columns(constraints)], state_labels, action_labels)
    ends = indices_of(absorbing, listing.state_labels, listing.states, "absorbing")
    parts = assemble(listing, merge=False, absorbing=ends)
    parts, distribution = settled(parts, initial, unreachable)
    known = parts.arguments(
        objective=objective, maximise=maximise, constraints=constraints, gamma=gamma, initial=distribution
    )
    return cls(**known)


def objective_column(table: Table, reward: str | None, cost: str | None, constraints: Any) -> tuple[str, bool]:
    """The column of the objective, and whether it is maximised."""
    if reward is not None and cost is not None:
        raise ValueError("reward names a column to maximise and cost one to minimise; give one of the two")
    if reward is not None or cost is not None:
        return (reward, True) if reward is not None else (str(cost), False)
    free = [name for name in ("reward", "cost") if name in table.columns and name not in limit_columns(constraints)]
    if len(free) != 1:
        found = "both columns, reward and cost" if free else "no column reward or cost"
        raise ValueError(
            f"the table has {found}; say which column is the objective: reward='...' (maximised) or cost='...' "
            "(minimised)"
        )
    return free[0], free[0] == "reward"


def listed(
    table: Table,
    names: Sequence[str],
    state_labels: Iterable[Hashable] | None,
    action_labels: Iterable[Hashable] | None,
) -> Listing:
    """The rows of a table, with the columns `names` as their quantities."""
    for key in (*KEYS, *names):
        table.column(key)
    if not table.rows:
        raise ValueError(f"{table.title or 'the table'} has no rows")
    (state, following), states, state_count = encode(table, ["state", "next_state"], state_labels)
    (action,), actions, action_count = encode(table, ["action"], action_labels)
    probability = table.numbers("probability") if "probability" in table.columns else np.ones(table.rows)
    quantities = {name: table.numbers(name) for name in dict.fromkeys(names)}
    return Listing(
        state, action, following, probability, quantities, state_count, action_count, states, actions, table.where
    )


def to_columns(cmdp: CMDP) -> dict[str, Any]:
    """The columns of a model: state, action, next_state, probability, reward or cost, and one per limit."""
    names = ["reward" if cmdp.maximise else "cost", *cmdp.names]
    taken = [name for i, name in enumerate(names) if name in (*KEYS, "probability", *names[:i])]
    if taken:
        raise ValueError(f"the limit {taken[0]!r} has the name of another column; rename the limit")
    matrix = sp.csr_array(cmdp.transitions)
    pair = np.repeat(np.arange(cmdp.pairs.count), np.diff(matrix.indptr))
    tables = (cmdp.objective, *(c.values for c in cmdp.constraints))
    return {
        "state": _labelled(cmdp.pairs.state[pair], cmdp.state_labels),
        "action": _labelled(cmdp.pairs.action[pair], cmdp.action_labels),
        "next_state": _labelled(matrix.indices, cmdp.state_labels),
        "probability": matrix.data.copy(),
        **{name: np.asarray(table).ravel()[pair] for name, table in zip(names, tables, strict=True)},
    }


def _labelled(codes: Any, labels: Sequence[Hashable] | None) -> Any:
    if labels is None:
        return codes.astype(np.int64)
    return np.fromiter(labels, dtype=object, count=len(labels))[codes]


def to_table(cmdp: CMDP, path: PathLike | None) -> dict[str, Any] | None:
    """See `CMDP.to_table`."""
    columns = to_columns(cmdp)
    if path is None:
        return columns
    write_csv(path, {name: column.tolist() for name, column in columns.items()})
    return None


def to_frame(cmdp: CMDP) -> Any:
    """See `CMDP.to_frame`."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install 'cmdpkit[tables]'; to_table works without") from error
    return pd.DataFrame(to_columns(cmdp))
