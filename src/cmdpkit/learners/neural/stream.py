"""Environments that go on from one iteration to the next, so that rollouts may be shorter than episodes.

An environment cannot be saved in general, but it can be brought back: all of them are reset together at a *mark*, every
`MARK` iterations, and the actions since then are kept. A restored stream resets to the mark's seeds and repeats the
actions, which leads to the same state if the environments follow their seeds; the observations are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.learners.neural.policy import NeuralPolicy
from cmdpkit.learners.neural.rollouts import ROLLING, Estimate, Rollout, collect, replay, standard_error

MARK = 50
"""Iterations between resets of all environments; unfinished episodes are dropped then."""


class Stream:
    """A batch of environments, and where they stand.

    Args:
        envs: a vector environment with same-step resets.
        costs: number of costs.
        seed: of all random numbers.
        discount: by which the episodes' sums are discounted; 1 for plain sums.
    """

    def __init__(self, envs: Any, costs: int, seed: int, discount: float) -> None:
        self.envs, self.costs, self.seed, self.discount = envs, costs, seed, discount
        n = envs.num_envs
        self.mark = -1  # iteration of the last reset of all environments; -1 before the first
        self.trail: list[Any] = []  # actions since then, one array per rollout
        self.standing: Any = None  # observations after them; None: as restored, and not yet repeated
        self.sums = np.zeros((n, costs + 2))  # of the unfinished episodes: steps, −reward and costs
        self.ages = np.zeros(n)
        self.recent = np.zeros((0, costs + 2))  # the sums of the last n episodes that ended
        self._expected: Any = None  # what a restored stream must observe after its trail

    def roll(self, policy: NeuralPolicy, steps: int, iteration: int) -> Rollout:
        """The next steps of the environments. `proceed` accepts them; otherwise `state` is still that before them."""
        rng = np.random.default_rng([self.seed, ROLLING, iteration])
        if self.mark < 0 or iteration - self.mark >= MARK:
            self.mark, self.trail, self.standing, self._expected = iteration, [], None, None
            self.sums, self.ages = np.zeros_like(self.sums), np.zeros_like(self.ages)
            return collect(self.envs, policy, steps, self.costs, rng)
        if self.standing is None:
            self._repeat(policy)
        return collect(self.envs, policy, steps, self.costs, rng, start=self.standing)

    def proceed(self, rollout: Rollout) -> None:
        """Take the rollout as done: what follows begins where it ended."""
        ended, self.sums, self.ages = self._followed(rollout)
        self.recent = np.concatenate([self.recent, ended])[-self.envs.num_envs :]
        self.trail.append(rollout.actions)
        self.standing = rollout.last

    def estimate(self, rollout: Rollout) -> Estimate:
        """From the episodes that end in the rollout, or the last n if they are fewer; at first from unfinished ones."""
        ended, unfinished, _ = self._followed(rollout)
        episodes = ended if len(ended) >= self.envs.num_envs else np.concatenate([self.recent, ended])
        episodes = episodes[-max(self.envs.num_envs, len(ended)) :] if len(episodes) else unfinished
        mean = episodes.mean(axis=0)
        return Estimate(mean[1:], standard_error(episodes)[1:], max(float(mean[0]), 1.0))

    def _followed(self, rollout: Rollout) -> tuple[Array, Array, Array]:
        """The sums of the episodes that end in a rollout; sums and ages of the unfinished ones after it."""
        sums, ages, ended = self.sums.copy(), self.ages.copy(), [np.zeros((0, self.costs + 2))]
        for t, over in enumerate(rollout.ended):
            weight = (self.discount**ages)[:, None]
            sums += weight * np.concatenate([np.ones((len(ages), 1)), rollout.quantities[t]], axis=1)
            ages += 1.0
            if over.any():
                ended.append(sums[over])
                sums[over], ages[over] = 0.0, 0.0
        return np.concatenate(ended), sums, ages

    def _repeat(self, policy: NeuralPolicy) -> None:
        """Bring the environments to where they stood: from the reset of the mark through all actions since."""
        rng = np.random.default_rng([self.seed, ROLLING, self.mark])
        seeds = [int(s) for s in rng.integers(2**31, size=self.envs.num_envs)]
        seen = replay(self.envs, policy, seeds, self.trail)
        if self._expected is not None and not np.array_equal(np.asarray(seen, dtype=np.float64), self._expected):
            raise ValueError(
                "the environments did not repeat what they had done since their last reset, so that the run cannot go "
                "on as it would have; do they follow their seeds? Start again, or with persist=False"
            )
        self.standing = seen

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as arrays and numbers."""
        shown = self.standing if self.standing is not None else self._expected
        return {
            "mark": self.mark,
            "trail": np.concatenate(self.trail) if self.trail else np.zeros(0),
            "standing": np.zeros(0) if shown is None else np.asarray(shown, dtype=np.float64),
            "sums": self.sums.copy(),
            "ages": self.ages.copy(),
            "recent": self.recent.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state; the environments follow when they are stepped next."""
        self.mark = int(state["mark"])
        trail, standing = np.array(state["trail"]), np.array(state["standing"])
        self.trail = [trail] if trail.size else []
        self._expected, self.standing = (standing if standing.size else None), None
        self.sums, self.ages, self.recent = (np.array(state[name]) for name in ("sums", "ages", "recent"))
