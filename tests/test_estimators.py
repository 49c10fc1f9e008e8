"""Estimators and their plans by hand: what is drawn, in which parts, and what it says of a policy."""

import math

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation.patience import Stopped
from cmdpkit.learners.estimators import Meter, Pooled, Rollouts
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.plans import ByTheorem, Practical, cost_bounds, rollout_horizon
from cmdpkit.learners.sampled import SampledLearner
from cmdpkit.rules import Weights
from cmdpkit.simulators import LEARNING

GAMMA = 0.5
COSTS = np.array([[[1.0, 3.0], [2.0, 5.0]], [[0.5, 0.1], [0.3, 0.7]]])  # (m + 1, S, A), all different
FOLLOWING = np.array([[1, 0], [0, 1]])  # action 0 changes the state, action 1 stays
LIMIT = 0.7


def deterministic(starts=None):
    """A simulator without any chance; `starts` are the first states of one call after another."""
    calls = iter(starts or [])

    def start(n, rng):
        return np.full(n, next(calls, 0))

    def step(states, actions, rng):
        return FOLLOWING[states, actions], COSTS[:, states, actions]

    limits = [ck.AtMost(None, LIMIT, name="use")]
    bounds = [(1.0, 5.0), (0.1, 0.7)]
    return ck.Simulator(
        step, start, states=2, actions=2, gamma=GAMMA, constraints=limits, maximise=False, bounds=bounds
    )


def exact_values(pi, cost):
    """(I − γ P_π)⁻¹ c_π by hand."""
    chain = np.zeros((2, 2))
    for s in range(2):
        for a in range(2):
            chain[s, FOLLOWING[s, a]] += pi[s, a]
    return np.linalg.solve(np.eye(2) - GAMMA * chain, cost)


PI = np.array([[0.25, 0.75], [0.6, 0.4]])
POLICY = ck.TabularPolicy(PI)


def test_pooled_values_by_hand():
    """Two looks from different first states: the empirical start is half of each."""
    estimator = Pooled(deterministic(starts=[0, 1]), rollouts=3, starts=10, meter=Meter(0))
    tables = [exact_values(PI, (PI * cost).sum(axis=1)) for cost in COSTS]
    first = estimator.values(POLICY)
    np.testing.assert_allclose(first, [tables[0][0], tables[1][0] - LIMIT], rtol=1e-12)
    second = estimator.values(POLICY)
    np.testing.assert_allclose(second, [tables[0].mean(), tables[1].mean() - LIMIT], rtol=1e-12)
    assert estimator.meter.samples == 3 * 4  # transitions are drawn once; first states are not transitions
    assert estimator.drawn == 3


def test_pooled_action_values_by_hand():
    estimator = Pooled(deterministic(), rollouts=3, starts=10, meter=Meter(0))
    weights, divergence = np.array([1.0, 2.0]), np.array([0.4, 0.9])
    mixed = COSTS[0] + 2.0 * COSTS[1]
    values = exact_values(PI, (PI * mixed).sum(axis=1) + divergence)
    q = estimator.action_values(POLICY, weights, divergence, inner_steps=1)
    np.testing.assert_allclose(q, mixed + GAMMA * values[FOLLOWING], rtol=1e-12)
    # every pair keeps its own costs and its own successor
    np.testing.assert_allclose(estimator.sums / estimator.drawn, COSTS.reshape(2, 4), rtol=1e-12)
    np.testing.assert_array_equal(estimator.counts.toarray(), 3.0 * np.eye(2)[FOLLOWING.ravel()])
    estimator.action_values(POLICY, weights, divergence, inner_steps=1)
    assert estimator.drawn == 6
    assert estimator.meter.samples == 6 * 4


def test_a_pooled_estimator_comes_back_field_by_field():
    estimator = Pooled(deterministic(starts=[0, 1, 1]), rollouts=3, starts=10, meter=Meter(0))
    for _ in range(3):
        estimator.values(POLICY)
    again = Pooled(deterministic(), rollouts=3, starts=10, meter=Meter(0))
    again.restore(estimator.state())
    np.testing.assert_array_equal(again.first, [10.0, 20.0])
    np.testing.assert_array_equal(again.counts.toarray(), estimator.counts.toarray())
    np.testing.assert_array_equal(again.sums, estimator.sums)
    assert again.drawn == estimator.drawn == 3


def test_rollouts_from_the_start_by_hand():
    """Three steps by a deterministic policy: 0 → 1 → 0, costs 1, 2, 1; the limit is spread over all steps."""
    estimator = Rollouts(deterministic(), Practical(2, 5, 3), Meter(0))
    values = estimator.values(ck.TabularPolicy([[1.0, 0.0], [1.0, 0.0]]))
    use = 0.5 + 0.5 * 0.3 + 0.25 * 0.5
    np.testing.assert_allclose(values, [1.0 + 0.5 * 2.0 + 0.25 * 1.0, use - (1.0 - 0.5**3) * LIMIT], rtol=1e-12)


def test_parts_cover_a_draw_and_have_seeds_of_their_own():
    meter = Meter(seed=4)
    assert list(meter.parts(10, transitions_each=5.0, largest=20.0)) == [
        (4, (4, LEARNING, 1, 0)),
        (4, (4, LEARNING, 1, 1)),
        (2, (4, LEARNING, 1, 2)),
    ]
    assert list(meter.parts(2, transitions_each=50.0, largest=20.0)) == [
        (1, (4, LEARNING, 2, 0)),
        (1, (4, LEARNING, 2, 1)),
    ]


def test_a_budget_is_for_all_draws_together():
    meter = Meter(0, budget=100)
    list(meter.parts(10, 5.0, 1e9))
    meter.samples = 50
    list(meter.parts(10, 5.0, 1e9))  # exactly what is left
    meter.samples = 51
    with pytest.raises(Stopped) as stop:
        meter.parts(10, 5.0, 1e9)
    assert stop.value.out_of_budget
    assert meter.draws == 2
    with pytest.raises(Stopped) as stop:
        Meter(0, stop=lambda: True).breathe()
    assert not stop.value.out_of_budget


def test_parts_do_not_change_what_is_estimated():
    """The deterministic model says the same whether it is asked at once or in many parts."""
    whole = Rollouts(deterministic(), Practical(6, 6, 3), Meter(0))
    parts = Rollouts(deterministic(), Practical(6, 6, 3), Meter(0))
    parts.simulator.block = 13
    weights, divergence = np.array([1.0, 2.0]), np.array([0.4, 0.9])
    policy = ck.TabularPolicy([[1.0, 0.0], [0.0, 1.0]])
    for estimator in (whole, parts):
        q = estimator.action_values(policy, weights, divergence, 1)
        mixed = COSTS[0] + 2.0 * COSTS[1]
        # two more steps by the policy 0 → 1 → 1: what is paid there, with the divergence
        after = {0: 0.5 * (mixed[0, 0] + 0.4) + 0.25 * (mixed[1, 1] + 0.9), 1: 0.75 * (mixed[1, 1] + 0.9)}
        np.testing.assert_allclose(q, mixed + np.vectorize(after.get)(FOLLOWING), rtol=1e-12)
        assert estimator.meter.samples == 6 * 4 * 3


def test_a_learner_looks_again_after_a_step():
    learner = SampledLearner(Rollouts(deterministic(), Practical(1, 1, 3), Meter(0)), POLICY, step=30.0)
    learner.look()
    learner.improve(Weights(1.0, np.zeros(1)))
    # a step so large leaves the cheapest way only: 0 → 1 → 0, as above
    assert learner.look().objective == pytest.approx(2.25, rel=1e-6)
    assert learner.samples == learner.estimator.meter.samples == 3 + 4 * 3 + 3


@pytest.mark.parametrize("alpha", [0.0, 0.7, 3.0])
def test_inner_steps_are_those_of_the_exact_learner(alpha):
    """A pooled estimate of a model without chance is exact: α weighs both the pull and the divergence ahead."""
    P = np.eye(2)[FOLLOWING]
    cmdp = ck.CMDP(P, cost=COSTS[0], constraints=[ck.AtMost(COSTS[1], LIMIT)], gamma=GAMMA, initial=0)
    exact = ExactLearner(cmdp, POLICY, step=0.3, inner_steps=4, alpha=alpha)
    learner = SampledLearner(Pooled(deterministic(), 1, 1, Meter(0)), POLICY, 0.3, 4, alpha)
    for one in (exact, learner):
        assert one.improve(Weights(1.0, np.array([2.0]))) == 4
    np.testing.assert_allclose(learner.policy.log_probabilities, exact.policy.log_probabilities, rtol=1e-10)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_the_default_horizon_cuts_off_a_hundredth():
    # 2⁻⁷ ≤ 0.01 < 2⁻⁶, and 0.8²¹ = 0.0092
    assert [rollout_horizon(gamma) for gamma in (0.0, 0.5, 0.8)] == [1, 7, 21]
    for gamma in (0.3, 0.9, 0.99):
        n = rollout_horizon(gamma)
        assert gamma**n <= 0.01 < gamma ** (n - 1)


def test_cost_bounds_by_hand():
    """In the convention: rewards change sign, and a limit is spread over all steps, (1 − γ) of it in each."""
    limits = [ck.AtMost(None, 3.0, name="a"), ck.AtLeast(None, 2.0, name="b", per_step=True)]
    simulator = ck.Simulator(
        lambda *_: None, lambda *_: None, states=1, actions=1, gamma=0.75, constraints=limits,
        bounds=[(-1.0, 4.0), (0.0, 2.0), (1.0, 8.0)],
    )  # fmt: skip
    low, high = cost_bounds(simulator)
    # −4..1;  0..2 less 0.25·3;  −0.25·(1..8) plus 0.25·2
    np.testing.assert_allclose(low, [-4.0, -0.75, -2.0 + 0.5])
    np.testing.assert_allclose(high, [1.0, 1.25, -0.25 + 0.5])


class Asked:
    """Remembers what Theorem 3 is asked."""

    def value_rollouts(self, width):
        return ("value", width)

    def action_rollouts(self, width, size, divergence, inner_steps):
        return ("action", width, size, divergence, inner_steps)


def test_the_theorem_is_asked_for_the_widest_cost():
    plan = ByTheorem(Asked(), low=np.array([-3.0, -1.0, 0.2]), high=np.array([0.5, 1.0, 0.4]))
    assert plan.value_rollouts() == ("value", 2.0)  # the widest of the constraints, not the objective
    kind, width, size, divergence, steps = plan.action_rollouts(np.array([1.0, 2.0, 0.5]), 0.7, 4)
    assert (kind, divergence, steps) == ("action", 0.7, 4)
    assert width == pytest.approx(3.5 + 2.0 * 2.0 + 0.5 * 0.2)
    assert size == pytest.approx(3.0 + 2.0 * 1.0 + 0.5 * 0.4)
    assert math.isfinite(width)
