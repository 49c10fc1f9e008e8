"""Checkpoints of long runs: written atomically every few seconds; those of another run are rejected."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cmdpkit.files import PathLike, check_folder, load_arrays, save_arrays

SECONDS = 5.0
"""Seconds between checkpoints; longer if writing would take more than a twentieth of the time."""


class Pace:
    """When the state of a run is to be written again."""

    def __init__(self) -> None:
        self._due = time.perf_counter() + SECONDS

    @property
    def is_due(self) -> bool:
        return time.perf_counter() >= self._due

    def wrote(self, started: float) -> None:
        """Take note that the state has been written since the time `started`."""
        now = time.perf_counter()
        self._due = now + max(SECONDS, 20.0 * (now - started))


class Checkpoint:
    """A file with the state of a run; without a path it does nothing.

    Args:
        path: the file; a run whose state is found there continues from it.
        run: the identity of the run, as plain JSON; a state with another identity is rejected.
        write, read: functions that write and read a file, like `save_arrays` and `load_arrays`.
        newer: names in the identity that runs of earlier versions do not have; they are not compared with those.
    """

    def __init__(
        self,
        path: PathLike | None,
        run: dict[str, Any],
        write: Callable[[PathLike, str, dict[str, Any]], None] = save_arrays,
        read: Callable[[PathLike, str], dict[str, Any]] = load_arrays,
        newer: tuple[str, ...] = (),
    ) -> None:
        self.path, self.run, self._newer = path, json.loads(json.dumps(run)), newer
        self._write, self._read = write, read
        if path is not None:
            check_folder(path)
        self._pace = Pace()

    def load(self) -> dict[str, Any] | None:
        """The state in the file, or None if there is no file."""
        if self.path is None or not Path(self.path).exists():
            return None
        arrays = self._read(self.path, "cmdpkit checkpoint")
        try:
            found = json.loads(str(arrays.pop("run")))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{self.path} is damaged: the identity of the run is missing") from error
        compared = [name for name in self.run if name in found or name not in self._newer]
        other = [name for name in compared if found.get(name) != self.run[name]]
        if other:
            name = other[0]
            raise ValueError(
                f"{self.path} belongs to another run, with {name} = {_short(found.get(name))} instead of "
                f"{_short(self.run[name])}. Use another file, or remove this one to start again"
            )
        return arrays

    def must(self, resume: bool | None) -> None:
        """Raise an error if there is nothing to continue (`resume` is True), or something to overwrite (False)."""
        found = self.path is not None and Path(self.path).exists()
        if resume and not found:
            raise FileNotFoundError(f"there is no run in {self.path} to resume")
        if resume is False and found:
            raise FileExistsError(f"{self.path} already holds a run; resume it, or choose another file")

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """Write the state, unless it is empty."""
        started = time.perf_counter()
        if self.path is None or not (arrays := state()):
            return
        try:
            self._write(self.path, "cmdpkit checkpoint", arrays | {"run": json.dumps(self.run)})
        except OSError as error:  # a full disk must not end the run
            warnings.warn(f"the checkpoint {self.path} could not be written: {error}", stacklevel=2)
        self._pace.wrote(started)

    @property
    def is_due(self) -> bool:
        """Whether it is time to write the state again."""
        return self.path is not None and self._pace.is_due

    def save_when_due(self, state: Callable[[], dict[str, Any]]) -> None:
        if self.is_due:
            self.save(state)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
