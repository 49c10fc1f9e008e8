"""Compiled rollouts against a vectorised NumPy sampler, in the same run: `python benchmarks/sampling.py` (make bench).

A transition draws an action and a next state and adds every quantity to its discounted sum. Best of several
repetitions, each with fresh random streams; the machine may be shared, so read the ratio.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.simulators import ModelSimulator


def numpy_sampler(cmdp: ck.CMDP, policy: np.ndarray, horizon: int, rollouts: int, seed: int) -> np.ndarray:
    """The usual way: inverse cumulative distributions over all rollouts at once."""
    rng = np.random.default_rng(seed)
    matrix = sp.csr_array(cmdp.transitions)
    width = int(np.diff(matrix.indptr).max())
    padded = np.zeros((matrix.shape[0], width))
    columns = np.zeros((matrix.shape[0], width), dtype=np.int64)
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    padded[rows, place], columns[rows, place] = matrix.data, matrix.indices
    following, choices = np.cumsum(padded, axis=1), np.cumsum(policy, axis=1)
    states = rng.choice(cmdp.states, size=rollouts, p=cmdp.initial)
    total = np.zeros((cmdp.num_constraints + 1, rollouts))
    for t in range(horizon):
        actions = (choices[states] < rng.random(rollouts)[:, None]).sum(axis=1)
        pairs = states * cmdp.actions + np.minimum(actions, cmdp.actions - 1)
        total += cmdp.gamma**t * cmdp.costs[:, pairs]
        drawn = (following[pairs] < rng.random(rollouts)[:, None]).sum(axis=1)
        states = columns[pairs, np.minimum(drawn, width - 1)]
    return np.asarray(total.mean(axis=1))


def best(work, repetitions: int) -> float:
    times = []
    for repetition in range(repetitions):
        started = time.perf_counter()
        work(repetition)
        times.append(time.perf_counter() - started)
    return min(times)


def row(name: str, cmdp: ck.CMDP, horizon: int, rollouts: int) -> str:
    policy = np.random.default_rng(0).dirichlet(np.ones(cmdp.actions), size=cmdp.states)
    simulator = ModelSimulator(cmdp)
    simulator.returns(policy, horizon, rollouts // 10, (0,))  # compile
    few = rollouts // 20
    ours = best(lambda seed: simulator.returns(policy, horizon, rollouts, (seed,)), 5)
    peer = best(lambda seed: numpy_sampler(cmdp, policy, horizon, few, seed), 3)
    fast, slow = rollouts * horizon / ours, few * horizon / peer
    return f"| {name} | {slow / 1e6:.1f} M | {fast / 1e6:.1f} M | {fast / slow:.1f} |"


def main(quick: bool) -> None:
    large = ck.problems.garnet(states=10_000, actions=10, successors=20, gamma=0.9)
    scale = 20 if quick else 1
    print("| model | NumPy, transitions a second | compiled | ratio |\n|---|---|---|---|")
    print(row("the paper's instance, S = 20, A = 10", ck.problems.paper(), 40, 2_000_000 // scale))
    print(row("Garnet, S = 10,000, A = 10, 20 successors", large, 40, 400_000 // scale))


if __name__ == "__main__":
    main("--quick" in sys.argv)
