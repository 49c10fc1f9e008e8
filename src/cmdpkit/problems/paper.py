"""The random instance on which the paper compares its algorithms."""

from __future__ import annotations

import numpy as np

from cmdpkit.model import CMDP, AtLeast

STATES, ACTIONS, SEED = 20, 10, 10


def paper() -> CMDP:
    """The paper's random instance: most reward with a utility of at least 3.

    Transitions, rewards and utilities are uniform random numbers; the discounted utility must be at least 3. The
    tabular experiments of the paper (Section 4) use this instance. Its optimum is 4.462443636256558, with multiplier
    0.24266971. The largest possible utility is 4.525027, which exceeds the limit by 1.525.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.paper()
        CMDP(states=20, actions=10, constraints=['utility'], gamma=0.8)
    """
    # The legacy generator and the order of draws define the instance and must not change.
    random = np.random.RandomState(SEED)
    transitions = random.uniform(size=(STATES * ACTIONS, STATES))
    transitions /= transitions.sum(axis=1, keepdims=True)
    reward = random.uniform(size=STATES * ACTIONS)
    utility = random.uniform(size=STATES * ACTIONS)
    return CMDP(
        transitions.reshape(STATES, ACTIONS, STATES),
        reward=reward.reshape(STATES, ACTIONS),
        constraints=[AtLeast(utility.reshape(STATES, ACTIONS), 3.0, name="utility")],
        gamma=0.8,
    )
