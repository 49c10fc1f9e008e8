"""How fast models are read: `python benchmarks/ways_in.py`.

A table of a million pairs against pandas's `read_csv` of the same file, in the same run, and the pairs per second of
functions. Best of several repetitions, in CPU time; the machine may be shared, so read the ratios.
"""

from __future__ import annotations

import collections
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cmdpkit as ck


def best(call: Callable[[], Any], repetitions: int = 5) -> float:
    times = []
    for _ in range(repetitions):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def write(path: Path, states: int, words: bool) -> None:
    """Four actions with two successors each, as numbers or as words."""
    rng = np.random.default_rng(0)
    pairs = 4 * states
    first = rng.integers(0, states, pairs)
    second = (first + rng.integers(1, states, pairs)) % states
    p = rng.random(pairs)
    table: dict[str, Any] = {
        "state": np.repeat(np.arange(states), 8),
        "action": np.tile(np.repeat(np.arange(4), 2), states),
        "next_state": np.stack([first, second], axis=1).ravel(),
        "probability": np.stack([p, 1.0 - p], axis=1).ravel(),
        "reward": np.repeat(rng.random(pairs), 2),
        "wear": np.repeat(rng.random(pairs), 2),
    }
    if words:
        names = np.array([f"state {s}" for s in range(states)], dtype=object)
        table["state"], table["next_state"] = names[table["state"]], names[table["next_state"]]
        table["action"] = np.array(["run", "slow", "repair", "stop"], dtype=object)[table["action"]]
    pd.DataFrame(table).to_csv(path, index=False)


def lattice(size: int) -> Callable[..., Any]:
    """Two queues, served in turn, as a function of arrays."""

    def function(states: Any, actions: Any) -> Any:
        x, y = states.T
        pair = np.arange(x.size)
        one = np.stack([np.minimum(x + 1, size), y], axis=1)
        two = np.stack([x, np.minimum(y + 1, size)], axis=1)
        served = np.stack([np.maximum(x - (actions == 0), 0), np.maximum(y - (actions == 1), 0)], axis=1)
        row = np.concatenate([pair, pair, pair])
        return row, np.repeat([0.3, 0.3, 0.4], x.size), np.concatenate([one, two, served]), (x + y + 0.0)[row]

    return function


def ring(size: int) -> Callable[..., Any]:
    """A random graph: few levels, each with many states."""
    jump = np.random.default_rng(1).integers(0, size, (size, 4))

    def function(states: Any, actions: Any) -> Any:
        return np.arange(states.size), np.ones(states.size), jump[states, actions], states * 1.0

    return function


def plain(size: int) -> Callable[..., Any]:
    def function(state: tuple[int, int], action: int) -> Any:
        x, y = state
        served = (max(x - 1, 0), y) if action == 0 else (x, max(y - 1, 0))
        return [(0.3, (min(x + 1, size), y), x + y), (0.3, (x, min(y + 1, size)), x + y), (0.4, served, x + y)]

    return function


def main(states: int) -> None:
    limits = [ck.AtMost("wear", 4.0)]
    with tempfile.TemporaryDirectory() as folder:
        for words in (False, True):
            path = Path(folder, f"{words}.csv")
            write(path, states, words)
            theirs = best(lambda path=path: pd.read_csv(path))
            ours = best(lambda path=path: ck.CMDP.from_table(path, constraints=limits, gamma=0.9))
            kind = "words" if words else "numbers"
            print(f"from_table, {4 * states:,} pairs, labels are {kind}: {ours:.2f} s, {ours / theirs:.2f} x read_csv")
    size = int(np.sqrt(2 * states)) - 1
    for name, function, initial, actions in (
        ("two queues", lattice(size), (0, 0), [0, 1]),
        ("random graph", ring(states), 0, [0, 1, 2, 3]),
    ):
        found: list[ck.CMDP] = []

        def build(function: Any = function, initial: Any = initial, actions: Any = actions, found: Any = found) -> None:
            found[:] = [ck.CMDP.from_function(function, initial, actions=actions, gamma=0.9, vectorised=True)]

        seconds = best(build, 3)
        print(f"from_function, vectorised, {name}: {found[0].pairs.count / seconds / 1e6:.2f} million pairs per second")
    side = 150
    one = plain(side)
    built = best(lambda: ck.CMDP.from_function(one, (0, 0), actions=[0, 1], gamma=0.9), 3)
    pairs_of = [((x, y), a) for x in range(side + 1) for y in range(side + 1) for a in (0, 1)]
    alone = best(lambda: collections.deque((one(*pair) for pair in pairs_of), maxlen=0), 3)
    pairs = 2 * (side + 1) ** 2
    print(
        f"from_function, plain: {built / pairs * 1e6:.1f} µs per pair, of which the function {alone / pairs * 1e6:.1f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250_000)
