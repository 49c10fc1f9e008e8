"""Neural learning on Acrobot against Gymnasium's own Acrobot-v1 in the same run: `python benchmarks/acrobot.py`.

One thread each. Times are the best of several, because a shared machine only ever adds to them.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable

import gymnasium
import numpy as np

from cmdpkit.envs import ConstrainedAcrobots
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.rules import Weights

STEPS = 5_000
PARTS = {"acting": "collect", "policy step": "_step", "critics": "fit"}


def best(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def gymnasium_steps() -> None:
    env = gymnasium.make("Acrobot-v1")
    env.reset(seed=0)
    for action in np.random.default_rng(0).integers(0, 3, STEPS):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def batch_rate(num_envs: int) -> float:
    acrobots = ConstrainedAcrobots(num_envs, threads=False)
    acrobots.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, (100, num_envs))
    acrobots.step(actions[0])  # compiles
    return 100 * num_envs / best(lambda: [acrobots.step(a) for a in actions], 30)


def main() -> None:
    alone = best(gymnasium_steps, 5)
    print(f"Gymnasium's Acrobot-v1: {STEPS / alone:,.0f} steps a second, {alone:.3f} s for {STEPS:,}")
    for num_envs in (10, 64, 256, 1024):
        rate = batch_rate(num_envs)
        print(f"{num_envs:5} compiled acrobots: {rate / 1e6:.2f} million steps a second, {rate * alone / STEPS:.0f} x")
    learner = NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", [50, 50], inner_steps=2)
    weights = Weights(1.0, np.array([0.1, 0.1]))
    learner.improve(weights)
    iteration = best(lambda: learner.improve(weights), 8) / 2
    print(
        f"one PMD-PD policy iteration: {iteration:.3f} s, {STEPS / iteration:,.0f} steps a second end to end,", end=" "
    )
    print(f"{iteration / alone:.2f} x Gymnasium's stepping alone")
    profile = cProfile.Profile()
    profile.runcall(lambda: [learner.improve(weights) for _ in range(3)])
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    total = max(row[3] for _, row in rows)
    for part, function in PARTS.items():
        spent = max(row[3] for (path, _, name), row in rows if name == function and "learners" in path)
        print(f"  {part}: {100 * spent / total:.0f} %")


if __name__ == "__main__":
    main()
