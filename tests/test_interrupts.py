"""Time limits and Ctrl-C reach into long computations: mechanisms, not seconds."""

import signal
import sys
from dataclasses import replace

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.evaluation import patience
from cmdpkit.evaluation.factors import band_lu
from cmdpkit.evaluation.patience import Hurry, Stopped, breathe, hurrying, until
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.exact.linprog import solve_lp
from cmdpkit.exact.slater import least_miss
from cmdpkit.run.budget import Budget
from models import coupled

METHODS = ["auto", "columns", "lp", "pmd-pd", "npg-pd", "crpo", "pmd-pd-zero"]


class After:
    """A stop that says yes from the `count`-th question on, and counts them."""

    def __init__(self, count):
        self.count, self.asked = count, 0

    def __call__(self):
        self.asked += 1
        return self.asked >= self.count


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
        with until(After(3)), pytest.raises(Stopped):
            PolicySystem(cmdp, uniform).state_values(cost)
        with until(After(3)), pytest.raises(Stopped):
            PolicySystem(cmdp, uniform).state_occupancy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("questions", [15, 30, 45, 55])
def test_every_method_ends_with_a_status_wherever_it_is_stopped(method, questions, monkeypatch):
    """The clock is replaced by a counter: the time limit is reached at a given question, wherever that is asked."""
    cmdp = ck.problems.garnet(states=400, actions=4, constraints=2, gamma=0.95, seed=2)
    stop = After(questions)
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


def test_a_part_of_a_run_is_interrupted_with_it():
    """Fallbacks and models in even units have budgets of their own; Ctrl-C must reach them."""
    budget = Budget()
    part = replace(budget, watch=None, max_iterations=None)
    assert not part.exhausted()
    with budget.catching_ctrl_c():
        signal.raise_signal(signal.SIGINT)
    assert part.exhausted()
    assert part.spent(0) is ck.Status.INTERRUPTED
    other = replace(Budget(), watch=lambda news: True)
    other.tell(None)
    assert other.interrupted
    assert not Budget().interrupted


@pytest.mark.parametrize("method", ["auto", "pmd-pd"])
def test_ctrl_c_on_a_model_of_extreme_scale(method, monkeypatch):
    plain = ck.problems.garnet(states=2_000, actions=3, constraints=1, gamma=0.99, seed=0)
    cost, limited = (1e-200 * table.reshape(2_000, 3) for table in plain.costs)
    limit = 1e-200 * float(plain.offsets[0])
    cmdp = ck.CMDP(plain.transitions, cost=cost, constraints=[ck.AtMost(limited, limit)], gamma=0.99)
    assert cmdp.is_extreme
    asked = []

    def press_once():
        if len(asked) == 20:
            signal.raise_signal(signal.SIGINT)
        asked.append(1)
        breathe()

    monkeypatch.setattr("cmdpkit.evaluation.sweeps.breathe", press_once)
    assert ck.solve(cmdp, method).status is ck.Status.INTERRUPTED


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


# -- answers after the time is up --------------------------------------------------------------------------------------


@pytest.fixture
def no_grace(monkeypatch):
    monkeypatch.setattr(patience, "GRACE", 0.0)


def test_a_hurry_begins_when_time_is_up_and_ends_with_its_block(no_grace):
    assert not Hurry()()
    with hurrying(lambda: True):
        assert Hurry()()
        assert not Hurry(grace=1e9)()
    with hurrying(lambda: False):
        assert not Hurry()()
    assert not Hurry()()


def swept(late):
    """Sweeps of a random chain to rounding, as an answer needs them: how many there were, and how far they are off."""
    cmdp = ck.problems.garnet(states=2_000, actions=3, gamma=0.99, seed=0)
    uniform = np.full((cmdp.states, cmdp.actions), 1.0 / cmdp.actions)
    cost = np.random.default_rng(0).random(cmdp.states)
    system, counted = PolicySystem(cmdp, uniform), After(10**9)
    with hurrying(late), until(counted):
        values = system.state_values(cost)
    residual = cost + cmdp.gamma * (system.chain @ values) - values
    return counted.asked, float(np.abs(residual).max()), system.plan.method


def test_sweeps_in_a_hurry_end_with_what_they_have(no_grace):
    count, residual, method = swept(lambda: True)
    full, exact, _ = swept(lambda: False)
    assert count == 8 < full  # after sixteen sweeps: every second one is looked at
    assert exact < 1e-10 < residual < 1e-3
    assert method == "sweeps"


def test_a_chain_that_does_not_mix_is_solved_exactly_even_in_a_hurry(no_grace):
    """Its sweeps converge quickly at first only: the answer waits for a factorisation."""
    cmdp = ck.problems.two_queues(capacity=30, gamma=0.999)
    uniform = np.full((cmdp.states, cmdp.actions), 1.0 / cmdp.actions)
    cost = np.random.default_rng(0).random(cmdp.states)
    with hurrying(lambda: True):
        system = PolicySystem(cmdp, uniform)
        values = system.state_values(cost)
    assert system.plan.is_direct
    np.testing.assert_allclose(cost + cmdp.gamma * (system.chain @ values), values, rtol=1e-12)


def test_krylov_cycles_in_a_hurry_end_with_what_they_have(no_grace):
    cmdp = coupled(3_000, 1e-4, gamma=0.999)
    uniform = np.full((cmdp.states, cmdp.actions), 1.0 / cmdp.actions)
    cost = np.random.default_rng(0).random(cmdp.states)
    system, asked = PolicySystem(cmdp, uniform), After(10**9)
    with hurrying(lambda: True), until(asked):
        system.state_values(cost)
    assert system.plan.method == "krylov"
    # thirty sweeps that show no end, the search for a separator, one cycle at most, and thirty more sweeps
    assert asked.asked <= 64


@pytest.mark.parametrize("method", METHODS)
def test_a_certificate_made_in_a_hurry_is_valid(method, no_grace):
    """Without time or grace the values of the policy are inexact: the certificate must contain the true ones."""
    cmdp = ck.problems.garnet(states=2_000, actions=3, constraints=2, gamma=0.99, seed=0)
    result = ck.solve(cmdp, method, time_limit=0.0)
    assert result.status is ck.Status.TIME_LIMIT
    exact = ck.evaluate(cmdp, result.policy)
    proved = result.certificate
    assert 0.0 < proved.accuracy < 1.0
    assert abs(proved.objective - exact.objective) <= proved.accuracy * max(1.0, abs(proved.objective))
    off = np.abs(proved.constraint_values - exact.constraint_values)
    assert (off <= proved.accuracy * np.maximum(1.0, np.abs(cmdp.limits))).all()
    excess = cmdp.signs * (exact.constraint_values - cmdp.limits) / np.maximum(1.0, np.abs(cmdp.limits))
    assert proved.violation >= excess.max() - 1e-12
    optimum = ck.solve(cmdp).objective
    assert proved.bound >= optimum - 1e-6  # a reward: the bound is from above


def test_no_factorisation_begins_when_time_is_up(monkeypatch):
    cmdp = ck.problems.two_queues(capacity=30, gamma=0.999)
    for method in ("sparse", "band"):
        monkeypatch.setattr(f"cmdpkit.evaluation.system.{method}_lu", lambda *_: pytest.fail("a factorisation"))
        system = PolicySystem(cmdp, choice=np.zeros(cmdp.states, dtype=int), plan=Plan(method))
        with until(lambda: True), pytest.raises(Stopped):
            system.state_occupancy()


@pytest.mark.parametrize("questions", [15, 30, 45, 55])
def test_an_answer_takes_one_factorisation_after_the_time_is_up(questions, monkeypatch):
    """The visits of the columns are kept, so that only the certificate needs a factorisation."""
    cmdp = ck.problems.two_queues(capacity=30, gamma=0.999)
    stop, late = After(questions), []
    monkeypatch.setattr(Budget, "exhausted", lambda self: stop())

    def counted(*arguments):
        late.append(stop.asked >= questions)
        return band_lu(*arguments)

    monkeypatch.setattr("cmdpkit.evaluation.system.band_lu", counted)
    result = ck.solve(cmdp, "columns", time_limit=1e9)
    assert result.status is ck.Status.TIME_LIMIT
    assert not all(late)
    assert sum(late) <= 1


def test_the_certificates_of_a_sampled_run_end_when_its_time_is_up(monkeypatch):
    monkeypatch.setattr("cmdpkit.run.judged.GRACE", 0.0)
    cmdp = ck.problems.garnet(states=400, actions=4, constraints=2, gamma=0.95, seed=2)
    draws = ck.Sampling(rollouts=1, value_rollouts=4, horizon=10)
    result = ck.solve(cmdp, sampling=draws, callback=lambda news: news.iteration >= 2)
    assert result.status is ck.Status.INTERRUPTED
    assert result.iterations == 2
    assert result.certificate.bound == np.inf  # of a reward
    assert result.average_certificate is None
    assert "no bound on the optimum" in result.message
    np.testing.assert_allclose(result.objective, ck.evaluate(cmdp, result.policy).objective, rtol=1e-6)
    monkeypatch.setattr("cmdpkit.run.judged.GRACE", 1e9)
    again = ck.solve(cmdp, sampling=draws, callback=lambda news: news.iteration >= 2)
    assert np.isfinite(again.certificate.bound)
    assert again.average_certificate is not None
