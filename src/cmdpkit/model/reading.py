"""Tables of any source: CSV files, pandas and polars frames, and dicts of columns."""

from __future__ import annotations

import csv
import difflib
import importlib.util
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.files import PathLike
from cmdpkit.model.listing import IntArray
from cmdpkit.model.references import some, suggestion

SMALL_FILE = 2_000_000
"""Bytes up to which the csv module reads a file faster than pandas is imported."""

WHOLE = re.compile(r"\s*(0|-?[1-9][0-9]{0,17})\s*")
"""A whole number as it is usually written: 01 and 1 are different labels."""

KEYS = ("state", "action", "next_state")


class Table:
    """Named columns of any source, and how its rows are called in error messages."""

    def __init__(self, columns: Mapping[str, Any], title: str = "", first_line: int | None = None) -> None:
        self.columns = columns
        self.index: list[str] = []  # names of columns that a frame has as its index, where they are not found
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
            raise ValueError(f"{place} no column {name!r}; {self._advice(name)}")
        return self.columns[name]

    def _advice(self, name: str) -> str:
        """What to do about a missing column."""
        known = list(self.columns)
        if name in self.index:
            return "it is in the index of the frame: pass frame.reset_index()"
        if len(known) == 1 and known[0].count(";") + known[0].count("\t") > 1:
            return f"the header is {known[0]!r}: separate the columns by commas"
        hint = suggestion(name, known, "columns")
        if name not in (*KEYS, "probability"):
            return hint
        others = [column for column in known if column not in (*KEYS, "probability")]
        short = [column for column in others if len(column) > 2 and name.startswith(column.lower())]
        close = short or difflib.get_close_matches(name, others, n=1, cutoff=0.5)
        if close:
            return f"did you mean {close[0]!r}? Then say columns={{{name!r}: {close[0]!r}}}"
        if name == "probability" and set(KEYS) <= set(known):
            return f"{hint}; logged transitions, which have no probabilities, are read by CMDP.from_samples"
        return f"{hint}; columns={{{name!r}: '...'}} says what it is called"

    def numbers(self, name: str) -> Array:
        """A column of numbers. NaN is left for the checks that can name the state and the action."""
        column = plain_column(self.column(name))
        if column.dtype.kind in "fiub":
            return np.asarray(column, dtype=np.float64)
        numbers = np.empty(column.size)
        for row, entry in enumerate(column.tolist()):
            try:
                numbers[row] = np.nan if entry is None else float(entry)
            except (TypeError, ValueError):
                place = self.where(np.array([row]))
                raise ValueError(f"{place}{name} is {entry!r}, which is not a number{_written(entry)}") from None
        return numbers


def read_table(source: Any, columns: Mapping[str, str] | None = None) -> Table:
    """A table from a path, a frame, or a mapping of columns; `columns` maps our names to those of the source."""
    if isinstance(source, (str, os.PathLike)):
        table = _read_csv(source)
    elif isinstance(source, Mapping):
        for name, column in source.items():
            if isinstance(column, str) or not hasattr(column, "__len__"):
                raise TypeError(f"column {name!r} is {column!r}; a column is a list or an array, with an entry per row")
        table = Table(dict(source))
    elif hasattr(source, "collect_schema") and not hasattr(source, "__len__"):
        raise TypeError(f"a {type(source).__name__} has no rows yet; pass frame.collect()")
    elif hasattr(source, "columns") and hasattr(source, "__getitem__"):
        names = [str(name) for name in source.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the table has more than one column {twice[0]!r}; rename or remove one of them")
        table = Table({str(name): source[name] for name in source.columns})
        table.index = [str(name) for name in getattr(getattr(source, "index", None), "names", [])]
    else:
        rows = "; pandas.DataFrame(rows) makes a frame of a list of rows" if isinstance(source, (list, tuple)) else ""
        raise TypeError(
            f"a table is a path, a pandas or polars frame, or a dict of columns, not {type(source).__name__}{rows}"
        )
    if not table.columns:
        raise ValueError(f"{table.title or 'the table'} is empty: it has no columns")
    if columns is not None:
        renamed = {theirs: ours for ours, theirs in columns.items()}
        for theirs in renamed:
            table.column(theirs)
        table.columns = {renamed.get(name, name): column for name, column in table.columns.items()}
    lengths = {name: len(column) for name, column in table.columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a table have the same length; these have {lengths}")
    return table


def _written(entry: Any) -> str:
    """How a number should have been written, where that can be told."""
    text = str(entry).strip()
    if _is_number(text.removesuffix("%")):
        return "; write percentages as fractions, 0.9 for 90 %"
    return "; write decimal points, not commas" if _is_number(text.replace(",", ".", 1)) else ""


def plain_column(column: Any) -> Any:
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


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _read_csv(path: PathLike) -> Table:
    """Entries of the label columns are whole numbers if all of a column are, otherwise text as it stands."""
    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a CSV file")
    if Path(path).suffix.lower() in (".xlsx", ".xls", ".ods", ".parquet", ".feather", ".npz"):
        raise ValueError(
            f"{path} is not a CSV file, judging by its name; read it into a frame, as by pandas.read_excel or "
            "pandas.read_parquet, and pass that"
        )
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
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row that is too long
            frame = pd.read_csv(path, dtype=text, **settings)
        # Entries that look like numbers at first, but are labels: they are kept as they are written.
        unusual = _unusual_numbers(path)
        labels = [n for n in KEYS if n in frame and n not in text and (unusual or frame[n].dtype.kind != "i")]
        written = {n: pd.read_csv(path, usecols=[n], dtype=object, **settings)[n] for n in labels}
    except (pd.errors.ParserError, pd.errors.ParserWarning, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable CSV file: {error}") from error
    return {name: frame[name] for name in frame.columns} | {n: _typed(written[n].tolist()) for n in labels}


def _unusual_numbers(path: PathLike) -> bool:
    """Whether an entry may be a whole number with a leading zero or plus sign, which pandas drops."""
    rest = b""
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            text = np.frombuffer(rest + part, dtype=np.uint8)
            at = 1 + np.flatnonzero((text[1:-1] == ord("0")) | (text[1:-1] == ord("+")))
            begins = np.isin(text[at - 1], list(b',\n "'))
            if (begins & ((text[at] == ord("+")) | np.isin(text[at + 1], list(b"0123456789")))).any():
                return True
            rest = text[-2:].tobytes()
    return False


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
