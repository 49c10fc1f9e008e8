"""Blocks of the states of a large model, whose tables fit into a cache."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from cmdpkit.checks import Array
from cmdpkit.model.pairs import Pairs

PAIRS = 65_536
"""Pairs of a block, about."""


class Part(NamedTuple):
    """A block of states."""

    states: slice
    rows: slice  # their pairs
    pairs: Pairs  # the same, counted from 0

    def of(self, table: Array) -> Array:
        """Its rows of a pair table."""
        return table[self.states if self.pairs.is_full else self.rows]


def parts(pairs: Pairs) -> list[Part]:
    """All states, in blocks that depend on their number only."""
    count = max(1, pairs.count // PAIRS)
    bounds = [pairs.states * b // count for b in range(count + 1)]
    return [_part(pairs, first, last) for first, last in pairwise(bounds)]


def _part(pairs: Pairs, first: int, last: int) -> Part:
    if pairs.is_full:
        rows = slice(first * pairs.actions, last * pairs.actions)
        return Part(slice(first, last), rows, Pairs(last - first, pairs.actions))
    heads = pairs.first[first : last + 1]
    rows = slice(int(heads[0]), int(heads[-1]))
    return Part(slice(first, last), rows, Pairs(last - first, pairs.actions, heads - heads[0], pairs.action[rows]))
