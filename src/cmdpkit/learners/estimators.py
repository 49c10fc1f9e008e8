"""Estimators: the values of a policy from samples (Algorithm 2), by rollouts or by an empirical model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.cluster import in_order
from cmdpkit.evaluation.average import recurrent_classes
from cmdpkit.evaluation.backup import gain, look_ahead
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.evaluation.patience import Stopped
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.model import CMDP, AtMost
from cmdpkit.policy import TabularPolicy
from cmdpkit.simulators import LEARNING, STARTS, Returns, Simulator, stream

Part = tuple[int, tuple[int, ...]]
"""A number of rollouts, and the seed of their random numbers."""


class Meter:
    """Counts transitions and numbers the draws; each draw has its own random numbers.

    Args:
        seed: seed of the run.
        budget: `Stopped` is raised before more transitions than this would be drawn (in expectation, if lengths are
            random).
        stop: `Stopped` is raised when this returns True; called between and during parts of a long draw.
    """

    def __init__(self, seed: int, budget: int | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        self.seed, self.budget, self.stop = seed, budget, stop
        self.samples = 0
        self.draws = 0

    def parts(self, rollouts: int, transitions_each: float, largest: float) -> list[Part]:
        """Split `rollouts` into parts of at most `largest` transitions: (rollouts, seed of the part)."""
        if self.budget is not None and self.samples + rollouts * transitions_each > self.budget:
            raise Stopped(out_of_budget=True)
        self.draws += 1
        size = max(1, int(largest / transitions_each))
        begins = range(0, rollouts, size)
        return [
            (min(size, rollouts - begin), (self.seed, LEARNING, self.draws, part)) for part, begin in enumerate(begins)
        ]

    def breathe(self) -> None:
        """Raise `Stopped` when the caller wants to stop."""
        if self.stop():
            raise Stopped


class RolloutPlan(Protocol):
    """The number of rollouts (M) and of steps (N, or None for geometric lengths) per estimate."""

    def value_rollouts(self) -> tuple[int, int | None]: ...
    def action_rollouts(self, weights: Array, divergence: float, inner_steps: int) -> tuple[int, int | None]: ...


class Outlook(NamedTuple):
    """What samples tell of a policy, and of the steps from it, in the internal sign convention."""

    values: Array  # (m + 1,) V_0..V_m, limits subtracted
    visits: Array  # (S,) discounted visits, or shares of time for averages
    q: Array  # (N, m + 1) Q_0..Q_m
    variances: Array  # (N, m + 1) of their errors


class Rollouts:
    """The estimators of Algorithm 2: M independent rollouts per pair, and from the initial distribution."""

    fresh = True

    def __init__(self, simulator: Simulator, plan: RolloutPlan, meter: Meter) -> None:
        self.simulator, self.plan, self.meter = simulator, plan, meter

    def values(self, policy: TabularPolicy) -> Array:
        rollouts, horizon = self.plan.value_rollouts()
        # V̂_i = (1/M_V) Σ_j Σ_l γ^l c_i(s_l, a_l)
        return self._limited(self._returns(policy, rollouts, horizon, starts=1).means[0], horizon)

    def _limited(self, means: Array, horizon: int | None) -> Array:
        """Mean sums of the quantities in the internal sign convention, with the limits subtracted."""
        values: Array = self.simulator.units * means
        # The paper spreads the limit over the steps, c_i − (1 − γ) limit_i: over N steps that gives limit_i (1 − γ^N).
        # Where all is over after N steps, as on a horizon, they are all that is limited.
        horizon = None if horizon == self.simulator.ends_within else horizon
        seen = 1.0 if horizon is None else 1.0 - self.simulator.gamma**horizon
        values[1:] -= seen * self.simulator.offsets
        return values

    def action_values(self, policy: TabularPolicy, weights: Array, divergence: Array, inner_steps: int) -> Array:
        simulator = self.simulator
        rollouts, horizon = self.plan.action_rollouts(weights, float(divergence.max()), inner_steps)
        # c̃(s, a) + (1/M_Q) Σ_j Σ_{l≥1} γ^l [c̃(s_l, a_l) + α Σ_a' π(a'|s_l) log(π(a'|s_l) / π_k(a'|s_l))]
        mix = (weights * simulator.units)[None, :]
        starts = simulator.pairs.count
        means = self._returns(policy, rollouts, horizon, starts, weights=mix, state_cost=divergence).means
        return means.reshape(simulator.pairs.shape)

    def outlook(self, policy: TabularPolicy) -> Outlook:
        """Every Q̂_i from the same rollouts, and V̂_i with the visits from others."""
        simulator, zero = self.simulator, np.zeros(self.simulator.states)
        count, horizon = self.plan.value_rollouts()
        parts = self.meter.parts(count, self._length(horizon), VISITS)
        sums, visits = np.zeros(simulator.num_rows + 1), zero
        for means, seen, transitions in in_order(
            _visit, parts, simulator, (policy.pi, horizon), name=_name, stop=self.meter.breathe
        ):
            sums, visits = sums + means, visits + seen
            self.meter.samples += transitions
        each = np.diag(simulator.units)
        rollouts, ahead = self.plan.action_rollouts(each[0], 0.0, 1)
        found = self._returns(policy, rollouts, ahead, simulator.pairs.count, weights=each, state_cost=zero)
        if rollouts > 1:
            variances = np.maximum(found.squares / rollouts - found.means**2, 0.0) / (rollouts - 1)
        else:  # a single rollout does not tell its error: take what differs between the pairs
            variances = np.broadcast_to(found.means.var(axis=0), found.means.shape)
        return Outlook(self._limited(sums / count, horizon), visits / count, found.means, variances)

    def _length(self, horizon: int | None) -> float:
        return 1.0 / (1.0 - self.simulator.gamma) if horizon is None else horizon

    def _returns(
        self, policy: TabularPolicy, rollouts: int, horizon: int | None, starts: int, **mixing: Array
    ) -> Returns:
        total: Returns | None = None
        parts = self.meter.parts(rollouts, starts * self._length(horizon), self.simulator.block)
        shared = (policy.pi, horizon, mixing)
        for part in in_order(_roll, parts, self.simulator, shared, name=_name, stop=self.meter.breathe):
            total = part if total is None else total + part
            self.meter.samples += part.transitions
        assert total is not None
        return total

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def _roll(simulator: Simulator, shared: tuple[Array, int | None, dict[str, Array]], part: Part) -> Returns:
    (pi, horizon, mixing), (count, seed) = shared, part
    return simulator.returns(pi, horizon, count, seed, pairs="weights" in mixing, **mixing)


def _visit(simulator: Simulator, shared: tuple[Array, int | None], part: Part) -> tuple[Array, Array, int]:
    (pi, horizon), (count, seed) = shared, part
    return simulator.visits(pi, horizon, count, seed)


def _step(simulator: Simulator, _: None, part: Part) -> tuple[Any, Array, Array]:
    """One transition from every pair, `count` times: how often each led where, sums and squares of its quantities."""
    count, seed = part
    pairs = np.arange(simulator.pairs.count)
    rows = np.tile(pairs, count)
    states, actions = simulator.pairs.of(rows)
    following, quantities = simulator.step(states, actions, np.random.default_rng(stream(seed)))
    counts = sp.csr_array((np.ones(rows.size), (rows, following)), shape=(pairs.size, simulator.states))
    each = quantities.reshape(len(quantities), count, pairs.size)
    return counts, each.sum(axis=1), (each**2).sum(axis=1)


def _name(part: Part) -> str:
    count, (seed, _, draw, number) = part
    return f"part {number} of draw {draw} ({count} rollouts per start, seed {seed})"


STEPS = 1e6
"""Transitions that are drawn for the empirical model at once."""

VISITS = 2e5
"""Transitions of rollouts that count visits, advanced together."""


class Pooled:
    """All transitions are kept: their counts define an empirical model, whose equations give all values.

    One transition from a pair is as informative about that pair as a whole rollout is to Algorithm 2, and it serves all
    later policies too. This is model-based and not in the paper; its rate for learning without a model does not apply.

    Long-run averages are those of the empirical model. As transitions are drawn from every pair, they need neither long
    trajectories nor exploration. While d draws of each pair leave several recurrent classes, where a step that has not
    been seen may lead from one to the other, the empirical model is discounted by d/(d + 1) instead, with values per
    step: that is the average of a process that begins anew with probability 1/(d + 1), the order of what d draws
    miss. It tends to the average from the start as d grows, also if there are several classes indeed.
    """

    fresh = False

    def __init__(self, simulator: Simulator, rollouts: int, starts: int, meter: Meter) -> None:
        self.simulator, self.rollouts, self.starts, self.meter = simulator, rollouts, starts, meter
        pairs = simulator.pairs.count
        self.counts: Any = sp.csr_array((pairs, simulator.states))
        self.sums = np.zeros((simulator.num_rows + 1, pairs))
        self.squares = np.zeros((simulator.num_rows + 1, pairs))
        self.first = np.zeros(simulator.states)
        self.drawn = 0  # transitions from each pair

    def values(self, policy: TabularPolicy) -> Array:
        if not self.drawn:
            self._draw()
        self.begin()
        model = self.model()
        return self._values(model, policy, self._visits(policy_system(model, policy.pi)))

    def outlook(self, policy: TabularPolicy) -> Outlook:
        """The local model of the policy in the empirical model, with the errors of one-step estimates."""
        self._draw()
        self.begin()
        model, pi = self.model(), policy.pi
        system = policy_system(model, pi)
        visits, values = self._visits(system), system.solve(model.pairs.expect(pi, model.costs))
        q = model.costs.T + look_ahead(model, values) - gain(model, values)
        # Var(c + γ V(s′)) of one transition from the pair, with cost and successor taken as independent
        means = model.transitions @ values
        ahead = np.maximum(model.transitions @ values**2 - means**2, 0.0)
        costs = np.maximum(self.squares / self.drawn - (self.sums / self.drawn) ** 2, 0.0)
        one = self.simulator.units[:, None] ** 2 * costs + model.gamma**2 * ahead.T
        return Outlook(self._values(model, policy, visits), visits, q, one.T / self.drawn)

    def begin(self) -> None:
        """Draw more initial states."""
        rng = np.random.default_rng(stream((self.meter.seed, STARTS, self.meter.draws)))
        seen = np.bincount(self.simulator.start(self.starts, rng), minlength=self.simulator.states)
        self.first = self.first + seen  # a new array: `state()` has returned the old one

    def _visits(self, system: PolicySystem) -> Array:
        """Discounted visits or, for averages, shares of time, also in the discounted model that stands for them."""
        share = system.cmdp.step_weight if self.simulator.criterion == "average" else 1.0
        return np.asarray(share * system.state_occupancy())

    def _values(self, model: CMDP, policy: TabularPolicy, visits: Array) -> Array:
        values: Array = model.costs @ (model.pairs.over(visits) * policy.pi).ravel()
        values[1:] -= model.offsets
        return values

    def action_values(self, policy: TabularPolicy, weights: Array, divergence: Array, inner_steps: int) -> Array:
        self._draw()
        model, pi = self.model(), policy.pi
        cost = model.pairs.like(weights @ model.costs)
        values = policy_system(model, pi).solve(model.pairs.sum(pi * cost) + divergence)
        return np.asarray(cost + model.pairs.like(look_ahead(model, values) - gain(model, values)))

    def _draw(self) -> None:
        """Draw more transitions from every pair."""
        pairs = self.simulator.pairs.count
        parts = self.meter.parts(self.rollouts, pairs, STEPS)
        answers = in_order(_step, parts, self.simulator, name=_name, stop=self.meter.breathe)
        for (count, _), (counts, sums, squares) in zip(parts, answers, strict=True):
            self.counts, self.sums, self.squares = self.counts + counts, self.sums + sums, self.squares + squares
            self.drawn += count
            self.meter.samples += count * pairs

    def model(self) -> CMDP:
        """The empirical model, in the internal sign convention; draws transitions if there are none."""
        if not self.drawn:
            self._draw()
        pairs = self.simulator.pairs
        costs = (self.simulator.units[:, None] * self.sums / self.drawn).reshape(-1, *pairs.shape)
        limits = [AtMost(cost, float(b)) for cost, b in zip(costs[1:], self.simulator.offsets, strict=True)]
        initial = self.first / self.first.sum() if self.first.any() else None
        average = self.simulator.criterion == "average"
        model = CMDP(
            self.counts / self.drawn,
            cost=costs[0],
            constraints=limits,
            gamma=None if average else self.simulator.gamma,
            average=average,
            initial=initial,
            available=None if pairs.is_full else pairs.sparse_mask,
        )
        if average and recurrent_classes(mixed_chain(model, pairs.uniform()))[0] > 1:
            return model.with_criterion(gamma=self.drawn / (self.drawn + 1.0))
        return model

    def state(self) -> dict[str, Any]:
        parts = {"data": self.counts.data, "indices": self.counts.indices, "indptr": self.counts.indptr}
        return parts | {"sums": self.sums, "squares": self.squares, "first": self.first, "drawn": np.array(self.drawn)}

    def restore(self, state: dict[str, Any]) -> None:
        parts = (state["data"], state["indices"], state["indptr"])
        self.counts = sp.csr_array(parts, shape=self.counts.shape)
        self.sums, self.squares = state["sums"], state["squares"]
        self.first, self.drawn = state["first"], int(state["drawn"])
