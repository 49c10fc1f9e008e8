"""Numbering states that are whole numbers or rows of them."""

from __future__ import annotations

import numpy as np

from cmdpkit.model.exploration import too_many
from cmdpkit.model.listing import IntArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the upper bits of its multiples are spread evenly over a hash table."""


class Numbering:
    """Numbers states that are whole numbers (n,) or rows of them (n, d), in the order in which they are found."""

    def __init__(self, width: int | None, max_states: int) -> None:
        self.width, self.max_states = width, max_states
        self.bits = 63 // (width or 1)
        self.count = 0
        self.blocks: list[IntArray] = []
        self._resize(1 << 10)

    def codes(self, states: IntArray) -> IntArray:
        """The numbers of states; new ones are added."""
        keys = self._keys(states)
        if 4 * (self.count + keys.size) > self.mask:
            old, used = self.keys, self.numbers >= 0
            numbers = self.numbers[used]
            self._resize(16 * (self.count + keys.size))
            self._find(old[used], numbers)
        found, new = self._find(keys)
        if new.size:
            self.blocks.append(states[new])
        if self.count > self.max_states:
            raise too_many(self.count, self.max_states)
        return found

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
