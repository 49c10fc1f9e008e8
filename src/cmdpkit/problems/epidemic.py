"""Epidemic control over weeks: a problem with a finite horizon."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmdpkit.model import CMDP, AtMost
from cmdpkit.problems._build import check_between, check_numbers, check_positive, check_whole


def epidemic(
    people: int = 30,
    weeks: int = 26,
    contacts: Sequence[float] = (1.2, 0.7, 0.3),
    costs: Sequence[float] = (0.0, 1.0, 3.0),
    recovery: float = 0.6,
    beds: int = 8,
    overload: float = 1.0,
    overload_at_end: float = 0.02,
) -> CMDP:
    """Epidemic control: cheap measures, with few weeks in which the beds do not suffice.

    Every week a number of the people are infected. Each of the others is infected with a probability that grows with
    that number and with the contacts that the measure allows, and each of the infected recovers with a fixed
    probability. The expected cost of the measures over all weeks is minimised. Two limits: the expected number of weeks
    with more infected people than beds, and the probability of such a week at the end.

    The state is the number of infected people; the action is the measure.

    Args:
        people: the number of people.
        weeks: the horizon.
        contacts: per measure, infections per week that one infected person would cause if nobody else were.
        costs: per measure, its cost per week.
        recovery: the probability of recovering within a week.
        beds: above this number of infected people the beds do not suffice.
        overload: the largest expected number of weeks with too few beds.
        overload_at_end: the largest probability of too few beds in the last week.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.epidemic()
        >>> cmdp
        CMDP(states=31, actions=3, constraints=['overload', 'overload at the end'], horizon=26)
        >>> result = ck.solve(cmdp)
        >>> round(result.objective, 3)
        10.593
        >>> result.policy.at(25)
        TabularPolicy(states=31, actions=3)
    """
    from scipy.stats import binom

    people, weeks = check_whole(people, "people", 1), check_whole(weeks, "weeks", 1)
    rates = check_numbers(contacts, "contacts", 0.0, np.inf)
    price = check_numbers(costs, "costs", 0.0, np.inf, rates.size)
    recovery = check_between(recovery, "recovery", 0.0, 1.0)
    infected = np.arange(people + 1)
    transitions = np.zeros((people + 1, rates.size, people + 1))
    for i in infected:
        stay_ill = binom.pmf(np.arange(i + 1), i, 1.0 - recovery)
        for a, rate in enumerate(rates):
            new = binom.pmf(np.arange(people - i + 1), people - i, 1.0 - np.exp(-rate * i / people))
            transitions[i, a] = np.convolve(stay_ill, new)
    transitions /= transitions.sum(axis=2, keepdims=True)
    short = np.repeat((infected > check_whole(beds, "beds", 0)).astype(float), rates.size).reshape(-1, rates.size)
    return CMDP(
        transitions,
        cost=np.tile(price, (people + 1, 1)),
        constraints=[
            AtMost(short, check_positive(overload, "overload"), name="overload"),
            AtMost(
                short,
                check_between(overload_at_end, "overload_at_end", 0.0, 1.0),
                name="overload at the end",
                stage=weeks - 1,
            ),
        ],
        horizon=weeks,
        initial=min(3, people),
    )
