"""Copies of an environment for callers that read costs only, stepped in little more time than the steps take."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate
from numpy.typing import NDArray

from cmdpkit.checks import Array
from cmdpkit.envs.costs import Validated, as_reward, reported_costs

Truths = NDArray[np.bool_]


class LeanBatch(SyncVectorEnv):
    """Copies that are reset in the step in which their episode ends, with nothing in `infos` but costs.

    Costs and rewards are validated and converted to float. Those of a step in which an episode ends are beside the
    others, and `infos["final_obs"]` has its last observation. Observations are overwritten by the next step.

    Example:
        >>> import gymnasium
        >>> from cmdpkit.envs import WithCosts
        >>> envs = LeanBatch(lambda: WithCosts(gymnasium.make("CartPole-v1"), lambda step: step.action), 2)
        >>> _ = envs.reset(seed=[0, 1])
        >>> envs.step(np.array([0, 1]))[-1]
        {'cost': array([0., 1.])}
    """

    def __init__(self, make: Callable[[], Any], count: int) -> None:
        super().__init__([make] * count, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self._rows = list(self._observations) if isinstance(self.single_observation_space, Box) else None
        self._costs = np.zeros((count, 1))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        answers = [env.reset(seed=one, options=options) for env, one in zip(self.envs, seeds, strict=True)]
        return self._gathered([observation for observation, _ in answers]), {}

    def step(self, actions: Any) -> tuple[Any, Array, Truths, Truths, dict[str, Any]]:
        """Step all copies. Everything that is returned is overwritten in the next step."""
        seen: list[Any] = []
        rewards, costs, ends = [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward if isinstance(reward, float) else as_reward(reward, env))
            cost = info.get("cost")
            plain = type(cost) is float and isfinite(cost) and "costs" not in info
            costs.append(cost if plain else reported_costs(info, env))
            if terminated or truncated:
                ends.append((len(seen), terminated, truncated, observation))
                observation, _ = env.reset()
            seen.append(observation)
        infos = self._infos(costs)
        self._rewards[:] = rewards
        self._terminations.fill(False)
        self._truncations.fill(False)
        for i, self._terminations[i], self._truncations[i], observation in ends:
            infos = self._add_info(infos, {"final_obs": observation}, i)
        return self._gathered(seen), self._rewards, self._terminations, self._truncations, infos

    def _infos(self, costs: list[Any]) -> dict[str, Any]:
        """Costs as a batch reports them; each is a number, (name, value) or None."""
        if all(type(one) is float for one in costs):
            self._costs[:, 0] = costs
            infos = Validated(cost=self._costs[:, 0])
            infos.costs = self._costs
            return infos
        named = [("cost", one) if type(one) is float else one for one in costs]
        if None not in named and len({name for name, _ in named}) == 1:
            return {named[0][0]: np.array([value for _, value in named])}
        partial: dict[str, Any] = {}  # with masks that say which environments reported what
        for i, one in enumerate(named):
            partial = partial if one is None else self._add_info(partial, {one[0]: one[1]}, i)
        return partial

    def _gathered(self, seen: list[Any]) -> Any:
        """The observations as one array."""
        if self._rows is None:
            self._observations = concatenate(self.single_observation_space, seen, self._observations)
            return self._observations
        for row, observation in zip(self._rows, seen, strict=True):
            if getattr(observation, "shape", None) != row.shape and np.shape(observation) != row.shape:
                raise ValueError(f"an observation has shape {np.shape(observation)}, not {row.shape} as its space says")
            np.copyto(row, observation)
        return self._observations
