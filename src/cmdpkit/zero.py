"""PMD-PD-Zero (Section 5.1): PMD-PD on a tightened model, so that the original limits are not violated at all.

Three ways to choose how much the limits are tightened:

- `schedule="theory"`: δ = b/K of Theorem 2, which needs K ≥ 2b/ξ. Safe for any model, and far more than needed.
- a tolerance: δ is half of what `tol` allows in each limit. Then the optimum of the tightened model costs at most
  Σ λ_i δ_i, and the run ends when a policy with no violation at all is proved optimal to `tol`.
- `tol=0`, a fixed number of macro steps: the smallest δ for which the *average* has no violation. The average
  violation falls by about δ when the limits are tightened by δ, so that δ is what the last try still violated, plus a
  little; two or three tries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cmdpkit.budget import Budget
from cmdpkit.checks import Array
from cmdpkit.first_order import Outcome, run
from cmdpkit.methods import build
from cmdpkit.model import CMDP
from cmdpkit.primal_dual import Iterate
from cmdpkit.theory import theorem_1

TRIES = 12


def run_zero(cmdp: CMDP, options: dict[str, Any], xi: float, budget: Budget, tol: float) -> tuple[Outcome, Array]:
    """The outcome on the original model, and the margins by which its limits were tightened."""
    options = {name: value for name, value in options.items() if name != "xi"}
    macro_steps = budget.max_iterations or 0
    if options.get("schedule") == "theory":
        margin = theory_margin(cmdp, xi, macro_steps, float(options.get("eta_dual") or 1.0))
        return _attempt(cmdp, options, np.full(cmdp.num_constraints, margin), budget, tol)
    if tol > 0.0:
        return _attempt(cmdp, options, np.minimum(0.5 * tol * cmdp.fine_scales[1:], 0.5 * xi), budget, tol)
    margins = np.zeros(cmdp.num_constraints)
    for attempt in range(TRIES):
        outcome, margins = _attempt(cmdp, options, margins, budget, tol)
        excess = outcome.average_violations
        if not (excess > 0.0).any() or len(outcome.recorder.rows) < macro_steps:
            break
        # Boldly from the third try on: the average may answer to less than the whole of what is added.
        push = 1.02 * 2.0 ** max(attempt - 1, 0)
        margins = np.minimum(margins + push * np.maximum(excess, 0.0) + 1e-12 * cmdp.tolerance_scales, 0.99 * xi)
    return outcome, margins


def theory_margin(cmdp: CMDP, xi: float, macro_steps: int, eta_dual: float) -> float:
    """δ = b/K of Theorem 2, refused when K is too small for it."""
    b = theorem_1(cmdp, macro_steps, eta_dual).pessimism(xi)
    if macro_steps < 2.0 * b / xi:
        raise ValueError(
            f"Theorem 2 needs max_iterations >= 2b/xi = {int(np.ceil(2.0 * b / xi))} for this model, got {macro_steps}"
        )
    return b / macro_steps


def _attempt(cmdp: CMDP, options: dict[str, Any], margins: Array, budget: Budget, tol: float) -> tuple[Outcome, Array]:
    tight = cmdp.tightened(margins)
    learner, iterates = build(tight, "pmd-pd", options, budget.max_iterations or 0, tol)
    return run(cmdp, learner, _loosened(iterates, margins), budget, tol, allowed_violation=0.0), margins


def _loosened(iterates: Iterator[Iterate], margins: Array) -> Iterator[Iterate]:
    """The iterates with their values measured against the original limits: V_i = V_i(tightened) − δ_i."""
    for iterate in iterates:
        yield replace(iterate, v=iterate.v - margins)
