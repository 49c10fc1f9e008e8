"""Garnets: random sparse models of any size, a common benchmark for solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmdpkit.checks import Array, Handed, check_gamma, check_number
from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import check_whole, sparse_transitions

SETTLED = 1e-4
"""Sweeps stop when the bounds on (1 − γ) V are closer than this; rewards and costs lie in [0, 1]."""


def garnet(
    states: int = 50,
    actions: int = 5,
    successors: int = 5,
    constraints: int = 2,
    gamma: float = 0.95,
    seed: int = 0,
    slack: float = 0.5,
) -> CMDP:
    """A random sparse model of any size, with limits that are feasible and bind.

    Each (state, action) leads to a few random states and has a random reward and random costs in [0, 1]. The
    discounted sums of the costs are limited. Its size can be chosen freely, which makes it useful for testing and
    timing solvers.

    Two policies determine the limits: a safe one, which minimises the sum of all costs, and a greedy one, which
    maximises the reward. The safe policy meets every limit strictly; the greedy one violates at least the limit of the
    cost on which the two differ most. This takes some sweeps over the model, and no linear program.

    Args:
        states, actions: number of states and of actions.
        successors: number of distinct successors of each (state, action).
        constraints: number of limited costs; 0 gives an MDP without constraints.
        gamma: the discount factor.
        seed: seed of the random numbers.
        slack: position of each limit between the safe policy's value (0) and the greedy one's (1), both excluded. The
            limits bound discounted sums, which lie between 0 and 1 / (1 − gamma).

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.garnet(states=1000, actions=10, constraints=3)
        CMDP(states=1000, actions=10, constraints=['cost 1', 'cost 2', 'cost 3'], gamma=0.95)
    """
    states = check_whole(states, "states", 2)
    actions = check_whole(actions, "actions", 2)
    constraints = check_whole(constraints, "constraints", 0)
    if check_whole(successors, "successors", 1) > states:
        raise ValueError(f"successors must be at most states = {states}, got {successors}; they are distinct states")
    gamma = check_gamma(gamma)
    if not 0.0 < check_number(slack, "slack") < 1.0:
        raise ValueError(f"slack must lie strictly between 0 and 1, got {slack}; 0 leaves no slack and 1 does not bind")
    rng = np.random.default_rng(check_whole(seed, "seed", 0))
    follow = _subsets(rng, states * actions, successors, states).reshape(states, actions, successors)
    transitions = sparse_transitions(follow, rng.dirichlet(np.ones(successors), size=(states, actions)))
    del follow
    reward = rng.uniform(size=(states, actions))
    costs = rng.uniform(size=(constraints, states, actions))
    limits = _limits(transitions, reward, costs, gamma, slack) if constraints else np.empty(0)
    return CMDP(
        Handed(transitions),
        action_axis=1,
        reward=reward,
        constraints=[
            AtMost(c, float(limit), name=f"cost {i}") for i, (c, limit) in enumerate(zip(costs, limits, strict=True), 1)
        ],
        gamma=gamma,
    )


def _subsets(rng: np.random.Generator, rows: int, size: int, states: int) -> NDArray[np.int32]:
    """A uniformly random set of `size` distinct states per row: Floyd's method, for all rows at once."""
    chosen = np.empty((rows, size), dtype=np.int32)
    for j in range(size):
        last = states - size + j
        draw = rng.integers(0, last + 1, size=rows, dtype=np.int32)
        taken = (chosen[:, :j] == draw[:, None]).any(axis=1)
        chosen[:, j] = np.where(taken, last, draw)
    return chosen


def _limits(transitions: Any, reward: Array, costs: Array, gamma: float, slack: float) -> Array:
    _, safe = _cost_bounds(transitions, _greedy(transitions, -costs.sum(axis=0), gamma), costs, gamma)
    greedy, _ = _cost_bounds(transitions, _greedy(transitions, reward, gamma), costs, gamma)
    difference = greedy - safe
    if difference.max() <= 0.0:
        raise ValueError("with this seed one policy is best for reward and costs; use another seed, or more states")
    # A cost on which the safe policy is no better still gets some slack: limits must be met strictly.
    return np.asarray(safe + slack * np.maximum(difference, 0.1 * difference.max()))


def _greedy(transitions: Any, reward: Array, gamma: float) -> NDArray[np.intp]:
    def q(v: Array) -> Array:
        return reward + gamma * np.asarray(transitions @ v).reshape(reward.shape)

    low, high = _settle(lambda v: np.asarray(q(v).max(axis=1)), np.zeros(len(reward)), gamma)
    return np.asarray(q((low + high) / 2).argmax(axis=1))


def _cost_bounds(transitions: Any, policy: NDArray[np.intp], costs: Array, gamma: float) -> tuple[Array, Array]:
    """Lower and upper bounds on the policy's discounted costs from a uniform start."""
    at = np.arange(len(policy))
    p_policy = transitions[at * costs.shape[2] + policy]
    c_policy = costs[:, at, policy].T
    low, high = _settle(lambda v: np.asarray(c_policy + gamma * (p_policy @ v)), np.zeros(c_policy.shape), gamma)
    return np.asarray(low.mean(axis=0)), np.asarray(high.mean(axis=0))


def _settle(backup: Callable[[Array], Array], v: Array, gamma: float) -> tuple[Array, Array]:
    """Sweep until MacQueen's bounds TV + γ/(1−γ) [min D, max D], D = TV − V, are close; return them."""
    while True:
        v_next = backup(v)
        change = v_next - v
        low, high, v = change.min(axis=0), change.max(axis=0), v_next
        if np.max(gamma * (high - low)) <= SETTLED:
            factor = gamma / (1.0 - gamma)
            return v + factor * low, v + factor * high
