"""Numbering states that are whole numbers or rows of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cmdpkit.model.exploration import too_many
from cmdpkit.model.listing import IntArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the upper bits of its multiples are spread evenly over a hash table."""

ROOM, LEAST_ROOM = 64, 1 << 22
"""Places per state that a table of direct addresses may have, and what it may have in any case: a hash table takes as
much memory, and several times as long."""


class Numbering:
    """Numbers states that are whole numbers (n,) or rows of them (n, d), in the order in which they are found."""

    def __init__(self, width: int | None, max_states: int) -> None:
        self.max_states = max_states
        self.count = 0
        self.blocks: list[IntArray] = []
        self.width = width
        self.known: _Box | _Hashed = _Box(width or 1)

    def codes(self, states: IntArray) -> IntArray:
        """The numbers of states; new ones are added."""
        found, new = self.known.codes(states, self.blocks, self.count) or self._hash(states)
        if new.size:
            self.blocks.append(states[new])
            self.count += new.size
        if self.count > self.max_states:
            raise too_many(self.count, self.max_states)
        return found

    def _hash(self, states: IntArray) -> tuple[IntArray, IntArray]:
        """The states are too far apart for direct addresses."""
        self.known = _Hashed(self.width, self.blocks)
        return self.known.codes(states, self.blocks, self.count)


class _Box:
    """Direct addresses: numbers by place in a box around all states, −1 where no state is known."""

    def __init__(self, width: int) -> None:
        self.low = [0] * width
        self.sizes = [0] * width
        self.numbers = np.empty(0, dtype=np.int32)

    def codes(self, states: IntArray, blocks: list[IntArray], count: int) -> tuple[IntArray, IntArray] | None:
        """The number of each state, and which of them were new; None if the box would be too large.

        The `count` known states are in `blocks`; new ones take the next numbers.
        """
        places = self._places(states)
        if places is None and self._grow(states, blocks, count):
            places = self._places(states)
        if places is None:
            return None
        found: Any = self.numbers[places]
        unknown: Any = np.flatnonzero(found < 0)
        if not unknown.size:
            return found, unknown
        at, order = places[unknown], np.arange(unknown.size, dtype=np.int32)
        self.numbers[at[::-1]] = order[::-1]  # of equal states the first one takes the place
        new = unknown[self.numbers[at] == order]
        self.numbers[places[new]] = np.arange(count, count + new.size)
        found[unknown] = self.numbers[at]
        return found, new

    def _grow(self, states: IntArray, blocks: list[IntArray], count: int) -> bool:
        """Enlarge the box to include these states; False if it would be too large."""
        columns = _columns(states)
        ranges = [(int(column.min()), int(column.max()) + 1) for column in columns]
        if blocks:
            old = zip(self.low, self.sizes, strict=True)
            ranges = [(min(a, low), max(b, low + n)) for (a, b), (low, n) in zip(ranges, old, strict=True)]
        most = min(ROOM * (count + len(states)) + LEAST_ROOM, 1 << 31)
        ample = list(map(_ample, ranges, self.low, self.sizes))
        chosen = next((r for r in (ample, ranges) if _volume(r) <= most), None)
        if chosen is None or any(a < -(1 << 62) or b > 1 << 62 for a, b in chosen):
            return False
        self.low, self.sizes = [a for a, _ in chosen], [b - a for a, b in chosen]
        self.numbers = np.full(_volume(chosen), -1, dtype=np.int32)
        if blocks:
            places: Any = self._places(np.concatenate(blocks))
            self.numbers[places] = np.arange(count)
        return True

    def _places(self, states: IntArray) -> IntArray | None:
        """Where the states are in the table; None if one of them is outside."""
        places: Any = 0
        for column, low, size in zip(_columns(states), self.low, self.sizes, strict=True):
            at = column - low
            if at.size and at.view(np.uint64).max() >= size:  # without sign, differences below zero are large
                return None
            places = places * size + at
        return np.asarray(places)


def _volume(ranges: list[tuple[int, int]]) -> int:
    return math.prod(b - a for a, b in ranges)


def _ample(needed: tuple[int, int], low: int, size: int) -> tuple[int, int]:
    """A range that has grown is at least twice as long as before, so that it grows rarely."""
    a, b = needed
    more = max(2 * size - (b - a), 0) if b - a > size else 0
    return (a - more, b) if a < low else (a, b + more)


def _columns(states: IntArray) -> list[IntArray]:
    return [states] if states.ndim == 1 else list(states.T)


class _Hashed:
    """A hash table with open addressing, for states that are known already, in blocks, and new ones."""

    def __init__(self, width: int | None, blocks: list[IntArray]) -> None:
        self.width = width
        self.bits = 63 // (width or 1)
        keys = self._keys(np.concatenate(blocks)) if blocks else np.empty(0, dtype=np.int64)
        self._resize(16 * keys.size + 1024)
        self._find(keys, np.arange(keys.size))

    def codes(self, states: IntArray, _: list[IntArray], count: int) -> tuple[IntArray, IntArray]:
        """As `_Box.codes`."""
        self.count = count
        keys = self._keys(states)
        if 4 * (self.count + keys.size) > self.mask:
            old, used = self.keys, self.numbers >= 0
            numbers = self.numbers[used]
            self._resize(16 * (self.count + keys.size))
            self._find(old[used], numbers)
        return self._find(keys)

    def _resize(self, least: int) -> None:
        """An empty hash table: keys and numbers by slot, −1 where a slot is free."""
        size = 1 << int(least - 1).bit_length()
        self.mask, self.shift = size - 1, np.uint64(65 - size.bit_length())
        self.keys = np.zeros(size, dtype=np.int64)
        self.numbers = np.full(size, -1, dtype=np.int64)
        self.claims = np.zeros(size, dtype=np.int64)

    def _find(self, keys: IntArray, given: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """Open addressing, all keys at once: the number of each key, and which of them were new.

        Of the keys that meet in a free slot the last one takes it; the others compare with it and move on. New keys
        take the next numbers, or those `given`.
        """
        found = np.empty(keys.size, dtype=np.int64)
        added = []
        spread = keys.view(np.uint64) * GOLDEN
        slots = ((spread ^ (spread >> np.uint64(32))) * GOLDEN >> self.shift).view(np.int64)
        waiting = np.arange(keys.size)
        while waiting.size:
            at = slots[waiting]
            free = self.numbers[at] < 0
            if free.any():
                places, candidates = at[free], waiting[free]
                self.claims[places] = candidates
                winners = candidates[self.claims[places] == candidates]
                self.keys[slots[winners]] = keys[winners]
                numbers = np.arange(self.count, self.count + winners.size) if given is None else given[winners]
                self.numbers[slots[winners]] = numbers
                if given is None:
                    self.count += winners.size
                    added.append(winners)
            same = self.keys[at] == keys[waiting]
            found[waiting[same]] = self.numbers[at[same]]
            waiting = waiting[~same]
            slots[waiting] = (slots[waiting] + 1) & self.mask
        return found, np.concatenate(added) if added else waiting

    def _keys(self, states: IntArray) -> IntArray:
        if self.width is None:
            return states
        half = 1 << (self.bits - 1)
        if states.size and not -half <= states.min() <= states.max() < half:
            raise ValueError(
                f"the entries of a state with {self.width} numbers must be at least {-half} and below {half}; one is "
                f"{states.min() if states.min() < -half else states.max()}. Number such states yourself, or let the "
                "function take one state at a time"
            )
        keys = states[:, 0] + half
        for column in states.T[1:]:
            keys = (keys << self.bits) | (column + half)
        return keys
