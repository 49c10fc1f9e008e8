"""Between which numbers the parameters of the built-in models can be moved in the explorer.

Parameters that are limits are left out: every limit of a model can be moved anyway. The range of a list is that of each
of its entries.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """From the smallest to the largest number; whole numbers only, or all."""

    low: float
    high: float
    whole: bool = False


_GAMMA = Range(0.8, 0.999)
_SHARE = Range(0.0, 1.0)

RANGES: dict[str, dict[str, Range]] = {
    "paper": {},
    "garnet": {
        "states": Range(10, 500, True),
        "actions": Range(2, 20, True),
        "successors": Range(1, 10, True),
        "gamma": _GAMMA,
        "seed": Range(0, 100, True),
    },
    "two_queues": {
        "capacity": Range(2, 30, True),
        "arrivals": Range(0.05, 1.0),
        "holding": Range(0.0, 5.0),
        "gamma": _GAMMA,
    },
    "wireless": {
        "buffer": Range(2, 40, True),
        "packets": Range(1, 6, True),
        "fading": Range(0.0, 0.5),
        "gamma": _GAMMA,
    },
    "grid": {
        "rows": Range(3, 15, True),
        "columns": Range(4, 20, True),
        "slip": Range(0.0, 0.6),
        "gamma": _GAMMA,
    },
    "maintenance": {
        "levels": Range(2, 30, True),
        "wear": _SHARE,
        "breakdown": _SHARE,
        "profit": Range(0.0, 3.0),
        "repair_cost": Range(0.0, 3.0),
        "repair_chance": Range(0.05, 1.0),
        "gamma": _GAMMA,
    },
    "inventory": {
        "capacity": Range(5, 60, True),
        "largest_order": Range(1, 30, True),
        "demand": Range(0.5, 10.0),
        "order_cost": Range(0.0, 20.0),
        "unit_cost": Range(0.0, 5.0),
        "holding_cost": Range(0.0, 2.0),
        "gamma": _GAMMA,
    },
    "delivery": {
        "rows": Range(2, 10, True),
        "columns": Range(2, 15, True),
        "slip": Range(0.0, 0.6),
        "patience": Range(2.0, 100.0),
        "slow": _SHARE,
        "energy": Range(0.5, 10.0),
    },
    "epidemic": {
        "people": Range(5, 60, True),
        "weeks": Range(2, 52, True),
        "contacts": Range(0.0, 3.0),
        "costs": Range(0.0, 10.0),
        "recovery": _SHARE,
        "beds": Range(0, 30, True),
    },
}
"""Per problem and parameter."""
