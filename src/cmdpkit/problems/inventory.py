"""Inventory control with random demand and a required fill rate."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.model import CMDP, AtLeast
from cmdpkit.problems._build import check_between, check_positive, check_whole, criterion, sparse_transitions


def inventory(
    capacity: int = 30,
    largest_order: int = 15,
    demand: float = 4.0,
    order_cost: float = 5.0,
    unit_cost: float = 1.0,
    holding_cost: float = 0.2,
    fill_rate: float = 0.95,
    gamma: float | None = None,
    average: bool = False,
) -> CMDP:
    """Inventory control with random demand: least cost at a required fill rate.

    In each period the size of an order is chosen. The cost of orders and of stock held is minimised, subject to a lower
    limit on the fill rate, the share of the demand that is served from stock, in which early periods count more, by the
    discount, unless `average=True`. Retailers and spare-part depots promise a fill rate, because the cost of a lost
    customer, which a model with a penalty needs, is hard to estimate.

    In a period, the order arrives, as much of it as fits is kept and paid for, then demand is served as far as stock
    allows, and the rest is lost. Demand is Poisson. State: stock before ordering; action: units ordered. The
    store is empty initially.

    Args:
        capacity: the most units in stock; there are capacity + 1 states.
        largest_order: the most units in an order; there are largest_order + 1 actions.
        demand: the mean demand of a period, in units.
        order_cost: the cost of an order, whatever its size.
        unit_cost: the cost of a unit bought.
        holding_cost: the cost of a unit left at the end of a period.
        fill_rate: the smallest mean share of the demand to be served, between 0 and 1.
        gamma: the discount factor per period, by default 0.99.
        average: True for long-run averages instead of discounted sums; the limits stay what they are.

    Example:
        >>> import cmdpkit as ck
        >>> ck.problems.inventory()
        CMDP(states=31, actions=16, constraints=['fill rate'], gamma=0.99)
    """
    capacity = check_whole(capacity, "capacity", 1)
    largest_order = check_whole(largest_order, "largest_order", 1)
    demand = check_positive(demand, "demand")
    order_cost = check_between(order_cost, "order_cost", 0.0, np.inf)
    unit_cost = check_between(unit_cost, "unit_cost", 0.0, np.inf)
    holding_cost = check_between(holding_cost, "holding_cost", 0.0, np.inf)
    fill_rate = check_between(fill_rate, "fill_rate", 0.0, 1.0)

    stock, order = np.arange(capacity + 1)[:, None], np.arange(largest_order + 1)[None, :]
    filled = np.minimum(stock + order, capacity)  # (S, A)
    bought = filled - stock
    # Demand beyond the capacity has the same effect as demand of the capacity; the tail is counted there.
    chances = _poisson(demand, capacity)
    units = np.arange(chances.size)
    left = np.maximum(filled[:, :, None] - units, 0)  # (S, A, demand)
    mean_left = left @ chances
    costs = order_cost * (bought > 0) + unit_cost * bought + holding_cost * mean_left
    return CMDP(
        sparse_transitions(left, chances),
        cost=costs,
        constraints=[AtLeast((filled - mean_left) / demand, fill_rate, name="fill rate", per_step=True)],
        **criterion(gamma, average),
        initial=0,
    )


def _poisson(mean: float, largest: int) -> Array:
    """The distribution of min(D, largest) for a Poisson D; probabilities below rounding are counted with the tail."""
    # P(D > μ + t) ≤ exp(−t² / (2μ + 2t/3)), which is exp(−40) for this t (Bernstein)
    largest = min(largest, int(np.ceil(mean + 40.0 / 3.0 + np.sqrt((40.0 / 3.0) ** 2 + 80.0 * mean))))
    k = np.arange(largest)
    # log P(D = k) = k log μ − μ − Σ_{j ≤ k} log j
    head = np.exp(k * np.log(mean) - mean - np.cumsum(np.log(np.maximum(k, 1))))
    return np.append(head, max(0.0, 1.0 - head.sum()))
