"""Policies of sharded models: in files, one for each block."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.files import PathLike, copy_whole, load_arrays, save_arrays, write_json

KIND, FORMAT = "cmdpkit block of a policy", 1
HEAD, FILE = "policy.json", "policy-{part}-{block:05d}.npz"


class ShardedPolicy:
    """A policy of a sharded model, or a mixture of a few of which one is drawn at the start.

    Its probabilities are in the files of a folder, one for each block and policy. A folder that was made for the result
    of a run is removed with this object; `save` keeps the policy.

    Attributes:
        weights: (k,) with which each policy of the mixture is drawn; a single 1 for a stationary policy.
        bounds: the states at which blocks begin, and the number of states.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        try:
            head = json.loads((self.folder / HEAD).read_text("utf-8"))
            if head["kind"] != "ShardedPolicy" or head["format"] != FORMAT:
                raise ValueError("it is of another kind or format")
            self.weights: Array = np.array(head["weights"], dtype=float)
            self.bounds: tuple[int, ...] = tuple(int(state) for state in head["bounds"])
            self.actions = int(head["actions"])
        except (KeyError, TypeError, json.JSONDecodeError, ValueError) as error:
            raise ValueError(f"{self.folder / HEAD} does not describe a sharded policy: {error}") from error

    @classmethod
    def temporary(
        cls, blocks: Iterable[tuple[int, int, Array]], weights: Sequence[float], bounds: Sequence[int], actions: int
    ) -> ShardedPolicy:
        """Write tables (part, block, probabilities), as they come, to a folder that is removed with the policy."""
        folder = Path(tempfile.mkdtemp(prefix="cmdpkit-policy-"))
        try:
            for part, block, table in blocks:
                save_arrays(folder / FILE.format(part=part, block=block), KIND, _packed(table))
            head = {"kind": "ShardedPolicy", "format": FORMAT, "weights": [float(w) for w in weights]}
            write_json(folder / HEAD, {**head, "bounds": list(bounds), "actions": actions})
            policy = cls(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(policy, shutil.rmtree, folder, ignore_errors=True)
        return policy

    @property
    def blocks(self) -> int:
        return len(self.bounds) - 1

    @property
    def is_stationary(self) -> bool:
        """Whether it is one policy, and not a mixture of several."""
        return self.weights.size == 1

    def block(self, number: int, part: int = 0) -> Array:
        """(n, A) probabilities of the actions in the states of a block, of one policy of the mixture."""
        arrays = load_arrays(self.folder / FILE.format(part=part, block=number), KIND)
        try:
            table = np.zeros((self.bounds[number + 1] - self.bounds[number], self.actions))
            table[np.arange(len(table)), arrays["action"]] = 1.0
            table[arrays["states"]] = arrays["probabilities"]
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"block {number} of the policy in {self.folder} is damaged: {error}") from error
        return table

    def probabilities_of(self, state: int, part: int = 0) -> Array:
        """(A,) probabilities of the actions in one state."""
        if not 0 <= state < self.bounds[-1]:
            raise ValueError(f"state {state} is not one of the states 0 to {self.bounds[-1] - 1}")
        number = int(np.searchsorted(self.bounds, state, "right")) - 1
        return np.asarray(self.block(number, part)[state - self.bounds[number]])

    def __iter__(self) -> Iterator[Array]:
        """The blocks of a stationary policy, one after the other."""
        if not self.is_stationary:
            raise ValueError(f"this is a mixture of {self.weights.size} policies; use block(number, part)")
        return (self.block(number) for number in range(self.blocks))

    def save(self, folder: PathLike) -> None:
        """Write the policy to a folder, a file for each block, without pickle."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for name in [*self.files, HEAD]:  # the description last: a folder that has one is complete
            copy_whole(self.folder / name, target / name)

    @property
    def files(self) -> list[str]:
        """The names of the files with its blocks."""
        return [FILE.format(part=p, block=b) for p in range(self.weights.size) for b in range(self.blocks)]

    @classmethod
    def load(cls, folder: PathLike) -> ShardedPolicy:
        """Read a policy that `save` has written; its blocks are read when they are used."""
        policy = cls(folder)
        missing = [name for name in policy.files if not (policy.folder / name).is_file()]
        if missing:
            raise ValueError(f"the policy in {policy.folder} is not complete: {missing[0]} is missing")
        return policy

    def __repr__(self) -> str:
        kind = "stationary" if self.is_stationary else f"mixture of {self.weights.size}"
        return f"ShardedPolicy({kind}, states={self.bounds[-1]}, actions={self.actions}, blocks={self.blocks})"


def _packed(table: Array) -> dict[str, Any]:
    """An action per state, and the probabilities of the states that randomise."""
    mixed = np.flatnonzero(table.max(axis=1) < 1.0)
    action = table.argmax(axis=1).astype(np.min_scalar_type(table.shape[1]))
    return {"action": action, "states": mixed, "probabilities": table[mixed]}
