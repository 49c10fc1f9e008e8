"""The constrained Acrobot of the paper's Appendix E.2: one environment for Gymnasium, and many at once, compiled.

The acrobot hangs down and is swung up by a torque on its second joint. Reward and costs of a step depend on the
observation before it and on the action (0, 1, 2: torque −1, 0, +1):

    reward   1 while the tip is high:  −cos θ₁ − cos(θ₁ + θ₂) > −0.5
    cost 1   1 when the torque is not −1 while θ̇₁ < 0
    cost 2   1 when the torque is not −1 while θ̇₂ < 0

An episode is a window of 500 steps: when the tip reaches the goal, the acrobot is reset and the window continues.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

WINDOW = 500
"""Steps of an episode."""

PARALLEL_SIZE = 16_384
"""Number of environments from which threads are used. On an idle machine they pay off from 64 on, but on a busy one a
call may wait milliseconds for its slowest thread, and one thread steps 10,000 environments in that time."""


class ConstrainedAcrobot(AcrobotEnv):
    """Acrobot-v1 with the paper's reward and two costs, in `info["costs"]`; `info["goal"]` reports resets.

    Made by `gymnasium.make("cmdpkit/ConstrainedAcrobot-v0")`, which ends the window after 500 steps.
    """

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        angle_1, angle_2, velocity_1, velocity_2 = np.asarray(self.state)
        raised = -np.cos(angle_1) - np.cos(angle_1 + angle_2) > -0.5
        pushing = action != 0
        costs = np.array([pushing and velocity_1 < 0.0, pushing and velocity_2 < 0.0], dtype=np.float64)
        observation, _, goal, _, info = super().step(action)  # type: ignore[no-untyped-call]
        if goal:
            observation, _ = super().reset()
        return observation, float(raised), False, False, {**info, "costs": costs, "goal": goal}


class ConstrainedAcrobots(VectorEnv):
    """Many constrained acrobots, stepped by compiled code; `gymnasium.make_vec` returns it for the same name.

    Every environment has its own random stream, and does not depend on the others or on the number of threads. When a
    window ends, a new one starts in the same step (`AutoresetMode.SAME_STEP`).

    Args:
        num_envs: number of environments.
        max_episode_steps: steps of a window.
        threads: whether to use threads; None uses them for large batches.

    Example:
        >>> acrobots = ConstrainedAcrobots(3)
        >>> observations, _ = acrobots.reset(seed=0)
        >>> observations, rewards, terminated, truncated, infos = acrobots.step(np.array([0, 1, 2]))
        >>> observations.shape, rewards.shape, infos["costs"].shape
        ((3, 6), (3,), (3, 2))
        >>> saved = acrobots.state()
        >>> following = acrobots.step(np.array([2, 2, 2]))[0]
        >>> acrobots.restore(saved)
        >>> bool((acrobots.step(np.array([2, 2, 2]))[0] == following).all())
        True
    """

    metadata = {  # noqa: RUF012
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": [],
        "bounds": [(0.0, 1.0)] * 3,  # of the reward and of each cost in one step
    }

    def __init__(self, num_envs: int = 1, max_episode_steps: int = WINDOW, threads: bool | None = None) -> None:
        from cmdpkit.envs import acrobot_kernels

        for name, value in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        single = AcrobotEnv()
        self.num_envs, self.window = int(num_envs), int(max_episode_steps)
        self.single_observation_space, self.single_action_space = single.observation_space, single.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space: spaces.Space[Any] = batch_space(self.single_action_space, self.num_envs)
        parallel = self.num_envs >= PARALLEL_SIZE if threads is None else threads
        self._advance = acrobot_kernels.step_parallel if parallel else acrobot_kernels.step_serial
        self._restart = acrobot_kernels.restart
        self._physical = np.zeros((self.num_envs, 4))  # θ₁, θ₂ and their velocities
        self._random = np.random.SeedSequence().generate_state(self.num_envs, np.uint64)
        self._age = np.full(self.num_envs, -1, dtype=np.int64)  # steps since the window began; −1 before any reset
        self._last = np.zeros((self.num_envs, 6), dtype=np.float32)
        self._everyone = np.ones(self.num_envs, dtype=np.bool_)
        self._everyone.flags.writeable = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new windows in the environments selected by `options["reset_mask"]`, or in all.

        A single seed serves all environments; a list gives each its own. Without a seed the streams continue.
        """
        chosen = np.array((options or {}).get("reset_mask", self._everyone))
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_:
            raise ValueError(f"options['reset_mask'] must be {self.num_envs} booleans, got {chosen!r}")
        if seed is not None:
            self._seed(seed, chosen)
        observations = np.empty((self.num_envs, 6), dtype=np.float32)
        self._restart(self._physical, self._random, self._age, chosen, observations)
        return observations, {}

    def _seed(self, seed: Any, chosen: Any) -> None:
        if isinstance(seed, (int, np.integer)):
            keys = np.random.SeedSequence(int(seed)).generate_state(self.num_envs, np.uint64)
            self._random[chosen] = keys[chosen]
            return
        if len(seed) != self.num_envs:
            raise ValueError(f"seed is a list of {len(seed)} numbers, but there are {self.num_envs} environments")
        for i, own in enumerate(seed):
            if own is not None and chosen[i]:
                self._random[i] = np.random.SeedSequence(int(own)).generate_state(1, np.uint64)[0]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        n = self.num_envs
        actions = np.asarray(actions)
        observations, last = np.empty((n, 6), dtype=np.float32), self._last
        rewards, costs, ended = np.empty(n), np.empty((n, 2)), np.empty(n, dtype=np.bool_)
        windows = -1
        if actions.shape == (n,) and actions.dtype.kind in "iu":
            state = (self._physical, self._random, self._age)
            windows = self._advance(*state, self.window, actions, observations, last, rewards, costs, ended)
        if windows < 0:
            if self._age.min() < 0:
                raise RuntimeError("call reset() before step()")
            raise ValueError(f"actions must be {n} integers among 0, 1 and 2, got {actions!r}")
        infos: dict[str, Any] = {"costs": costs, "_costs": self._everyone}
        if windows:
            infos |= {"final_obs": last.copy(), "_final_obs": ended}
            infos |= {"final_info": {"costs": costs, "_costs": ended}, "_final_info": ended}
        return observations, rewards, np.zeros(n, dtype=np.bool_), ended, infos

    def state(self) -> dict[str, Any]:
        """The complete state, random streams included, as a dict of arrays."""
        return {"physical": self._physical.copy(), "random": self._random.copy(), "age": self._age.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state()`, in this or another process."""
        for name, mine in (("physical", self._physical), ("random", self._random), ("age", self._age)):
            stored = np.asarray(state[name])
            if stored.shape != mine.shape or stored.dtype != mine.dtype:
                raise ValueError(
                    f"{name} has shape {stored.shape} and dtype {stored.dtype}; "
                    f"{self.num_envs} environments need {mine.shape} and {mine.dtype}"
                )
            mine[...] = stored
