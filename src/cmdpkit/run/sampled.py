"""Learning from samples: the learner, and the run with its budget and checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.files import PathLike
from cmdpkit.learners.estimators import Meter, Pooled, Rollouts
from cmdpkit.learners.plans import ByTheorem, Practical, cost_bounds, rollout_horizon, theorem_3
from cmdpkit.learners.sampled import SampledLearner
from cmdpkit.learners.tabular import reference_span
from cmdpkit.options import options_of
from cmdpkit.policy import MixturePolicy, TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.rules.base import UnknownScale, View
from cmdpkit.rules.checked import checked
from cmdpkit.rules.pmd_pd import PMDPD
from cmdpkit.run.budget import Budget
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.choice import Choice
from cmdpkit.run.driver import Run
from cmdpkit.run.history import History
from cmdpkit.run.recorder import SampledRecorder, snapshot
from cmdpkit.run.status import Status
from cmdpkit.settings import Sampling
from cmdpkit.simulators import Simulator


@dataclass(frozen=True, eq=False)
class Learned:
    """What a sampled run returns to `solve`."""

    status: Status
    policy: TabularPolicy
    last: TabularPolicy
    mixture: MixturePolicy  # mixture of all iterates
    shares: Array  # of the iterates in `policy`
    multipliers: Array
    history: History
    iterations: int
    samples: int


def learn(
    simulator: Simulator,
    choice: Choice,
    sampling: Sampling,
    budget: Budget,
    seed: int,
    checkpoint: PathLike | None = None,
    resume: bool | None = None,
    slater: float | None = None,
) -> Learned:
    """Run a sampled method until a budget is spent."""
    store = Checkpoint(checkpoint, _identity(simulator, choice, sampling, seed))
    store.must(resume)
    meter = Meter(seed, budget.transitions, budget.exhausted)
    learner, choice = sampled_learner(simulator, choice, sampling, meter, budget, slater)
    recorder = SampledRecorder(simulator, learner)

    def tell(iterate: Iterate) -> None:
        if budget.watch is not None:
            budget.tell(snapshot(simulator, recorder.rows[-1], iterate.k, samples=meter.samples))

    run = Run(learner, choice.rule, recorder, budget, [tell], choice.settings.initial_multipliers, store)
    status = run.go()
    rows = recorder.rows
    return Learned(
        status=status,
        policy=recorder.policy,
        last=recorder.last_policy,
        mixture=recorder.mixture,
        shares=recorder.shares if rows else np.empty(0),
        multipliers=simulator.stated_prices(rows[-1].multipliers if rows else np.zeros(simulator.num_rows)),
        history=recorder.history(),
        iterations=run.iterations,
        samples=meter.samples,
    )


def sampled_learner(
    simulator: Simulator, choice: Choice, sampling: Sampling, meter: Meter, budget: Budget, slater: float | None
) -> tuple[SampledLearner, Choice]:
    """The learner of a method; settings that were not given follow from the bounds of the simulator."""
    policy = choice.settings.initial_policy
    if sampling.schedule:
        theorem = theorem_3(simulator, sampling, slater)
        budget.max_iterations = min(theorem.macro_steps, budget.max_iterations or theorem.macro_steps)
        plan = ByTheorem(theorem, *cost_bounds(simulator))
        schedule = theorem.schedule
        learner = SampledLearner(Rollouts(simulator, plan, meter), policy, schedule.step, alpha=schedule.alpha)
        return learner, replace(choice, rule=PMDPD(schedule.eta_dual, inner_steps=schedule.inner_steps))
    settings = choice.settings
    scales = None if simulator.bounds is None else _scales(simulator)
    if scales is None:
        _refuse_open_steps(choice, simulator.num_rows)
    step = settings.step
    if step is None:
        assert scales is not None
        step = 1.0 / float(scales.max() if choice.method.scale == "largest" else scales[0])
    inner_steps = 1 if settings.inner_steps is None else settings.inner_steps
    estimator = _estimator(simulator, sampling, meter)
    predicts = choice.method.steps == "growing"
    return SampledLearner(estimator, policy, step, inner_steps, settings.alpha, scales, predicts), choice


def _scales(simulator: Simulator) -> Array:
    low, high = cost_bounds(simulator)
    return reference_span(high - low)


def _refuse_open_steps(choice: Choice, constraints: int) -> None:
    """Without bounds the scale is unknown, and every step must be given."""
    missing = ["step"] if choice.settings.step is None else []
    view = View(0.0, np.zeros(constraints))
    try:
        rule = checked(choice.rule)
        _, state = rule.propose(rule.start(view), view)
        rule.observe(state, view)
    except UnknownScale:
        rule = PMDPD() if choice.method.steps == "growing" else choice.rule
        numbers = [name for name, o in options_of(type(rule)).items() if o.domain.kind == "numbers"]
        missing = [name for name in numbers if getattr(rule, name) is None] + missing
    if missing:
        raise ValueError(f"give {' and '.join(missing)}, or Simulator(..., bounds=...) from which they follow")


def _estimator(simulator: Simulator, sampling: Sampling, meter: Meter) -> Rollouts | Pooled:
    if sampling.estimator == "pooled":
        return Pooled(simulator, sampling.rollouts, sampling.value_rollouts, meter)
    horizon = None
    if sampling.estimator == "truncated":
        horizon = sampling.horizon or simulator.ends_within or rollout_horizon(simulator.gamma)
    return Rollouts(simulator, Practical(sampling.rollouts, sampling.value_rollouts, horizon), meter)


def _identity(simulator: Simulator, choice: Choice, sampling: Sampling, seed: int) -> dict[str, Any]:
    """The identity of a run that may continue; its budgets are not part of it."""
    settings = asdict(sampling)
    if sampling.mixing is None:  # files of earlier versions do not have it
        del settings["mixing"]
    return {"seed": seed, "sampling": settings} | choice.identity() | simulator.identity()
