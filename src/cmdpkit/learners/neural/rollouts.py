"""Rollouts of a policy in many environments at once, and the values and advantages estimated from them.

Quantity 0 is the negative reward and quantities 1..m are the costs; all are minimised. A rollout is `steps` steps of
every environment after a reset; when an episode ends, the environment is reset in the same step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmdpkit.checks import Array
from cmdpkit.envs.costs import read_costs
from cmdpkit.envs.scattered import Scattered
from cmdpkit.learners.neural.policy import Floats, NeuralPolicy

Truths = NDArray[np.bool_]

MEASURES = ("episode", "discounted", "step")
"""What a limit bounds: the expected sum over an episode, the expected discounted sum, or the average per step."""


@dataclass(frozen=True)
class Rollout:
    """`steps` (T) steps of `num_envs` (n) environments."""

    seen: Floats  # (T, n, width): observations of the environments
    inputs: Floats  # (T, n, width): observations as input to the network
    actions: Any  # (T, n) or (T, n, dimensions), as the learner sees them
    quantities: Array  # (T, n, m + 1)
    ended: Truths  # (T, n): the episode ended with this step
    terminated: Truths  # (T, n): it ended in a terminal state; otherwise it was truncated
    following: Floats  # (k, width): the next observations where trajectories were truncated
    cut: Truths  # (T, n): where that is; the last step truncates every trajectory that has not ended

    def samples(self, measure: str, gamma: float) -> Array:
        """(n, m + 1): one independent sample of each quantity's measure from every environment.

        Only the first episode of an environment counts, truncated after T steps: later ones have less time the later
        they start, and would bias the mean.
        """
        if measure == "step":
            return np.asarray(self.quantities.mean(axis=0))
        # Σ_t w_t c_t with w_t = γᵗ or 1 as long as no episode has ended before t
        weight = np.asarray(np.cumsum(self.ended, axis=0) - self.ended == 0, dtype=np.float64)
        if measure == "discounted":
            weight *= gamma ** np.arange(len(weight))[:, None]
        return np.asarray(np.einsum("tn,tnq->nq", weight, self.quantities))

    def advantages(self, values: Array, beyond: Array, gamma: float, smoothing: float) -> Array:
        """Generalised advantages (T, n, m + 1); with `smoothing` 1 they are Monte-Carlo returns minus values.

        Args:
            values: (T, n, m + 1), V at `inputs`.
            beyond: (k, m + 1), V at `following`.
            gamma: the discount factor.
            smoothing: λ of the generalised advantage (Schulman et al. 2016).
        """
        # V(s_{t+1}): 0 after a terminal step, the value `beyond` where a trajectory was truncated
        ahead = np.concatenate([values[1:], np.zeros_like(values[:1])])
        ahead[self.ended] = 0.0
        ahead[self.cut] = beyond
        # δ_t = c_t + γ V(s_{t+1}) − V(s_t)
        surprise = self.quantities + gamma * ahead - values
        # A_t = δ_t + γλ A_{t+1}
        return discounted(surprise, self.ended, gamma * smoothing)


def discounted(x: Array, ended: Truths, gamma: float) -> Array:
    """y_t = x_t + γ y_{t+1} along the first axis, restarting where an episode ended."""
    total = np.array(x)
    keep = gamma * (1.0 - ended).reshape(*ended.shape, *[1] * (x.ndim - ended.ndim))
    for t in range(len(x) - 2, -1, -1):
        total[t] += keep[t] * total[t + 1]
    return total


def collect(envs: Any, policy: NeuralPolicy, steps: int, costs: int, rng: np.random.Generator) -> Rollout:
    """Roll the policy out. All randomness comes from `rng`, which also seeds the environments.

    Args:
        envs: a vector environment with same-step resets, or `Scattered` ones.
        policy: the policy to follow.
        steps: steps per environment.
        costs: number of costs.
        rng: a generator; it alone determines the rollout.
    """
    n = envs.num_envs
    seeds = [int(s) for s in rng.integers(2**31, size=n)]
    noise = policy.actions.noise(rng, (steps, n))
    if isinstance(envs, Scattered):
        pieces = [(seeds[begin:end], noise[:, begin:end], (begin, end)) for begin, end in envs.places]
        parts = envs.call(_roll, (policy, steps, costs, n), pieces)
        seen, actions, quantities, ended, terminated, cut = (
            np.concatenate(column, axis=1) for column in zip(*(part[:-1] for part in parts), strict=True)
        )
        last = np.empty(seen.shape, dtype=np.float32)
        for (begin, end), part in zip(envs.places, parts, strict=True):
            last[:, begin:end][part[-2]] = part[-1]
        following = last[cut]
    else:
        answer = _roll(envs, (policy, steps, costs, n), (seeds, noise, (0, n)))
        seen, actions, quantities, ended, terminated, cut, following = answer
    _refuse_nonsense(seen, quantities, following)
    return Rollout(seen, policy.inputs(seen), actions, quantities, ended, terminated, policy.inputs(following), cut)


def _roll(envs: Any, shared: tuple[NeuralPolicy, int, int, int], piece: tuple[list[int], Any, tuple[int, int]]) -> Any:
    """Roll the policy out in some of n environments: the columns of a rollout that are theirs."""
    (policy, steps, costs, n), (seeds, noise, (begin, end)) = shared, piece
    count, draw, for_env = end - begin, policy.actions.draw, policy.actions.for_env
    observations, _ = envs.reset(seed=seeds)
    if observations[0].size != policy.width:
        raise ValueError(f"observations have {observations[0].size} numbers, but the policy expects {policy.width}")
    seen = np.empty((steps, count, observations[0].size), dtype=np.float32)
    actions = np.empty((steps, count), np.int64) if policy.actions.discrete else np.empty(noise.shape, np.float32)
    quantities = np.empty((steps, count, costs + 1))
    ended, terminated, cut = np.zeros((3, steps, count), dtype=np.bool_)
    # Products round as their shape says: all n rows are multiplied, wherever the environments are.
    rows = np.zeros((n, seen.shape[2]), dtype=np.float32)
    tails = []
    for t in range(steps):
        seen[t] = observations.reshape(count, -1)
        rows[begin:end] = seen[t]
        actions[t] = draw(policy.outputs(policy.inputs(rows))[begin:end], noise[t])
        try:
            observations, rewards, terminated[t], truncated, infos = envs.step(for_env(actions[t]))
        except Exception as error:
            raise RuntimeError(
                f"the environment failed in step {t} of a rollout: {type(error).__name__}: {error}"
            ) from error
        quantities[t, :, 0] = -rewards
        quantities[t, :, 1:] = read_costs(infos, count, costs)
        ended[t] = terminated[t] | truncated
        if t == steps - 1 or truncated.any():
            cut[t] = (truncated | (t == steps - 1)) & ~terminated[t]
            tails += [infos["final_obs"][i] if truncated[i] else observations[i] for i in np.flatnonzero(cut[t])]
    following = np.array(tails, dtype=np.float32).reshape(-1, seen.shape[2])
    return seen, actions, quantities, ended, terminated, cut, following


def fingerprint(envs: Any, policy: NeuralPolicy, costs: int) -> str:
    """A hash of what the environments answer in a few steps with fixed seeds, to five digits; it tells them apart."""
    rollouts = [collect(envs, policy, 3, costs, np.random.default_rng(0)) for _ in range(2)]
    first, second = ([f"{x:.5g}" for x in (*r.seen.flat, *r.quantities.flat)] for r in rollouts)
    if first != second:
        return "does not follow its seed"
    return hashlib.sha256(" ".join(first).encode()).hexdigest()[:16]


def _refuse_nonsense(seen: Floats, quantities: Array, following: Floats) -> None:
    for what, values in (("observed", seen), ("rewarded or charged", quantities)):
        if not np.isfinite(values).all():
            t, i, _ = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(f"in step {t} of a rollout environment {i} {what} {values[t, i]}; it must be finite")
    if not np.isfinite(following).all():
        raise ValueError("the last observation of an episode is not finite")
