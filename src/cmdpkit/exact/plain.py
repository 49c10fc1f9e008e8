"""Models without limits: policy iteration that ends as soon as its last Bellman backup proves the tolerance.

One backup TV of any V bounds the optimum from below and, as TV is also one sweep of the greedy policy, that policy's
value from both sides (MacQueen 1966). So nothing has to be evaluated more exactly than the tolerance, and no linear
system is solved for the certificate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import Backup, bellman, improve_in_place
from cmdpkit.evaluation.bounds import EPS, StartSums, backup_rounding, value_interval
from cmdpkit.evaluation.system import SEPARATOR, Plan, PolicySystem
from cmdpkit.exact.mdp import MAX_ROUNDS, Stop
from cmdpkit.model import CMDP

LOOSE = 0.02
"""Values are found to this part of what is left between the bounds."""

FEW = 0.02
"""A policy that changes in a larger part of the states is far from the best one, and a far-sighted one is tried."""

AHEAD = 3
"""Bellman backups before the first policy: they cost less than the evaluation of a policy that does not look ahead."""

SETTLED, ENOUGH = 0.01, 0.5
"""Of a policy that changes in no larger part of the states, values are found to this part of the tolerance."""

STALLED = 0.8
"""A policy that leaves more than this part of the distance between the bounds has hardly brought them closer. One whose
values change the actions of most states is no better."""

NEARBY, CHORD = 0.2, 0.7
"""The factors of a policy that differs in so small a part of the states stand in for those of the next ones, while each
step leaves no more than this part of the distance between the bounds: a step takes a tenth of a factorisation."""

PATIENCE = 100
"""More sweeps than this cost more than a factorisation of one cost's system, where that is possible (measured)."""

COMPILED = 20_000
"""From this many nonzeros models that end are swept by compiled kernels. These take a third of a second to import, once
per process; with 30,000 nonzeros every solution then takes 1.5 to 6 ms instead of 8 to 11."""

FOLLOWED, MOST_PASSES = 7, 300
"""Sweeps of a policy after a backup that uses new values at once, and how many such backups are made (measured)."""

IDLE = 3
"""So many policies in a row that bring the bounds no closer are rounding."""


class Proved(NamedTuple):
    """A deterministic policy of a model without limits, with what one backup proves about it."""

    choice: Any  # (S,) which of its actions is taken in each state
    value: float  # V_0 of the policy, in the internal sign convention
    error: float  # how far that can be off
    bound: float  # no policy has less


def minimise_alone(cmdp: CMDP, tol: float, stop: Stop) -> Proved | None:
    """The best policy to a relative gap of `tol`; None if rounding is in the way, or if `stop` says so.

    The first policy looks a few steps ahead. Where that was not nearly far enough, because the next ones bring the
    bounds no closer, it goes on from the values of the uniform policy, which goes everywhere. Models that lead to ends
    need to look far: they are swept from there, and small ones start from the uniform policy.
    """
    cost, ends = cmdp.costs[0], leads_to_ends(cmdp)
    plan = Plan(patience=0 if ends else PATIENCE)
    choice = cmdp.pairs.argmin(cmdp.pairs.like(cost)).astype(np.int32)
    guess, ahead, seen_far = cost[cmdp.pairs.rows(choice)], AHEAD, False
    if ends and cmdp.transitions.nnz >= COMPILED:
        found = _back_from_ends(cmdp, tol, stop, guess, choice)
        if found is not None or stop():
            return found
    elif ends:
        guess, ahead, seen_far = _far_values(cmdp, plan), 1, True
    for _ in range(ahead):
        backup = bellman(cmdp, cost, guess, choice)
        guess, choice = backup.values, backup.choice
    system, own = _system(cmdp, choice, plan), cost[cmdp.pairs.rows(choice)]
    left, closest, idle = _left(cmdp, backup, tol)[0], np.inf, 0
    value, apart = system.glance(own, LOOSE * left, guess), 0
    for number in range(MAX_ROUNDS):
        backup, before = bellman(cmdp, cost, value, choice), left
        left, allowed = _left(cmdp, backup, tol)
        if left <= allowed:
            found = _proof(cmdp, value, backup)
            left, allowed = found.value + found.error - found.bound, tol * cmdp.proof_scale(found.value)
            if left <= allowed:
                return found
        idle = idle + 1 if left >= closest else 0
        if stop() or idle > IDLE:
            return None
        lost = left > STALLED * closest or backup.moved > 0.5 * cmdp.states
        short_sighted = idle > 0 or (number == 1 and plan.is_direct and lost)
        closest, changed, choice = min(left, closest), backup.moved, backup.choice
        apart += changed  # at most so many states from the policy of the system
        if not seen_far and short_sighted and changed > FEW * cmdp.states:
            far = _far_values(cmdp, plan)
            choice, seen_far = bellman(cmdp, cost, far, np.zeros(cmdp.states, dtype=np.int32)).choice, True
        elif plan.has_factors and 0 < apart <= NEARBY * cmdp.states and left <= CHORD * before:
            value = value + system.solve(backup.values - value)
            continue
        if apart:
            del system  # one set of factors at a time: the next one finds its memory mapped
            system, own, apart = _system(cmdp, choice, plan), cost[cmdp.pairs.rows(choice)], 0
        # Where hardly any action changes any more, this policy may be the last one
        last = changed <= SETTLED * cmdp.states
        value = system.state_values(own, backup.values, ENOUGH * allowed if last else LOOSE * left)
    return None


def leads_to_ends(cmdp: CMDP) -> bool:
    """Whether a model has states that are never left, and its numbers tell which states are neighbours."""
    if max(cmdp.band or (np.inf,)) > min(SEPARATOR, cmdp.states / 8):
        return False
    pairs, matrix = cmdp.pairs, cmdp.transitions
    alone = np.flatnonzero(np.diff(matrix.indptr) == 1)  # pairs with one successor
    staying = alone[matrix.indices[matrix.indptr[alone]] == pairs.state[alone]]
    return bool((np.bincount(pairs.state[staying], minlength=cmdp.states) == np.diff(pairs.heads)).any())


def _back_from_ends(cmdp: CMDP, tol: float, stop: Stop, value: Array, choice: Any) -> Proved | None:
    """Modified policy iteration that uses new values at once, forth and back through the numbers of the states.

    What an end is worth is then known in one sweep wherever ways to it lead up in numbers, and in the next one where
    they lead down. `value` and `choice` are overwritten. None if it takes too long.
    """
    cost, tail = cmdp.costs[0], cmdp.gamma / (1.0 - cmdp.gamma)
    for number in range(MOST_PASSES):
        change = improve_in_place(cmdp, cost, value, choice, number % 2 == 0, FOLLOWED)
        start = float(cmdp.initial @ value)
        settled = change <= 4.0 * EPS * abs(start)
        if settled or tail * change <= tol * cmdp.proof_scale(start):
            backup = bellman(cmdp, cost, value, choice)
            found = _proof(cmdp, value, backup)
            if found.value + found.error - found.bound <= tol * cmdp.proof_scale(found.value):
                return found
        if settled or stop():
            break
    return None


def _system(cmdp: CMDP, choice: Any, plan: Plan) -> PolicySystem:
    return PolicySystem(cmdp, choice=choice, plan=plan)


def _left(cmdp: CMDP, backup: Backup, tol: float) -> tuple[float, float]:
    """The distance between the bounds but for rounding, and what is allowed."""
    tail = cmdp.gamma / (1.0 - cmdp.gamma)
    value = float(cmdp.initial @ backup.values) + 0.5 * tail * (backup.lowest + backup.highest)
    return tail * (backup.highest - backup.lowest), tol * cmdp.proof_scale(value)


def _proof(cmdp: CMDP, value: Array, backup: Backup) -> Proved:
    initial = cmdp.initial
    sums = StartSums(float(initial @ backup.values), float(initial @ np.abs(backup.values)), float(initial.sum()))
    rounding = backup_rounding(cmdp, np.ones(1), float(np.abs(value).max()))
    low, high = value_interval(cmdp, sums, (backup.lowest, backup.highest), rounding)
    middle = 0.5 * (low + high)
    error = float(np.nextafter(max(high - middle, middle - low), np.inf))
    return Proved(backup.choice, middle, error, low)  # no policy has less: low holds for the next step of all of them


def _far_values(cmdp: CMDP, plan: Plan) -> Array:
    """The values of the uniform policy, which goes everywhere."""
    uniform = cmdp.pairs.uniform()
    return PolicySystem(cmdp, uniform, plan=plan).solve(cmdp.pairs.expect(uniform, cmdp.costs[0][None])[:, 0])
