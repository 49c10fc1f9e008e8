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

End = tuple[int, bool, bool, Any]
"""An episode that ended: of which copy, whether it terminated or was truncated, and its last observation."""


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
        self._earned = np.zeros((count, 2))
        self._plain = Validated(cost=self._earned[:, 1])
        self._plain.costs = self._earned[:, 1:]

    @property
    def plain(self) -> bool:
        """Whether observations are arrays of numbers, as `advance` writes them."""
        return self._shape is not None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        room = self._room()
        for i, (env, one) in enumerate(zip(self.envs, seeds, strict=True)):
            room[i] = self._checked(env.reset(seed=one, options=options)[0])
        return self._shown(), {}

    def step(self, actions: Any) -> tuple[Any, Array, Truths, Truths, dict[str, Any]]:
        """Step all copies. Everything that is returned is overwritten in the next step."""
        infos, ends = self.advance(actions, self._room(), self._earned)
        infos = self._plain if infos is None else infos
        self._terminations.fill(False)
        self._truncations.fill(False)
        if ends:
            infos = copy(infos)
        for i, self._terminations[i], self._truncations[i], observation in ends:
            infos = self._add_info(infos, {"final_obs": observation}, i)
        return self._shown(), self._earned[:, 0], self._terminations, self._truncations, infos

    def advance(self, actions: Any, shown: Any, earned: Array) -> tuple[dict[str, Any] | None, list[End]]:
        """Step all copies, and write what they answer where the caller keeps it.

        Args:
            actions: one per copy.
            shown: room for the observations, (n, ...).
            earned: (n, m + 1), room for rewards and costs.

        Returns:
            Infos with the costs, or None if they are written to `earned`: one cost each, a plain number.
            The episodes that ended in this step.
        """
        others: dict[int, tuple[str, float | Array] | None] = {}
        ends: list[End] = []
        single, shape = earned.shape[1] == 2, self._shape
        if len(actions) != self.num_envs:
            raise ValueError(f"there are {self.num_envs} environments, but {len(actions)} actions")
        for i, env in enumerate(self.envs):  # zip would meet the end of an array as an IndexError, which takes 3 µs
            observation, reward, terminated, truncated, info = env.step(actions[i])
            earned[i, 0] = reward if isinstance(reward, float) else as_reward(reward, env)
            cost = info.get("cost")
            if single and type(cost) is float and isfinite(cost) and "costs" not in info:
                earned[i, 1] = cost
            else:
                others[i] = reported_costs(info, env)
            if terminated or truncated:
                ends.append((i, terminated, truncated, kept(observation)))  # a reset may overwrite it
                observation, _ = env.reset()
            shown[i] = observation if getattr(observation, "shape", None) == shape else self._checked(observation)
        return (self._infos(others, earned) if others else None), ends

    def _infos(self, others: dict[int, tuple[str, float | Array] | None], earned: Array) -> dict[str, Any]:
        """Costs as a batch reports them, if some of them are not plain numbers."""
        named = [others[i] if i in others else ("cost", float(earned[i, 1])) for i in range(len(earned))]
        known = [one for one in named if one is not None]
        if len(known) == len(named) and len({name for name, _ in known}) == 1:
            return {known[0][0]: np.array([value for _, value in known])}
        infos: dict[str, Any] = {}  # with masks that say which environments reported what
        for i, one in enumerate(named):
            infos = infos if one is None else self._add_info(infos, {one[0]: one[1]}, i)
        return infos

    def _room(self) -> Any:
        return self._env_obs if self._shape is None else self._observations

    def _checked(self, observation: Any) -> Any:
        if self._shape is not None and np.shape(observation) != self._shape:
            raise ValueError(f"an observation has shape {np.shape(observation)}, not {self._shape} as its space says")
        return observation

    def _shown(self) -> Any:
        if self._shape is None:
            self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        return self._observations
