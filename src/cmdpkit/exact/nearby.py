"""Searches that begin near their end: at a policy that may be the best one, or where a search with other limits stood.

Columns keep their sums when limits move, and the last blend is nearly optimal for limits nearby: often one more blend
beside it is all that is missing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.local import BESIDE, Blend, LocalDual, Viewpoint, outlook
from cmdpkit.exact.newton import FIRST_CAP, NEARLY
from cmdpkit.exact.viewpoints import add_beside, evaluate_blend
from cmdpkit.model import CMDP

SHARPEST, PRICE_CAPS = 1e-9, 8
"""How exactly the local problem of a policy is solved that may be the best one, and how often its cap is raised."""


TABLE_BYTES = 4_000_000
"""Larger tables of advantages are not kept for later searches, but computed again."""

LEAST_PRICE = 0.01
"""No price counts as less than this (scaled), where limits are to be met with room."""


class Anchor(NamedTuple):
    """Where a search stood: its last blend, and the oracle's last policy with its values."""

    offsets: Array
    view: Viewpoint | None
    choice: Any
    state_values: Array | None


def anchor_of(search: ColumnSearch) -> Anchor:
    """Where the search stands, to continue from later."""
    view = search.view
    if view is not None and view.table is not None and view.table.nbytes > TABLE_BYTES:
        view = view._replace(table=None)
    return Anchor(search.cmdp.offsets, view, search.oracle.choice, search.oracle.state_values)


def anchor_bytes(cmdp: CMDP) -> int:
    """What an anchor takes at most, about."""
    return 8 * cmdp.states * (2 * cmdp.num_rows + 4) + min(TABLE_BYTES, 8 * cmdp.pairs.count * (cmdp.num_rows + 1))


def moved(search: ColumnSearch, cmdp: CMDP, sums: list[Array], anchor: Anchor | None = None) -> ColumnSearch:
    """The search on a model with other limits, with everything found so far, from an anchor near them.

    `sums` (m + 1,) are those of the columns, without limits: subtracting them one after another would add errors.
    """
    offsets = np.append(0.0, cmdp.offsets)
    columns, values, errors = [*search.columns], [*(np.array(sums) - offsets)] if sums else [], [*search.errors]
    other = ColumnSearch(cmdp, search.tol, search.stop, columns, values, rigorous=search.rigorous, errors=errors)
    other.oracle, other.oracle.cmdp, other.visits = search.oracle, cmdp, search.visits
    anchor = anchor or anchor_of(search)
    other.choice, other.oracle.state_values = anchor.choice, anchor.state_values
    if anchor.view is not None:
        shift = np.append(0.0, anchor.offsets) - offsets
        other.view = anchor.view._replace(values=anchor.view.values + shift)
    return other


def begin_at(search: ColumnSearch, blend: Blend) -> Array:
    """Take a policy as the first column and viewpoint; returns the multipliers that are best near it."""
    search.view = view = evaluate_blend(search, blend)
    search.price()
    local, cuts = LocalDual(search.cmdp, view, search.scales), search.table / search.scales
    value, prices = float(cuts[0, 0]), np.zeros(search.cmdp.num_rows)
    for cap in 8.0 ** np.arange(PRICE_CAPS):
        prices = outlook(local, cuts, prices, value - SHARPEST, value, float(cap), 0.0).prices
        if prices.max() < 0.5 * cap:
            break
    return np.asarray(prices * search.units)


def view_excess(search: ColumnSearch) -> float:
    """By how much the last blend's Lagrangian is above the bound: it is nearly optimal for the limits it meets."""
    if search.view is None:
        return np.inf
    return float(search.view.values[0] + search.multipliers @ search.view.values[1:]) - search.bound


def close_beside(search: ColumnSearch, room: float = 0.0) -> None:
    """Where the last blend is nearly optimal, but for other limits, add one beside it that meets these.

    With `room` it stays inside the limits, at the price of this part of the goal.

    The prices are known: nothing is asked, and the local model is needed only in the directions in which limits are
    missed. The new column is no viewpoint, so that its visits are not needed either.
    """
    view, prices = search.view, search.multipliers / search.units
    if view is None or not view_excess(search) <= search.goal:
        return
    local = LocalDual(search.cmdp, view, search.scales)
    for direction in (np.zeros_like(prices), *np.diag(np.sign(view.values[1:]))):
        local.look(prices * (1.0 + BESIDE * direction))
    cap = max(FIRST_CAP, 2.0 * float(prices.max()))
    goal = search.goal / float(search.scales[0])
    inside = room * goal / prices.size / np.maximum(prices, LEAST_PRICE)
    blend, _ = local.blend(-inside, cap, NEARLY * goal)
    add_beside(search, view, local.table, blend)
