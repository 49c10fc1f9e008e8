"""`deterministic=True`: the best policy that takes one action per state.

The model's own optimum comes first. It often randomises; then branch and bound looks for the best policy that does not.
The policy is evaluated and certified like any other, and the certificate's bound holds for randomised policies. That no
deterministic policy is better is what HiGHS claims, in floating point: `deterministic_bound` is its bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cmdpkit.certificates.checker import certificate_of
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.integer import LARGEST, IntegerSolution, solve_integer
from cmdpkit.exact.mdp import minimise
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.run.budget import Budget
from cmdpkit.run.finish import solve_by_columns, with_others_behind
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.start import Start
from cmdpkit.run.status import Status

BEST = "HiGHS's branch and bound finds no better deterministic policy; the certificate's bound holds for all policies."
PROVED = "The certificate proves the policy, which is deterministic, optimal and feasible to the tolerance."
NONE = "HiGHS's branch and bound finds no deterministic policy that meets all limits."
CLASSES = (
    "This is the best deterministic policy found. Policies can end in several classes, which the integer program "
    "cannot distinguish; deterministic_bound is what no deterministic policy surpasses."
)
RANDOMISE = "A randomised one does: solve without deterministic=True, or relax a limit."


def refuse_large(cmdp: CMDP) -> None:
    """Raise an error on models for which branch and bound would hardly end."""
    if cmdp.pairs.count > LARGEST:
        raise ValueError(
            f"deterministic=True takes models of at most {LARGEST:,} pairs of state and action, and this one has "
            f"{cmdp.pairs.count:,}: the problem is NP-hard. An optimal policy randomises in at most one state per "
            "limit: see result.policy.randomised_states() without deterministic=True"
        )
    if cmdp.is_extreme:
        raise ValueError(
            "deterministic=True does not take costs of such different sizes; state the model in other units"
        )


def solve_deterministic(cmdp: CMDP, tol: float, budget: Budget, start: Start | None = None) -> Outcome:
    """The best deterministic policy, or the statement that none meets the limits."""
    relaxed = with_others_behind(cmdp, solve_by_columns(cmdp, "auto", tol, budget, start), tol, budget)
    if relaxed.status is Status.INFEASIBLE:
        return relaxed
    # A probability of 1 does not say that the others are 0: they may be too small to be seen beside it
    if relaxed.status is Status.OPTIMAL and np.isin(relaxed.policy.pi, (0.0, 1.0)).all():
        bound = cmdp.sense * relaxed.certificate.bound
        return replace(relaxed, message=PROVED, deterministic_bound=bound)
    found = IntegerSolution(None)
    if not budget.exhausted():
        try:
            with until(budget.exhausted):
                found = solve_integer(cmdp, tol, lambda: budget.left, budget.exhausted)
        except Stopped:
            pass
    return _certified(cmdp, relaxed, found, tol, budget)


def _certified(cmdp: CMDP, relaxed: Outcome, found: IntegerSolution, tol: float, budget: Budget) -> Outcome:
    choice, multipliers = found.choice, cmdp.row_prices(relaxed.certificate.multipliers)
    if choice is None:  # some deterministic policy: the greedy one at the prices of the optimum
        choice = minimise(cmdp, np.append(1.0, multipliers), stop=budget.exhausted).choice
    policy = TabularPolicy.over(cmdp.pairs, cmdp.pairs.one_hot(choice))
    certificate = certificate_of(cmdp, policy, multipliers, cmdp.sense * relaxed.certificate.bound)
    v_0, bound = cmdp.sense * certificate.objective, max(found.bound, cmdp.sense * relaxed.certificate.bound)
    outcome = replace(relaxed, policy=policy, certificate=certificate, deterministic_bound=bound)
    if found.feasible is False:
        advice = RANDOMISE if relaxed.certificate.feasible(tol) else ""
        return replace(outcome, status=Status.INFEASIBLE, message=NONE, note=advice, deterministic_bound=None)
    note = f"HiGHS: {found.message}" if found.message else ""
    if found.feasible and certificate.feasible(tol) and v_0 - bound <= tol * max(1.0, abs(v_0)):
        return replace(outcome, status=Status.OPTIMAL, message=BEST)
    limit = budget.spent(0) or (Status.TIME_LIMIT if found.stopped else None)
    if limit is None and cmdp.criterion == "average":
        return replace(outcome, status=Status.SEVERAL_CLASSES, message=CLASSES)
    return replace(outcome, status=limit or Status.NUMERICAL_ERROR, note=note)
