"""Bounds on the optimum from samples alone: coverage, width, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.insight import optimum


def small(seed=0, states=3, actions=2):
    """A random model whose limit lies halfway between the least use and that of the best policy without limits."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(states), (states, actions))
    reward, use = rng.random((2, states, actions))
    least = ck.solve(ck.CMDP(p, cost=use, gamma=0.6)).objective
    free = ck.CMDP(p, reward=reward, constraints=[ck.AtMost(use, 100.0)], gamma=0.6)
    most = ck.solve(free).constraint_values[0]
    return ck.CMDP(p, reward=reward, constraints=[ck.AtMost(use, 0.5 * (least + most))], gamma=0.6)


def test_the_bound_covers_and_is_close():
    """With confidence one half, so that too many failures would be seen."""
    cmdp = small()
    best = ck.solve(cmdp)
    assert best.multipliers[0] > 0.01  # the limit binds
    found = np.array([ck.bound_by_simulation(cmdp, 2_000, 0.5, seed=seed).bound for seed in range(100)])
    assert (found >= best.objective).mean() >= 0.5
    assert np.median(found) < best.objective + 0.4  # without samples: + 1.4


def test_a_single_mean_is_bounded_as_often_as_claimed():
    """One state and one action leave nothing that pushes the bound away: the optimum is the mean cost / (1 − γ)."""
    coin = ck.Simulator(
        lambda states, actions, rng: (states, (rng.random((1, states.size)) < 0.3).astype(float)),
        lambda n, rng: np.zeros(n, dtype=int),
        states=1,
        actions=1,
        gamma=0.5,
        maximise=False,
        bounds=[(0.0, 1.0)],
    )
    found = np.array([ck.bound_by_simulation(coin, 400, 0.9, seed=seed).bound for seed in range(100)])
    assert (found > 0.6).sum() <= 10 + 3 * 3.0  # of 100 with δ = 0.1, and three standard deviations
    assert np.median(found) > 0.4


def test_more_samples_bring_it_closer():
    cmdp = ck.problems.paper()
    best = ck.solve(cmdp).objective
    off = [ck.bound_by_simulation(cmdp, n, seed=1).bound - best for n in (20_000, 80_000, 400_000)]
    assert 0.0 < off[2] < off[1] < off[0]
    assert off[0] < 0.6
    assert off[2] < 0.1


def test_any_multipliers_give_a_valid_bound():
    cmdp = small(1)
    best = ck.solve(cmdp)
    for lam in (0.0, 0.3, 50.0):
        assert ck.bound_by_simulation(cmdp, 50_000, multipliers=[lam]).bound >= best.objective


def test_prices_that_promise_little_are_not_used(monkeypatch):
    """Where noise makes a limit look nearly too tight the prices of the empirical model are far too high."""
    cmdp = small(1)
    free = ck.bound_by_simulation(cmdp, 2_000, multipliers=[0.0])
    high = ck.bound_by_simulation(cmdp, 2_000, multipliers=[50.0])
    monkeypatch.setattr(optimum, "solve", lambda model, tol: SimpleNamespace(multipliers=np.array([50.0])))
    found = ck.bound_by_simulation(cmdp, 2_000)
    assert found.multipliers.tolist() == [0.0]
    assert found.bound == free.bound < high.bound


def test_what_bounds_alone_say_is_never_surpassed():
    """Two transitions of each pair say nothing, but no policy earns more than the largest reward in every step."""
    cmdp = small()
    assert ck.bound_by_simulation(cmdp, 24).bound == pytest.approx(cmdp.objective.max() / (1.0 - 0.6))


def test_a_users_simulator_with_random_costs():
    """The cost of a step is drawn: its mean is the model's, and a bound from its samples covers the model's optimum."""
    cmdp = small(2)
    exact = ck.solve(cmdp)
    tables = np.stack([cmdp.objective.reshape(3, 2), np.asarray(cmdp.constraints[0].values)])
    moves = np.asarray(cmdp.transitions).reshape(3, 2, 3).cumsum(axis=2)

    def step(states, actions, rng):
        following = (rng.random(states.size)[:, None] > moves[states, actions]).sum(axis=1)
        return np.minimum(following, 2), (rng.random((2, states.size)) < tables[:, states, actions]).astype(float)

    simulator = ck.Simulator(
        step,
        lambda n, rng: rng.integers(3, size=n),
        states=3,
        actions=2,
        gamma=0.6,
        constraints=[ck.AtMost(None, cmdp.constraints[0].bound)],
        bounds=[(0.0, 1.0), (0.0, 1.0)],
    )
    found = [ck.bound_by_simulation(simulator, 40_000, 0.9, seed=seed).bound for seed in range(20)]
    assert min(found) >= exact.objective
    assert max(found) <= exact.objective + 0.2


def test_missing_actions_and_costs_to_minimise():
    rng = np.random.default_rng(4)
    available = np.array([[True, True], [True, False], [False, True]])
    cmdp = ck.CMDP(rng.dirichlet(np.ones(3), (3, 2)), cost=rng.random((3, 2)), gamma=0.7, available=available)
    best = ck.solve(cmdp).objective
    found = ck.bound_by_simulation(cmdp, 100_000)
    assert best - 0.1 < found.bound <= best
    assert found.to_dict()["multipliers"] == []


def test_the_second_half_is_fresh(monkeypatch):
    """The bound must not depend on transitions that chose V: bets and values are fixed before they are drawn."""
    order = []
    inner, outer = optimum._optimistic, optimum._lower_bounds
    monkeypatch.setattr(optimum, "_optimistic", lambda *a: (order.append("chosen"), inner(*a))[1])
    monkeypatch.setattr(optimum, "_lower_bounds", lambda *a: (order.append("judged"), outer(*a))[1])
    ck.bound_by_simulation(small(), 1_000)
    assert order.count("judged") == 1
    assert order[-1] == "judged"


def test_prices_are_those_of_the_constraints_as_stated():
    cmdp = small()
    limit = cmdp.constraints[0].limit
    both = ck.CMDP(
        cmdp.transitions.reshape(3, 2, 3),
        reward=cmdp.objective,
        constraints=[ck.Between(cmdp.constraints[0].values, 0.0, limit)],
        gamma=0.6,
    )
    given = ck.bound_by_simulation(both, 4_000, 0.9, multipliers=[0.5]).multipliers
    np.testing.assert_array_equal(given, [0.5])
    assert ck.bound_by_simulation(both, 4_000, 0.9).multipliers.shape == (1,)


def test_refusals():
    cmdp = small()
    with pytest.raises(ValueError, match="at least 24"):
        ck.bound_by_simulation(cmdp, 10)
    with pytest.raises(ValueError, match="multipliers"):
        ck.bound_by_simulation(cmdp, 1_000, multipliers=[-1.0])
    free = ck.Simulator(
        lambda s, a, rng: (s, np.zeros((1, s.size))),
        lambda n, rng: np.zeros(n, int),
        states=1,
        actions=1,
        gamma=0.5,
    )
    with pytest.raises(ValueError, match="bounds"):
        ck.bound_by_simulation(free, 1_000)
