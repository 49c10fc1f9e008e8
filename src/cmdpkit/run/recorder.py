"""The record of a run: the values of every iterate, and sums for the averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cmdpkit.checks import Array, StateArray
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.sampled import SampledLearner
from cmdpkit.model import CMDP, Problem
from cmdpkit.policy import MixturePolicy, TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.run.budget import Snapshot
from cmdpkit.run.history import History


class Row(NamedTuple):
    """One row of the history, in the internal sign convention."""

    objective: float
    v: Array
    multipliers: Array
    inner_steps: int
    time: float
    samples: int = 0  # transitions or environment steps so far
    lost: Any = 0.0  # (m,) what v + offset misses of the value itself: digits below the last one of a large limit


class Recorder(Protocol):
    """Records iterates; saved and restored with the run."""

    rows: list[Row]
    problem: Problem

    def add(self, iterate: Iterate, elapsed: float) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def history(self) -> History: ...


class ExactRecorder:
    """The iterates π_1..π_K of an exact learner: their values, the average occupancy, the average weights.

    If the limits of the learner are tightened by `margins`, values are recorded relative to the original limits.
    """

    def __init__(self, cmdp: CMDP, learner: ExactLearner, margins: Array | None = None) -> None:
        self.problem: Problem = cmdp
        self.margins = margins
        self.learner = learner
        self.policy = learner.policy
        self.rows: list[Row] = []
        self.occupancy = np.zeros(cmdp.pairs.shape)
        self.values = np.zeros(cmdp.num_rows + 1)  # sums of V_0..V_m
        self.weights = np.zeros(cmdp.num_rows + 1)  # sums of the weights used
        self.last_weights = self.weights.copy()

    def add(self, iterate: Iterate, elapsed: float) -> None:
        self.policy = self.learner.policy
        self.learner.add_occupancy(self.occupancy)
        v = iterate.v if self.margins is None else iterate.v - self.margins
        self.values[0] += iterate.objective
        self.values[1:] += v
        self.last_weights = np.array([iterate.weights.objective, *iterate.weights.constraints])
        self.weights += self.last_weights
        lost = self.learner.discounted_costs - (v + self.problem.offsets)
        self.rows.append(Row(iterate.objective, v, iterate.multipliers, iterate.inner_steps, elapsed, lost=lost))

    @property
    def average_policy(self) -> TabularPolicy:
        """The stationary policy whose values are the averages: (1/K) Σ d^{π_k}, normalised per state."""
        if not self.rows:
            return self.policy
        return TabularPolicy.from_occupancy(self.policy.pairs, self.occupancy, self.policy.pi)

    def candidate_multipliers(self) -> list[Array]:
        """Weights of the constraints relative to the objective's: those of the last step, and those of all steps.

        With fixed steps PMD-PD's are λ + η′ V, which tends to the optimal multipliers also where a limit is slack (λ
        alone tends to −η′ V there); with growing steps they are λ itself. The average is what a method without
        multipliers (CRPO) has effectively used.
        """
        candidates = [self.last_weights, self.weights]
        return [np.maximum(w[1:] / w[0], 0.0) for w in candidates if w[0] > 0.0]

    def history(self) -> History:
        return History(with_averages(self.problem, self.rows))

    def state(self) -> dict[str, Any]:
        sums = {"occupancy": self.occupancy, "values": self.values, "weights": self.weights}
        return {name: table.copy() for name, table in sums.items()} | {"last_weights": self.last_weights}

    def restore(self, state: dict[str, Any]) -> None:
        self.policy = self.learner.policy
        self.occupancy, self.values, self.weights = (np.array(state[n]) for n in ("occupancy", "values", "weights"))
        self.last_weights = np.array(state["last_weights"])


class SampledRecorder:
    """The iterates of a sampled learner: their estimated values, and the policies of the mixture."""

    def __init__(self, problem: Problem, learner: SampledLearner) -> None:
        self.problem, self.learner = problem, learner
        self.start = learner.policy
        self.rows: list[Row] = []
        self.policies: list[TabularPolicy] = []
        self.steps: list[float] = []  # where they grow
        self.visits: list[StateArray] = []  # of each policy, where they are estimated

    def add(self, iterate: Iterate, elapsed: float) -> None:
        numbers = (iterate.objective, iterate.v, iterate.multipliers, iterate.inner_steps)
        self.rows.append(Row(*numbers, elapsed, self.learner.samples))
        self.policies.append(self.learner.policy)
        if self.learner.outlook is not None and iterate.weights.step is not None:
            self.steps.append(iterate.weights.step)
            self.visits.append(self.learner.outlook.visits)

    @property
    def last_policy(self) -> TabularPolicy:
        return self.policies[-1] if self.policies else self.start

    @property
    def weights(self) -> Array:
        """Of the iterates in their average: equal, or where steps grow, those of the second half by their steps."""
        count = len(self.policies)
        if len(self.steps) < count:
            return np.full(count, 1.0 / count)
        late = np.where(np.arange(count) < count // 2, 0.0, self.steps)
        return np.asarray(late / late.sum())

    @property
    def shares(self) -> Array:
        """Of the iterates in `policy`: their average, where steps grow and errors are fresh, otherwise the last.

        With fresh errors the iterates stray around the optimum, and their average is closer to it. Errors of pooled
        transitions are much the same in all iterates, and the last has the smallest.
        """
        count = len(self.policies)
        if len(self.steps) == count and self.learner.estimator.fresh:
            return self.weights
        return np.append(np.zeros(count - 1), 1.0)

    @property
    def policy(self) -> TabularPolicy:
        """The policy to use: the last one, or the table whose visits are the average of those of the iterates."""
        shares = self.shares if self.policies else np.empty(0)
        used = np.flatnonzero(shares)
        if used.size < 2:
            return self.last_policy
        pairs, occupancy = self.problem.pairs, np.zeros(self.problem.pairs.shape)
        for k in used:  # d(s, a) = Σ_k share_k x_k(s) π_k(a|s)
            occupancy += shares[k] * pairs.over(self.visits[k]) * self.policies[k].pi
        return TabularPolicy.from_occupancy(pairs, occupancy, self.last_policy.pi)

    @property
    def mixture(self) -> MixturePolicy:
        """The average of the iterates: one of them is drawn at the start of every episode."""
        return MixturePolicy(self.policies, self.weights) if self.policies else MixturePolicy([self.start])

    def history(self) -> History:
        samples = np.array([row.samples for row in self.rows], dtype=np.int64)
        return History(with_averages(self.problem, self.rows) | {"samples": samples})

    def state(self) -> dict[str, Any]:
        known = {"steps": np.array(self.steps), "visits": np.array(self.visits)}
        return {"policies": np.stack([policy.log_pi for policy in self.policies]), **known}

    def restore(self, state: dict[str, Any]) -> None:
        self.policies = [TabularPolicy.stored(self.problem.pairs, table) for table in state["policies"]]
        self.steps, self.visits = [float(step) for step in state["steps"]], list(state["visits"])


def columns_of(problem: Problem, rows: Sequence[Row]) -> dict[str, Array]:
    """The columns that every history has, in the user's sense and units."""
    count, m = len(rows), problem.num_rows
    v_0 = np.array([row.objective for row in rows], dtype=float)
    v = np.array([row.v for row in rows], dtype=float).reshape(count, m)
    lam = np.array([row.multipliers for row in rows], dtype=float).reshape(count, m)
    return {
        "objective": problem.sense * v_0 + 0.0,
        "constraint_values": _constraint_values(problem, rows),
        "violation": np.maximum(v, 0.0).max(axis=1, initial=0.0),
        "multipliers": problem.stated_prices(lam),
        "inner_steps": np.array([row.inner_steps for row in rows], dtype=int),
        "time": np.array([row.time for row in rows], dtype=float),
    }


def _constraint_values(problem: Problem, rows: Sequence[Row]) -> Array:
    """(K, m) values that compare with the user's limits."""
    v, lost = (np.empty((len(rows), problem.num_rows)) for _ in range(2))
    for k, row in enumerate(rows):
        v[k], lost[k] = row.v, row.lost
    return np.asarray(problem.user_constraint_values(v) + problem.stated(problem.signs * lost))


def with_averages(problem: Problem, rows: Sequence[Row]) -> dict[str, Array]:
    """The same columns, and the values of the average of all policies so far."""
    count, m = len(rows), problem.num_rows
    k = np.arange(1, count + 1)
    v_0 = np.array([row.objective for row in rows], dtype=float)
    average = np.cumsum(np.array([row.v for row in rows], dtype=float).reshape(count, m), axis=0) / k[:, None]
    columns = columns_of(problem, rows)
    return columns | {
        "average_objective": problem.sense * np.cumsum(v_0) / k + 0.0,
        "average_constraint_values": np.cumsum(columns["constraint_values"], axis=0) / k[:, None],
        "average_violation": np.maximum(average, 0.0).max(axis=1, initial=0.0),
    }


def snapshot(
    problem: Problem, row: Row, iteration: int, bound: float = -np.inf, samples: int | None = None, **details: Any
) -> Snapshot:
    """A row as the argument of a callback, in the user's sense and units."""
    return Snapshot(
        iteration=iteration,
        objective=problem.user_objective(row.objective),
        violation=float((np.maximum(row.v, 0.0) / problem.tolerance_scales).max(initial=0.0)),
        bound=float(problem.user_objective(bound)),
        multipliers=problem.stated_prices(row.multipliers).copy(),
        time=row.time,
        samples=samples,
        constraint_values=_constraint_values(problem, [row])[0],
        **details,
    )


def rows_as_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as columns, for a checkpoint."""
    return {f"row_{name}": np.array([getattr(row, name) for row in rows]) for name in Row._fields}


def rows_from_columns(state: dict[str, Any]) -> list[Row]:
    columns = zip(*(state[f"row_{name}"] for name in Row._fields), strict=True)
    return [
        Row(float(v_0), np.asarray(v), np.asarray(lam), int(steps), float(time), int(samples), np.asarray(lost))
        for v_0, v, lam, steps, time, samples, lost in columns
    ]
