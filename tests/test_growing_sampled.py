"""PMD-PD from samples without tuning: what is estimated, how far steps grow, and how near that comes."""

from typing import Any

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.learners.estimators import Meter, Outlook, Pooled, Rollouts
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.plans import Practical
from cmdpkit.learners.sampled import SampledLearner, SampledView
from cmdpkit.policy import TabularPolicy
from cmdpkit.rules.growing_sampled import SampledPMDPD
from cmdpkit.run.recorder import SampledRecorder
from cmdpkit.simulators import as_simulator

ESTIMATORS = {
    "truncated": lambda sim, meter: Rollouts(sim, Practical(400, 20_000, 60), meter),
    "geometric": lambda sim, meter: Rollouts(sim, Practical(4_000, 200_000, None), meter),
    "pooled": lambda sim, meter: Pooled(sim, 4_000, 20_000, meter),
}


def small(available=False):
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.ones(4), size=(4, 3))
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=bool) if available else None
    limits = [ck.AtMost(rng.random((4, 3)), 2.0), ck.AtLeast(rng.random((4, 3)), 1.0, per_step=True)]
    return ck.CMDP(P, action_axis=1, reward=rng.random((4, 3)), constraints=limits, gamma=0.8, available=mask)


def uneven(cmdp):
    weights = np.random.default_rng(8).random(cmdp.pairs.shape) + 0.1
    return TabularPolicy.softmax(cmdp.pairs, np.log(weights))


@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimates_are_those_of_the_model(estimator, available):
    """Values, visits and all Q_i within five standard errors of the exact ones, and errors as large as is said."""
    cmdp = small(available)
    policy = uneven(cmdp)
    exact = ExactLearner(cmdp, policy)
    makers: Any = ESTIMATORS
    found = makers[estimator](as_simulator(cmdp), Meter(5)).outlook(policy)
    view = exact.look()
    q = (exact.advantages() + exact.state_values()[cmdp.pairs.state])[:, :]
    errors = (found.q - q) / np.sqrt(found.variances)
    assert np.abs(errors).max() < 5.0
    assert 0.6 < np.sqrt((errors**2).mean()) < 1.4
    np.testing.assert_allclose(found.values, [view.objective, *view.values], atol=0.05)
    np.testing.assert_allclose(found.visits, exact.state_visits, atol=0.05)


@pytest.mark.parametrize("available", [False, True])
def test_predictions_are_those_of_the_exact_learner_on_the_empirical_model(available):
    cmdp = small(available)
    policy, estimator = uneven(cmdp), Pooled(as_simulator(cmdp), 50, 500, Meter(1))
    outlook = estimator.outlook(policy)
    learner = ExactLearner(estimator.model(), policy)
    exact = learner.look()
    sampled = SampledView(exact.objective, exact.values, exact.scales, exact.gamma, policy, outlook)
    prices = np.array([0.3, 1.2])
    for step in (0.1, 3.0):
        mine, theirs = sampled.response(prices, step), exact.response(prices, step)
        np.testing.assert_allclose(mine.values, theirs.values, rtol=1e-9)
        np.testing.assert_allclose(mine.gram, theirs.gram, rtol=1e-8)
        np.testing.assert_allclose(mine.soft_minimum, theirs.soft_minimum, rtol=1e-9)


def test_noise_by_hand():
    """Two states, two actions, visits 3 to 1, λ = 2: the root of 3/4 · (1 + 4·4)/2 + 1/4 · (9 + 4·16)/2."""
    policy = TabularPolicy([[0.5, 0.5], [0.5, 0.5]])
    variances = np.array([[1.0, 0.0], [0.0, 4.0], [9.0, 0.0], [0.0, 16.0]])
    outlook = Outlook(np.zeros(2), np.array([3.0, 1.0]), np.zeros((4, 2)), variances)
    view = SampledView(0.0, np.zeros(1), np.ones(2), 0.75, policy, outlook)
    assert view.noise(np.array([2.0])) == pytest.approx(np.sqrt(0.75 * 8.5 + 0.25 * 36.5))


def test_steps_grow_until_noise_moves_probabilities_as_costs_do():
    cmdp, rule = ck.problems.paper(), SampledPMDPD()
    learner = SampledLearner(
        Pooled(as_simulator(cmdp), 20, 1_000, Meter(0)),
        TabularPolicy.over(cmdp.pairs, cmdp.pairs.uniform()),
        scales=np.ones(2),
        predicts=True,
    )
    view = learner.look()
    state = rule.start(view)
    steps = []
    for _ in range(12):
        weights, state = rule.propose(state, view)
        steps.append(weights.step)
        learner.improve(weights)
        view = learner.look()
        state = rule.observe(state, view)
        assert state.step * view.noise(state.multipliers) <= 1.0 + 1e-12
        assert state.eta_dual[0] / state.step == pytest.approx(view.dual_step(1.0)[0])
    assert steps[1] == pytest.approx(3.0 * steps[0])
    assert steps[-1] < 3.0**11 * steps[0]
    assert steps[-1] > steps[-2] > 10.0 * steps[0]  # the noise falls with every draw


@pytest.mark.parametrize("estimator", ["pooled", "truncated"])
def test_without_options_it_is_nearer_than_fixed_steps(estimator):
    """The mean error over instances with one to three limits, with the same transitions."""
    errors = {"growing": [], "fixed": []}
    for seed in range(6):
        cmdp = ck.problems.garnet(12, 4, 4, 1 + seed % 3, 0.9, seed=500 + seed)
        best = ck.solve(cmdp).objective
        for steps, seen in errors.items():
            sampling = ck.Sampling(rollouts=10, value_rollouts=500, estimator=estimator)
            result = ck.solve(cmdp, "pmd-pd", sampling=sampling, max_iterations=20, seed=seed, steps=steps)
            seen.append(max(best - result.objective, result.violations.max(), 0.0))
    assert np.mean(errors["growing"]) < 0.5 * np.mean(errors["fixed"])


def test_rollouts_give_a_table_with_the_visits_of_the_average():
    """By hand from two iterates, and the values of a run: those of its mixture, up to estimated visits."""
    cmdp = ck.problems.garnet(12, 4, 4, 2, 0.9, seed=500)
    learner = SampledLearner(
        ESTIMATORS["truncated"](as_simulator(cmdp), Meter(0)), TabularPolicy.over(cmdp.pairs, cmdp.pairs.uniform())
    )
    recorder = SampledRecorder(cmdp, learner)
    one, two = (TabularPolicy(np.eye(4)[[action] * 12]) for action in (0, 1))
    recorder.policies, recorder.steps = [one, one, two], [9.0, 1.0, 3.0]  # the first is not of the second half
    recorder.visits = [np.ones(12), np.r_[6.0, 0.0, np.ones(10)], np.r_[1.0, 0.0, np.ones(10)]]
    table = recorder.policy.probabilities
    np.testing.assert_allclose(table[0], [6 / 9, 3 / 9, 0, 0])
    np.testing.assert_allclose(table[1], [0, 1, 0, 0])  # never visited: as the last policy
    np.testing.assert_allclose(table[2:], np.tile([0.25, 0.75, 0, 0], (10, 1)))
    sampling = ck.Sampling(rollouts=10, value_rollouts=2_000)
    result = ck.solve(cmdp, "pmd-pd", sampling=sampling, max_iterations=20)
    mixed = ck.evaluate(cmdp, result.average_policy)
    np.testing.assert_allclose(result.constraint_values, mixed.constraint_values, atol=0.01)
    assert result.objective == pytest.approx(mixed.objective, abs=0.01)
    last = ck.evaluate(cmdp, result.last_policy)
    assert np.abs(last.constraint_values - mixed.constraint_values).max() > 0.04


@pytest.mark.parametrize(("estimator", "steps"), [("pooled", "growing"), ("truncated", "fixed")])
def test_otherwise_the_policy_is_the_last(estimator, steps):
    sampling = ck.Sampling(rollouts=5, value_rollouts=100, estimator=estimator)
    result = ck.solve(small(), "pmd-pd", sampling=sampling, max_iterations=4, steps=steps)
    np.testing.assert_array_equal(result.policy.log_probabilities, result.last_policy.log_probabilities)


def test_without_limits_it_finds_the_best_policy():
    cmdp = ck.problems.garnet(20, 4, 4, 0, 0.9, seed=2)
    result = ck.solve(cmdp, "pmd-pd", sampling=ck.Sampling(rollouts=50, estimator="pooled"), max_iterations=15)
    assert result.objective == pytest.approx(ck.solve(cmdp).objective, rel=5e-3)


def test_a_simulator_without_noise_is_solved_like_a_model():
    """Deterministic moves: every estimate is exact, and nothing holds the steps back."""
    P = np.zeros((3, 2, 3))
    P[[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1], [1, 2, 2, 0, 0, 2]] = 1.0
    costs = np.array([[0.0, 1.0], [0.5, 0.2], [1.0, 0.1]])
    limits = [ck.AtMost(costs, 0.35, per_step=True)]
    cmdp = ck.CMDP(P, reward=[[1.0, 0.3], [0.2, 0.9], [0.4, 0.0]], constraints=limits, gamma=0.7, initial=[1, 0, 0])
    sampled = ck.solve(cmdp, "pmd-pd", sampling=ck.Sampling(rollouts=1, estimator="pooled"), max_iterations=30)
    assert sampled.objective == pytest.approx(ck.solve(cmdp).objective, rel=1e-6)
    assert sampled.certificate.violation < 1e-6
