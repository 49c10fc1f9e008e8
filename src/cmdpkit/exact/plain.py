"""Models without limits: policy iteration that ends as soon as its last Bellman backup proves the tolerance.

One backup TV of any V bounds the optimum from below and, as TV is also one sweep of the greedy policy, that policy's
value from both sides (MacQueen 1966). So nothing has to be evaluated more exactly than the tolerance, and no linear
system is solved for the certificate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import Backup, bellman
from cmdpkit.evaluation.bounds import StartSums, backup_rounding, value_interval
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact.mdp import MAX_ROUNDS, Stop
from cmdpkit.model import CMDP

LOOSE = 0.02
"""Values are found to this part of what is left between the bounds."""

FEW = 0.02
"""A policy that changes in a larger part of the states is far from the best one, and a far-sighted one is tried."""

PATIENCE = 100
"""More sweeps than this cost more than a factorisation of one cost's system, where that is possible (measured)."""

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

    The first policy looks ahead as far as a few sweeps. Where that was not nearly far enough, because its values are
    found by factorisations or bring the bounds no closer, it goes on from the values of the uniform policy, which goes
    everywhere.
    """
    plan, cost = Plan(patience=PATIENCE), cmdp.costs[0]
    choice = cmdp.pairs.argmin(cmdp.pairs.like(cost)).astype(np.int32)
    left, closest, idle, seen_far = float(np.abs(cost).max()) / cmdp.step_weight, np.inf, 0, False
    value = _system(cmdp, choice, plan).glance(cost[cmdp.pairs.rows(choice)], LOOSE * left)
    for number in range(MAX_ROUNDS):
        backup = bellman(cmdp, cost, value, choice)
        found = _proof(cmdp, value, backup)
        left = found.value + found.error - found.bound
        if left <= tol * cmdp.proof_scale(found.value):
            return found
        idle = idle + 1 if left >= closest else 0
        if stop() or idle > IDLE:
            return None
        closest, choice = min(left, closest), backup.choice
        short_sighted = idle > 0 or (number == 1 and plan.is_direct)
        if not seen_far and short_sighted and backup.moved > FEW * cmdp.states:
            choice, seen_far = _far_sighted(cmdp, plan), True
        rows = cmdp.pairs.rows(choice)
        value = _system(cmdp, choice, plan).state_values(cost[rows], backup.values, LOOSE * left)
    return None


def _system(cmdp: CMDP, choice: Any, plan: Plan) -> PolicySystem:
    return PolicySystem(cmdp, choice=choice, plan=plan)


def _proof(cmdp: CMDP, value: Array, backup: Backup) -> Proved:
    initial = cmdp.initial
    sums = StartSums(float(initial @ backup.values), float(initial @ np.abs(backup.values)), float(initial.sum()))
    rounding = backup_rounding(cmdp, np.ones(1), float(np.abs(value).max()))
    low, high = value_interval(cmdp, sums, (backup.lowest, backup.highest), rounding)
    middle = 0.5 * (low + high)
    error = float(np.nextafter(max(high - middle, middle - low), np.inf))
    return Proved(backup.choice, middle, error, low)  # no policy has less: low holds for the next step of all of them


def _far_sighted(cmdp: CMDP, plan: Plan) -> Any:
    """The greedy choice for the values of the uniform policy, which goes everywhere."""
    uniform, cost = cmdp.pairs.uniform(), cmdp.costs[0]
    value = PolicySystem(cmdp, uniform, plan=plan).solve(cmdp.pairs.expect(uniform, cost[None])[:, 0])
    return bellman(cmdp, cost, value, np.zeros(cmdp.states, dtype=np.int32)).choice
