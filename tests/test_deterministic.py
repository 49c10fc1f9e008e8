"""`deterministic=True` against brute force over all deterministic policies."""

import itertools
import os
from unittest import mock

import numpy as np
import pytest
import scipy.optimize

import cmdpkit as ck
from cmdpkit.exact.highs import solve_mixed
from cmdpkit.exact.integer import most_visits
from models import random_model


def brute_force(cmdp, tol=1e-9):
    """The best objective of all deterministic policies within the limits; None if there is none."""
    S, A = cmdp.states, cmdp.actions
    mask = cmdp.pairs.mask
    P, costs = np.zeros((S, A, S)), np.zeros((cmdp.num_constraints + 1, S, A))
    matrix = cmdp.transitions.toarray() if hasattr(cmdp.transitions, "toarray") else cmdp.transitions
    P[cmdp.pairs.state, cmdp.pairs.action] = matrix
    costs[:, cmdp.pairs.state, cmdp.pairs.action] = cmdp.costs
    best, states = np.inf, np.arange(S)
    for choice in itertools.product(*(np.flatnonzero(mask[s]) for s in range(S))):
        chosen = np.array(choice)
        v = cmdp.initial @ np.linalg.solve(np.eye(S) - cmdp.gamma * P[states, chosen], costs[:, states, chosen].T)
        if (v[1:] <= cmdp.offsets + tol * np.maximum(1.0, np.abs(cmdp.limits))).all():
            best = min(best, v[0])
    return None if np.isinf(best) else cmdp.sense * best


def small(seed, missing=False):
    """A random model with at most 3^6 deterministic policies."""
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(2, 7)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
    P = rng.dirichlet(np.full(S, 0.4), size=(S, A))
    gamma = float(rng.choice([0.5, 0.9, 0.97]))
    pi = np.eye(A)[rng.integers(0, A, S)]  # limits near what some deterministic policy uses
    initial = rng.dirichlet(np.ones(S))
    visits = np.linalg.solve(np.eye(S) - gamma * np.einsum("sa,sat->ts", pi, P), initial)[:, None] * pi
    limits = []
    for i in range(m):
        c = rng.random((S, A))
        limits.append(ck.AtMost(c, float((visits * c).sum()) * rng.uniform(0.8, 1.05), name=f"c{i}"))
    mask = None
    if missing:
        mask = rng.random((S, A)) < 0.7
        mask[np.arange(S), rng.integers(0, A, S)] = True
    return ck.CMDP(P, reward=rng.normal(size=(S, A)), constraints=limits, gamma=gamma, initial=initial, available=mask)


@pytest.mark.parametrize("missing", [False, True])
def test_the_best_of_all_deterministic_policies(missing):
    seen = {"optimal": 0, "no deterministic policy": 0, "no policy": 0}
    for seed in range(30):
        cmdp = small(seed, missing)
        best, result = brute_force(cmdp), ck.solve(cmdp, deterministic=True)
        if best is None:
            assert result.status is ck.Status.INFEASIBLE
            seen["no policy" if result.certificate.infeasibility is not None else "no deterministic policy"] += 1
            continue
        seen["optimal"] += 1
        assert result.status is ck.Status.OPTIMAL, (seed, result.message)
        assert result.objective == pytest.approx(best, rel=2e-6, abs=2e-6)
        assert set(np.unique(result.policy.pi)) <= {0.0, 1.0}
        assert result.certificate.feasible(1e-6)
        assert result.deterministic_bound >= best - 2e-6 * max(1.0, abs(best))
        assert result.certificate.bound >= result.objective - 1e-9  # rewards: no policy at all attains more
    assert min(seen.values()) >= 1, seen


def test_costs_and_mixed_senses():
    for seed in range(0, 40, 4):
        cmdp = random_model(seed, constraints=2, states=4)
        if cmdp.actions**4 > 700:
            continue
        best, result = brute_force(cmdp), ck.solve(cmdp, deterministic=True)
        assert (best is None) == (result.status is ck.Status.INFEASIBLE)
        if best is not None:
            assert result.objective == pytest.approx(best, rel=2e-6, abs=2e-6)


def needs_randomising(limit=1.0):
    """One state, rewards 0 and 3 at costs 0 and 2 per step (γ = 0.5): a limit of 1 allows a quarter of the best."""
    P = np.ones((1, 3, 1))
    cost = ck.AtMost([[0.0, 0.4, 2.0]], limit, name="cost")
    return ck.CMDP(P, reward=[[0.0, 0.5, 3.0]], constraints=[cost], gamma=0.5)


def test_what_not_randomising_costs():
    cmdp = needs_randomising()
    assert ck.solve(cmdp).objective == pytest.approx(1.5)  # a quarter of 6
    result = ck.solve(cmdp, deterministic=True)
    assert result.objective == pytest.approx(1.0)
    assert result.deterministic_bound == pytest.approx(1.0)
    assert result.certificate.bound == pytest.approx(1.5)
    assert result.status is ck.Status.OPTIMAL
    assert "deterministic" in result.message
    assert result.to_dict()["deterministic_bound"] == pytest.approx(1.0)


def test_what_highs_lets_pass_is_excluded():
    """The second action misses the limit by 1e-7, within HiGHS's tolerances and outside 1e-10; the first does not."""
    result = ck.solve(needs_randomising(limit=0.8 - 1e-7), tol=1e-10, deterministic=True)
    assert result.status is ck.Status.OPTIMAL
    assert result.policy[0] == {0: 1.0}
    assert result.objective == 0.0
    assert ck.solve(needs_randomising(limit=0.8), tol=1e-10, deterministic=True).policy[0] == {1: 1.0}


def test_no_deterministic_policy_is_told_from_no_policy():
    """At least 1 of an action that gives 1 in half of all steps, and at most 1: only a mixture does."""
    P = np.ones((1, 2, 1))
    use = [[0.0, 1.0]]
    limits = [ck.AtMost(use, 1.0, name="most"), ck.AtLeast(use, 1.0, name="least")]
    cmdp = ck.CMDP(P, reward=[[0.0, 1.0]], constraints=limits, gamma=0.5)
    result = ck.solve(cmdp, deterministic=True)
    assert result.status is ck.Status.INFEASIBLE
    assert result.certificate.infeasibility is None
    assert result.deterministic_bound is None
    assert "no deterministic policy" in result.message
    assert set(np.unique(result.policy.pi)) <= {0.0, 1.0}
    impossible = ck.CMDP(P, reward=[[0.0, 1.0]], constraints=[ck.AtLeast(use, 3.0)], gamma=0.5)
    assert ck.solve(impossible, deterministic=True).certificate.infeasibility is not None


def test_an_optimum_that_is_deterministic_is_proved():
    cmdp = needs_randomising(limit=4.0)
    result = ck.solve(cmdp, deterministic=True)
    assert result.status is ck.Status.OPTIMAL
    assert result.certificate.optimal(1e-6)
    assert "proves" in result.message


def test_a_larger_model_in_a_process_of_its_own():
    """60 pairs: solved in another process, no worse than the best of some deterministic policies."""
    cmdp = ck.problems.garnet(states=15, actions=4, constraints=1, seed=1)
    result = ck.solve(cmdp, deterministic=True, time_limit=120.0)
    assert result.status is ck.Status.OPTIMAL
    assert result.objective <= result.certificate.bound + 1e-9
    free = ck.solve(cmdp).policy
    for choice in itertools.product(*(np.flatnonzero(row) for row in free.probabilities)):
        policy = ck.TabularPolicy.deterministic(np.array(choice), 4)
        certificate = ck.certify(cmdp, policy, np.zeros(1))
        if certificate.feasible(1e-9):
            assert result.objective >= certificate.objective - 1e-6


def test_out_of_time():
    cmdp = ck.problems.garnet(states=150, actions=5, constraints=3, seed=0)
    result = ck.solve(cmdp, deterministic=True, time_limit=2.0)
    assert result.status is ck.Status.TIME_LIMIT
    assert result.time < 20.0
    assert set(np.unique(result.policy.pi)) <= {0.0, 1.0}


def test_saved_and_loaded(tmp_path):
    result = ck.solve(needs_randomising(), deterministic=True)
    result.save(tmp_path / "run.npz")
    assert ck.Result.load(tmp_path / "run.npz").deterministic_bound == result.deterministic_bound


def test_refusals():
    large = ck.problems.garnet(states=1_000, actions=4)
    with pytest.raises(ValueError, match=r"at most 2,000 pairs .* has 4,000: the problem is NP-hard"):
        ck.solve(large, deterministic=True)
    cmdp = needs_randomising()
    with pytest.raises(ValueError, match="leave out method 'lp'"):
        ck.solve(cmdp, "lp", deterministic=True)
    with pytest.raises(ValueError, match="leave out option 'step'"):
        ck.solve(cmdp, deterministic=True, step=1.0)
    with pytest.raises(TypeError, match="must be True or False, not 'yes'"):
        ck.solve(cmdp, deterministic="yes")
    with pytest.raises(ValueError, match="does not learn from samples"):
        ck.solve(cmdp, deterministic=True, sampling=ck.Sampling())


def test_most_visits():
    """Two states, from 0: staying at 0 visits it 1/(1 − γ) times; 1 is reached at the second step at the earliest."""
    P = np.zeros((2, 2, 2))
    P[0, 0, 0] = P[0, 1, 1] = P[1, :, 1] = 1.0
    cmdp = ck.CMDP(P, reward=np.zeros((2, 2)), gamma=0.9, initial=0)
    np.testing.assert_allclose(most_visits(cmdp), [10.0, 9.0], atol=1e-7)


def test_branch_and_bound_in_another_process():
    """max 5x + 4y with 6x + 5y ≤ 10, both 0 or 1: x alone; the relaxation has y = 0.8."""
    numbers = (np.array([-5.0, -4.0]), np.array([[6.0, 5.0]]), np.array([-np.inf]), np.array([10.0]))
    for stop in (None, lambda: False):
        answer = solve_mixed(*numbers, np.ones(2), np.ones(2), 60.0, stop)
        np.testing.assert_allclose(answer.x, [1.0, 0.0], atol=1e-9)
        assert answer.bound == pytest.approx(-5.0)
    assert solve_mixed(*numbers, np.ones(2), np.ones(2), 60.0, lambda: True).status == 1


def test_notes_of_branch_and_bound_stay_out_of_standard_output(capfd):
    """HiGHS prints to the file descriptor itself, now and then; `--json` must stay JSON."""

    def milp(*args, **kwargs):
        os.write(1, b"a note\n")
        return scipy.optimize.OptimizeResult(status=0, message="", x=np.zeros(1), mip_node_count=0, mip_dual_bound=0.0)

    with mock.patch.object(scipy.optimize, "milp", milp):
        solve_mixed(np.ones(1), np.ones((1, 1)), np.zeros(1), np.ones(1), np.ones(1), np.ones(1), None)
    print("after")
    told = capfd.readouterr()
    assert (told.out, told.err) == ("after\n", "a note\n")
