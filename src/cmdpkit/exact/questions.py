"""What a Newton step asks at its prices, and how exactly it is answered.

A bound G(λ) need not be much closer than the bounds are to each other. The values of the last blend are nearly those of
the best policy at its prices: where a backup from them proves enough, the oracle need not find that policy.
"""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.columns import ColumnSearch, Cut
from cmdpkit.exact.local import Viewpoint
from cmdpkit.model import StagedTransitions

ROUNDS = 60
"""Policies that a Newton step tries at most: where that is not enough, the multipliers were bad ones. On a grid good
ones take up to 40."""

UNSURE_ROUNDS = 4
"""The same where a search has a goal and the prices are not yet sure: another blend is better than more policies."""

INEXACT = 0.02
"""An oracle need not know its minimum better than to this part of the distance between the bounds."""

BOUND_SHARE = 0.05
"""Nor, on a large model, than to this part of the gap that is allowed."""

NEAR = 0.5
"""A blend that is proved to be within this part of the goal needs no better bound."""

BLIND = 0.5
"""Where the oracle finds so much more than the local model, in units of what is left, its policy is the next viewpoint:
the blend's actions are bad in states that it does not visit."""


def ask_at(search: ColumnSearch, prices: Array, view: Viewpoint, gain: float) -> bool:
    """Ask the oracle, to a part of what is left. False: the blend stays the viewpoint."""
    gap, known = max(INEXACT * min(search.upper - search.bound, gain), search.enough), len(search.columns)
    if search.rigorous or not search.oracle.backs_up or not _back_up(search, prices, view, gap):
        search.ask_bound(prices, gap=gap, rounds=ROUNDS, hopeless=search.bound)
    if len(search.columns) > known:
        search.price()
    return False


def learn_at(search: ColumnSearch, prices: Array, view: Viewpoint, gain: float, sure: bool, first: float) -> bool:
    """With a goal: bound G from a blend's values, or ask the oracle. True if it sees much that the blend does not.

    Prices that are sure are asked to the end, others to a part of what is left and with few policies. Where the
    bound has nothing to gain, what the mixture lacks are blends.
    """
    if search.quick and sure and search.mixture is not None and gain <= search.enough:
        return False
    left, value = min(search.upper - search.bound, gain), gain + search.bound
    gap = search.enough if sure else max(INEXACT * left, search.enough)
    if _glance(search, prices, view, gap) and (search.mixture is not None or search.bound - first > search.goal):
        return False
    search.factors = None
    rounds = ROUNDS if sure else UNSURE_ROUNDS
    search.ask_bound(prices, gap=gap, rounds=rounds, hopeless=search.bound, guess=view.state_values)
    search.price()
    return value - search.cuts[-1].bound > BLIND * (search.upper - search.bound)


def _back_up(search: ColumnSearch, prices: Array, view: Viewpoint, gap: float) -> bool:
    """Bound G(λ) on a large model by backups from a blend's values.

    The policy that is best there becomes a column only where blends alone do not meet the limits: its values cost
    more than the bound.
    """
    prices, oracle = search.cmdp.netted(prices), search.oracle
    weights = np.append(1.0, prices)
    gap = max(gap, BOUND_SHARE * search.aim * search.size)
    if gap <= 0.0:
        return False
    search.oracle_calls += 1
    bound, choice = oracle.back_up(weights, view.state_values @ weights, gap, search.bound)
    search.learn(Cut(prices, search.cmdp.offsets, bound))
    if choice is None:
        return False
    search.focus()
    if search.mixture is None and search.missed:
        search.take(oracle.take(choice, weights, guess=view.state_values))
    else:
        oracle.choice, oracle.state_values = choice, None
    search.missed = search.mixture is None
    return True


def _glance(search: ColumnSearch, multipliers: Array, view: Viewpoint, gap: float) -> bool:
    """Bound G(λ) from the values of a blend, if that is allowed, and cheaper than an answer of the oracle."""
    if not (search.quick and search.goal) or isinstance(search.cmdp.transitions, StagedTransitions):
        return False
    multipliers = search.cmdp.netted(multipliers)
    weights = np.concatenate([[1.0], multipliers])
    bound = search.oracle.glance(weights, view.state_values, gap, NEAR * search.goal, search.factors)
    if bound is None:
        return False
    search.learn(Cut(multipliers, search.cmdp.offsets, bound))
    return True
