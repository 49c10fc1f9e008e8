"""The loop of the column search: where the oracle is asked next, until nothing can be improved.

Most steps ask where G has its maximum under the local model of the last policy, which is Newton's method (newton.py)
and needs few steps whatever m. The master's own prices are asked when that makes no progress. With one limit, price and
policy improve in turn, and finite horizons try the level method first (levels.py). While the columns found so far
cannot meet the limits, the largest violation takes the place of the objective (feasibility.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch, Cut
from cmdpkit.exact.feasibility import relax, seek_feasible
from cmdpkit.exact.levels import LevelMethod
from cmdpkit.exact.newton import newton
from cmdpkit.exact.questions import INEXACT
from cmdpkit.model import StagedTransitions

IN_OUT = 0.5
"""Where Newton's step fails, the oracle is asked between the best multipliers so far and the master's (measured)."""

FIRST_GAP = 0.01
"""The first question is answered to this part of what the objective can vary."""

STEEP = 10.0
"""While no policy meets the only limit, its price is this, in units of span(c_0)/span(c_1)."""

LEVEL_CALLS, LEVEL_CALLS_PER_LIMIT = 8, 6
"""Oracle calls of the level method at most; about half as many are usual."""


def steps(search: ColumnSearch, start: Array | None = None) -> Iterator[ColumnSearch]:
    """Improve until nothing can be improved, yielding after every oracle call.

    `stuck` says that the answer cannot be improved; a caller that continues is given relaxed limits. Multipliers to
    start from are taken seriously when there are columns as well.
    """
    if start is None and not search.columns and _has_one_limit(search):
        yield from _one_limit(search)
    near = FIRST_GAP if start is None or not search.columns else INEXACT * search.tol
    first = near * float(search.scales[0]) if search.cmdp.num_rows else 0.0
    if start is not None or not search.columns or search.oracle.state_values is None:
        search.ask_bound(search.multipliers if start is None else start, gap=first)
    search.price()
    search.stuck = not search.cmdp.num_rows
    yield search
    while not search.stuck or relax(search):
        if isinstance(search.cmdp.transitions, StagedTransitions) and not search.rigorous:
            yield from _levels(search)
        if not search.stuck:
            yield from newton(search)
        if search.mixture is None:
            yield from seek_feasible(search)
            # The master may miss by its own tolerance what the game has just shown; then there is no answer.
            search.stuck = search.farkas is None and not search.price()
            yield search
            if search.farkas is not None:
                return
        if not search.stuck and not search.has_settled:
            yield from _kelley(search)


def _has_one_limit(search: ColumnSearch) -> bool:
    cmdp = search.cmdp
    plain = cmdp.criterion != "average" and cmdp.blocks is None
    return cmdp.num_rows == 1 and plain and not isinstance(cmdp.transitions, StagedTransitions)


def _one_limit(search: ColumnSearch) -> Iterator[ColumnSearch]:
    """One limit: its price and the policy improve in turn.

    The Lagrangian of a policy is a line over the price. The lowest of the lines that are known have their peak
    where two of them cross. There the last policy is improved once: its new line is below the peak, or it is the
    best one there. Only where values come from factorisations: sweeps take less time for rough values.
    """
    weights = np.array([1.0, 0.0])
    search.oracle.begin(weights)
    if not search.plan.is_direct:
        return
    search.take(search.oracle.take(search.choice, weights))
    while True:
        met = search.price()
        prices = search.mixture.prices if met and search.mixture is not None else STEEP * search.units
        weights = np.append(1.0, prices)
        search.oracle_calls += 1
        bound, better = search.oracle.improvement(weights)
        search.learn(Cut(prices, search.cmdp.offsets, bound))
        search.stuck = met and (better is None or search.has_settled)
        yield search
        if better is None or search.stuck or search.stop() or not search.take(search.oracle.take(better, weights)):
            return


def _levels(search: ColumnSearch) -> Iterator[ColumnSearch]:
    """Ask where the level method says, for a number of calls that is enough unless the model is an odd one."""
    method = LevelMethod(search.multipliers / search.units)
    for k in range(LEVEL_CALLS + LEVEL_CALLS_PER_LIMIT * search.cmdp.num_rows):
        if search.mixture is None and k > 2 * search.cmdp.num_rows + LEVEL_CALLS:
            return
        cuts, best = search.table / search.scales, search.bound / float(search.scales[0])
        fresh = search.ask_bound(method.next(cuts, best, search.multipliers / search.units) * search.units)
        search.price()
        search.stuck = search.mixture is not None and search.has_settled
        yield search
        if search.stuck or not fresh or search.stop():
            return


def _kelley(search: ColumnSearch) -> Iterator[ColumnSearch]:
    """Ask between the best multipliers and the master's, and if that tells nothing new, at the master's own."""
    assert search.mixture is not None
    prices = search.mixture.prices
    fresh = search.ask_bound(IN_OUT * search.multipliers + (1.0 - IN_OUT) * prices)
    if not fresh:
        yield search
        fresh = search.ask_bound(prices)
    if fresh:
        search.price()
    search.stuck = not fresh or search.has_settled
    if not fresh and search.upper - search.bound > 1e-9 * search.scales[0]:
        # The bounds have not met: where all limits are slack, rounding may have hidden that λ = 0 is best.
        search.ask_bound(np.zeros_like(prices))
    yield search
