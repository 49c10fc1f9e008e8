"""Drawing the actions of many states at once."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from cmdpkit.checks import PairTable
from cmdpkit.model import Pairs

CHUNK = 1 << 15


class Draws:
    """The actions that a policy plays in each state, with their cumulative probabilities."""

    def __init__(self, pairs: Pairs, pi: PairTable) -> None:
        self.pairs, flat = pairs, pi.reshape(-1)
        rows = np.flatnonzero(flat > 0.0)  # what has probability zero is not there to be drawn
        states, self.action = pairs.of(rows)
        self.first: Any = np.searchsorted(states, np.arange(pairs.states + 1))
        self.most = int(np.diff(self.first).max())
        self.cumulative = flat[rows]
        rank = np.arange(rows.size) - self.first[states]
        for k in range(1, self.most):
            at = np.flatnonzero(rank == k)
            self.cumulative[at] += self.cumulative[at - 1]
        self._number = {label: number for number, label in enumerate(pairs.state_labels or ())}
        self._whole = any(isinstance(label, numbers.Integral) for label in self._number)

    def act(self, states: Any, rng: np.random.Generator) -> Any:
        """Actions for one state or many, as numbers for numbers and as labels for labels."""
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"rng must be a numpy.random.Generator, such as numpy.random.default_rng(0), not {rng!r}")
        if self._are_labels(states):
            return self._by_label(states, rng)
        table = np.asarray(states)
        if table.dtype.kind not in "iu":
            raise TypeError(f"states must be whole numbers, not {table.dtype}; a policy without labels knows no others")
        bad = (table < 0) | (table >= self.pairs.states)
        if bad.any():
            raise ValueError(f"state {table[bad].flat[0]} is not one of 0 to {self.pairs.states - 1}")
        drawn = self._draw(table, rng)
        return drawn if table.ndim else int(drawn)

    def _are_labels(self, states: Any) -> bool:
        if not self._number:
            return False
        if self._whole or _is_known(states, self._number):
            return True
        if isinstance(states, np.ndarray):
            return states.dtype.kind not in "iu"
        first = next(iter(states), 0) if isinstance(states, (list, tuple)) else states
        return not isinstance(first, numbers.Integral)

    def _by_label(self, states: Any, rng: np.random.Generator) -> Any:
        single = _is_known(states, self._number) or isinstance(states, (str, bytes, numbers.Number))
        labels = [states] if single else list(states)
        try:
            table = np.array([self._number[label] for label in labels], dtype=np.int64)
        except (KeyError, TypeError):
            table = np.array([self.pairs.state_index(label) for label in labels])  # which says what is wrong
        names = self.pairs.action_labels
        actions = [action if names is None else names[action] for action in self._draw(table, rng).tolist()]
        return actions[0] if single else actions

    def _draw(self, states: Any, rng: np.random.Generator) -> Any:
        """In chunks whose arrays stay in the cache, each by bisection in all of its states at once."""
        flat, chance = states.ravel(), rng.random(states.size) if self.most > 1 else np.zeros(0)
        drawn = np.empty(flat.size, dtype=np.int64)
        for begin in range(0, flat.size, CHUNK):
            part = slice(begin, begin + CHUNK)
            at, last = self.first[flat[part]], self.first[flat[part] + 1] - 1
            if self.most > 1:
                level = chance[part] * self.cumulative[last]
                for k in range(int(self.most - 1).bit_length() - 1, -1, -1):
                    ahead = np.minimum(at + (1 << k), last)
                    # At least 2^k of the actions that are left lie below the level
                    at = np.where(self.cumulative[np.maximum(ahead - 1, at)] <= level, ahead, at)
            drawn[part] = self.action[at]
        return drawn.reshape(states.shape)


def _is_known(label: Any, known: dict[Any, int]) -> bool:
    try:
        return label in known
    except TypeError:  # not hashable
        return False
