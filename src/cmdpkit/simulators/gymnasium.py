"""Gymnasium environments with discrete states and actions, as simulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cmdpkit.model import Limit
from cmdpkit.simulators.simulator import Simulator


def from_gymnasium(
    env: Any,
    *,
    gamma: float,
    quantities: Callable[[int, int, int, float], Sequence[float]] | None = None,
    constraints: Sequence[Limit] = (),
    bounds: Sequence[tuple[float, float]] | None = None,
    block: int | None = None,
) -> Simulator:
    """Make a simulator of a Gymnasium environment with discrete states and actions and a settable state.

    Toy-text environments (FrozenLake, CliffWalking, Taxi) keep their state in `env.unwrapped.s`. The states in which an
    episode ends become absorbing, without reward.

    Args:
        env: the environment.
        gamma: the discount factor.
        quantities: called with (state, action, next state, reward); returns the quantities that the limits bound.
        constraints, bounds, block: as for `Simulator`.
    """
    env.reset(seed=0)  # toy-text environments have no state before
    bare = env.unwrapped
    states, actions = (getattr(space, "n", None) for space in (env.observation_space, env.action_space))
    if states is None or actions is None or not hasattr(bare, "s"):
        raise ValueError(f"{env} has no discrete states and actions with a settable state env.unwrapped.s")
    if not hasattr(bare, "P"):
        raise ValueError(f"{env} has no table env.unwrapped.P, which tells the states that end an episode")
    if constraints and quantities is None:
        raise ValueError("quantities is needed: it returns the quantity that each limit bounds")
    # Terminal states are determined beforehand: the chain must not depend on what was simulated before.
    rows = (row for moves in bare.P.values() for outcomes in moves.values() for row in outcomes)
    ended = {int(following) for _, following, _, done in rows if done}

    def start(count: int, rng: np.random.Generator) -> Any:
        return np.array([env.reset(seed=int(rng.integers(2**31)))[0] for _ in range(count)], dtype=np.int64)

    def step(before: Any, chosen: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        following = np.array(before)
        values = np.zeros((len(constraints) + 1, before.size))
        bare.np_random = rng  # the environment draws from our generator, for reproducible runs
        for i, (s, a) in enumerate(zip(before, chosen, strict=True)):
            if int(s) in ended:
                continue
            bare.s = int(s)
            observation, reward, _, _, _ = bare.step(int(a))
            following[i], values[0, i] = observation, reward
            if quantities is not None:
                values[1:, i] = quantities(int(s), int(a), int(observation), float(reward))
        return following, values

    return Simulator(
        step,
        start,
        states=int(states),
        actions=int(actions),
        gamma=gamma,
        constraints=constraints,
        bounds=bounds,
        block=block,
    )
