"""`train` against bare stepping of MuJoCo's robots, in the same run: `python benchmarks/robots.py [robot ...]`.

After every iteration of a run at the defaults the same robot is stepped without and with costs by random actions.
Processor time per step, in one thread; figures are medians over the iterations, because other work on the machine slows
all three alike but not at the same moments.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from cmdpkit.experiments.velocity import LIMIT, make
from cmdpkit.training import train

ITERATIONS, STEPS = 30, 1_000


def paces(env: Any) -> Iterator[float]:
    """Processor time per step, of a thousand steps at a time, with resets where episodes end."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    while True:
        actions = rng.uniform(-1.0, 1.0, (STEPS, *env.action_space.shape)).astype(np.float32)
        begin = time.process_time()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        yield (time.process_time() - begin) / STEPS


def measure(robot: str) -> np.ndarray:
    """(iterations, 3): processor time per step, bare, with costs and of the whole training."""
    bare, wrapped = paces(gymnasium.make(f"{robot}-v5")), paces(make(robot))
    rows: list[tuple[float, float, float]] = []
    begin, before = time.process_time(), 0

    def note(news: Any) -> None:
        nonlocal begin, before
        whole = (time.process_time() - begin) / (news.samples - before)
        rows.append((next(bare), next(wrapped), whole))
        begin, before = time.process_time(), news.samples

    train(lambda: make(robot), limits=[LIMIT], seed=0, iterations=ITERATIONS, callback=note)
    return np.array(rows[2:])  # the first iterations compile and import


def main() -> None:
    for robot in sys.argv[1:] or ("HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Ant"):
        table = measure(robot)
        bare, wrapped, whole = 1e6 * np.median(table, axis=0)
        of_wrapped, of_whole = np.median(table[:, :1] / table[:, 1:], axis=0)
        print(
            f"{robot}: bare {bare:.0f} µs a step ({1e6 / bare:,.0f} steps a second), with costs {wrapped:.0f} "
            f"({of_wrapped:.2f} of bare), training {whole:.0f} "
            f"({1e6 / whole:,.0f} steps a second, {of_whole:.2f} of bare)"
        )


if __name__ == "__main__":
    main()
