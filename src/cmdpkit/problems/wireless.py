"""A wireless transmitter over a fading channel, with a power budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmdpkit.checks import Handed
from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import (
    check_between,
    check_distribution,
    check_numbers,
    check_positive,
    check_whole,
    criterion,
    sparse_transitions,
)


def wireless(
    buffer: int = 20,
    packets: int = 3,
    gains: Sequence[float] = (0.25, 0.5, 1.0, 2.0),
    arrivals: Sequence[float] = (0.3, 0.4, 0.2, 0.1),
    fading: float = 0.3,
    power_limit: float = 1.5,
    backlog_limit: float | None = None,
    gamma: float | None = None,
    average: bool = False,
) -> CMDP:
    """A wireless transmitter: most throughput within a power budget.

    In each slot the number of packets to send is chosen, given the buffer and the channel. The discounted number of
    packets sent is maximised; the mean power is limited and, optionally, the mean backlog, which corresponds to delay
    by Little's law. Means are weighted by the discount, which counts early slots more, unless `average=True`. Sending u
    packets in one slot over a channel of gain g takes power (2^u − 1) / g: waiting for a good channel saves power and
    costs delay.

    In a slot, min(u, backlog) packets leave, then new packets arrive, of which those that find the buffer full are
    lost, and the channel stays or moves to a neighbouring gain. State backlog · len(gains) + channel, action u. The
    buffer is empty initially, and the channel has its stationary distribution, which is uniform.

    Args:
        buffer: the most packets that can wait.
        packets: the most packets that can be sent in a slot; there are packets + 1 actions.
        gains: the channel's gains, in the order in which it fades from one to the next.
        arrivals: arrivals[k] is the probability of k new packets in a slot.
        fading: the probability of moving up one gain, and of moving down one gain; at most 0.5.
        power_limit: the largest mean power per slot.
        backlog_limit: the largest mean number of packets waiting at the start of a slot, or None for no limit. With
            the other defaults, 6 binds together with the power limit, and 5 is infeasible.
        gamma: the discount factor per slot, by default 0.99.
        average: True for long-run averages instead of discounted sums; the limits stay what they are.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.wireless()
        CMDP(states=84, actions=4, constraints=['power'], gamma=0.99)
    """
    buffer = check_whole(buffer, "buffer", 1)
    packets = check_whole(packets, "packets", 1)
    gain = check_numbers(gains, "gains", 0.0, np.inf)
    if gain.min() <= 0.0:
        raise ValueError(f"gains must be above zero, got {gain.min():g}; leave out a channel with no capacity")
    chances = check_distribution(arrivals, "arrivals")
    fading = check_between(fading, "fading", 0.0, 0.5)

    channels = len(gain)
    backlog, channel = (x[:, None] for x in np.divmod(np.arange((buffer + 1) * channels), channels))  # (S, 1)
    sent = np.minimum(np.arange(packets + 1)[None, :], backlog)  # (S, A)

    left = (backlog - sent)[:, :, None, None]
    backlog_next = np.minimum(left + np.arange(len(chances))[:, None], buffer)  # (S, A, arrivals, 1)
    channel_next = np.clip(channel[:, :, None, None] + np.array([-1, 0, 1]), 0, channels - 1)  # (S, 1, 1, moves)
    successors = (backlog_next * channels + channel_next).reshape(*sent.shape, -1)
    probabilities = np.outer(chances, [fading, 1.0 - 2.0 * fading, fading]).ravel()

    constraints = [
        AtMost((2.0**sent - 1.0) / gain[channel], check_positive(power_limit, "power_limit"), "power", per_step=True)
    ]
    if backlog_limit is not None:
        limit = check_positive(backlog_limit, "backlog_limit")
        constraints.append(AtMost(np.broadcast_to(backlog, sent.shape), limit, "backlog", per_step=True))
    transitions = Handed(sparse_transitions(successors, probabilities))
    del successors, left, backlog_next
    return CMDP(
        transitions,
        reward=sent,
        constraints=constraints,
        **criterion(gamma, average),
        initial=np.where(backlog[:, 0] == 0, 1.0 / channels, 0.0),
    )
