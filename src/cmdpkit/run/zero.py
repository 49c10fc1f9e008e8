"""PMD-PD-Zero (Section 5.1): PMD-PD on a tightened model, so that the original limits are not violated at all.

Three ways to choose how much the limits are tightened:

- `schedule="theory"` (or "paper"): δ = b/K of Theorem 2, which needs K ≥ 2b/ξ. Far more than needed.
- a tolerance: δ is half of what `tol` allows in each limit, and less where the limits are dear. The optimum of the
  tightened model costs Σ λ_i δ_i, which must leave room for a proof: the run ends when a policy with no violation at
  all is proved optimal to `tol`.
- `tol=0`, a fixed number of macro steps: the smallest δ for which the *average* has no violation. The average
  violation falls by about δ when the limits are tightened by δ, so that δ is what the last try still violated, plus a
  little; two or three tries.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from cmdpkit.certificates.checker import values_with_errors
from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import Stopped, until
from cmdpkit.exact.slater import slater_margin
from cmdpkit.model import CMDP
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules.theory import Theorem1
from cmdpkit.run.budget import Budget
from cmdpkit.run.choice import Choice
from cmdpkit.run.finish import LARGE, growing_steps, solve_by_columns
from cmdpkit.run.first_order import exact_learner, run_first_order, scheduled_theorem
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.status import Status

TRIES = 12

PRICE_STEPS = 20
"""Macro steps at most for a first idea of the multipliers."""


def run_zero(cmdp: CMDP, choice: Choice, xi: float | None, budget: Budget, tol: float) -> Outcome:
    """PMD-PD-Zero on the original model; the outcome's note says by how much its limits were tightened."""
    if xi is None:
        try:
            with until(budget.exhausted):
                xi = _slater_margin(cmdp, tol, budget)
        except Stopped:  # no time was left to find out
            return solve_by_columns(cmdp, "auto", tol, budget)
    if cmdp.num_rows and xi <= 1e-9 * float(cmdp.fine_scales[1:].min()):
        return _without_slater_point(cmdp, xi, budget, tol)
    macro_steps = budget.max_iterations or 0
    if getattr(choice.rule, "schedule", None) is not None:
        theorem = scheduled_theorem(cmdp, choice.rule, macro_steps)
        margins = np.full(cmdp.num_rows, theory_margin(theorem, xi))
        outcome = run_first_order(cmdp, choice, budget, tol, margins)
    elif tol > 0.0:
        margins = np.minimum(0.5 * tol * cmdp.fine_scales[1:], 0.5 * xi)
        margins = np.minimum(margins, _affordable(cmdp, tol, budget))
        outcome = run_first_order(cmdp, choice, budget, tol, margins)
    else:
        outcome, margins = _calibrated(cmdp, choice, xi, budget)
    tightened = ", ".join(f"{margin:.3g}" for margin in margins) or "nothing"
    note = f"The limits were tightened by {tightened} (Slater margin {xi:.6g}{'' if _is_small(cmdp) else ' or more'})."
    return replace(outcome, note=f"{outcome.note} {note}".strip())


def _affordable(cmdp: CMDP, tol: float, budget: Budget) -> Array:
    """δ_i for which all limits together cost a quarter of `tol`, at multipliers that a few steps of PMD-PD find."""
    choice = growing_steps(cmdp)
    learner = exact_learner(cmdp, choice, 0.0)
    for iterate in islice(primal_dual(learner, choice.rule), PRICE_STEPS):
        size = cmdp.proof_scale(iterate.objective)
        assert iterate.distance is not None
        if iterate.distance <= 1e-3 * size or budget.exhausted():
            break
    share = 0.25 * tol * size / max(1, cmdp.num_rows)
    return np.asarray(share / np.maximum(iterate.multipliers, 1e-300))


def _calibrated(cmdp: CMDP, choice: Choice, xi: float, budget: Budget) -> tuple[Outcome, Array]:
    """Repeat the run with more tightening until its average has no violation."""
    margins = np.zeros(cmdp.num_rows)
    for attempt in range(TRIES):
        outcome = run_first_order(cmdp, choice, budget, 0.0, margins)
        assert outcome.average_policy is not None
        values, rounding = values_with_errors(cmdp, outcome.average_policy)
        excess = np.maximum(values[1:] - cmdp.offsets + rounding[1:], 0.0)
        if not excess.any() or outcome.status is not Status.ITERATION_LIMIT:
            break
        # More from the third try on: the average may respond to only a part of what is added.
        push = 1.02 * 2.0 ** max(attempt - 1, 0)
        margins = np.minimum(margins + push * excess + 1e-12 * cmdp.tolerance_scales, 0.99 * xi)
    if excess.any():
        note = f"No tightening found gives an average without violation; it still violates by {excess.max():.3g}."
        outcome = replace(outcome, note=note)
    return outcome, margins


def _is_small(cmdp: CMDP) -> bool:
    return cmdp.pairs.count <= LARGE


def _slater_margin(cmdp: CMDP, tol: float, budget: Budget) -> float:
    """ξ.

    The LP of a large model takes long, and with a tolerance it is enough to know that limits tightened by that much can
    be met: then ξ is at least as large.
    """
    if tol > 0.0 and cmdp.num_rows and not _is_small(cmdp):
        margin = tol * float(cmdp.fine_scales[1:].min())
        tight, wary = cmdp.tightened(2.0 * margin), replace(budget, max_iterations=None, watch=None)
        missed = solve_by_columns(tight, "auto", 1e-3 * tol, wary).certificate.violation * cmdp.tolerance_scales.max()
        if missed <= margin:
            return margin
    return slater_margin(cmdp)


def _without_slater_point(cmdp: CMDP, xi: float, budget: Budget, tol: float) -> Outcome:
    """PMD-PD-Zero cannot start: say by how much the limits miss a Slater point; prove it where they cannot be met."""
    exact = solve_by_columns(cmdp, "auto", tol, replace(budget, max_iterations=None, watch=None))
    status = Status.NO_SLATER_POINT if exact.status is Status.OPTIMAL else exact.status
    return replace(exact, status=status, note=f"The largest margin is {xi:.3g}." if xi >= 0.0 else "")


def theory_margin(theorem: Theorem1, xi: float) -> float:
    """δ = b/K of Theorem 2, refused when K is too small for it."""
    b = theorem.pessimism(xi)
    if theorem.macro_steps < 2.0 * b / xi:
        raise ValueError(
            f"Theorem 2 needs max_iterations >= 2b/xi = {int(np.ceil(2.0 * b / xi))} for this model, "
            f"got {theorem.macro_steps}"
        )
    return b / theorem.macro_steps
