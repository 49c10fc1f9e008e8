"""Time limits and Ctrl-C reach into long computations: mechanisms, not seconds."""

import signal
import sys

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation import patience
from cmdpkit.evaluation.patience import Stopped, breathe, until
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.exact.linprog import solve_lp
from cmdpkit.exact.slater import least_miss
from cmdpkit.run.budget import Budget
from models import coupled

METHODS = ["auto", "columns", "lp", "pmd-pd", "npg-pd", "crpo", "pmd-pd-zero"]


def after(count):
    """A stop that says yes from the `count`-th question on."""
    asked = [0]

    def stop():
        asked[0] += 1
        return asked[0] >= count

    return stop


def test_breathing_asks_the_nearest_caller():
    breathe()
    with until(lambda: True):
        with pytest.raises(Stopped):
            breathe()
        with until(None):
            breathe()
        with pytest.raises(Stopped):
            breathe()
    breathe()


def test_sweeps_and_krylov_cycles_can_be_stopped():
    for cmdp in (ck.problems.garnet(states=2_000, actions=3, gamma=0.99, seed=0), coupled(3_000, 1e-4, gamma=0.999)):
        uniform = np.full((cmdp.states, cmdp.actions), 1.0 / cmdp.actions)
        cost = np.random.default_rng(0).random(cmdp.states)
        with until(after(3)), pytest.raises(Stopped):
            PolicySystem(cmdp, uniform).state_values(cost)
        with until(after(3)), pytest.raises(Stopped):
            PolicySystem(cmdp, uniform).state_occupancy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("questions", [1, 4, 30])
def test_every_method_ends_with_a_status_wherever_it_is_stopped(method, questions, monkeypatch):
    """The clock is replaced by a counter: the time limit is reached at a given question, wherever that is asked."""
    cmdp = ck.problems.garnet(states=400, actions=4, constraints=2, gamma=0.95, seed=2)
    stop = after(questions)
    monkeypatch.setattr(Budget, "exhausted", lambda self: stop())
    result = ck.solve(cmdp, method, time_limit=1e9, max_iterations=1_000)
    assert isinstance(result.status, ck.Status)
    assert np.isfinite(result.objective)
    assert result.certificate.gap >= 0.0
    np.testing.assert_allclose(result.policy.probabilities.sum(axis=1), 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_no_time_at_all_still_gives_a_policy(method):
    result = ck.solve(ck.problems.paper(), method, time_limit=0.0)
    assert result.status is ck.Status.TIME_LIMIT
    assert result.policy.states == 20


def test_a_large_lp_is_given_up():
    cmdp = ck.problems.garnet(states=600, actions=5, constraints=2, gamma=0.95, seed=1)
    solution = solve_lp(cmdp, stop=lambda: True)
    assert solution.out_of_budget
    assert solution.policy is None


def test_an_lp_in_its_own_process_gives_the_same_answer():
    cmdp = ck.problems.garnet(states=600, actions=5, constraints=2, gamma=0.95, seed=1)
    here, there = solve_lp(cmdp), solve_lp(cmdp, stop=lambda: False)
    assert here.feasible
    np.testing.assert_array_equal(here.policy.log_probabilities, there.policy.log_probabilities)
    np.testing.assert_array_equal(here.multipliers, there.multipliers)
    impossible = cmdp.tightened(1e3)
    assert solve_lp(impossible, stop=lambda: False).feasible is False


def test_a_worker_that_dies_is_a_status(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    cmdp = ck.problems.garnet(states=600, actions=5, constraints=2, gamma=0.95, seed=1)
    solution = solve_lp(cmdp, stop=lambda: False)
    assert solution.feasible is None
    assert "code" in solution.message


def test_the_least_miss_can_be_stopped():
    cmdp = ck.problems.garnet(states=400, actions=4, constraints=2, gamma=0.95, seed=2)
    found = least_miss(cmdp, stop=lambda: True)
    assert found.lower <= least_miss(cmdp).upper <= found.upper


@pytest.mark.parametrize("method", ["auto", "pmd-pd"])
def test_ctrl_c_in_the_middle_of_an_evaluation(method, monkeypatch):
    """The signal arrives while sweeps are made: they end, and the best policy so far is returned."""
    cmdp = ck.problems.garnet(states=2_000, actions=3, constraints=2, gamma=0.99, seed=0)
    plain, pressed = patience.breathe, []

    def press_once():
        if len(pressed) == 20:
            signal.raise_signal(signal.SIGINT)
        pressed.append(1)
        plain()

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("cmdpkit.evaluation.sweeps.breathe", press_once)
    result = ck.solve(cmdp, method)
    assert result.status is ck.Status.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before


def test_callbacks_that_return_one_stop_too():
    result = ck.solve(ck.problems.paper(), "npg-pd", callback=lambda news: int(news.iteration >= 3))
    assert result.status is ck.Status.INTERRUPTED
    assert result.iterations == 3


def test_a_callback_cannot_reach_into_the_proof():
    def spoil(news):
        news.multipliers[:] = 1e9

    for method in ("auto", "columns", "pmd-pd", "npg-pd"):
        result = ck.solve(ck.problems.paper(), method, max_iterations=30, callback=spoil)
        plain = ck.solve(ck.problems.paper(), method, max_iterations=30)
        np.testing.assert_array_equal(result.multipliers, plain.multipliers)
        np.testing.assert_array_equal(result.history["multipliers"], plain.history["multipliers"])
        assert result.certificate.to_dict() == plain.certificate.to_dict()
