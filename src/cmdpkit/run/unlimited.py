"""`auto` and `columns` on a model without limits: one question to the oracle, whose answer is its own proof."""

from __future__ import annotations

import contextlib

import numpy as np

from cmdpkit.certificates.checker import certificate_of_values
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.plain import minimise_alone
from cmdpkit.model import CMDP, StagedTransitions
from cmdpkit.policy import TabularPolicy
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.history import oracle_history, oracle_row
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.status import Status

SMALL, TO_THE_END = 200, 1e-10
"""Up to this many states exact methods go on to this relative gap, which costs hardly more."""


def solve_without_limits(cmdp: CMDP, tol: float, budget: Budget) -> Outcome | None:
    """The best policy with its certificate; None where this way does not apply, or proves nothing."""
    staged = isinstance(cmdp.transitions, StagedTransitions)
    if cmdp.num_rows or staged or cmdp.blocks or cmdp.criterion == "average" or budget.spent(0) is not None:
        return None
    found = None
    with contextlib.suppress(Stopped), until(budget.exhausted):
        found = minimise_alone(cmdp, min(tol, TO_THE_END) if cmdp.states <= SMALL else tol, budget.exhausted)
    if found is None:
        return None
    certificate = certificate_of_values(
        cmdp, np.array([found.value]), np.array([found.error]), np.zeros(0), found.bound
    )
    if not certificate.optimal(tol):
        return None
    news = Snapshot(1, certificate.objective, 0.0, certificate.bound, np.zeros(0), budget.elapsed)
    history = oracle_history([oracle_row(news)])
    budget.tell(news)
    policy = TabularPolicy.over(cmdp.pairs, cmdp.pairs.one_hot(found.choice))
    return Outcome(Status.OPTIMAL, policy, certificate, history, 1)
