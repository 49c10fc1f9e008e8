"""Learning from a simulator: how much is sampled (`Sampling`), and the run with its budget, history and checkpoints."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from cmdpkit.adaptive import reference_span
from cmdpkit.budget import Budget, Snapshot
from cmdpkit.checkpoint import Checkpoint
from cmdpkit.checks import Array, check_count, check_number, digest
from cmdpkit.files import PathLike
from cmdpkit.learners.sampled import Meter, Pooled, Rollouts, SampledLearner, Stopped
from cmdpkit.policy import MixturePolicy, TabularPolicy
from cmdpkit.primal_dual import primal_dual
from cmdpkit.recorder import Row, history
from cmdpkit.result import History, Status
from cmdpkit.rules import CRPO, NPGPD, PMDPD, Rule
from cmdpkit.simulators import Simulator
from cmdpkit.theory import Theorem3

METHODS = ("pmd-pd", "npg-pd", "crpo")
"""Methods that can learn from samples."""

ESTIMATORS = ("truncated", "geometric", "pooled")
TRUNCATION = 0.01


@dataclass(frozen=True)
class Sampling:
    """How values are estimated from a simulator.

    Args:
        rollouts: M_Q, rollouts from every pair (s, a) for each policy step.
        value_rollouts: M_V, rollouts from the initial distribution for each dual step.
        horizon: N, steps of a rollout; by default so many that γ^N ≤ 0.01.
        estimator: "truncated", Algorithm 2 itself: discounted sums of N steps; "geometric", as in Figure 3: sums of a
            Geometric(1 − γ) number of steps, undiscounted and unbiased; or "pooled", not in the paper: all transitions
            ever drawn are kept as an empirical model, `rollouts` single transitions are added from every pair in each
            step, and the values solve its equations. That needs far fewer transitions, and memory for those seen.
        schedule: "theory" sets the macro steps and all of the above by Theorem 3 (pmd-pd and "truncated" only).
        epsilon, confidence: of the theorem: gap and violation at most epsilon with this confidence.
        slater: the theorem's ξ, the margin by which all limits can be met; computed when a `CMDP` is given.
        certificate_rollouts: fresh rollouts for the certificates of a simulator's result.

    Example:
        >>> import cmdpkit as ck
        >>> few = ck.Sampling(rollouts=20, estimator="pooled")
        >>> result = ck.solve(ck.problems.paper(), "pmd-pd", sampling=few, max_iterations=100, seed=1)
        >>> result.samples, bool(result.certificate.gap < 0.05)
        (404000, True)
    """

    rollouts: int = 20
    value_rollouts: int = 1_000
    horizon: int | None = None
    estimator: str = "truncated"
    schedule: str | None = None
    epsilon: float | None = None
    confidence: float = 0.95
    slater: float | None = None
    certificate_rollouts: int = 10_000

    def __post_init__(self) -> None:
        check_count(self.rollouts, "rollouts", least=1)
        check_count(self.value_rollouts, "value_rollouts", least=1)
        check_count(self.certificate_rollouts, "certificate_rollouts", least=2)
        if self.horizon is not None:
            check_count(self.horizon, "horizon", least=1)
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}")
        if self.horizon is not None and self.estimator != "truncated":
            raise ValueError(f"horizon belongs to the truncated estimator; {self.estimator!r} has none")
        if not 0.0 < check_number(self.confidence, "confidence") < 1.0:
            raise ValueError(f"confidence must be between 0 and 1, got {self.confidence}")
        if self.slater is not None and check_number(self.slater, "slater") <= 0.0:
            raise ValueError(f"slater must be positive, got {self.slater}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule not in (None, "theory"):
            raise ValueError(f"schedule must be 'theory' (or None for practical numbers), not {self.schedule!r}")
        if self.schedule is None:
            unused = [name for name in ("epsilon", "slater") if getattr(self, name) is not None]
            if unused:
                raise ValueError(f"{unused[0]} is a parameter of schedule='theory'")
            return
        plain = Sampling()
        fixed = ("estimator", "horizon", "rollouts", "value_rollouts")
        given = [name for name in fixed if getattr(self, name) != getattr(plain, name)]
        if given:
            raise ValueError(f"schedule='theory' sets {given[0]} itself (with the truncated estimator); leave it out")
        if self.epsilon is None or check_number(self.epsilon, "epsilon") <= 0.0:
            raise ValueError(f"schedule='theory' needs a positive epsilon, the accuracy to reach, not {self.epsilon}")


@dataclass(frozen=True)
class Practical:
    """The same number of rollouts and steps in every estimate."""

    rollouts: int
    value_count: int
    horizon: int | None

    def value_rollouts(self) -> tuple[int, int | None]:
        return self.value_count, self.horizon

    def action_rollouts(self, weights: Array, divergence: float, inner_steps: int) -> tuple[int, int | None]:
        return self.rollouts, self.horizon


@dataclass(frozen=True)
class ByTheorem:
    """Theorem 3's numbers, for costs within `low`..`high` in the convention (limits spread over the steps)."""

    theorem: Theorem3
    low: Array
    high: Array

    def value_rollouts(self) -> tuple[int, int | None]:
        return self.theorem.value_rollouts(float((self.high - self.low)[1:].max()))

    def action_rollouts(self, weights: Array, divergence: float, inner_steps: int) -> tuple[int, int | None]:
        size = np.maximum(np.abs(self.low), np.abs(self.high))
        width = float(np.abs(weights) @ (self.high - self.low))
        return self.theorem.action_rollouts(width, float(np.abs(weights) @ size), divergence, inner_steps)


def default_horizon(gamma: float) -> int:
    # γ^N ≤ 0.01
    return 1 if gamma == 0.0 else max(1, math.ceil(math.log(TRUNCATION) / math.log(gamma)))


def cost_bounds(simulator: Simulator) -> tuple[Array, Array]:
    """Smallest and largest cost of one step in the convention, limits spread over the steps."""
    ends = simulator.units[:, None] * simulator.bounds
    spread = np.append(0.0, (1.0 - simulator.gamma) * simulator.offsets)
    return ends.min(axis=1) - spread, ends.max(axis=1) - spread


def theorem_3(simulator: Simulator, sampling: Sampling, slater: float | None) -> Theorem3:
    """Theorem 3 for a simulator, refused where it does not hold."""
    if simulator.num_constraints == 0 or simulator.gamma == 0.0:
        raise ValueError("the theorem needs at least one constraint and gamma > 0")
    if simulator.bounds is None:
        raise ValueError("schedule='theory' needs Simulator(..., bounds=...): how large one step's quantities can be")
    if slater is None:
        raise ValueError("schedule='theory' needs Sampling(slater=...): by how much can all limits be met at once?")
    if slater <= 0.0:
        raise ValueError("schedule='theory' needs a policy strictly inside all limits, and this model has none")
    low, high = cost_bounds(simulator)
    largest = np.maximum(np.abs(low), np.abs(high))
    if largest.max() > 1.0 + 1e-12:
        i = int(largest.argmax())
        what = "the objective" if i == 0 else f"constraint {simulator.names[i - 1]!r} less its limit per step"
        raise ValueError(
            f"the theorem needs costs of size at most 1, and {what} reaches {largest[i]:.6g}; divide it by that number"
        )
    sizes = (simulator.gamma, simulator.num_constraints, simulator.states, simulator.actions)
    assert sampling.epsilon is not None
    return Theorem3(*sizes, sampling.epsilon, 1.0 - sampling.confidence, slater)


@dataclass(frozen=True, eq=False)
class Learned:
    """What a sampled run hands to `solve`."""

    status: Status
    last: TabularPolicy
    mixture: MixturePolicy | None  # of all iterates; None when there are none
    multipliers: Array
    history: History
    iterations: int
    samples: int


def learn(
    simulator: Simulator,
    method: str,
    sampling: Sampling,
    given: dict[str, Any],
    budget: Budget,
    transitions: int | None,
    seed: int,
    checkpoint: PathLike | None,
    slater: float | None = None,
) -> Learned:
    """Run a sampled method until a budget is spent. `given` holds the checked options of `solve`."""
    meter = Meter(seed, transitions, budget.exhausted)
    learner, rule = _build(simulator, method, sampling, given, meter, budget, slater)
    lam = np.atleast_1d(np.asarray(given["initial_multipliers"], float)) if "initial_multipliers" in given else None
    store = Checkpoint(checkpoint, _identity(simulator, method, sampling, given, seed))
    start = learner.policy
    rows, policies = _restore(store.load(), learner, meter)
    mark = _mark(learner, meter)
    if rows:
        lam = rows[-1].multipliers
        budget.started -= rows[-1].time
    status = budget.spent(len(rows))
    iterates = primal_dual(learner, rule, lam)
    while status is None:
        try:
            iterate = next(iterates)
        except Stopped:
            status = Status.SAMPLE_LIMIT if meter.out_of_budget else budget.spent(len(rows)) or Status.INTERRUPTED
            break
        except Exception:  # the user's simulator failed: what was learned until then is kept
            store.save(partial(_state, mark, rows, policies))
            raise
        numbers = (iterate.objective, iterate.v, iterate.multipliers, iterate.inner_steps)
        rows.append(Row(*numbers, budget.elapsed, meter.samples))
        policies.append(learner.policy)
        mark = _mark(learner, meter)
        store.save_when_due(partial(_state, mark, rows, policies))
        if budget.watch is not None:
            budget.tell(_snapshot(simulator, rows[-1], len(rows)))
        status = budget.spent(len(rows))
    store.save(partial(_state, mark, rows, policies))
    return Learned(
        status=status,
        last=policies[-1] if policies else start,
        mixture=MixturePolicy(policies) if policies else None,
        multipliers=rows[-1].multipliers if rows else np.zeros(simulator.num_constraints),
        history=history(simulator, rows, with_samples=True),
        iterations=len(rows),
        samples=meter.samples,
    )


def _build(
    simulator: Simulator,
    method: str,
    sampling: Sampling,
    given: dict[str, Any],
    meter: Meter,
    budget: Budget,
    slater: float | None,
) -> tuple[SampledLearner, Rule]:
    start = given.get("initial_policy")
    policy = TabularPolicy.uniform(simulator.states, simulator.actions) if start is None else start
    if sampling.schedule == "theory":
        theorem = theorem_3(simulator, sampling, slater)
        budget.max_iterations = min(theorem.macro_steps, budget.max_iterations or theorem.macro_steps)
        plan = ByTheorem(theorem, *cost_bounds(simulator))
        schedule = theorem.schedule
        learner = SampledLearner(Rollouts(simulator, plan, meter), policy, schedule.step, alpha=schedule.alpha)
        return learner, PMDPD(schedule.eta_dual, schedule.inner_steps)
    step, eta_dual = _steps(simulator, method, given)
    learner = SampledLearner(
        _estimator(simulator, sampling, meter), policy, step, given.get("inner_steps", 1), given.get("alpha")
    )
    if method == "crpo":
        return learner, CRPO(given.get("tolerance", 0.0))
    if method == "pmd-pd":
        return learner, PMDPD(eta_dual)
    return learner, NPGPD(eta_dual, given.get("dual_cap", np.inf))


def _estimator(simulator: Simulator, sampling: Sampling, meter: Meter) -> Rollouts | Pooled:
    if sampling.estimator == "pooled":
        return Pooled(simulator, sampling.rollouts, sampling.value_rollouts, meter)
    horizon = None
    if sampling.estimator == "truncated":
        horizon = sampling.horizon or default_horizon(simulator.gamma)
    return Rollouts(simulator, Practical(sampling.rollouts, sampling.value_rollouts, horizon), meter)


def _steps(simulator: Simulator, method: str, given: dict[str, Any]) -> tuple[float, Any]:
    """The two steps: the user's, or from how much a single step can matter."""
    needed = {"step"} | ({"eta_dual"} if method != "crpo" else set())
    if needed <= given.keys():
        return given["step"], given.get("eta_dual")
    if simulator.bounds is None:
        raise ValueError(
            f"give {' and '.join(sorted(needed - given.keys()))}, or Simulator(..., bounds=...) from which they follow"
        )
    low, high = cost_bounds(simulator)
    spans = reference_span(high - low)
    step = 1.0 / float(spans.max() if method == "crpo" else spans[0])
    eta_dual = 3.0 * (1.0 - simulator.gamma) * (spans[0] / spans[1:]) / spans[1:]
    return given.get("step", step), np.asarray(given.get("eta_dual", eta_dual), dtype=float)


def _snapshot(simulator: Simulator, row: Row, iteration: int) -> Snapshot:
    return Snapshot(
        iteration=iteration,
        objective=simulator.user_objective(row.objective),
        violation=float((simulator.violations(row.v) / simulator.tolerance_scales).max(initial=0.0)),
        bound=-simulator.sense * np.inf,
        multipliers=row.multipliers,
        time=row.time,
        samples=row.samples,
    )


# -- checkpoints -----------------------------------------------------------------------------------------------------


def _mark(learner: SampledLearner, meter: Meter) -> dict[str, Any]:
    """What changes in the middle of a macro step, as it is at its end."""
    estimator = {f"estimator_{name}": value for name, value in learner.estimator.state().items()}
    return {"draws": meter.draws, "samples": meter.samples, **estimator}


def _state(mark: dict[str, Any], rows: list[Row], policies: list[TabularPolicy]) -> dict[str, Any]:
    """Everything that the rest of the run depends on, after a macro step; nothing before the first."""
    if not rows:
        return {}
    columns = {f"row_{name}": [getattr(row, name) for row in rows] for name in Row._fields}
    return {"policies": [policy.log_probabilities for policy in policies], **columns, **mark}


def _restore(
    state: dict[str, Any] | None, learner: SampledLearner, meter: Meter
) -> tuple[list[Row], list[TabularPolicy]]:
    """Put learner and meter where they were, and give back what was recorded."""
    if state is None:
        return [], []
    columns = [state[f"row_{name}"] for name in Row._fields]
    rows = [
        Row(float(v_0), v, lam, int(steps), float(time), int(samples))
        for v_0, v, lam, steps, time, samples in zip(*columns, strict=True)
    ]
    policies = [TabularPolicy.stored(table) for table in state["policies"]]
    meter.draws, meter.samples = int(state["draws"]), int(state["samples"])
    prefix = "estimator_"
    learner.estimator.restore({n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)})
    learner.policy, learner.values = policies[-1], np.append(rows[-1].objective, rows[-1].v)
    return rows, policies


def _identity(
    simulator: Simulator, method: str, sampling: Sampling, given: dict[str, Any], seed: int
) -> dict[str, Any]:
    """What must be the same for a run to continue; its budgets may be raised."""
    options = {name: _plain(value) for name, value in sorted(given.items())}
    return {"method": method, "seed": seed, "sampling": asdict(sampling), "options": options} | simulator.identity()


def _plain(value: Any) -> Any:
    if isinstance(value, TabularPolicy):
        return digest(value.log_probabilities)
    return np.asarray(value).tolist()
