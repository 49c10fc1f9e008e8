"""Runs on models of extreme scale: solved in even units, and told in the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cmdpkit.certificates.checker import certificate_of, refutation
from cmdpkit.exact.balance import Balance
from cmdpkit.model import CMDP
from cmdpkit.run.budget import Budget, Snapshot
from cmdpkit.run.history import History
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.status import Status


def run_balanced(cmdp: CMDP, solver: Callable[[CMDP, Budget], Outcome], budget: Budget, tol: float) -> Outcome:
    """Solve the model in even units; status and certificate are those of the original model."""
    balance = Balance(cmdp)
    watch = budget.watch
    told = None if watch is None else lambda news: watch(_told(balance, news))
    inner = replace(budget, watch=told)
    with np.errstate(all="ignore"):
        outcome = solver(balance.even, inner)
        status, certificate, rows = outcome.status, outcome.certificate, balance.even.row_prices
        if certificate.infeasibility is not None:
            proof = balance.farkas(rows(certificate.infeasibility), float(certificate.infeasibility_margin or 0.0))
            if proof is not None:
                return replace(
                    outcome,
                    certificate=refutation(cmdp, outcome.policy, *proof),
                    history=_history(balance, outcome.history),
                )
            status = Status.NUMERICAL_ERROR
        proved = -np.inf if certificate.infeasibility is not None else cmdp.sense * certificate.bound
        own = certificate_of(cmdp, outcome.policy, *balance.dual(rows(certificate.multipliers), proved))
        if status in (Status.OPTIMAL, Status.NUMERICAL_ERROR):
            status = Status.OPTIMAL if own.optimal(tol) else Status.NUMERICAL_ERROR
        return replace(outcome, status=status, certificate=own, history=_history(balance, outcome.history))


def _columns(balance: Balance, columns: dict[str, Any]) -> dict[str, Any]:
    """Quantities of the even model in the user's sense and units."""
    first, rest = balance.exponents[0], balance.cmdp.stated(balance.exponents[1:])
    for name in columns:
        if name in ("objective", "average_objective", "bound"):
            columns[name] = np.ldexp(columns[name], first)
        elif name in ("constraint_values", "average_constraint_values"):
            columns[name] = np.ldexp(columns[name], rest)
        elif name == "multipliers":
            columns[name] = np.ldexp(columns[name], first - rest)
    return columns


def _history(balance: Balance, history: History) -> History:
    columns = _columns(balance, {name: history[name] for name in history.columns})
    for prefix in ("", "average_"):
        if f"{prefix}constraint_values" in columns:
            missed = balance.cmdp.misses(columns[f"{prefix}constraint_values"])
            columns[f"{prefix}violation"] = missed.max(axis=1, initial=0.0)
    return History(columns)


def _told(balance: Balance, news: Snapshot) -> Snapshot:
    names = ("objective", "bound", "multipliers", "constraint_values")
    known = {name: getattr(news, name) for name in names if getattr(news, name) is not None}
    return replace(news, **_columns(balance, known))
