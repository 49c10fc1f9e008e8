"""Certificates: bounds that bracket the LP, proofs that can be checked by hand, and no trust in any solver."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cmdpkit as ck
from cmdpkit.certificates.checker import values_with_errors
from cmdpkit.evaluation.bounds import macqueen_bound
from cmdpkit.exact.mdp import minimise
from models import lp_optimum, random_model, two_state

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 10_000)


def brute_force_minimum(cmdp, weights):
    """min over all deterministic policies of w·V: no optimisation at all, only enumeration."""
    S, A = cmdp.states, cmdp.actions
    P = np.asarray(cmdp.transitions.todense() if hasattr(cmdp.transitions, "todense") else cmdp.transitions)
    cost = weights @ cmdp.costs
    best = np.inf
    for code in range(A**S):
        rows = np.arange(S) * A + np.array([code // A**s % A for s in range(S)])
        value = np.linalg.solve(np.eye(S) - cmdp.gamma * P[rows], cost[rows])
        best = min(best, float(cmdp.initial @ value))
    return best - weights[1:] @ cmdp.offsets


@pytest.mark.parametrize("seed", range(20))
def test_oracle_equals_enumeration(seed):
    cmdp = random_model(seed, constraints=2, states=4)
    weights = np.random.default_rng(seed).uniform(0.0, 2.0, size=3)
    truth = brute_force_minimum(cmdp, weights)
    answer = minimise(cmdp, weights)
    scale = max(1.0, abs(truth))
    assert weights @ answer.values == pytest.approx(truth, abs=1e-10 * scale)
    assert truth - 1e-9 * scale <= answer.bound <= truth


@QUICK
@given(seeds, st.floats(0.0, 100.0))
def test_macqueen_bounds_from_below_whatever_the_guess(seed, noise):
    cmdp = random_model(seed, constraints=1, states=5)
    weights = np.array([1.0, 0.3])
    truth = minimise(cmdp, weights)
    guess = noise * np.random.default_rng(seed).normal(size=cmdp.states)
    assert macqueen_bound(cmdp, weights, guess) <= weights @ truth.values + 1e-12 * max(
        1.0, abs(weights @ truth.values)
    )


@QUICK
@given(seeds)
def test_any_multipliers_give_a_valid_bound(seed):
    cmdp = random_model(seed)
    optimum, _ = lp_optimum(cmdp)
    rng = np.random.default_rng(seed)
    policy = rng.dirichlet(np.ones(cmdp.actions), size=cmdp.states)
    certificate = ck.certify(cmdp, policy, rng.exponential(size=cmdp.num_constraints))
    slack = 1e-7 * max(1.0, abs(optimum))
    assert certificate.bound >= optimum - slack if cmdp.maximise else certificate.bound <= optimum + slack
    # and the policy's own figures are those of evaluate()
    truth = ck.evaluate(cmdp, policy)
    assert certificate.objective == pytest.approx(truth.objective, rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(certificate.constraint_values, truth.constraint_values, rtol=1e-9, atol=1e-9)


@QUICK
@given(seeds)
def test_found_multipliers_are_tight(seed):
    cmdp = random_model(seed)
    optimum, _ = lp_optimum(cmdp)
    certificate = ck.certify(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions))
    assert certificate.bound == pytest.approx(optimum, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("make", [ck.problems.paper, ck.problems.two_queues, ck.problems.wireless, ck.problems.garnet])
def test_the_best_policy_has_its_multipliers_in_it(make, monkeypatch):
    """Where it randomises its actions are equally good, which determines the prices: nothing has to be searched."""
    cmdp = make()
    best = ck.solve(cmdp, tol=1e-12)
    searched = ck.certify(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions))
    for name in ("optimal_vertex", "best_bound"):
        monkeypatch.setattr(f"cmdpkit.certificates.prover.{name}", lambda *_, **__: pytest.fail("a search"))
    certificate = ck.certify(cmdp, best.policy)
    assert certificate.optimal(1e-9)
    assert certificate.bound == pytest.approx(searched.bound, rel=1e-9)
    np.testing.assert_allclose(certificate.multipliers, searched.multipliers, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", [2, 7, 9])
def test_a_policy_that_is_nearly_the_best_has_them_too(seed, monkeypatch):
    """As its local model sees them: they prove what the best ones do, and nothing has to be searched."""
    cmdp = ck.problems.garnet(5_500, actions=4, successors=5, constraints=2, gamma=0.95, seed=seed)
    policy = ck.solve(cmdp, tol=1e-6).policy
    searched = ck.certify(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions))
    monkeypatch.setattr("cmdpkit.certificates.prover.best_bound", lambda *_, **__: pytest.fail("a search"))
    certificate = ck.certify(cmdp, policy)
    assert 2e-10 < certificate.gap < 1e-6  # it is not the best one
    assert certificate.bound == pytest.approx(searched.bound, rel=1e-10 + 0.01 * certificate.gap)


def test_a_policy_that_nearly_meets_limits_that_cannot_be_met():
    """The proof that no policy meets them is found, although the policy is as good as any that misses them so."""
    cmdp = ck.problems.garnet(400, constraints=1, seed=3)
    limit = cmdp.constraints[0]
    least = ck.CMDP(cmdp.transitions, cost=limit.values, gamma=cmdp.gamma, initial=cmdp.initial)
    found = ck.solve(least, tol=1e-12)
    tight = cmdp.with_limits({cmdp.names[0]: found.objective - 1e-7 * abs(found.objective)})
    assert ck.certify(tight, found.policy).infeasibility is not None


@pytest.mark.parametrize("seed", range(10))
def test_policies_that_are_not_the_best_do_not_determine_the_bound(seed):
    """A policy of one action per state, good or bad, within the limits or not: the bound is the optimum."""
    cmdp = random_model(seed)
    optimum, _ = lp_optimum(cmdp)
    alone = ck.solve(cmdp.with_limits(dict.fromkeys(cmdp.names))).policy  # the best one without limits
    for policy in (alone, ck.TabularPolicy.deterministic(np.zeros(cmdp.states, dtype=int), cmdp.actions)):
        assert ck.certify(cmdp, policy).bound == pytest.approx(optimum, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_bounds_of_small_costs_are_as_tight_as_others(seed):
    """The same policies with all costs and limits divided by 2⁴⁰, which changes no digit."""
    cmdp = random_model(seed)
    unit = 2.0**-40
    limits = [replace(c, values=unit * np.asarray(c.values), limit=unit * c.limit) for c in cmdp.constraints]
    kind = {"reward" if cmdp.maximise else "cost": unit * np.asarray(cmdp.objective)}
    small = ck.CMDP(sp.csr_array(cmdp.transitions), constraints=limits, gamma=cmdp.gamma, initial=cmdp.initial, **kind)
    alone = ck.solve(cmdp.with_limits(dict.fromkeys(cmdp.names))).policy
    for policy in (alone, ck.TabularPolicy.deterministic(np.zeros(cmdp.states, dtype=int), cmdp.actions)):
        bound = unit * ck.certify(cmdp, policy).bound
        assert ck.certify(small, policy).bound == pytest.approx(bound, rel=1e-7, abs=0.0)


@QUICK
@given(seeds)
def test_farkas_vector_can_be_checked_by_anyone(seed):
    """Σ y_i V_i > 0 for every policy: by enumeration of all deterministic ones, which are the extreme points."""
    cmdp = random_model(seed, constraints=2, states=3, feasible=False)
    certificate = ck.certify(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions))
    y = certificate.infeasibility
    assert y is not None
    assert (y >= 0.0).all()
    assert y.sum() == pytest.approx(1.0)
    least = brute_force_minimum(cmdp, np.append(0.0, y))
    assert 0.0 < certificate.infeasibility_margin <= least
    assert not certificate.optimal(1e9)
    assert "infeasible" in str(certificate)


def test_feasible_and_optimal_measure_what_they_say():
    cmdp = two_state(gamma=0.9, limit=2.0)
    greedy = ck.certify(cmdp, [[0.0, 1.0], [1.0, 0.0]])
    # p = 1: V_c = 1/(0.1·1.9) = 5.263..., relative violation 3.263.../2; V_r = 2/(0.1·1.9)
    assert greedy.violations[0] == pytest.approx(1.0 / 0.19 - 2.0)
    assert greedy.violation == pytest.approx((1.0 / 0.19 - 2.0) / 2.0)
    assert greedy.objective == pytest.approx(2.0 / 0.19)
    assert greedy.bound == pytest.approx(10.0 + 0.1 * 2.0)
    assert not greedy.feasible(1e-6)
    assert greedy.gap < 0.05
    assert not greedy.optimal(0.05)  # near the bound, but far outside the limit
    timid = ck.certify(cmdp, [[1.0, 0.0], [1.0, 0.0]])
    assert timid.feasible(0.0)
    assert timid.gap == pytest.approx(0.2 / 10.0)
    assert timid.optimal(0.0201)
    assert not timid.optimal(0.0199)
    assert timid.multipliers[0] == pytest.approx(0.1, abs=1e-9)


def test_bound_holds_when_rows_sum_to_one_only_nearly():
    """P is taken as given, never normalised: with sums of 1 + 9e-9 and γ near 1 values grow, and bounds must know."""
    gamma, excess = 0.9999, 9e-9
    P = np.full((1, 1, 1), 1.0 + excess)
    cmdp = ck.CMDP(P, reward=[[1.0]], gamma=gamma)
    truth = 1.0 / (1.0 - gamma * (1.0 + excess))
    certificate = ck.certify(cmdp, [[1.0]])
    assert certificate.objective == pytest.approx(truth, rel=1e-12)
    assert certificate.bound >= truth
    assert macqueen_bound(cmdp, np.ones(1), np.zeros(1)) <= -truth


def test_rounding_is_part_of_the_gap():
    cmdp = ck.problems.paper()
    result = ck.solve(cmdp)
    assert 0.0 < result.certificate.accuracy < 1e-11
    assert result.certificate.gap >= result.certificate.accuracy * 0.99


def test_what_rounding_may_have_done_by_hand():
    """One state, c = 1 and γ = 1 − 2⁻¹³: V = 2¹³ exactly. Every backup may be wrong by eps · V, and 2¹³ count."""
    size = 2.0**13
    cmdp = ck.CMDP(np.ones((1, 1, 1)), cost=[[1.0]], constraints=[ck.AtMost([[1.0]], size)], gamma=1.0 - 1.0 / size)
    values, errors = values_with_errors(cmdp, ck.TabularPolicy([[1.0]]))
    np.testing.assert_array_equal(values, [size, size])  # limits are not subtracted
    least = np.finfo(float).eps * size * size
    assert (least <= errors).all()
    assert (errors <= 100.0 * least).all()
    # On the limit to the last bit: that no policy is outside cannot be proved, and is not claimed
    certificate = ck.certify(cmdp, [[1.0]], [0.0])
    assert certificate.violations[0] == 0.0
    assert certificate.violation == pytest.approx(errors[1] / size)
    assert not certificate.feasible(0.0)
    assert certificate.gap >= errors[0] / size
    assert certificate.accuracy == pytest.approx(errors.max() / size)


def test_an_infeasible_model_has_no_bound():
    certificate = ck.certify(two_state(0.9, limit=-1.0), [[1.0, 0.0], [0.5, 0.5]])
    assert certificate.infeasibility is not None
    assert certificate.bound == -np.inf  # a reward: no policy earns anything within the limits
    assert certificate.gap == np.inf
    assert certificate.violation == pytest.approx(1.0)


def test_given_multipliers_make_the_bound():
    """G(λ) of the two-state model: without a price the risk is always taken, 2/0.19; at 0.1 it is the optimum."""
    cmdp, policy = two_state(0.9, 2.0), [[1.0, 0.0], [0.5, 0.5]]
    assert ck.certify(cmdp, policy, [0.0]).bound == pytest.approx(2.0 / 0.19)
    assert ck.certify(cmdp, policy, [0.1]).bound == pytest.approx(10.2)
    assert ck.certify(cmdp, policy, [1.0]).bound == pytest.approx(10.0 + 1.0 * 2.0)
    np.testing.assert_array_equal(ck.certify(cmdp, policy, [0.3]).multipliers, [0.3])
