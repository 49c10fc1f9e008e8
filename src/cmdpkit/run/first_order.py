"""First-order methods on a known model: the learner, the run, and the outcome."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array, digest
from cmdpkit.files import PathLike
from cmdpkit.learners.blocked import learner_of
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.tabular import reference_span
from cmdpkit.model import CMDP, Problem, StagedTransitions
from cmdpkit.options import NONNEGATIVE_EACH, POSITIVE_EACH, options_of
from cmdpkit.policy import TabularPolicy, as_policy
from cmdpkit.primal_dual import Iterate
from cmdpkit.rules.theory import Theorem1, theorem_1
from cmdpkit.run.budget import Budget
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.choice import Choice
from cmdpkit.run.driver import Run
from cmdpkit.run.outcome import Outcome
from cmdpkit.run.prover import Prover
from cmdpkit.run.recorder import ExactRecorder, snapshot
from cmdpkit.run.status import Status


def run_first_order(
    cmdp: CMDP,
    choice: Choice,
    budget: Budget,
    tol: float,
    margins: Array | None = None,
    store: Checkpoint | None = None,
) -> Outcome:
    """Run a method until a certificate shows `tol`, the budget is spent, or Ctrl-C is pressed.

    With `margins` (m,) the method sees every limit moved inwards by so much, and the policy to return must have no
    violation at all of the limits as they are (PMD-PD-Zero).
    """
    tight = cmdp if margins is None else cmdp.tightened(margins)
    if getattr(choice.rule, "schedule", None) is not None:
        learner, choice = scheduled_learner(cmdp, choice, budget.max_iterations or 0, margins)
    else:
        learner = exact_learner(tight, choice, tol)
    recorder = ExactRecorder(cmdp, learner, margins)
    prover = Prover(cmdp, recorder, tol, tol if margins is None else 0.0, budget.exhausted)

    def tell(iterate: Iterate) -> None:
        if budget.watch is not None:
            budget.tell(snapshot(cmdp, recorder.rows[-1], iterate.k, prover.bound))

    run = Run(learner, choice.rule, recorder, budget, [prover, tell], choice.settings.initial_multipliers, store)
    status = run.go()
    found = prover.found or prover.conclude()
    learner.release_system()
    average = recorder.average_policy
    if learner.is_large:
        recorder.policy.release()
    if prover.found is None and prover.suffices(found.certificate):
        status = Status.OPTIMAL
    return Outcome(
        status=status,
        policy=found.policy,
        certificate=found.certificate,
        history=recorder.history(),
        iterations=run.iterations,
        last_policy=recorder.policy,
        average_policy=average,
    )


def scheduled_learner(
    cmdp: CMDP, choice: Choice, macro_steps: int, margins: Array | None = None
) -> tuple[ExactLearner, Choice]:
    """Algorithm 1 with the parameters of Theorem 1, or of Theorem 2 on limits tightened by `margins`."""
    rule: Any = choice.rule
    theorem = scheduled_theorem(cmdp, rule, macro_steps)
    tight = cmdp
    if margins is not None:
        tight, theorem = cmdp.tightened(margins), replace(theorem, margin=float(margins.max()))
    rule = replace(rule, eta_dual=theorem.eta_dual, inner_steps=theorem.inner_steps)  # t_k depends on λ_k
    learner = learner_of(tight)(tight, choice.settings.initial_policy, step=theorem.step, alpha=theorem.alpha)
    return learner, replace(choice, rule=rule)


def scheduled_theorem(cmdp: CMDP, rule: Any, macro_steps: int) -> Theorem1:
    """Theorem 1 with the dual step of a rule, and the constants that its schedule asks for."""
    eta_dual = 1.0 if rule.eta_dual is None else float(rule.eta_dual)
    return theorem_1(cmdp, macro_steps, eta_dual, printed=rule.schedule == "paper")


def exact_learner(cmdp: CMDP, choice: Choice, tol: float) -> ExactLearner:
    """The learner of a method, with what the user left open set from the model's scales."""
    settings, method = choice.settings, choice.method
    start = settings.initial_policy
    preset = method.presets.get("exact", {})
    entropy = preset.get("entropy", False)
    alpha = settings.alpha if settings.alpha is not None or not entropy else _default_entropy(cmdp, tol)
    spans = reference_span(cmdp.spans)
    step = 5.0 / float(spans.max() if method.scale == "largest" else spans[0])
    if entropy and preset.get("natural", True) and alpha:
        step = 1.0 / alpha  # the largest step for which it contracts
    return learner_of(cmdp)(
        cmdp,
        start,
        step=step if settings.step is None else settings.step,
        inner_steps=1 if settings.inner_steps is None else settings.inner_steps,
        alpha=alpha,
        fixed_anchor=TabularPolicy.over(cmdp.pairs, cmdp.pairs.uniform()) if entropy else None,
        natural=preset.get("natural", True),
        floor=preset.get("floor", -np.inf),
        accuracy=preset.get("accuracy", 0.0),
    )


def with_start(choice: Choice, problem: Problem) -> Choice:
    """The same choice with π_0 and λ_0 checked: mirror descent must be able to start from them."""
    settings = choice.settings
    if settings.initial_multipliers is not None:
        lam = problem.check_prices(settings.initial_multipliers, "initial_multipliers")
        cap = getattr(choice.rule, "dual_cap", None)
        if cap is not None and lam.max(initial=0.0) > cap:
            raise ValueError(f"initial_multipliers must be at most dual_cap={cap:g}, got {lam.max():g}")
        settings = replace(settings, initial_multipliers=lam)
    pairs = problem.pairs
    start = TabularPolicy.evenly(pairs)
    if settings.initial_policy is not None:
        start = as_policy(settings.initial_policy, pairs, "initial_policy")
    zero = np.flatnonzero(start.pi <= 0.0) if settings.initial_policy is not None else np.empty(0)
    if zero.size:
        raise ValueError(
            f"initial_policy gives {pairs.pair_name(int(zero[0]))} probability zero, which mirror descent can never "
            "leave; mix it with the uniform policy"
        )
    return replace(choice, rule=_per_row(choice.rule, problem), settings=replace(settings, initial_policy=start))


def _per_row(rule: Any, problem: Problem) -> Any:
    """The rule with numbers per constraint turned into numbers per row."""
    if problem.num_rows == problem.num_constraints or not is_dataclass(rule):
        return rule
    assert not isinstance(rule, type)
    each = [name for name, o in options_of(type(rule)).items() if o.domain in (POSITIVE_EACH, NONNEGATIVE_EACH)]
    given = {name: np.asarray(getattr(rule, name)) for name in each if getattr(rule, name) is not None}
    return replace(rule, **{name: values[problem.owners] for name, values in given.items() if values.ndim == 1})


def _default_entropy(cmdp: CMDP, tol: float) -> float:
    """The largest weight whose regularised optimum is within tol/2 of the true one: α log|A| / (1 − γ) ≤ tol/2."""
    span = float(reference_span(cmdp.spans)[0])
    if tol == 0.0 or cmdp.pairs.largest == 1:
        return 0.01 * span
    return 0.5 * tol * min(1.0, span) * cmdp.step_weight / float(np.log(cmdp.pairs.largest))


def checkpoint_of(
    cmdp: CMDP, choice: Choice, path: PathLike, resume: bool | None, tol: float, max_iterations: int | None
) -> Checkpoint:
    """The checkpoint of a run, in which a state that belongs to another run is refused."""
    fixed = {"tol": tol} | ({"max_iterations": max_iterations} if getattr(choice.rule, "schedule", None) else {})
    store = Checkpoint(path, choice.identity() | fixed | {"model": _fingerprint(cmdp)})
    store.must(resume)
    return store


def _fingerprint(cmdp: CMDP) -> str:
    matrix = cmdp.transitions
    if isinstance(matrix, StagedTransitions):
        parts = matrix.parts()
    else:
        parts = (matrix.data, matrix.indices, matrix.indptr) if hasattr(matrix, "indptr") else (matrix,)
    discount = -1.0 if cmdp.criterion == "average" else cmdp.gamma
    return digest(*parts, cmdp.costs, cmdp.offsets, cmdp.initial, np.array(discount))
