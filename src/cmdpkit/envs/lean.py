"""Copies of an environment for callers that read costs only, stepped in little more time than the steps take."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import isfinite
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate
from numpy.typing import NDArray

from cmdpkit.checks import Array
from cmdpkit.envs.costs import Validated, as_reward, kept, reported_costs

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
        space = self.single_observation_space
        self._shape = space.shape if isinstance(space, Box) and space.dtype.kind == "f" else None
        self._costs = np.zeros((count, 1))
        self._plain = Validated(cost=self._costs[:, 0])
        self._plain.costs = self._costs

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        for i, (env, one) in enumerate(zip(self.envs, seeds, strict=True)):
            self._show(i, env.reset(seed=one, options=options)[0])
        return self._shown(), {}

    def step(self, actions: Any) -> tuple[Any, Array, Truths, Truths, dict[str, Any]]:
        """Step all copies. Everything that is returned is overwritten in the next step."""
        rewards, costs, others, ends = self._rewards, self._plain["cost"], {}, []
        self._terminations.fill(False)
        self._truncations.fill(False)
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            observation, reward, terminated, truncated, info = env.step(action)
            rewards[i] = reward if isinstance(reward, float) else as_reward(reward, env)
            cost = info.get("cost")
            if type(cost) is float and isfinite(cost) and "costs" not in info:
                costs[i] = cost
            else:
                others[i] = reported_costs(info, env)
            if terminated or truncated:
                self._terminations[i], self._truncations[i] = terminated, truncated
                ends.append((i, kept(observation)))  # the reset may write its own into the same array
                observation, _ = env.reset()
            self._show(i, observation)
        infos = self._infos(others) if others else self._plain
        if ends:
            infos = copy(infos)
            for i, observation in ends:
                infos = self._add_info(infos, {"final_obs": observation}, i)
        return self._shown(), rewards, self._terminations, self._truncations, infos

    def _infos(self, others: dict[int, tuple[str, float | Array] | None]) -> dict[str, Any]:
        """Costs as a batch reports them, if some of them are not plain numbers."""
        named = [others.get(i, ("cost", float(cost))) for i, cost in enumerate(self._plain["cost"])]
        known = [one for one in named if one is not None]
        if len(known) == len(named) and len({name for name, _ in known}) == 1:
            return {known[0][0]: np.array([value for _, value in known])}
        infos: dict[str, Any] = {}  # with masks that say which environments reported what
        for i, one in enumerate(named):
            infos = infos if one is None else self._add_info(infos, {one[0]: one[1]}, i)
        return infos

    def _show(self, i: int, observation: Any) -> None:
        if self._shape is None:
            self._env_obs[i] = observation
            return
        if getattr(observation, "shape", None) != self._shape and np.shape(observation) != self._shape:
            raise ValueError(f"an observation has shape {np.shape(observation)}, not {self._shape} as its space says")
        self._observations[i] = observation

    def _shown(self) -> Any:
        if self._shape is None:
            self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        return self._observations
