"""Newton's method for the dual function: ask where the local model of the last policy has its maximum.

A local model (local.py) predicts where G is largest, and gives a randomised policy near the constrained optimum, a
blend. The blend becomes a column and the next viewpoint. The oracle is asked (questions.py) when the bound promises
to gain more than another blend would. That takes few steps, whatever the number of limits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.local import ACCURACY, LocalDual, Outlook, Viewpoint, near_outlook, outlook
from cmdpkit.exact.questions import ask_at, learn_at
from cmdpkit.exact.viewpoints import evaluate_blend, oracle_view

PATIENCE = 2
"""So many Newton steps in a row without progress end them."""

FIRST_CAP = 0.5
"""Newton's first step keeps λ_i below this, in units of span(c_0)/span(c_i); later ones below twice the last λ."""

DUAL_SHARE = 0.2
"""The oracle is asked when the bound promises to gain this part of what is left; else another blend is better."""

PRIMAL_STEPS = 3
"""Blends at most before the oracle is asked all the same."""

MARGIN = 0.1
"""Blends keep this part of what the last prediction missed away from the limits, so that some of them meet all."""

NARROW = 0.03
"""The same for each limit by itself, where a search has a goal: a limit that is met with room costs its price."""

FAR = 1e6
"""A violation counts so many times its scaled size: meeting the limits at all is progress."""

SURE = 0.5
"""A search with a goal asks the oracle when a blend's Lagrangian is off its prediction by this part of the goal."""

SHARP, NEARLY = 0.005, 0.3
"""A search with a goal solves local problems to this part of what is left, or to this part of the goal: it starts near
its end, where a better blend saves more than the passes cost (measured)."""

NEAREST = 20
"""Columns that the local model of a search with a goal is bounded by: those with the smallest Lagrangian."""

PROGRESS = 0.7
"""A Newton step that leaves more than this part of the distance between the bounds is no progress."""


def newton(search: ColumnSearch) -> Iterator[ColumnSearch]:
    """Ask where G is largest under the local model, while that brings the bounds together."""
    asked, idle, margin, first = search.multipliers, 0, np.zeros(search.cmdp.num_rows), search.bound
    view = search.view or oracle_view(search)
    search.focus()
    large = search.oracle.backs_up
    search.oracle.system = None  # factors can be as large as the model: one policy's at a time
    while not search.stuck and idle < PATIENCE:
        before, known = _distance(search), len(search.columns)
        for _ in range(PRIMAL_STEPS):
            ahead = _outlook(search, view, asked / search.units, margin)
            view = evaluate_blend(search, ahead.blend)
            search.view = view if search.rigorous else None
            missed = view.values / search.scales - ahead.predicted
            off = np.abs(missed[1:])
            margin = NARROW * off if search.goal else np.full_like(off, (NARROW if large else MARGIN) * off.max())
            search.price()
            # What the bound can still gain by asking, under the local model
            gain = ahead.value * float(search.scales[0]) - search.bound
            sure = abs(float(missed[0] + ahead.prices @ missed[1:])) * float(search.scales[0]) <= SURE * search.goal
            if search.stop() or _may_ask(search, gain, sure):
                break
            asked = ahead.prices * search.units if search.goal else asked
        if search.goal and search.upper - search.bound <= search.goal:
            yield search
            return
        if search.aim and search.has_closed:
            yield search  # perhaps that is proof enough
        asked = ahead.prices * search.units
        blind = learn_at(search, asked, view, gain, sure, first) if search.goal else ask_at(search, asked, view, gain)
        search.stuck = search.mixture is not None and search.has_settled
        yield search
        idle = idle + 1 if _distance(search) > PROGRESS * before else 0
        if blind:
            view = oracle_view(search)
        search.oracle.system = search.factors = None
        if search.stop() or len(search.columns) == known:
            return


def _may_ask(search: ColumnSearch, gain: float, sure: bool) -> bool:
    """Whether the oracle is asked next, or another blend is better.

    With a goal, blends come first until their Lagrangian is as predicted: then prices and values are nearly right,
    and the oracle's answer, which starts from the blend's values, takes one policy or two.
    """
    if search.goal:
        return sure or search.upper - search.bound <= search.goal
    return search.mixture is None or gain > DUAL_SHARE * (search.upper - search.bound)


def _outlook(search: ColumnSearch, view: Viewpoint, start: Array, margin: Array) -> Outlook:
    local = LocalDual(search.cmdp, view, search.scales)
    cap = max(FIRST_CAP, 2.0 * float(start.max()))
    bound, upper = search.bound / float(search.scales[0]), search.upper / float(search.scales[0])
    enough = max(NEARLY * search.goal / float(search.scales[0]), 1e-13)
    share = SHARP if search.goal else ACCURACY
    if search.goal and search.quick and search.cmdp.num_rows > 1:
        return near_outlook(local, start, upper - bound, cap, margin, enough, share)
    cuts = search.table / search.scales
    if search.goal:
        cuts = cuts[np.argsort(cuts[:, 0] + cuts[:, 1:] @ start)[:NEAREST]]
    return outlook(local, cuts, start, bound, upper, cap, margin, enough, share)


def _distance(search: ColumnSearch) -> float:
    """How far the search has to go, scaled: between the bounds, or (farther) to a mixture within the limits."""
    if search.mixture is not None:
        return (search.upper - search.bound) / float(search.scales[0])
    return FAR * search.excess
