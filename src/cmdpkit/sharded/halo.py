"""The halo of a block: the states of other blocks to which it leads, and its columns in local numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

WHOLE = 0.5
"""A block that needs this part of another's states takes them all: one message then serves all who do."""

TABLE = 8
"""A table of all states is used to renumber the columns unless it is so many times as long as they are."""


class Source(NamedTuple):
    """A block of which values are needed, and where they stand in local tables."""

    block: int
    begin: int
    end: int
    whole: bool
    states: Any  # which are needed, in the block's own numbers; None if `whole`


def localise(matrix: Any, bounds: Sequence[int], number: int) -> tuple[Any, list[Source]]:
    """The rows of a block with local columns (own states, then the halo in the order of the states), and the sources.

    The entries of a row keep their order, so that its sums are those of the whole model.
    """
    first, last = bounds[number : number + 2]
    halo, sources = _halo(matrix.indices, bounds, number)
    n = last - first
    if bounds[-1] <= TABLE * max(1, matrix.nnz):
        place = np.empty(bounds[-1], dtype=np.int32)
        place[first:last] = np.arange(n)
        place[halo] = n + np.arange(halo.size)
        indices = place[matrix.indices]
    else:
        own = (matrix.indices >= first) & (matrix.indices < last)
        indices = np.where(own, matrix.indices - first, n + np.searchsorted(halo, matrix.indices)).astype(np.int32)
    pointers = matrix.indptr.astype(np.int32 if matrix.nnz <= np.iinfo(np.int32).max else np.int64, copy=False)
    indices = indices.astype(pointers.dtype, copy=False)
    return sp.csr_array((matrix.data, indices, pointers), shape=(matrix.shape[0], n + halo.size)), sources


def _halo(columns: Any, bounds: Sequence[int], number: int) -> tuple[Any, list[Source]]:
    """(h,) the states of other blocks that are needed, sorted, and by which block."""
    first, last = bounds[number : number + 2]
    needed = _distinct(columns, bounds[-1])
    parts: list[Any] = []
    sources: list[Source] = []
    begin = last - first
    cuts = np.searchsorted(needed, bounds)
    for block, (low, high) in enumerate(pairwise(bounds)):
        part = needed[cuts[block] : cuts[block + 1]]
        if block == number or part.size == 0:
            continue
        whole = part.size >= WHOLE * (high - low)
        part = np.arange(low, high) if whole else part.astype(np.int64)
        sources.append(Source(block, begin, begin + part.size, whole, None if whole else part - low))
        begin += part.size
        parts.append(part)
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64), sources


def _distinct(columns: Any, states: int) -> Any:
    """The states that occur, sorted."""
    if states > TABLE * max(1, columns.size):
        return np.unique(columns)
    used = np.zeros(states, dtype=bool)
    used[columns] = True
    return np.flatnonzero(used)
