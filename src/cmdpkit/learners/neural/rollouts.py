"""Rollouts of a policy in many environments at once, and the values and advantages estimated from them.

Quantity 0 is the negative reward and quantities 1..m are the costs; all are minimised. A rollout is `steps` steps of
every environment after a reset; when an episode ends, the environment is reset in the same step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmdpkit.checks import Array
from cmdpkit.envs.costs import read_costs
from cmdpkit.envs.lean import End, LeanBatch
from cmdpkit.envs.scattered import Scattered
from cmdpkit.learners.neural.policy import Floats, NeuralPolicy

Truths = NDArray[np.bool_]

STARTING, ROLLING, FITTING, ASCENDING, JUDGING = range(5)
"""Purposes of random numbers: first weights, rollouts, fits of critics, minibatches of policy steps, certificates."""

MEASURES = ("episode", "discounted", "step")
"""What a limit bounds: the expected sum over an episode, the expected discounted sum, or the average per step."""


class Estimate(NamedTuple):
    """What a rollout tells of the measures."""

    mean: Array  # (m + 1,)
    error: Array  # (m + 1,): standard errors of the means
    length: float  # by how much a measure grows if every step costs 1 more: the mean number of steps, for sums


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
    last: Any = None  # the observations after the last step, as the environments show them

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

    def estimate(self, measure: str, gamma: float) -> Estimate:
        """Mean and standard error of each quantity's measure, from all episodes, whether they end or not.

        The mean is taken age by age, over the episodes that the rollout was long enough to see at that age. Later
        episodes are cut off by its end, and long ones more often: a mean over those that end would be biased. The
        jackknife over environments, which are independent, removes the bias that is left and gives the errors.
        """
        steps, n = self.ended.shape
        if measure == "step":
            means = self.quantities.mean(axis=0)
            return Estimate(means.mean(axis=0), standard_error(means), 1.0)
        begins = np.concatenate([np.ones((1, n), dtype=np.bool_), self.ended[:-1]])
        time = np.arange(steps)[:, None]
        age = time - np.maximum.accumulate(np.where(begins, time, 0), axis=0)
        # of an environment's episodes, those that begin by T − 1 − t can be seen at age t
        seen = np.cumsum(begins, axis=0)[::-1].T
        counted = np.concatenate([np.ones((steps, n, 1)), self.quantities], axis=2)  # ones add up to lengths
        sums = np.zeros((n, steps, counted.shape[2]))
        np.add.at(sums, (np.arange(n), age), counted)
        # Σ_t w_t · (sum at age t) / (episodes seen at age t), of all environments and without each of them
        weight = gamma ** np.arange(steps) if measure == "discounted" else np.ones(steps)
        whole = weight / seen.sum(axis=0) @ sums.sum(axis=0)
        if n == 1:
            return Estimate(whole[1:], np.full(len(whole) - 1, np.inf), float(whole[0]))
        without = np.einsum("nt,ntq->nq", weight / (seen.sum(axis=0) - seen), sums.sum(axis=0) - sums)
        pseudo = n * whole - (n - 1) * without
        mean = pseudo.mean(axis=0)
        return Estimate(mean[1:], standard_error(pseudo)[1:], max(float(mean[0]), 1.0))

    def half(self) -> Truths:
        """(T, n): the samples of every other environment; of a single one, its first half."""
        steps, n = self.ended.shape
        chosen = np.arange(n) % 2 == 0 if n > 1 else np.arange(steps)[:, None] < steps / 2
        return np.broadcast_to(chosen, (steps, n))

    def few(self, number: int) -> NDArray[np.intp]:
        """About so many of the T · n samples: those of all environments at evenly spaced times."""
        steps, n = self.ended.shape
        times = np.arange(0, steps, max(1, steps * n // number))
        return np.asarray((times[:, None] * n + np.arange(n)).ravel())

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


def standard_error(samples: Array) -> Array:
    """Of the mean of independent rows; infinite for a single one."""
    n = len(samples)
    return np.asarray(samples.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(samples.shape[1:], np.inf))


def discounted(x: Array, ended: Truths, gamma: float) -> Array:
    """y_t = x_t + γ y_{t+1} along the first axis, restarting where an episode ended."""
    from cmdpkit.learners.neural.sums import discount  # compiled

    total = np.array(x, order="C")
    discount(total.reshape(*ended.shape, -1), ended, gamma)
    return total


def collect(
    envs: Any,
    policy: NeuralPolicy,
    steps: int,
    costs: int,
    rng: np.random.Generator,
    deterministic: bool = False,
    start: Any = None,
) -> Rollout:
    """Roll the policy out. All randomness comes from `rng`, which also seeds the environments.

    Args:
        envs: a vector environment with same-step resets, or `Scattered` ones.
        policy: the policy to follow.
        steps: steps per environment.
        costs: number of costs.
        rng: a generator; it alone determines the rollout.
        deterministic: take the most likely actions, which are those drawn without noise.
        start: observations from which the environments go on; by default they are reset first.
    """
    n = envs.num_envs
    seeds = [int(s) for s in rng.integers(2**31, size=n)]  # drawn in any case: what follows must not depend on `start`
    noise = policy.actions.noise(rng, (steps, n)) * np.float32(not deterministic)
    if isinstance(envs, Scattered):
        pieces = [
            (seeds[begin:end], noise[:, begin:end], None if start is None else start[begin:end])
            for begin, end in envs.places
        ]
        parts = envs.call(_roll, (policy, steps, costs), pieces)
        seen, actions, quantities, ended, terminated, cut = (
            np.concatenate(column, axis=1) for column in zip(*(part[:6] for part in parts), strict=True)
        )
        last = np.empty(seen.shape, dtype=np.float32)
        for (begin, end), part in zip(envs.places, parts, strict=True):
            last[:, begin:end][part[5]] = part[6]
        following, end_points = last[cut], np.concatenate([part[7] for part in parts])
    else:
        answer = _roll(envs, (policy, steps, costs), (seeds, noise, start))
        seen, actions, quantities, ended, terminated, cut, following, end_points = answer
    _refuse_nonsense(seen, quantities, following)
    inputs, beyond = policy.inputs(seen), policy.inputs(following)
    return Rollout(seen, inputs, actions, quantities, ended, terminated, beyond, cut, end_points)


Piece = tuple[list[int], Any, Any]
"""Seeds and noise of some environments, and observations from which they go on."""


def _roll(envs: Any, shared: tuple[NeuralPolicy, int, int], piece: Piece) -> Any:
    """Roll the policy out in some of the environments: the columns of a rollout that are theirs."""
    from cmdpkit.learners.neural.acting import Acting  # compiled

    (policy, steps, costs), (seeds, noise, start) = shared, piece
    n = len(seeds)
    observations = np.asarray(envs.reset(seed=seeds)[0] if start is None else start)
    width = observations[0].size
    if width != policy.width:
        raise ValueError(f"observations have {width} numbers, but the policy expects {policy.width}")
    seen, last = np.empty((steps, n, width), dtype=np.float32), np.empty_like(observations)
    actions = policy.actions.empty((steps, n))
    quantities = np.empty((steps, n, costs + 1))
    terminated, truncated, cut = np.zeros((3, steps, n), dtype=np.bool_)
    tails = []
    act = Acting(policy, seen, noise, actions)
    advance = envs.advance if isinstance(envs, LeanBatch) and envs.plain else partial(_advance, envs)
    seen[0] = observations.reshape(n, -1)
    for t, shown in enumerate((*seen.reshape(steps, *observations.shape)[1:], last)):
        try:
            infos, ends = advance(act(t), shown, quantities[t])
        except Exception as error:
            raise RuntimeError(
                f"the environment failed in step {t} of a rollout: {type(error).__name__}: {error}"
            ) from error
        if infos is not None:
            quantities[t, :, 1:] = read_costs(infos, n, costs)
        if ends or t == steps - 1:
            for i, *over, _ in ends:
                terminated[t, i], truncated[t, i] = over
            cut[t] = (truncated[t] | (t == steps - 1)) & ~terminated[t]
            finals = {i: final for i, _, _, final in ends}
            tails += [finals.get(int(i), shown[i]) for i in np.flatnonzero(cut[t])]
    quantities[:, :, 0] *= -1.0
    following = np.array(tails, dtype=np.float32).reshape(-1, width)
    return seen, actions, quantities, terminated | truncated, terminated, cut, following, last


def _advance(envs: Any, actions: Any, shown: Any, earned: Array) -> tuple[dict[str, Any], list[End]]:
    """`LeanBatch.advance` for any vector environment."""
    shown[...], earned[:, 0], terminated, truncated, infos = envs.step(actions)
    over = np.flatnonzero(terminated | truncated)
    if "final_obs" in infos:
        return infos, [(int(i), terminated[i], truncated[i], infos["final_obs"][i]) for i in over]
    if (truncated & ~terminated).any():
        raise ValueError(
            f"{envs} truncated an episode without its last observation, which says what would have followed: "
            "report it in infos['final_obs']"
        )
    return infos, [(int(i), terminated[i], truncated[i], None) for i in over]


def replay(envs: Any, policy: NeuralPolicy, seeds: list[int], trail: list[Any]) -> Any:
    """The observations after a reset with these seeds and all actions of the trail, a list of (T, n, ...) arrays."""
    if not isinstance(envs, Scattered):
        return _replay(envs, policy, (seeds, trail))
    pieces = [(seeds[begin:end], [part[:, begin:end] for part in trail]) for begin, end in envs.places]
    return np.concatenate(envs.call(_replay, policy, pieces))


def _replay(envs: Any, policy: NeuralPolicy, piece: tuple[list[int], list[Any]]) -> Any:
    seeds, trail = piece
    seen, _ = envs.reset(seed=seeds)
    for actions in trail:
        for chosen in actions:
            seen = envs.step(policy.actions.for_env(chosen))[0]
    return np.array(seen)


def fingerprint(envs: Any, policy: NeuralPolicy, costs: int) -> str:
    """A hash of what the environments answer in a few steps with fixed seeds, to five digits; it tells them apart."""
    rollouts = [collect(envs, policy, 3, costs, np.random.default_rng(0)) for _ in range(2)]
    first, second = ([f"{x:.5g}" for x in (*r.seen.flat, *r.quantities.flat)] for r in rollouts)
    if first != second:
        return "does not follow its seed"
    return hashlib.sha256(" ".join(first).encode()).hexdigest()[:16]


LARGEST = 1e100
"""Of a reward or a cost: squares of their sums must not overflow."""


def _refuse_nonsense(seen: Floats, quantities: Array, following: Floats) -> None:
    for what, values in (("observed", seen), ("rewarded or charged", quantities)):
        if not np.isfinite(values).all():
            t, i, _ = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(f"in step {t} of a rollout environment {i} {what} {values[t, i]}; it must be finite")
    if np.abs(quantities).max() > LARGEST:
        t, i, _ = np.argwhere(np.abs(quantities) > LARGEST)[0]
        told = f"in step {t} of a rollout environment {i} rewarded or charged {quantities[t, i]}"
        raise ValueError(f"{told}; rewards and costs must not exceed {LARGEST:g}: use a larger unit")
    if not np.isfinite(following).all():
        raise ValueError("the last observation of an episode is not finite")
