"""First-order methods by name: which learner, which rule, and what the user leaves open set from the model's scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cmdpkit.adaptive import adaptive_primal_dual, reference_span
from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.linprog import slater_margin
from cmdpkit.model import CMDP
from cmdpkit.options import check_start
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules import CRPO, NPG, NPGPD, PMDPD, Rule
from cmdpkit.theory import theorem_1

Run = tuple[ExactLearner, Iterator[Iterate]]


def build(cmdp: CMDP, method: str, options: dict[str, Any], macro_steps: int, tol: float) -> Run:
    """The learner and the iterates of a first-order method. `options` have been checked."""
    given = {name: value for name, value in options.items() if value is not None}
    multipliers = None
    if "initial_multipliers" in given:
        multipliers = np.atleast_1d(np.asarray(given["initial_multipliers"], dtype=float))
    if given.get("schedule") == "theory":
        return _by_theorem_1(cmdp, given, macro_steps, multipliers)
    learner = _learner(cmdp, method, given, tol)
    if method == "pmd-pd" and not given.keys() & {"step", "eta_dual", "inner_steps", "alpha"}:
        return learner, adaptive_primal_dual(learner, multipliers)
    return learner, primal_dual(learner, _rule(cmdp, method, given), multipliers)


def _by_theorem_1(cmdp: CMDP, given: dict[str, Any], macro_steps: int, multipliers: Array | None) -> Run:
    """Algorithm 1 with the parameters of Theorem 1; t_k depends on λ_k."""
    theorem = theorem_1(cmdp, macro_steps, float(given.get("eta_dual", 1.0)))
    learner = ExactLearner(cmdp, _start(cmdp, given), step=theorem.step, alpha=theorem.alpha)
    return learner, primal_dual(learner, PMDPD(theorem.eta_dual, theorem.inner_steps), multipliers)


def _learner(cmdp: CMDP, method: str, given: dict[str, Any], tol: float) -> ExactLearner:
    spans = reference_span(cmdp.spans)
    entropy = method.endswith("-entropy")
    alpha: float | None = given.get("alpha", _default_entropy(cmdp, tol) if entropy else None)
    step = 5.0 / float(spans.max() if method == "crpo" else spans[0])
    if method == "npg-entropy" and alpha:
        step = 1.0 / alpha  # the largest step for which it contracts
    return ExactLearner(
        cmdp,
        _start(cmdp, given),
        step=given.get("step", step),
        inner_steps=given.get("inner_steps", 1),
        alpha=alpha,
        fixed_anchor=TabularPolicy.uniform(cmdp.states, cmdp.actions) if entropy else None,
        natural=not method.startswith("pg"),
    )


def _start(cmdp: CMDP, given: dict[str, Any]) -> TabularPolicy:
    if "initial_policy" in given:
        return check_start(given["initial_policy"], cmdp)
    return TabularPolicy.uniform(cmdp.states, cmdp.actions)


def _rule(cmdp: CMDP, method: str, given: dict[str, Any]) -> Rule:
    if method == "crpo":
        return CRPO(given.get("tolerance", 0.0))
    if method not in ("pmd-pd", "npg-pd"):
        return NPG()
    spans = reference_span(cmdp.spans)
    eta_dual = given.get("eta_dual", 3.0 * (1.0 - cmdp.gamma) * (spans[0] / spans[1:]) / spans[1:])
    if method == "pmd-pd":
        return PMDPD(np.asarray(eta_dual, dtype=float))
    cap = given["dual_cap"] if "dual_cap" in given else _default_dual_cap(cmdp)
    return NPGPD(np.asarray(eta_dual, dtype=float), cap)


def _default_entropy(cmdp: CMDP, tol: float) -> float:
    """The largest weight whose regularised optimum is within tol/2 of the true one: α log|A| / (1 − γ) ≤ tol/2."""
    span = float(reference_span(cmdp.spans)[0])
    if tol == 0.0 or cmdp.actions == 1:
        return 0.01 * span
    return 0.5 * tol * min(1.0, span) * (1.0 - cmdp.gamma) / float(np.log(cmdp.actions))


def _default_dual_cap(cmdp: CMDP) -> float:
    """The paper's 2/((1 − γ) ξ) for costs up to 1 in size; larger costs scale it. No cap without a Slater point."""
    try:
        xi = slater_margin(cmdp)
    except ArithmeticError:  # too badly scaled for an LP: the cap is a safeguard that the method can do without
        return np.inf
    return 2.0 * max(1.0, float(np.abs(cmdp.costs[0]).max())) / ((1.0 - cmdp.gamma) * xi) if xi > 0.0 else np.inf
