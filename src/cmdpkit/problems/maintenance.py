"""Maintenance of a machine that wears: profit with a limit on downtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import (
    check_between,
    check_numbers,
    check_positive,
    check_whole,
    criterion,
    sparse_transitions,
)

FAST, SLOW, REPAIR = range(3)


def maintenance(
    levels: int = 10,
    wear: Sequence[float] = (0.6, 0.2),
    breakdown: Sequence[float] = (0.2, 0.05),
    profit: Sequence[float] = (1.0, 0.6),
    repair_cost: float = 0.5,
    repair_chance: float = 0.3,
    downtime_limit: float = 0.08,
    gamma: float | None = None,
    average: bool = False,
) -> CMDP:
    """Maintenance of a machine that wears: most profit with limited downtime.

    In each period the machine is run fast, run slowly, or repaired. Profit is maximised; the share of periods in which
    the machine is down, under repair or broken, is limited, as a contract or a downstream plant may require; early
    periods count more in it, by the discount, unless `average=True`. Running fast earns more and breaks the machine
    sooner. Repairing a worn machine takes one period, a broken one longer.

    State 0 is a new machine, `levels` a broken one, and those between are levels of wear. Actions: 0 fast, 1 slow, 2
    repair. Running breaks the machine with probability breakdown · (level / levels)², and otherwise wears it by one
    level with probability `wear`. Repair makes a working machine new in one period, and a broken one with probability
    `repair_chance` per period. A broken machine earns nothing and stays broken until it is repaired.

    Args:
        levels: number of levels of wear of a working machine; there are levels + 1 states. With more levels the
            machine lasts longer, and the same limit binds less.
        wear: the probability of wearing by a level in a period, run fast and slow.
        breakdown: the probability of breaking in a period at the last level of wear, run fast and slow.
        profit: the profit of a period, run fast and slow.
        repair_cost: the cost of a period of repair.
        repair_chance: the probability that a period of repair fixes a broken machine.
        downtime_limit: the largest mean share of periods without production, between 0 and 1.
        gamma: the discount factor per period, by default 0.99.
        average: True for long-run averages instead of discounted sums; the limits stay what they are.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.maintenance()
        CMDP(states=11, actions=3, constraints=['downtime'], gamma=0.99)
    """
    broken = check_whole(levels, "levels", 1)
    wears = check_numbers(wear, "wear", 0.0, 1.0, count=2)
    breaks = check_numbers(breakdown, "breakdown", 0.0, 1.0, count=2)
    earns = check_numbers(profit, "profit", 0.0, np.inf, count=2)
    repair_cost = check_between(repair_cost, "repair_cost", 0.0, np.inf)
    repair_chance = check_positive(check_between(repair_chance, "repair_chance", 0.0, 1.0), "repair_chance")

    level = np.arange(broken + 1)
    works = level < broken
    fails = breaks * np.where(works, level / broken, 0.0)[:, None] ** 2  # (S, 2): run fast, run slow
    worn = np.where(works[:, None], (1.0 - fails) * wears, 0.0)
    mended = np.where(works, 1.0, repair_chance)

    # Outcomes of an action: stay, wear or break when running; stay or become new when repairing.
    successors = np.stack([level, np.minimum(level + 1, broken), np.full_like(level, broken)], axis=-1)
    successors = np.repeat(successors[:, None, :], 3, axis=1)
    successors[:, REPAIR, 1:] = 0
    probabilities = np.zeros(successors.shape)
    probabilities[:, :REPAIR] = np.stack([np.maximum(1.0 - worn - fails, 0.0), worn, fails], axis=-1)
    probabilities[:, REPAIR, 0] = 1.0 - mended
    probabilities[:, REPAIR, 1] = mended

    reward = np.column_stack([np.outer(works, earns), np.full(broken + 1, -repair_cost)])
    down = np.zeros(reward.shape)
    down[broken], down[:, REPAIR] = 1.0, 1.0
    return CMDP(
        sparse_transitions(successors, probabilities),
        reward=reward,
        constraints=[
            AtMost(down, check_between(downtime_limit, "downtime_limit", 0.0, 1.0), name="downtime", per_step=True)
        ],
        **criterion(gamma, average),
        initial=0,
    )
