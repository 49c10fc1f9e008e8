"""Environments in blocks of several: on the workers of a cluster, or in other processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from gymnasium.vector import VectorEnv

from cmdpkit.cluster.crew import Crew
from cmdpkit.cluster.session import processors
from cmdpkit.envs.batch import COPIES, as_batch
from cmdpkit.envs.processes import Processes

Place = tuple[int, int]
"""The first environment of a block, and the first after it."""


class Scattered:
    """Copies of an environment on the workers, with as much of a `VectorEnv` as a learner needs to know.

    Args:
        env: a registered name, or a function that makes one environment.
        num_envs: number of copies; 4 by default.
        options: of `gymnasium.make`.
        workers: number of processes of this machine; None for the workers of the cluster in use. Those may be lost,
            and every rollout there begins with a reset from its seeds.
    """

    def __init__(self, env: Any, num_envs: int | None, options: dict[str, Any], workers: int | None = None) -> None:
        if isinstance(env, VectorEnv):
            raise ValueError(f"{env} cannot be divided among workers; pass a function that makes one environment")
        self.num_envs = COPIES if num_envs is None else num_envs
        one = as_batch(env, 1, **options)  # says what is wrong with it before anything is sent
        self.single_action_space, self.single_observation_space = one.single_action_space, one.single_observation_space
        self.metadata = one.metadata
        one.close()
        self.keeps = workers is not None  # whether environments go on where they stand
        count = min(processors() if workers is None else workers, self.num_envs)
        ends = [round(i * self.num_envs / count) for i in range(count + 1)]
        self.places: list[Place] = list(pairwise(ends))
        name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        names = [f"environments {begin} to {end - 1} of {name}" for begin, end in self.places]
        crew = Crew if workers is None else Processes
        self._crew: Crew | Processes = crew(_make, (env, options), self.places, names)

    def call(self, work: Callable[[Any, Any, Any], Any], shared: Any, pieces: list[Any]) -> list[Any]:
        """`work(batch, shared, piece)` of every block."""
        return self._crew.call(work, shared, pieces)


def _make(what: tuple[Any, dict[str, Any]], place: Place) -> VectorEnv:
    env, options = what
    return as_batch(env, place[1] - place[0], **options)
