"""One block of a sharded model: as a user's function returns it, as it is once checked, and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, as_floats, digest, longest_row
from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.model.pairs import Pairs, check_available

BLOCK_FILE, KIND = "block-{:05d}.npz", "cmdpkit block of a model"


class Block(NamedTuple):
    """What `build(first, last)` returns: the rows of the states first to last − 1, of which there are n."""

    transitions: Any  # (n·A, S) scipy.sparse, row (s − first)·A + a; with `available` a row for each available pair
    quantities: Any  # (m + 1, n, A): reward (or cost), then what each limit bounds; or (m + 1, rows)
    initial: Any = None  # (n,) part of the initial distribution; None where the model has it
    available: Any = None  # (n, A) booleans; None where all actions are available


class CheckedBlock(NamedTuple):
    """A block in the internal sign convention, validated."""

    first: int
    pairs: Pairs  # of its n states
    transitions: Any  # CSR (N, S)
    costs: Array  # (rows + 1, N)
    initial: Array  # (n,)

    @property
    def facts(self) -> Facts:
        """What the model as a whole needs to know of the block."""
        sums = np.asarray(self.transitions.sum(axis=1)).ravel()
        return Facts(
            pairs=self.pairs.count,
            entries=int(self.transitions.nnz),
            largest=self.pairs.largest,
            longest_row=longest_row(self.transitions),
            row_sums=(float(sums.min()), float(sums.max())),
            highest=self.costs.max(axis=1),
            lowest=self.costs.min(axis=1),
            mass=float(self.initial.sum()),
            digest=digest(
                *(self.transitions.data, self.transitions.indices, self.transitions.indptr),
                *(self.costs, self.initial, self.pairs.first),
            ),
        )


class Facts(NamedTuple):
    """A block in a few numbers."""

    pairs: int
    entries: int
    largest: int
    longest_row: int
    row_sums: tuple[float, float]
    highest: Array  # (rows + 1,)
    lowest: Array
    mass: float
    digest: str


def check_matrix(transitions: Any, rows: int, states: int) -> Any:
    """CSR with sorted columns, without changing what the user has."""
    if not sp.issparse(transitions):
        raise TypeError(f"transitions must be a scipy.sparse matrix, not {type(transitions).__name__}")
    if transitions.shape != (rows, states):
        raise ValueError(
            f"transitions have shape {transitions.shape}; the block has {rows} pairs of state and action, and the "
            f"model {states} states, so they must have shape {(rows, states)}"
        )
    if transitions.dtype.kind not in "fiub":
        raise TypeError(f"transitions must hold real numbers, not dtype {transitions.dtype}")
    try:
        if hasattr(transitions, "check_format"):
            transitions.check_format(full_check=True)
    except (ValueError, IndexError) as error:
        raise ValueError(f"transitions are malformed: {error}") from error
    matrix = sp.csr_array(transitions, dtype=np.float64)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


class BlockFiles:
    """Reads blocks from the files of a folder."""

    def __init__(self, folder: Path, bounds: Sequence[int]) -> None:
        self.folder, self.numbers = folder, {first: number for number, first in enumerate(bounds)}

    def __call__(self, first: int, last: int) -> Block:
        return read_block(self.folder, self.numbers[first])


def write_block(folder: PathLike, number: int, block: Any) -> None:
    """Write what `build` returned for a block to its file in a folder."""
    block = Block(*block)
    matrix = sp.csr_array(block.transitions)
    arrays = {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "shape": np.array(matrix.shape),
        "quantities": as_floats(block.quantities, "quantities"),
    }
    optional = {"initial": block.initial, "available": block.available}
    if sp.issparse(block.available):  # whose stored entries are the pairs
        n, actions = block.available.shape
        optional["available"] = check_available(block.available, n, actions).mask
    arrays |= {name: np.asarray(value) for name, value in optional.items() if value is not None}
    save_arrays(Path(folder) / BLOCK_FILE.format(number), KIND, arrays, compress=False)


def read_block(folder: PathLike, number: int) -> Block:
    """Read what `write_block` wrote."""
    path = Path(folder) / BLOCK_FILE.format(number)
    arrays = load_arrays(path, KIND)
    try:
        shape = tuple(int(size) for size in arrays["shape"])
        matrix = sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        return Block(matrix, arrays["quantities"], arrays.get("initial"), arrays.get("available"))
    except KeyError as error:
        raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
