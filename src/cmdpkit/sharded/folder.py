"""Checkpoints of sharded runs: a folder in which the blocks write their slices, and the driver what belongs together.

Every file is written atomically, and the head, which names the slices, after them: a run that is lost at any moment
leaves the state before or the state after.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cmdpkit.checks import check_flag
from cmdpkit.files import PathLike, write_json
from cmdpkit.model.sharded import MODEL_FILE
from cmdpkit.run.checkpoint import Pace
from cmdpkit.sharded.crew import Crew

HEAD = "run.json"


def check_folder(checkpoint: PathLike | None, resume: bool | None) -> Path | None:
    """The folder of a checkpoint, which is made if it does not exist, and holds a run if one is to be resumed."""
    if resume is not None:
        check_flag(resume, "resume")
    if checkpoint is None:
        if resume is not None:
            raise ValueError("resume needs checkpoint, the folder of the run")
        return None
    folder = Path(checkpoint)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the checkpoint of a sharded model is a folder, and {folder} is a file")
    if (folder / MODEL_FILE).exists():
        raise ValueError(f"{folder} holds a sharded model; choose another folder for the checkpoint")
    found = (folder / HEAD).exists()
    if resume and not found:
        raise FileNotFoundError(f"there is no run in {folder} to resume")
    if resume is False and found:
        raise FileExistsError(f"{folder} already holds a run; resume it, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


class Folder:
    """The checkpoint of one run; without a path it does nothing.

    Args:
        path: the folder, which all workers reach under the same name.
        crew: the blocks.
        run: identity of the run, as plain JSON; a state with another identity is refused.
    """

    def __init__(self, path: Path | None, crew: Crew, run: dict[str, Any]) -> None:
        self.path, self.crew = path, crew
        self.run = json.loads(json.dumps({"model": crew.model.fingerprint, **run}))
        self._kept: list[str] = []  # policies in the folder
        self._last = ""  # name of the slices in it
        self._pace = Pace()

    def load(self, read: str, restore: Callable[[dict[str, Any]], None]) -> bool:
        """Let the blocks read their slices by the operation `read`, and call `restore` with what `save` was given.

        False if there is nothing to continue from.
        """
        if self.path is None or not (self.path / HEAD).exists():
            return False
        head = self.path / HEAD
        try:
            saved = json.loads(head.read_text("utf-8"))
            other = [name for name in self.run if saved["run"].get(name) != self.run[name]]
            if other:
                raise ValueError(f"it belongs to another run: its {other[0]} is another. Use another folder")
            step = self.crew.submit(read, str(self.path), saved["name"], saved["kept"], send=True)
            self.crew.fetch(step)
            self.crew.fetch(self.crew.submit("install", after=step))
            self._kept, self._last = list(saved["kept"]), str(saved["name"])
            restore(saved["content"])
        except (KeyError, TypeError, IndexError, ValueError, FileNotFoundError) as error:
            raise ValueError(f"{head} is not a checkpoint that this run can continue from: {error}") from error
        return True

    def save(self, write: str, number: int, content: dict[str, Any], kept: Sequence[str] = ()) -> None:
        """Let the blocks write their slices by the operation `write`, and policies that they keep; then the head."""
        if self.path is None:
            return
        started, folder, name = time.perf_counter(), str(self.path), f"state-{number:06d}"
        try:
            self.crew.each(write, folder, name)
            for policy in kept[len(self._kept) :]:
                self.crew.each("write_kept", folder, policy)
                self._kept.append(policy)
            head = {"run": self.run, "name": name, "kept": self._kept, "content": content}
            write_json(self.path / HEAD, head)
            if self._last not in ("", name):
                self.crew.each("remove", folder, self._last)
            self._last = name
        except OSError as error:  # a full disk must not end the run
            warnings.warn(f"the checkpoint in {self.path} could not be written: {error}", stacklevel=2)
        self._pace.wrote(started)

    @property
    def is_due(self) -> bool:
        """Whether it is time to write the state again."""
        return self.path is not None and self._pace.is_due
