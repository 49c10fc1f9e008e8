"""What a policy plays, row by row, for tables and maps: a row is a state, or a stage and a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.model import Pairs
from cmdpkit.policy import StagedPolicy, TabularPolicy
from cmdpkit.tables import label

PLAYED = 1e-9
"""Actions with a smaller probability are not shown."""


@dataclass(frozen=True, eq=False)
class Choices:
    """The most probable action of each row with its probability, how many are played, and how often it is visited."""

    pairs: Pairs
    horizon: int | None
    pi: Array  # (T, N) probabilities of pairs, T = 1 without a horizon
    best: Any  # (T, S) numbers of actions
    share: Array  # (T, S)
    played: Any  # (T, S)
    visits: Array | None  # (T, S)

    @property
    def randomised(self) -> Any:
        """(T, S) whether more than one action is played."""
        return self.played > 1

    def plays(self, stage: int, state: int) -> list[tuple[int, float]]:
        """(action, probability), the most probable first."""
        own = slice(*self.pairs.first[state : state + 2])
        pi, actions = self.pi[stage, own], self.pairs.action[own]
        order = [k for k in np.argsort(-pi, kind="stable") if pi[k] > PLAYED]
        return [(int(actions[k]), float(pi[k])) for k in order]

    def words(self, stage: int, state: int, most: int = 4) -> str:
        """What is played in a state, as text."""
        played = self.plays(stage, state)
        names = [
            str(label(self.pairs.action_labels, a)) + ("" if p > 1.0 - PLAYED else f" {100.0 * p:.3g} %")
            for a, p in played[:most]
        ]
        return ", ".join([*names, *(["…"] if len(played) > most else [])])

    def most_visited(self, most: int) -> tuple[Any, Any]:
        """(stages, states) of rows: the most visited first, of equally often visited ones the first."""
        shape = self.best.shape
        order: Any = np.arange(self.best.size)
        if self.visits is not None:
            order = np.argsort(-self.visits.ravel(), kind="stable")
        stages, states = np.unravel_index(order[:most], shape)
        return stages, states


def choices_of(policy: TabularPolicy | StagedPolicy, occupancy: Any = None) -> Choices:
    """The choices of a policy; `occupancy` is that of `cmdpkit.evaluate`, over pairs."""
    pairs = policy.pairs
    horizon = policy.horizon if isinstance(policy, StagedPolicy) else None
    pi = np.asarray(policy.pi).reshape(horizon or 1, -1)
    first = pairs.first[:-1]
    share = np.maximum.reduceat(pi, first, axis=1)
    played = np.add.reduceat((pi > PLAYED).astype(np.int32), first, axis=1)
    # The first action that has the largest probability of its state
    is_best = pi >= share[:, pairs.state]
    place = np.where(is_best, np.arange(pi.shape[1]), pi.shape[1])
    best = pairs.action[np.minimum.reduceat(place, first, axis=1)]
    visits = None
    if occupancy is not None:
        visits = np.maximum(np.add.reduceat(np.asarray(occupancy).reshape(pi.shape), first, axis=1), 0.0)
    return Choices(pairs, horizon, pi, best, share, played, visits)
