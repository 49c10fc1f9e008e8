"""The random instance on which the paper compares its algorithms."""

from __future__ import annotations

import numpy as np

from cmdpkit.model import CMDP, AtLeast

STATES, ACTIONS, SEED = 20, 10, 10


def paper() -> CMDP:
    """The paper's random instance: most reward with a utility of at least 3.

    Transitions, rewards and utilities are uniform random numbers, so nothing stands behind the decision; what is
    limited is the discounted utility, at least 3. It is of interest because every figure of the tabular experiments
    (Section 4) is drawn on it, and because its optimum is known: 4.462443636256558, with multiplier 0.24266971. The
    largest reachable utility is 4.525027, so that a policy can clear the limit by 1.525.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.paper()
        CMDP(states=20, actions=10, constraints=['utility'], gamma=0.8)
    """
    # The legacy generator and this order of draws are the instance: neither may change.
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
