"""What is done differently on large models, against the plain way: chains, the uniform policy, blends, tables."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.certificates.checker import Guess, values_with_errors
from cmdpkit.evaluation import backup, threads
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.gains import policy_system, uniform_system
from cmdpkit.evaluation.system import Plan, UniformSystem
from cmdpkit.exact import mdp
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.local import as_blend
from cmdpkit.exact.search import steps
from cmdpkit.learners.exact import ExactLearner


@pytest.fixture(scope="module")
def large() -> ck.CMDP:
    """Just large enough for the compiled kernels."""
    cmdp = ck.problems.garnet(6_000, actions=4, successors=5, constraints=2, gamma=0.95, seed=7)
    assert backup.is_compiled(cmdp.transitions)
    return cmdp


def some_policy(cmdp: ck.CMDP) -> np.ndarray:
    """One action for certain in a third of the states, two in a third, all in the others."""
    pi = np.random.default_rng(0).random(cmdp.pairs.shape)
    pi[::3, 1:] = 0.0
    pi[1::3, 2:] = 0.0
    return np.asarray(pi / pi.sum(axis=1, keepdims=True))


def test_compiled_chains_are_the_sums_over_actions(large):
    pi = some_policy(large)
    chain, values = mixed_chain(large, pi), np.random.default_rng(1).random(large.states)
    assert chain.nnz == 5 * np.count_nonzero(pi)  # rows that are not played are left out
    expected = (pi * (large.transitions @ values).reshape(pi.shape)).sum(axis=1)
    np.testing.assert_allclose(chain @ values, expected, rtol=1e-13)


def test_the_uniform_policy_is_swept_over_the_model(large):
    cost = large.pairs.mean(large.costs[1])
    system = uniform_system(large, Plan())
    assert isinstance(system, UniformSystem)
    exact = policy_system(large, large.pairs.uniform()).solve(cost)
    np.testing.assert_allclose(system.solve(cost), exact, rtol=1e-12)
    assert "chain" not in system.__dict__  # it was not needed
    plan = Plan()
    np.testing.assert_allclose(uniform_system(large, plan).rough(cost), exact, rtol=1e-3)
    assert plan.method == "sweeps"


def test_means_over_own_actions():
    mask = np.array([[True, False], [True, True]])
    cmdp = ck.CMDP(np.full((2, 2, 2), 0.5), cost=[[1.0, 9.0], [2.0, 4.0]], gamma=0.5, available=mask)
    np.testing.assert_array_equal(cmdp.pairs.mean(cmdp.costs[0]), [1.0, 3.0])


def test_tables_of_the_user_are_kept_once():
    P, cost, used = np.ones((1, 2, 1)), np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    limits = [ck.AtMost(used, 5.0, "used"), ck.AtLeast(used, 1.0, "least")]
    cmdp = ck.CMDP(P, cost=cost, constraints=limits, gamma=0.5)
    assert np.shares_memory(cmdp.objective, cmdp.costs)
    assert np.shares_memory(cmdp.constraints[0].values, cmdp.costs)
    for limit in cmdp.constraints:
        np.testing.assert_array_equal(limit.values, used)
    assert not np.shares_memory(cmdp.costs, cost)
    reward = ck.CMDP(P, reward=cost, gamma=0.5)
    np.testing.assert_array_equal(reward.objective, cost)
    np.testing.assert_array_equal(reward.costs, -cost)


def test_a_policy_as_a_blend_has_its_probabilities():
    cmdp = ck.problems.garnet(30, actions=4, seed=3)
    pi = np.eye(4)[np.arange(30) % 4]
    pi[5], pi[7] = [0.25, 0.0, 0.5, 0.25], [0.0, 0.9, 0.1, 0.0]
    blend = as_blend(cmdp.pairs, pi, 20)
    np.testing.assert_allclose(blend.probabilities(cmdp.pairs), pi, atol=1e-15)
    assert as_blend(cmdp.pairs, cmdp.pairs.uniform(), 20) is None


@pytest.mark.parametrize("states", [50, 400])
def test_certify_finds_the_bound_from_any_policy(states):
    """By pivots, from the best policy, and from a bad one: the same bound, which is the optimum of the LP."""
    cmdp = ck.problems.garnet(states, actions=3, constraints=2, seed=5)
    best, lp = ck.solve(cmdp), ck.solve(cmdp, "lp")
    for policy in (best.policy, cmdp.pairs.uniform(), np.eye(3)[np.zeros(states, dtype=int)]):
        certificate = ck.certify(cmdp, policy)
        assert certificate.bound == pytest.approx(lp.objective, rel=1e-8)
        assert certificate.bound >= lp.objective - 1e-9 * abs(lp.objective)  # a reward: no policy does better


def test_what_a_learner_gives_up_is_made_again(large):
    learner = ExactLearner(large, ck.TabularPolicy.over(large.pairs, some_policy(large)), floor=-700.0)
    view = learner.look()
    before = view.greedy_gain(np.ones(2))
    learner.release()
    assert "_stacked" not in view.__dict__
    assert view.greedy_gain(np.ones(2)) == before


def test_large_models_are_proved_to_the_tolerance(large):
    for method in ("auto", "pmd-pd"):
        result = ck.solve(large, method, tol=1e-4)
        exact = ck.certify(large, result.policy, result.multipliers)
        assert result.certificate.optimal(1e-4)
        assert result.certificate.accuracy <= 1e-6
        assert exact.accuracy <= 1e-11
        assert abs(exact.objective - result.objective) <= result.certificate.accuracy * max(1.0, abs(exact.objective))


def test_a_choice_is_followed(large, monkeypatch):
    """Compiled without its chain, in any blocks; else with it."""
    rng = np.random.default_rng(2)
    value, choice = rng.random(large.states), rng.integers(0, 4, large.states).astype(np.int32)
    expected, found = value, []
    for _ in range(3):
        cost = large.costs[1][large.pairs.rows(choice)]
        expected = cost + large.gamma * (policy_system(large, choice=choice).chain @ expected)
    for size, helpers in ((10**9, 0), (1_000, 0), (1_000, 3)):
        monkeypatch.setattr(threads, "BLOCK", size)
        monkeypatch.setattr(threads, "helpers", lambda helpers=helpers: helpers)
        found.append(backup.follow(large, large.costs[1], value.copy(), choice, 3))
    np.testing.assert_allclose(found[0], expected, rtol=1e-13)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    monkeypatch.setattr(backup, "COMPILED", np.inf)
    np.testing.assert_allclose(backup.follow(large, large.costs[1], value.copy(), choice, 3), expected, rtol=1e-13)


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-6])
def test_backups_bound_the_lagrangian(large, gap):
    """From any values: the bound is below the minimum, and the policy is within the gap of it."""
    weights, rng = np.array([1.0, 0.3, 0.2]), np.random.default_rng(3)
    least = mdp.minimise(large, weights)
    oracle = mdp.Oracle(large)
    bound, choice = oracle.back_up(weights, rng.normal(size=large.states), gap)
    assert bound <= float(weights @ least.values) + 1e-9
    assert bound >= float(weights @ least.values) - gap
    assert float(weights @ oracle.take(choice, weights).values) <= bound + gap + 1e-9


def test_backups_that_take_too_long_are_given_up(large):
    bound, choice = mdp.Oracle(large).back_up(np.array([1.0, 0.3, 0.2]), np.zeros(large.states), 1e-300)
    assert choice is None
    assert np.isfinite(bound)


def test_backups_of_a_line_are_given_up_at_the_pace_of_the_first_ones():
    """Values that have to travel along 400 states: 30 backups would not be enough, and some of them show it."""
    states = 400
    to = np.array([[max(s - 1, 0), min(s + 1, states - 1)] for s in range(states)]).ravel()
    line = sp.csr_array((np.ones(to.size), to, np.arange(to.size + 1)), shape=(to.size, states))
    cost = np.random.default_rng(1).random((states, 2))
    cmdp = ck.CMDP(line, cost=cost, constraints=[ck.AtMost(1.0 - cost, 900.0)], gamma=0.999, initial=0)
    with mock.patch("cmdpkit.exact.mdp.bellman", side_effect=backup.bellman) as made:
        bound, choice = mdp.Oracle(cmdp).back_up(np.array([1.0, 0.1]), np.zeros(states), 1e-3)
    assert choice is None
    assert np.isfinite(bound)
    assert made.call_count < mdp.MOST_BACKUPS


@pytest.mark.parametrize("tol", [1e-4, 1e-6])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("states", [400, 5_500])
def test_backups_lead_to_what_policies_of_the_oracle_do(monkeypatch, states, seed, tol):
    """Blends only, bounds by backups, and of many states an answer that is rounded in one go."""
    cmdp = ck.problems.garnet(states, actions=4, successors=5, constraints=1 + seed % 3, gamma=0.95, seed=seed)
    result = ck.solve(cmdp, tol=tol)
    monkeypatch.setattr(mdp.Oracle, "backs_up", False)
    plain = ck.solve(cmdp, tol=tol)
    assert plain.status is ck.Status.OPTIMAL
    assert result.status is ck.Status.OPTIMAL
    assert result.objective == pytest.approx(plain.objective, rel=2 * tol)
    assert ck.certify(cmdp, result.policy, result.multipliers).optimal(tol)
    assert (np.count_nonzero(result.policy.pi, axis=1) > 1).sum() <= cmdp.num_constraints


def test_many_states_whose_limits_are_slack_or_cannot_be_met(large):
    plain = ck.solve(ck.CMDP(large.transitions, reward=large.objective, gamma=large.gamma, action_axis=1), tol=1e-5)
    names = [limit.name for limit in large.constraints]
    slack, refused = (large.with_limits(dict.fromkeys(names, far)) for far in (1e3, -1e3))
    assert ck.solve(slack, tol=1e-5).objective == pytest.approx(plain.objective, rel=2e-5)
    search = ColumnSearch(refused, 1e-5)
    for _ in steps(search):
        pass
    assert search.farkas is not None


@pytest.mark.parametrize("accuracy", [0.0, 1e-9, 1e-3])
def test_values_are_proved_from_any_guess(large, accuracy):
    policy, rng = ck.TabularPolicy.over(large.pairs, some_policy(large)), np.random.default_rng(4)
    exact, tiny = values_with_errors(large, policy)
    guess = Guess(100.0 * rng.normal(size=(large.states, 3)))
    values, errors = values_with_errors(large, policy, accuracy=np.full(3, accuracy), guess=guess)
    assert (np.abs(values - exact) <= errors + tiny).all()
    assert (errors <= max(2.0 * accuracy, 1e-9)).all()
