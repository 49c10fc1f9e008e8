"""Costs for Gymnasium environments, reported in `info`.

A single cost is `info["cost"]`, a number; several are `info["costs"]`, a vector. Suites of safe reinforcement learning
report them in the same way, and learners read nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from cmdpkit.checks import Array

NUMBERS = (float, int, np.bool_, np.number)


class Step(NamedTuple):
    """Arguments of a cost function. `observation` is what the policy saw when it chose `action`."""

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


class WithCosts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with costs computed by a function.

    Args:
        env: the environment.
        fn: called with a `Step` after every step; returns one number, which becomes `info["cost"]`, or a list of m
            numbers, which becomes `info["costs"]`. Booleans count as 0 and 1.

    Example:
        A cart that should stay near the middle:

        >>> import gymnasium
        >>> env = WithCosts(gymnasium.make("CartPole-v1"), lambda step: abs(step.next_observation[0]) > 0.5)
        >>> _ = env.reset(seed=0)
        >>> env.step(1)[-1]
        {'cost': 0.0}
    """

    def __init__(self, env: gymnasium.Env[Any, Any], fn: Callable[[Step], Any]) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of a Step, not {type(fn).__name__}")
        super().__init__(env)
        self._fn = fn
        self._before: Any = None
        self._shape: tuple[int, ...] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._before = kept(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        earned = float(reward) if isinstance(reward, float) else as_reward(reward, self.env)
        # as Step(...) in two thirds of its time
        taken = tuple.__new__(Step, (self._before, action, earned, observation, terminated, truncated, info))
        self._before = observation.copy() if type(observation) is np.ndarray else kept(observation)
        if "cost" in info or "costs" in info:
            raise ValueError(f"{self.env} already reports costs; WithCosts is not needed")
        costs = self._fn(taken)
        if self._shape == ():  # what follows below would say the same of the usual costs
            if type(costs) is np.bool_ or type(costs) is bool:
                return observation, reward, terminated, truncated, {**info, "cost": 1.0 if costs else 0.0}
            if isinstance(costs, NUMBERS) and math.isfinite(costs):
                return observation, reward, terminated, truncated, {**info, "cost": float(costs)}
        costs = _checked(costs, lambda: f"fn returned for {taken}")
        shape = () if isinstance(costs, float) else costs.shape
        if self._shape is None:
            self._shape = shape
        if shape != self._shape:
            raise ValueError(
                f"fn returned costs of shape {shape} for {taken}, after shape {self._shape} in the first step"
            )
        return observation, reward, terminated, truncated, {**info, _name(costs): costs}


class SixTuple(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gymnasium's `step` for an environment that returns (observation, reward, cost, terminated, truncated, info).

    The cost is moved to `info`. Safety-Gymnasium and similar suites return such six-tuples.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer: Any = self.env.step(action)
        if len(answer) != 6:
            raise ValueError(
                f"{self.env} returned {len(answer)} values from step, not the six (observation, reward, cost, "
                "terminated, truncated, info) that SixTuple is for"
            )
        observation, reward, cost, terminated, truncated, info = answer
        costs = _checked(cost, lambda: f"{self.env} returned in step")
        return observation, reward, terminated, truncated, {**_others(info), _name(costs): costs}


class FloatCosts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same environment with its costs validated and converted to float; without costs it is unchanged."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        reported = reported_costs(info, self.env)
        if reported is not None:
            info = {**_others(info), reported[0]: reported[1]}
        if terminated or truncated:  # a batch resets at once, which may write into the same array
            observation = kept(observation)
        return observation, as_reward(reward, self.env), terminated, truncated, info


class Validated(dict[str, Any]):
    """Infos whose costs (num_envs, m) were validated when they were gathered."""

    costs: Array


def reported_costs(info: Mapping[str, Any], env: Any) -> tuple[str, float | Array] | None:
    """The costs that one environment reported, validated and converted to float, and the name that suits them."""
    for name in ("costs", "cost"):
        if name in info:
            costs = _checked(info[name], lambda: f"{env} reported in step")
            return _name(costs), costs
    return None


def read_costs(infos: Mapping[str, Any], num_envs: int, count: int | None = None) -> Array:
    """The costs (num_envs, m) of one step of a vector environment with same-step resets.

    An environment whose episode ended in this step reports in `infos["final_info"]`, as is usual in Gymnasium.

    Args:
        infos: the infos returned by the last `step` of the vector environment.
        num_envs: number of environments.
        count: number of costs, if known.
    """
    if isinstance(infos, Validated) and infos.costs.shape[1] == count:
        return infos.costs
    costs, reported = _present(infos)
    if "final_info" in infos:  # where an episode ended, the other infos are those of the reset
        final, last = _present(infos["final_info"])
        ended = np.asarray(infos["_final_info"])
        if final is not None:
            costs = final if costs is None else np.where(ended[:, None], final, costs)
        reported = np.where(ended, last, reported)
    if costs is None and count == 0:
        return np.zeros((num_envs, 0))
    if costs is None:
        raise ValueError(
            "the environment reports no costs: a step's info has neither 'cost' nor 'costs'; "
            "cmdpkit.envs.WithCosts(env, fn) adds them"
        )
    if costs.shape[0] != num_envs:
        raise ValueError(f"costs were reported for {costs.shape[0]} environments, but there are {num_envs}")
    if reported is not True and not np.all(reported):
        i = int(np.flatnonzero(~np.broadcast_to(reported, num_envs))[0])
        raise ValueError(
            f"environment {i} reported no cost in a step; every environment must report its costs in every step, also "
            "where they are 0, and in the last one of an episode"
        )
    if count is not None and costs.shape[1] != count:
        raise ValueError(
            f"the environment reports {_counted(costs.shape[1], 'cost')}, but {_counted(count, 'limit')} "
            f"{'was' if count == 1 else 'were'} given: every cost needs a limit, and float('inf') is none"
        )
    if not np.isfinite(costs).all():
        i = int(np.flatnonzero(~np.isfinite(costs).all(axis=1))[0])
        raise ValueError(f"environment {i} reported the costs {costs[i]}; every cost must be finite")
    return costs


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _present(infos: Mapping[str, Any]) -> tuple[Array | None, Any]:
    """The costs (num_envs, m), or None if there are none, and which environments reported them."""
    name = "costs" if "costs" in infos else "cost"
    if name not in infos:
        return None, False
    reported = infos.get(f"_{name}", True)
    if reported is not True and np.asarray(infos[name]).dtype.kind in "biu":
        raise ValueError(
            f"the vector environment reports costs as {np.asarray(infos[name]).dtype}. Gymnasium takes this type from "
            "the first environment that reports, and cuts off the fractions of the others' costs: report floats, as "
            "cmdpkit.envs.FloatCosts(env) does, or pass a function that makes one environment"
        )
    try:
        costs = np.asarray(infos[name], dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"the vector environment reports the costs {infos[name]!r}; a number or an array of numbers is needed from "
            "every environment, as cmdpkit.envs.FloatCosts(env) reports them"
        ) from None
    return costs[:, None] if costs.ndim == 1 else costs, reported


def _others(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name not in ("cost", "costs")}


def _name(costs: float | Array) -> str:
    return "cost" if isinstance(costs, float) else "costs"


def _checked(costs: Any, what: Callable[[], str]) -> float | Array:
    """Costs as a float or a vector of them. Called in every step: `what` says where they come from if they are bad."""
    if isinstance(costs, NUMBERS) and math.isfinite(costs):
        return float(costs)
    try:
        array = np.asarray(costs, dtype=np.float64)
        if np.asarray(costs).dtype.kind in "US":  # NumPy reads "1" as a number
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"the cost that {what()} is {costs!r}; a number or a list of numbers is needed") from None
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"the cost that {what()} has shape {array.shape}; a number or a list of numbers is needed")
    if not np.isfinite(array).all():
        raise ValueError(f"the cost that {what()} is {costs!r}; every cost must be finite")
    return array if array.ndim else float(array)


def as_reward(reward: Any, env: Any) -> float:
    # Text and None have no `__float__`; arrays and tensors without dimensions have one
    if isinstance(reward, NUMBERS) or (hasattr(reward, "__float__") and np.ndim(reward) == 0):
        return float(reward)
    fix = ": return reward.item()" if np.size(reward) == 1 and np.ndim(reward) else ""
    raise TypeError(
        f"{env} returned the reward {reward!r} of shape {np.shape(reward)}; a step's reward must be one number{fix}"
    )


def kept(observation: Any) -> Any:
    """A copy of an array that the environment might overwrite."""
    return observation.copy() if isinstance(observation, np.ndarray) else observation
