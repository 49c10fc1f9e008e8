"""A shop with a stock of up to nine, known only by simulation: what is measured, killed and tested on clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cmdpkit as ck


def step(stock: Any, order: Any, rng: Any) -> tuple[Any, Any]:
    """Profit, and sales that are lost."""
    stock = np.minimum(stock + order, 9)
    demand = rng.poisson(2.0, stock.size)
    sold = np.minimum(stock, demand)
    return stock - sold, np.stack([5.0 * sold - 2.0 * order - 0.1 * stock, np.minimum(demand - sold, 10)])


def slow_step(stock: Any, order: Any, rng: Any) -> tuple[Any, Any]:
    """The same, slow enough to be killed on the way."""
    time.sleep(0.001)
    return step(stock, order, rng)


def empty(n: int, rng: Any) -> Any:
    return np.zeros(n, dtype=int)


def shop(function: Callable[..., Any] = step, block: int = 4_000, gamma: float = 0.9) -> ck.Simulator:
    return ck.Simulator(
        function,
        empty,
        states=10,
        actions=5,
        gamma=gamma,
        constraints=[ck.AtMost(None, 0.1, name="lost sales", per_step=True)],
        bounds=[(-9.0, 45.0), (0.0, 10.0)],
        block=block,
    )
