"""The halo of a block: the states of other blocks to which it leads, and its columns in local numbers.

A block that takes all states of all others (of a random graph) keeps their own numbers.
"""

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


def localise(matrix: Any, bounds: Sequence[int], number: int) -> tuple[Any, list[Source], slice]:
    """The rows of a block with local columns, the sources of its halo, and where its own states are.

    Own states come first, then the halo in the order of the states; a block that takes all of every other keeps the
    order of the model. The entries of a row keep theirs, so that its sums are those of the whole model.
    """
    first, last = bounds[number : number + 2]
    halo, sources = _halo(matrix.indices, bounds, number)
    n = last - first
    if n + halo.size == bounds[-1]:
        sources = [source._replace(begin=bounds[source.block], end=bounds[source.block + 1]) for source in sources]
        return _compact(matrix, matrix.indices, bounds[-1]), sources, slice(first, last)
    if bounds[-1] <= TABLE * max(1, matrix.nnz):
        place = np.empty(bounds[-1], dtype=np.int32)
        place[first:last] = np.arange(n)
        place[halo] = n + np.arange(halo.size)
        indices = place[matrix.indices]
    else:
        own = (matrix.indices >= first) & (matrix.indices < last)
        indices = np.where(own, matrix.indices - first, n + np.searchsorted(halo, matrix.indices)).astype(np.int32)
    return _compact(matrix, indices, n + halo.size), sources, slice(0, n)


def _compact(matrix: Any, indices: Any, columns: int) -> Any:
    """A matrix with other columns, and the shortest numbers for them."""
    short = np.int32 if max(matrix.nnz, columns) <= np.iinfo(np.int32).max else np.int64
    numbers = (indices.astype(short, copy=False), matrix.indptr.astype(short, copy=False))
    return sp.csr_array((matrix.data, *numbers), shape=(matrix.shape[0], columns))


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
