"""Optimal policies randomise in at most as many states as there are limits."""

import numpy as np
import pytest
import scipy.sparse as sp

import cmdpkit as ck
from cmdpkit.evaluation import Plan
from cmdpkit.exact.vertex import _corrected, _vertex, least_randomised
from models import lp_optimum, random_model


def randomised(policy):
    return int((policy.pairs.sum((policy.pi > 0.0).astype(int)) > 1).sum())


def garnet(seed, missing):
    rng = np.random.default_rng(seed)
    states, actions, m = int(rng.integers(5, 50)), int(rng.integers(2, 6)), int(rng.integers(1, 5))
    cmdp = ck.problems.garnet(states, actions, constraints=m, seed=seed)
    if not missing:
        return cmdp
    mask = rng.random((states, actions)) < 0.7
    mask[np.arange(states), rng.integers(0, actions, states)] = True
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else cmdp.transitions
    return ck.CMDP(
        P.reshape(states, actions, states), reward=cmdp.objective, constraints=cmdp.constraints, gamma=cmdp.gamma,
        initial=cmdp.initial, available=mask,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["auto", "columns", "lp"])
@pytest.mark.parametrize("missing", [False, True])
def test_at_most_one_randomised_state_per_limit(method, missing):
    solved = 0
    for seed in range(12):
        cmdp = garnet(seed, missing)
        result = ck.solve(cmdp, method)
        if result.status is ck.Status.OPTIMAL:
            solved += 1
            assert randomised(result.policy) <= cmdp.num_constraints
            assert result.certificate.optimal(1e-6)
    assert solved >= 8


def test_the_objective_stays_that_of_the_lp():
    for seed in range(0, 60, 2):
        cmdp = random_model(seed, constraints=1 + seed % 4)
        result = ck.solve(cmdp)
        optimum, _ = lp_optimum(cmdp)
        assert result.status is ck.Status.OPTIMAL
        assert result.objective == pytest.approx(optimum, rel=1e-8, abs=1e-8)
        assert randomised(result.policy) <= cmdp.num_constraints


def test_a_garnet_on_which_the_columns_alone_randomise_more(monkeypatch):
    cmdp = ck.problems.garnet(states=20, actions=5, constraints=2, seed=0)
    few = ck.solve(cmdp, "columns")
    monkeypatch.setattr("cmdpkit.exact.answer.least_randomised", lambda *_: None)
    many = ck.solve(cmdp, "columns")
    assert randomised(many.policy) > 2
    assert randomised(few.policy) == 2
    assert few.objective == pytest.approx(many.objective, rel=1e-9)
    np.testing.assert_allclose(few.constraint_values, many.constraint_values, rtol=1e-9)


def test_many_randomised_states_are_rounded_first(monkeypatch):
    cmdp = ck.problems.garnet(states=2_000, actions=10, successors=5, constraints=3, gamma=0.99, seed=101)
    few = ck.solve(cmdp)
    monkeypatch.setattr("cmdpkit.exact.answer.least_randomised", lambda *_: None)
    many = ck.solve(cmdp)
    assert randomised(many.policy) > 10
    assert randomised(few.policy) <= 3
    assert few.status is ck.Status.OPTIMAL
    assert few.objective == pytest.approx(many.objective, rel=2e-6)


def test_a_slack_limit_leaves_no_randomisation():
    """Of two limits one is far from reached: one state is enough."""
    for seed in range(6):
        cmdp = ck.problems.garnet(states=15, actions=4, constraints=1, seed=seed)
        slack = ck.AtMost(np.ones((15, 4)), 10.0 / (1.0 - cmdp.gamma), name="slack")
        P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else cmdp.transitions
        both = ck.CMDP(
            P.reshape(15, 4, 15), reward=cmdp.objective, constraints=[*cmdp.constraints, slack], gamma=cmdp.gamma,
            initial=cmdp.initial,
        )  # fmt: skip
        assert randomised(ck.solve(both).policy) <= 1


def test_a_policy_with_nothing_to_gain_is_left_alone():
    cmdp = ck.problems.paper()
    policy = ck.TabularPolicy.deterministic(np.zeros(cmdp.states, dtype=int), cmdp.actions)
    visits = np.full(cmdp.states, 1.0)
    assert least_randomised(cmdp, policy, visits, Plan(), np.zeros(cmdp.num_constraints + 1)) is None


def test_the_uniform_policy_keeps_its_values():
    """From any policy: the limits' values are kept or improved, and the objective does not get worse."""
    cmdp = ck.problems.garnet(states=12, actions=3, constraints=2, seed=3)
    uniform = ck.TabularPolicy.uniform(12, 3)
    before = ck.evaluate(cmdp, uniform)
    visits = cmdp.pairs.sum(before.pair_occupancy) / (1.0 - cmdp.gamma)
    policy = least_randomised(cmdp, uniform, visits, Plan(), np.zeros(3))
    after = ck.evaluate(cmdp, policy)
    assert randomised(policy) <= 2
    over = np.maximum(cmdp.signs * (before.constraint_values - cmdp.limits), 0.0)
    assert (cmdp.signs * (after.constraint_values - cmdp.limits) <= over + 1e-9).all()
    assert after.objective >= before.objective - 1e-9


def test_what_is_worse_is_not_taken(monkeypatch):
    """A policy that the certificate does not prove is dropped, and the original returned."""
    cmdp = ck.problems.garnet(states=20, actions=5, constraints=2, seed=0)
    bad = ck.TabularPolicy.uniform(20, 5)
    monkeypatch.setattr("cmdpkit.exact.answer.least_randomised", lambda *_: bad)
    result = ck.solve(cmdp, "columns")
    assert result.status is ck.Status.OPTIMAL
    assert 2 < randomised(result.policy) < 20


def test_small_costs_are_kept_as_exact(monkeypatch):
    """In units of 1e-6 every policy is within an absolute tolerance of 1e-6; the answer must not use that."""
    cmdp = ck.problems.garnet(states=20, actions=5, constraints=2, seed=0)
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else cmdp.transitions
    tiny = ck.CMDP(
        P.reshape(20, 5, 20), reward=cmdp.objective * 1e-7, gamma=cmdp.gamma, initial=cmdp.initial,
        constraints=[type(c)(c.values * 1e-7, c.limit * 1e-7, c.name, c.per_step) for c in cmdp.rows],
    )  # fmt: skip
    for method in ("auto", "columns"):
        assert ck.solve(tiny, method).objective == pytest.approx(1e-7 * ck.solve(cmdp).objective, rel=1e-6)
    bad = ck.TabularPolicy.uniform(20, 5)
    monkeypatch.setattr("cmdpkit.exact.answer.least_randomised", lambda *_: bad)
    assert 2 < randomised(ck.solve(tiny, "columns").policy) < 20


def test_unvisited_states_are_deterministic():
    """State 1 cannot be reached: whatever the method, it takes one action there."""
    P = np.zeros((2, 3, 2))
    P[0, :, 0] = P[1, :, 1] = 1.0
    cost = ck.AtMost([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]], 1.5)
    cmdp = ck.CMDP(P, reward=[[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]], constraints=[cost], gamma=0.5, initial=0)
    for method in ("auto", "columns", "lp"):
        policy = ck.solve(cmdp, method).policy
        assert (policy.probabilities[1] > 0.0).sum() == 1
        assert randomised(policy) <= 1


def test_a_correction_stays_positive():
    """x₁ + x₂ changes by −1 in proportion to the squares of (1, 2); by −4 it cannot."""
    np.testing.assert_allclose(_corrected(np.ones((1, 2)), np.array([1.0, 2.0]), np.array([-1.0])), [0.8, 1.2])
    assert _corrected(np.ones((1, 2)), np.array([1.0, 2.0]), np.array([-4.0])) is None


def test_the_walk_ends_at_a_vertex():
    """Σ x = 1 and Σ j x_j = 2 with j = 0..4: a vertex has at most two positive entries."""
    j = np.arange(5.0)
    matrix = np.vstack([np.ones(5), j])
    x = _vertex(matrix, j**2, np.full(5, 0.2))
    np.testing.assert_allclose(matrix @ x, [1.0, 2.0])
    assert (x > 0.0).sum() <= 2
    assert j**2 @ x <= 6.0
