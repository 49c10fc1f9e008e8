"""Files are written atomically and read without pickle."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

PathLike = str | os.PathLike[str]


def write_whole(path: PathLike, write: Callable[[IO[bytes]], object]) -> None:
    """Call `write` on a temporary file beside `path`, then rename it: a reader never sees a partial file."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder; give the name of a file")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files; use the mode that open() would
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def copy_whole(source: PathLike, path: PathLike) -> None:
    """Copy a file: a reader of `path` never sees a part of it."""
    with open(source, "rb") as file:
        write_whole(path, lambda target: shutil.copyfileobj(file, target))


def check_folder(path: PathLike) -> None:
    """Check before a long run that its result can be written."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {folder} does not exist")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(f"cannot write {path}: the folder {folder} is not writable ({error.strerror})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_csv(path: PathLike, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write columns with a header row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def write_json(path: PathLike, content: Any) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def save_arrays(path: PathLike, kind: str, arrays: Mapping[str, Any], compress: bool = True) -> None:
    """Write an `.npz` whose `kind` entry says what it holds."""
    save = np.savez_compressed if compress else np.savez
    write_whole(path, lambda file: save(file, kind=np.array(kind), **arrays))


def load_arrays(path: PathLike, kind: str) -> dict[str, Any]:
    """Read what `save_arrays` wrote; a ValueError says why any other file is rejected."""
    arrays = _read_arrays(path)
    found = str(arrays["kind"]) if "kind" in arrays else None
    if found != kind:
        what = f"holds {found!r}" if found else "was not written by cmdpkit"
        raise ValueError(f"{path} {what}, but {kind!r} is needed here")
    return arrays


def kind_of(path: PathLike) -> str:
    """What `save_arrays` was told that a file holds."""
    arrays = _read_arrays(path, ("kind",))
    if "kind" not in arrays:
        raise ValueError(f"{path} was not written by cmdpkit")
    return str(arrays["kind"])


END = 22
"""Bytes of the last record of an archive, which has the number of entries."""


def _read_arrays(path: PathLike, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """The arrays of a file, or those of them that are wanted."""
    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with open(path, "rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("a single array, not an .npz archive")
            comment = stored.zip.comment if stored.zip else b""
            file.seek(-END - len(comment), 2)
            count = int.from_bytes(file.read(END)[10:12], "little")
            if count != len(stored.files):  # a damaged length hides the entries that follow
                raise ValueError(f"its directory shows {len(stored.files)} of {count} entries")
            arrays = {name: stored[name] for name in stored.files if wanted is None or name in wanted}
        strange = next((name for name, value in arrays.items() if not isinstance(value, np.ndarray)), None)
        if strange is not None:
            raise ValueError(f"its entry {strange!r} is not an array")
    except Exception as error:  # a damaged header fails in NumPy's parser in many ways, tokenize.TokenError among them
        # NumPy suggests to allow pickle for any unreadable file; that suggestion must not be passed on.
        reason = "it is not an .npz archive of plain arrays" if "pickle" in str(error) else error
        table = Path(path).suffix.lower() in (".csv", ".tsv")
        advice = "a table of transitions is read by CMDP.from_table" if table else "was it damaged or made elsewhere?"
        message = f"{path} is not a readable cmdpkit file ({reason}); {advice}"
        raise ValueError(message) from error
    return arrays


def save_tensors(path: PathLike, kind: str, state: Mapping[str, Any]) -> None:
    """Write arrays as safetensors, and everything else as JSON in the header of the same file."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(value) for name, value in state.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in state.items() if name not in arrays}
    header = {"kind": kind, "state": json.dumps(rest)}
    content = save(arrays, header | {"digest": _digest(header, arrays)})
    write_whole(path, lambda file: file.write(content))


def load_tensors(path: PathLike, kind: str) -> dict[str, Any]:
    """Read what `save_tensors` wrote; a ValueError says why any other file is rejected."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(str(path), framework="np") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if header.get("kind") != kind:
            raise ValueError(f"it holds {header.get('kind')!r}, but {kind!r} is needed")
        if header.pop("digest", None) != _digest(header, arrays):
            raise ValueError("its content is not what was saved")
        return {**arrays, **json.loads(header["state"])}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a readable checkpoint ({error}); was it damaged or made elsewhere?") from error


def _digest(header: Mapping[str, str], arrays: Mapping[str, Any]) -> str:
    """A hash of everything in a file: safetensors itself does not notice a number that has changed."""
    code = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, table in sorted(arrays.items()):
        code.update(f"{name} {table.dtype} {table.shape} ".encode())
        code.update(table.tobytes())
    return code.hexdigest()
