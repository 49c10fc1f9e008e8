"""The answer of a column search: the stationary policy of its best mixture, or one that randomises in fewer states."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import is_compiled
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.exact.columns import COLUMN_ACCURACY, ColumnSearch
from cmdpkit.exact.joined import stationary_policy
from cmdpkit.exact.local import Blend
from cmdpkit.exact.master import least_violation
from cmdpkit.exact.vertex import least_randomised, most_rounded, rounded
from cmdpkit.policy import TabularPolicy

PROOF_ACCURACY, MANY = 0.03, 100_000
"""Visits of mixed columns are found to this part of `tol`, and from so many states on the values of a proof."""


def best_policy(search: ColumnSearch) -> TabularPolicy:
    """The stationary policy of the best mixture: π(a|s) = d(s, a) / Σ_a d(s, a), with d the mixed occupancy.

    While no mixture meets the limits, the mixture that misses them least; before any column, the uniform policy.
    """
    if not search.columns:
        return TabularPolicy.over(search.cmdp.pairs, search.cmdp.pairs.uniform())
    return mixed_policy(search, _weights(search))


def mixed_policy(search: ColumnSearch, weights: Array) -> TabularPolicy:
    """The stationary policy of a mixture of the columns."""
    search.oracle.system = None  # one chain at a time
    return _policy_of(search, _occupancy(search, weights))


def vertex_policy(search: ColumnSearch) -> TabularPolicy | None:
    """A policy with the values of `best_policy()` that randomises in fewer states, if there is one (vertex.py)."""
    search.oracle.system = None
    cmdp, oracle, occupancy = search.cmdp, search.oracle, [_occupancy(search, _weights(search))]
    visits, values = cmdp.pairs.sum(occupancy[0]), search.nearest()
    # Large tables are passed on, not kept
    policy = [_policy_of(search, occupancy.pop())]
    return least_randomised(cmdp, policy.pop(), visits, oracle.plan, oracle.accuracy, values)


def may_round(search: ColumnSearch) -> bool:
    """Whether `rounded_policy()` is worth a try: on a large model, from the values of the last blend."""
    return search.near is not None and search.oracle.backs_up and not search.rigorous


def rounded_policy(search: ColumnSearch) -> TabularPolicy | None:
    """A policy with about the values of `best_policy()` that randomises in few states, for little time."""
    near, pairs, visits = search.nearest(), search.cmdp.pairs, search.visits
    assert near is not None
    assert visits is not None
    search.oracle.system = None
    if _last_suffices(search):
        pi = search.probabilities(search.columns[-1]).ravel()
    else:
        weights = _weights(search)
        if _randomised_states(search, weights) > most_rounded(search.cmdp, search.tol):
            return None
        occupancy = _occupancy(search, weights, PROOF_ACCURACY)
        visits = pairs.sum(occupancy)
        pi = np.array(_policy_of(search, occupancy).pi).ravel()
        del occupancy
    return rounded(search.cmdp, pi, visits, near, search.tol)


def _last_suffices(search: ColumnSearch) -> bool:
    """Whether the last column alone, a blend whose visits and values are known, is as close as `aim` says."""
    values, last = search.values[-1], search.columns[-1]
    met = (values[1:] <= search.relaxation * search.scales[1:]).all()
    return isinstance(last, Blend) and bool(met and values[0] - search.bound <= search.aim * search.size)


def proof_accuracy(search: ColumnSearch) -> Array | float:
    """To which a policy of a large model need be evaluated for its proof; 0 is to rounding."""
    exact = PROOF_ACCURACY / COLUMN_ACCURACY if may_round(search) and search.cmdp.states >= MANY else 1.0
    return exact * search.oracle.accuracy if is_compiled(search.cmdp.transitions) else 0.0


def _randomised_states(search: ColumnSearch, weights: Array) -> int:
    """The number of states in which the columns of a mixture take more than one action."""
    pairs = search.cmdp.pairs
    taken = np.zeros(pairs.count)
    for j in np.flatnonzero(weights > 0.0):
        column = search.columns[j]
        if isinstance(column, TabularPolicy):
            taken[column.pi.ravel() > 0.0] = 1.0
        else:
            for choice in column.choices if isinstance(column, Blend) else [column]:
                taken[pairs.rows(choice)] = 1.0
    return int(np.count_nonzero(pairs.sum(pairs.like(taken)) > 1))


def _weights(search: ColumnSearch) -> Array:
    return (search.mixture or least_violation(search.scaled_rows())[1]).weights


def _policy_of(search: ColumnSearch, occupancy: PairTable) -> TabularPolicy:
    pairs, choice = search.cmdp.pairs, search.oracle.choice
    fallback = pairs.uniform() if choice is None else pairs.one_hot(choice)
    if search.cmdp.criterion == "average":
        return stationary_policy(search.cmdp, occupancy, fallback, search.tol)
    return TabularPolicy.from_occupancy(pairs, occupancy, fallback)


def _occupancy(search: ColumnSearch, weights: Array, accuracy: float = COLUMN_ACCURACY) -> PairTable:
    """Visits to the pairs under a mixture of the columns, to a part of `tol`."""
    pairs = search.cmdp.pairs
    occupancy = np.zeros(pairs.count)
    for j in np.flatnonzero(weights > 0.0):
        column, visits = search.columns[j], search.kept.get(int(j))
        if visits is None:
            chosen = isinstance(column, np.ndarray)
            played = {"choice": column} if chosen else {"probabilities": search.probabilities(column)}
            system = policy_system(search.cmdp, **played, plan=search.plan)
            del played
            visits = system.state_occupancy(search.visits, accuracy * search.tol)
            del system  # one chain at a time
        if isinstance(column, np.ndarray):
            occupancy[pairs.rows(column)] += weights[j] * visits
        elif isinstance(column, Blend):
            for choice, share in zip(column.choices, column.weights, strict=True):
                occupancy[pairs.rows(choice)] += weights[j] * share * visits
        else:
            occupancy += (pairs.over(weights[j] * visits) * column.pi).ravel()
    return pairs.like(occupancy)
