"""Two queues with controlled service speeds and limits on power and waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmdpkit.checks import Handed
from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import check_numbers, check_positive, check_whole, criterion, sparse_transitions


def two_queues(
    capacity: int = 15,
    arrivals: Sequence[float] = (0.5, 0.4),
    speeds: Sequence[float] = (0.0, 0.5, 1.0),
    holding: Sequence[float] = (2.0, 1.0),
    power_limit: float = 1.0,
    length_limit: float = 1.0,
    gamma: float | None = None,
    average: bool = False,
) -> CMDP:
    """One server, two queues: least waiting within a power budget and a limit on queue 2.

    In every step a service speed is chosen for each queue. The holding cost of the customers present is minimised. The
    mean power, where power is the square of the total speed, and the mean length of queue 2, whose customers were
    promised a short wait, are limited; means are weighted by the discount, which counts early ticks more, unless
    `average=True`. Data centres and call centres face this trade-off between power and waiting, without a given
    weighting of the two.

    Customers of queue i arrive at rate arrivals[i], and are lost when that queue is full. A queue that is not empty
    loses one customer at the rate of the chosen speed. The chain is uniformised: one step is one tick of a clock of
    rate sum(arrivals) + 2 max(speeds), at which an arrival, a completed service, or nothing happens. State
    q1 · (capacity + 1) + q2, action i1 · len(speeds) + i2; both queues are empty initially.

    Args:
        capacity: the largest length of each queue; there are (capacity + 1)² states.
        arrivals: the arrival rates of the two queues.
        speeds: the speeds to choose from, for each queue; there are len(speeds)² actions.
        holding: the cost per tick of a customer in each queue.
        power_limit: the largest mean power, (total speed)², per tick.
        length_limit: the largest mean number of customers in queue 2, seen per tick.
        gamma: the discount factor per tick, by default 0.99; with 0.999 and a large capacity the chain mixes slowly.
        average: True for long-run averages instead of discounted sums; the limits stay what they are.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.two_queues()
        CMDP(states=256, actions=9, constraints=['power', 'length 2'], gamma=0.99)
    """
    capacity = check_whole(capacity, "capacity", 1)
    rate = check_numbers(arrivals, "arrivals", 0.0, np.inf, count=2)
    speed = check_numbers(speeds, "speeds", 0.0, np.inf)
    if len(speed) < 2 or speed.max() == 0.0:
        raise ValueError(f"speeds must hold at least two numbers, one of them above zero, got {list(speeds)}")
    weight = check_numbers(holding, "holding", 0.0, np.inf, count=2)
    power_limit = check_positive(power_limit, "power_limit")
    length_limit = check_positive(length_limit, "length_limit")

    side = capacity + 1
    q1, q2 = (q[:, None] for q in np.divmod(np.arange(side**2), side))  # (S, 1)
    u1, u2 = (speed[i][None, :] for i in np.divmod(np.arange(len(speed) ** 2), len(speed)))  # (1, A)

    # Events at a tick and their rates: two arrivals, two services, and no event.
    clock = rate.sum() + 2.0 * speed.max()
    after = [
        (np.minimum(q1 + 1, capacity), q2, rate[0]),
        (q1, np.minimum(q2 + 1, capacity), rate[1]),
        (np.maximum(q1 - 1, 0), q2, u1),
        (q1, np.maximum(q2 - 1, 0), u2),
        (q1, q2, 2.0 * speed.max() - u1 - u2),
    ]
    shape = (side**2, len(speed) ** 2)
    successors = np.stack([np.broadcast_to(n1 * side + n2, shape) for n1, n2, _ in after], axis=-1, dtype=np.int32)
    probabilities = np.stack([np.broadcast_to(r / clock, shape) for _, _, r in after], axis=-1)
    transitions = Handed(sparse_transitions(successors, probabilities))
    del successors, probabilities
    return CMDP(
        transitions,
        cost=np.broadcast_to(weight[0] * q1 + weight[1] * q2, shape),
        constraints=[
            AtMost(np.broadcast_to((u1 + u2) ** 2, shape), power_limit, name="power", per_step=True),
            AtMost(np.broadcast_to(q2, shape), length_limit, name="length 2", per_step=True),
        ],
        **criterion(gamma, average),
        initial=0,
    )
