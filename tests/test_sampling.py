"""Learning from samples: the estimators by hand, against exact steps, budgets, checkpoints, Theorem 3, refusals."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.experiments.common import random_instance
from cmdpkit.experiments.complexity import small_instance
from cmdpkit.learners.estimators import Meter, Pooled, Rollouts
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.plans import Practical, theorem_3
from cmdpkit.learners.sampled import SampledLearner
from cmdpkit.rules import Weights
from cmdpkit.rules.theory import Theorem3
from cmdpkit.simulators import ModelSimulator, as_simulator
from models import random_model
from test_cli import on_screen, program
from test_simulators import twin


def two_stage():
    """State 0 chooses between costs 1 and 3 and moves to state 1, which stays and costs 2 whatever is done."""
    transitions = np.zeros((2, 2, 2))
    transitions[:, :, 1] = 1.0
    limit = ck.AtMost([[0.5, 0.1], [0.3, 0.3]], 0.7, name="use")
    return ck.CMDP(transitions, cost=[[1.0, 3.0], [2.0, 2.0]], constraints=[limit], gamma=0.5, initial=0)


def rollouts(model, count, horizon, value_count=1_000, seed=0):
    return Rollouts(as_simulator(model), Practical(count, value_count, horizon), Meter(seed))


# -- the estimators of Algorithm 2 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [as_simulator, twin])
def test_action_values_by_hand(wrap):
    """Every rollout of the two-stage model is the same but for state 0's action, so that Q̂ has no noise."""
    estimator = rollouts(wrap(two_stage()), count=3, horizon=4)
    policy = ck.TabularPolicy([[0.25, 0.75], [0.5, 0.5]])
    q = estimator.action_values(policy, np.array([1.0, 2.0]), divergence=np.array([9.0, 0.4]), inner_steps=1)
    # c̃ = c_0 + 2 c_1;  γ + γ² + γ³ = 0.875 steps in state 1, each at 2 + 2·0.3 + 0.4; no divergence in the first step
    later = 0.875 * (2.6 + 0.4)
    np.testing.assert_allclose(q, [[1.0 + 1.0 + later, 3.0 + 0.2 + later], [2.6 + later, 2.6 + later]], rtol=1e-14)
    assert estimator.meter.samples == 3 * 4 * 4  # M_Q · N_Q · |S||A|


@pytest.mark.parametrize("wrap", [as_simulator, twin])
def test_values_by_hand(wrap):
    """The paper's cost c_1 − (1 − γ) limit over N steps, from a policy that never chooses action 1 in state 0."""
    estimator = rollouts(wrap(two_stage()), count=1, horizon=3, value_count=7)
    values = estimator.values(ck.TabularPolicy([[1.0, 0.0], [0.5, 0.5]]))
    spread = 0.5 * 0.7
    expected = (0.5 - spread) + (0.5 + 0.25) * (0.3 - spread)
    np.testing.assert_allclose(values, [1.0 + 0.75 * 2.0, expected], rtol=1e-14)
    assert estimator.meter.samples == 7 * 3


def test_two_inner_steps_by_hand():
    """Algorithm 2's update with t_k = 2 on the two-stage model, written out."""
    cmdp, step, alpha = two_stage(), 0.3, 0.7
    learner = SampledLearner(rollouts(cmdp, 2, 5), ck.TabularPolicy([[0.4, 0.6], [0.5, 0.5]]), step, 2, alpha)
    assert learner.improve(Weights(1.0, np.array([2.0]))) == 2
    anchor = np.log([0.4, 0.6])
    pi = anchor.copy()
    later = (0.5 + 0.25 + 0.125 + 0.0625) * 2.6  # state 1 never changes: no divergence there
    for _ in range(2):
        q = np.array([2.0, 3.2]) + later - alpha * anchor  # c̃ + α log(1/π_k) + the rest
        pi = (1.0 - step * alpha) * pi - step * q
        pi -= np.log(np.exp(pi).sum())
    np.testing.assert_allclose(learner.policy.log_probabilities[0], pi, rtol=1e-12)
    np.testing.assert_allclose(learner.policy.probabilities[1], [0.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("kind", ["truncated", "geometric", "pooled", "user's own"])
def test_many_samples_give_the_exact_step(kind, inner_steps):
    """With many rollouts the learner does what the exact one does, divergence terms included."""
    cmdp = random_instance(5, constraints=2, gamma=0.7)
    start = ck.TabularPolicy(np.random.default_rng(0).dirichlet(np.full(cmdp.actions, 3.0), size=cmdp.states))
    exact = ExactLearner(cmdp, start, step=0.3, inner_steps=inner_steps, alpha=1.5)
    count, tolerance = {"user's own": (200, 0.2), "geometric": (20_000, 0.04)}.get(kind, (6_000, 0.04))
    simulator = twin(cmdp) if kind == "user's own" else ModelSimulator(cmdp)
    if kind == "pooled":
        estimator = Pooled(simulator, 3_000, 100_000, Meter(1))
    else:
        estimator = Rollouts(simulator, Practical(count, count, None if kind == "geometric" else 40), Meter(1))
    learner = SampledLearner(estimator, start, 0.3, inner_steps, 1.5)
    np.testing.assert_allclose(learner.look().values, exact.look().values, atol=tolerance)
    weights = Weights(1.0, np.array([0.5, 0.8]))
    exact.improve(weights)
    learner.improve(weights)
    np.testing.assert_allclose(learner.policy.log_probabilities, exact.policy.log_probabilities, atol=tolerance)
    assert learner.look().objective == pytest.approx(exact.look().objective, abs=tolerance)


def test_a_returned_policy_is_looked_at_again():
    """After a step and back, the view is of the anchor, not of the policy that was left."""
    cmdp = small_instance()
    start = ck.TabularPolicy(np.full((cmdp.states, cmdp.actions), 1.0 / cmdp.actions))
    learner = SampledLearner(rollouts(cmdp, 4_000, 50), start, step=30.0)
    before = learner.look().objective
    learner.improve(Weights(1.0, np.zeros(cmdp.num_rows)))
    moved = learner.look().objective
    learner.improve(Weights(1.0, np.zeros(cmdp.num_rows), 0, anchor="return"))
    after = learner.look().objective
    np.testing.assert_array_equal(learner.policy.log_pi, start.log_pi)
    assert abs(after - before) < 0.2 * abs(moved - before)


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pmd-pd", "npg-pd", "crpo"])
@pytest.mark.parametrize("estimator", ["truncated", "pooled"])
def test_learning_reaches_what_exact_evaluation_reaches(method, estimator):
    cmdp = ck.problems.paper()
    dual = {} if method == "crpo" else {"eta_dual": 1.0}
    exact = ck.solve(cmdp, method, tol=0.0, max_iterations=150, step=1.0, **dual)
    learned = ck.solve(
        cmdp, method, max_iterations=150, step=1.0, sampling=ck.Sampling(estimator=estimator), seed=2, **dual
    )
    mixture = ck.evaluate(cmdp, learned.average_policy)
    average = ck.evaluate(cmdp, exact.average_policy)
    assert mixture.objective == pytest.approx(average.objective, abs=0.02)
    assert mixture.constraint_values[0] == pytest.approx(average.constraint_values[0], abs=0.02)
    assert learned.status is ck.Status.ITERATION_LIMIT
    assert len(learned.average_policy) == learned.iterations == 150
    assert learned.average_policy.policies[-1] is learned.last_policy
    assert learned.certificate.objective == pytest.approx(ck.evaluate(cmdp, learned.policy).objective)
    assert learned.average_certificate.objective == pytest.approx(mixture.objective, abs=1e-9)


def test_every_transition_is_counted():
    """The user's own simulator counts with us."""
    cmdp, seen = two_stage(), []
    simulator = twin(cmdp)
    inner = simulator._step
    simulator._step = lambda s, a, rng: seen.append(s.size) or inner(s, a, rng)
    sampling = ck.Sampling(rollouts=3, value_rollouts=11, horizon=4)
    learner_steps = 2
    fixed = {"steps": "fixed", "inner_steps": learner_steps}
    result = ck.solve(simulator, "pmd-pd", max_iterations=5, sampling=sampling, **fixed)
    expected = 6 * 11 * 4 + 5 * learner_steps * 4 * 3 * 4
    certificates = result.certificate.samples + result.average_certificate.samples
    assert result.samples == expected == result.history["samples"][-1]
    assert sum(seen) == expected + certificates
    assert (np.diff(result.history["samples"]) == 11 * 4 + learner_steps * 4 * 3 * 4).all()
    seen.clear()
    result = ck.solve(simulator, max_iterations=5, sampling=sampling)
    assert result.samples == 6 * (11 * 4 + 4 * 3 * 4) == result.history["samples"][-1]
    assert sum(seen) == result.samples + result.certificate.samples + result.average_certificate.samples
    seen.clear()
    geometric = ck.solve(simulator, "crpo", max_iterations=5, sampling=ck.Sampling(rollouts=3, estimator="geometric"))
    assert sum(seen) == geometric.samples + geometric.certificate.samples + geometric.average_certificate.samples


@pytest.mark.parametrize("estimator", ["truncated", "geometric", "pooled"])
@pytest.mark.parametrize("budget", [0, 1_000, 200_000, 1_000_000])
def test_a_budget_of_transitions_ends_with_a_status(estimator, budget):
    cmdp = ck.problems.paper()
    result = ck.solve(cmdp, "crpo", sampling=ck.Sampling(estimator=estimator), budget=budget, max_iterations=10_000)
    assert result.status is ck.Status.SAMPLE_LIMIT
    assert result.samples <= budget * (1.01 if estimator == "geometric" else 1.0)
    assert result.iterations == len(result.history)
    assert np.isfinite(result.objective)
    if budget >= 200_000:
        assert result.iterations > 0


def test_the_same_seed_gives_the_same_result():
    cmdp = random_instance(3, constraints=2)
    runs = [ck.solve(cmdp, sampling=ck.Sampling(rollouts=5), max_iterations=20, seed=seed) for seed in (4, 4, 5)]
    np.testing.assert_array_equal(runs[0].policy.log_probabilities, runs[1].policy.log_probabilities)
    assert (runs[0].policy.log_probabilities != runs[2].policy.log_probabilities).any()


def test_a_simulator_is_learned_from_and_judged_by_fresh_rollouts():
    cmdp = ck.problems.paper()
    result = ck.solve(twin(cmdp), max_iterations=60, sampling=ck.Sampling(estimator="pooled"), step=5.0, eta_dual=1.0)
    assert result.method == "pmd-pd"
    truth = ck.evaluate(cmdp, result.policy)
    low, high = result.certificate.objective_interval
    assert low <= truth.objective <= high
    assert result.certificate.intervals[0, 0] <= truth.constraint_values[0] <= result.certificate.intervals[0, 1]
    mixture = ck.evaluate(cmdp, result.average_policy)
    low, high = result.average_certificate.objective_interval
    assert low <= mixture.objective <= high
    summary = json.loads(json.dumps(result.to_dict()))
    assert summary["samples"] == result.samples
    assert summary["simulation"]["verdicts"] == result.certificate.verdicts
    text = str(result)
    assert "mixture" in text
    assert f"{result.samples:,} transitions" in text


def test_without_bounds_there_is_no_certificate_and_the_result_says_so():
    cmdp = random_model(1, constraints=1, gamma=0.6)
    simulator = twin(cmdp)
    simulator.bounds = None
    with pytest.raises(ValueError, match="bounds"):
        ck.solve(simulator)
    result = ck.solve(simulator, step=0.5, eta_dual=0.1, max_iterations=5)
    assert result.certificate is None
    assert "no certificate" in result.message
    assert result.objective == result.history["objective"][-1]
    assert "no certificate" in str(result)
    json.dumps(result.to_dict())


def test_a_gymnasium_environment_is_learned():
    """FrozenLake, 4 by 4, with a limit on how often the left column is used."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    lake = ck.from_gymnasium(
        env,
        gamma=0.9,
        quantities=lambda s, a, following, reward: [float(s % 4 == 0)],
        constraints=[ck.AtMost(None, 6.0, name="left column")],
        bounds=[(0.0, 1.0), (0.0, 1.0)],
    )
    sampling = ck.Sampling(rollouts=10, value_rollouts=200, estimator="pooled", certificate_rollouts=300)
    result = ck.solve(lake, sampling=sampling, max_iterations=40, step=20.0, eta_dual=0.01)
    assert result.history["objective"][-1] > 2.0 * result.history["objective"][0]
    assert result.certificate.rollouts == 300


def test_an_impossible_limit_is_proved_impossible_when_the_model_is_known():
    cmdp = ck.problems.paper()
    hard = ck.CMDP(
        np.asarray(cmdp.transitions).reshape(20, 10, 20),
        reward=cmdp.objective,
        constraints=[ck.AtLeast(cmdp.constraints[0].values, 4.9)],
        gamma=0.8,
    )
    result = ck.solve(hard, "pmd-pd", sampling=ck.Sampling(rollouts=2), max_iterations=5)
    assert result.status is ck.Status.INFEASIBLE


def test_a_callback_stops_the_run_and_hears_of_transitions():
    heard = []
    result = ck.solve(
        ck.problems.paper(),
        sampling=ck.Sampling(rollouts=2),
        callback=lambda news: heard.append(news) or news.iteration == 4,
    )
    assert result.status is ck.Status.INTERRUPTED
    assert result.iterations == 4
    assert [news.samples for news in heard] == list(result.history["samples"])
    assert "transitions" in str(heard[-1])


# -- checkpoints -----------------------------------------------------------------------------------------------------

RUN = """
import sys, time, cmdpkit as ck
import cmdpkit.run.checkpoint
cmdpkit.run.checkpoint.SECONDS = 0.0
path, estimator, wait = sys.argv[1], sys.argv[2], float(sys.argv[3])
def tell(news):
    print(news.iteration, flush=True)
    time.sleep(wait)
result = ck.solve(
    ck.problems.paper(), "pmd-pd", sampling=ck.Sampling(rollouts=4, value_rollouts=50, estimator=estimator),
    max_iterations=25, seed=7, checkpoint=path or None, callback=tell,
)
result.average_policy.save(path + ".mixture.npz")
print("done", result.samples, result.history["objective"].tolist(), result.history["multipliers"].tolist(),
      result.history["samples"].tolist(), result.objective, flush=True)
"""


def launch(path, estimator, wait):
    return subprocess.Popen([sys.executable, "-c", RUN, str(path), estimator, str(wait)], stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    "estimator",
    [pytest.param("truncated", marks=pytest.mark.slow), pytest.param("geometric", marks=pytest.mark.slow), "pooled"],
)
def test_a_killed_run_continues_to_the_same_result(estimator, tmp_path):
    """kill -9 in the middle, twice, at moments that depend on nothing but the clock; then let it finish."""
    reference = tmp_path / "whole"
    whole, _ = launch(reference, estimator, 0).communicate(timeout=120)
    path = tmp_path / "killed"
    for after in (3, 11):
        process = launch(path, estimator, 0.02)
        for line in process.stdout:
            if int(line) >= after:  # its own count: the second launch goes on where the first was
                break
        time.sleep(0.013)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert path.exists()
    rest, _ = launch(path, estimator, 0).communicate(timeout=120)
    assert int(rest.split()[0]) > 1  # it did not start anew
    assert rest.splitlines()[-1] == whole.splitlines()[-1]
    one, two = (ck.MixturePolicy.load(f"{p}.mixture.npz") for p in (reference, path))
    assert len(one) == len(two) == 25
    np.testing.assert_array_equal(one.weights, two.weights)
    for mine, theirs in zip(one.policies, two.policies, strict=True):
        np.testing.assert_array_equal(mine.log_probabilities, theirs.log_probabilities)


def test_a_budget_may_be_raised_and_the_run_goes_on(tmp_path):
    cmdp, sampling = ck.problems.paper(), ck.Sampling(rollouts=2)
    path = tmp_path / "run.npz"
    short = ck.solve(cmdp, sampling=sampling, budget=300_000, checkpoint=path, max_iterations=20)
    assert short.status is ck.Status.SAMPLE_LIMIT
    assert 0 < short.iterations < 20
    longer = ck.solve(cmdp, sampling=sampling, checkpoint=path, max_iterations=20)
    once = ck.solve(cmdp, sampling=sampling, max_iterations=20)
    np.testing.assert_array_equal(longer.policy.log_probabilities, once.policy.log_probabilities)
    assert longer.samples == once.samples
    again = ck.solve(cmdp, sampling=sampling, checkpoint=path, max_iterations=20)  # finished: nothing is drawn
    np.testing.assert_array_equal(again.policy.log_probabilities, once.policy.log_probabilities)


def test_another_run_is_not_continued(tmp_path):
    cmdp, path = ck.problems.paper(), tmp_path / "run.npz"
    few = ck.Sampling(rollouts=2)
    ck.solve(cmdp, sampling=few, checkpoint=path, max_iterations=2)
    changes = [
        ({"seed": 1}, "seed"),
        ({"method": "crpo"}, "method"),
        ({"sampling": ck.Sampling(rollouts=3)}, "sampling"),
        ({"step": 0.5}, "rule"),
        ({"inner_steps": 2}, "options"),
    ]
    for change, what in changes:
        with pytest.raises(ValueError, match=f"another run, with {what}"):
            ck.solve(cmdp, **{"sampling": few, "checkpoint": path, **change})
    other = ck.CMDP(np.full((20, 10, 20), 0.05), reward=cmdp.objective, constraints=cmdp.constraints, gamma=0.8)
    with pytest.raises(ValueError, match="another run, with model"):
        ck.solve(other, sampling=few, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a readable cmdpkit file"):
        ck.solve(cmdp, sampling=few, checkpoint=path)
    cmdp.save(path)
    with pytest.raises(ValueError, match="cmdpkit model"):
        ck.solve(cmdp, sampling=few, checkpoint=path)
    with pytest.raises(FileNotFoundError, match="folder"):
        ck.solve(cmdp, sampling=few, checkpoint=tmp_path / "nowhere" / "run.npz")
    with pytest.raises(OSError, match="not writable"):
        ck.solve(cmdp, sampling=few, checkpoint="/proc/run.npz")


def test_a_checkpoint_that_cannot_be_written_does_not_cost_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("cmdpkit.files.write_whole", full)
    with pytest.warns(UserWarning, match="no space left"):
        result = ck.solve(
            ck.problems.paper(), sampling=ck.Sampling(rollouts=2), checkpoint=tmp_path / "run.npz", max_iterations=2
        )
    assert result.iterations == 2


def test_a_failing_simulator_loses_nothing(tmp_path):
    """Once it is mended the run goes on from its last whole step, and ends as if nothing had happened."""
    cmdp = ck.problems.paper()
    simulator, calls = twin(cmdp), []
    inner = simulator._step

    def fails_late(states, actions, rng):
        calls.append(1)
        if len(calls) == 150:
            raise OSError("the licence server is gone")
        return inner(states, actions, rng)

    simulator._step = fails_late
    settings = {"sampling": ck.Sampling(rollouts=2, value_rollouts=20), "max_iterations": 8}
    with pytest.raises(ValueError, match="licence server"):
        ck.solve(simulator, checkpoint=tmp_path / "run.npz", **settings)
    assert (tmp_path / "run.npz").exists()
    resumed = ck.solve(twin(cmdp), checkpoint=tmp_path / "run.npz", **settings)
    once = ck.solve(twin(cmdp), **settings)
    np.testing.assert_array_equal(resumed.policy.log_probabilities, once.policy.log_probabilities)


def test_a_second_ctrl_c_keeps_what_was_learned(monkeypatch):
    """While certificates are drawn, impatience costs the certificates only."""

    def impatient(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cmdpkit.run.judged.certify_by_simulation", impatient)
    result = ck.solve(twin(ck.problems.paper()), sampling=ck.Sampling(rollouts=2), max_iterations=2)
    assert result.certificate is None
    assert "interrupted" in result.message
    assert result.iterations == 2


# -- Theorem 3 -------------------------------------------------------------------------------------------------------


def test_the_constants_of_theorem_3_by_hand():
    """γ = 0.5, m = 1, A = 2, ξ = 1, η′ = 1: every number written out."""
    theorem = Theorem3(gamma=0.5, constraints=1, states=3, actions=2, epsilon=0.1, delta=0.1, xi=1.0)
    alpha = 2.0 / 0.125
    start = alpha * math.log(2.0) / 0.5 + 1.0 + 2.0 / 1.5 + 4.0
    y, q, largest = 2.0 * start, 6.0 / 0.25 + 4.0 / 0.125, 4.0
    inside = start + 2.0 + y + (6.0 + 1.0 + largest)
    bound = 5.0 + math.sqrt(25.0 + 2.0 * inside)
    assert theorem.multiplier_bound == pytest.approx(bound)
    macro_steps = math.ceil((start + y + bound + 7.0) / 0.1)
    assert theorem.macro_steps == macro_steps
    e_v, e_q = 1.0 / macro_steps, y / (macro_steps * q)
    rolls, horizon = theorem.value_rollouts(0.8)
    assert rolls == math.ceil(2.0 * 1.6**2 * math.log(2.0 * 2.0 * (macro_steps + 1) / 0.1) / e_v**2)
    assert 0.5**horizon / 0.5 <= e_v / 2.0 < 0.5 ** (horizon - 1) / 0.5
    rolls, horizon = theorem.action_rollouts(width=1.5, size=1.2, divergence=0.4, inner_steps=5)
    share = 0.1 / (2.0 * macro_steps * 5 * 6)
    assert rolls == math.ceil(2.0 * ((1.5 + 0.2) / 0.5) ** 2 * math.log(2.0 / share) / e_q**2)
    assert 0.5**horizon * 1.6 / 0.5 <= e_q / 2.0 < 0.5 ** (horizon - 1) * 1.6 / 0.5
    # the two promises: what the proof adds up is at most ε
    gap = (start + y + bound + 7.0) / macro_steps
    assert gap <= 0.1
    assert (bound + 1.0) / macro_steps <= 0.1


def test_the_errors_that_theorem_3_allows_are_kept():
    """Hoeffding is for the worst case: on a real instance every estimate is well inside."""
    cmdp = small_instance()
    theorem = theorem_3(as_simulator(cmdp), ck.Sampling(schedule="theory", epsilon=4.0), ck.slater_margin(cmdp))
    count, horizon = theorem.value_rollouts(1.0)
    policy = ck.TabularPolicy.uniform(2, 2)
    truth = ExactLearner(cmdp, policy).look().values
    errors = [rollouts(cmdp, 1, horizon, count, seed).values(policy)[1:] - truth for seed in range(40)]
    assert np.abs(errors).max() <= theorem.value_share / theorem.macro_steps


@pytest.mark.parametrize("seed", range(4))
def test_theorem_3_keeps_its_promise(seed):
    cmdp, epsilon = small_instance(), 3.0
    result = ck.solve(cmdp, sampling=ck.Sampling(schedule="theory", epsilon=epsilon, confidence=0.9), seed=seed)
    theorem = theorem_3(
        as_simulator(cmdp), ck.Sampling(schedule="theory", epsilon=epsilon, confidence=0.9), ck.slater_margin(cmdp)
    )
    assert result.iterations == theorem.macro_steps
    mixture = ck.evaluate(cmdp, result.average_policy)
    assert ck.solve(cmdp).objective - mixture.objective <= epsilon
    assert 0.5 - mixture.constraint_values[0] <= epsilon
    assert np.linalg.norm(result.history["multipliers"], axis=1).max() <= theorem.multiplier_bound
    steps = result.history["inner_steps"]
    before = np.append(0.0, result.history["multipliers"][:-1, 0])
    assert [theorem.schedule.inner_steps(np.array([lam])) for lam in before[1:]] == list(steps[1:])


def test_theorem_3_without_a_future():
    """γ = 0: every rollout is one step, and the paper's own α would be zero."""
    limits = [ck.AtMost([[-1.0, 1.0]], 0.0)]
    cmdp = ck.CMDP(np.ones((1, 2, 1)), cost=[[1.0, -0.5]], constraints=limits, gamma=0.0)
    result = ck.solve(cmdp, sampling=ck.Sampling(schedule="theory", epsilon=1.0, confidence=0.9), seed=1)
    mixture = ck.evaluate(cmdp, result.average_policy)
    assert mixture.objective - ck.solve(cmdp).objective <= 1.0
    assert mixture.constraint_values[0] <= 1.0
    assert set(result.history["inner_steps"]) == {1}
    with pytest.raises(ValueError, match="schedule='theory'"):
        ck.solve(cmdp, sampling=ck.Sampling(schedule="paper", epsilon=1.0))


def test_the_printed_constant_is_an_option_of_sampling():
    theorem = [
        theorem_3(as_simulator(small_instance()), ck.Sampling(schedule=schedule, epsilon=1.0), 0.4).schedule
        for schedule in ("theory", "paper")
    ]
    assert theorem[1].alpha == pytest.approx(0.01 * theorem[0].alpha)


def test_theorem_3_on_a_real_model_stops_at_the_budget():
    result = ck.solve(
        ck.problems.paper(), sampling=ck.Sampling(schedule="theory", epsilon=0.1), budget=10**9, time_limit=20.0
    )
    assert result.status is ck.Status.SAMPLE_LIMIT
    assert result.samples == 0


# -- mixtures --------------------------------------------------------------------------------------------------------


def test_a_mixture_has_the_average_values(tmp_path):
    cmdp = random_model(9, constraints=2, gamma=0.85)
    rng = np.random.default_rng(4)
    policies = [ck.TabularPolicy(rng.dirichlet(np.ones(cmdp.actions), size=cmdp.states)) for _ in range(4)]
    weights = [0.1, 0.2, 0.3, 0.4]
    mixture = ck.MixturePolicy(policies, weights)
    parts = [ck.evaluate(cmdp, policy) for policy in policies]
    whole = ck.evaluate(cmdp, mixture)
    assert whole.objective == pytest.approx(np.dot(weights, [p.objective for p in parts]))
    np.testing.assert_allclose(whole.constraint_values, np.dot(weights, [p.constraint_values for p in parts]))
    proof = ck.certify(cmdp, mixture)
    assert proof.objective == pytest.approx(whole.objective)
    np.testing.assert_allclose(proof.constraint_values, whole.constraint_values)
    mean_table = np.tensordot(weights, [p.probabilities for p in policies], axes=1)
    assert abs(ck.evaluate(cmdp, mean_table).objective - whole.objective) > 1e-6  # not the same policy
    for simulator in (cmdp, twin(cmdp)):
        statistical = ck.certify_by_simulation(simulator, mixture, rollouts=20_000, seed=5)
        low, high = statistical.objective_interval
        assert low <= whole.objective <= high
        assert statistical.objective == pytest.approx(whole.objective, abs=0.25 * (high - low) + 1e-9)
    mixture.save(tmp_path / "m.npz")
    loaded = ck.MixturePolicy.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.weights, mixture.weights)
    for mine, theirs in zip(mixture.policies, loaded.policies, strict=True):
        np.testing.assert_array_equal(mine.log_probabilities, theirs.log_probabilities)
    drawn = [policies.index(mixture.draw(rng)) for _ in range(4_000)]
    np.testing.assert_allclose(np.bincount(drawn) / 4_000, weights, atol=0.03)


def test_bad_mixtures_are_refused(tmp_path):
    one, other = ck.TabularPolicy.uniform(2, 2), ck.TabularPolicy.uniform(3, 2)
    for policies, weights, what in (
        ([], None, "at least one"),
        ([one, other], None, "the same size"),
        ([one, np.ones((2, 2)) / 2], None, "TabularPolicy"),
        ([one], [0.5], "sum to 0.5"),
        ([one], [0.5, 0.5], "as many weights"),
        ([one, one], [1.5, -0.5], "nonnegative"),
        ([one, one], [np.nan, 1.0], "nonnegative"),
    ):
        with pytest.raises(ValueError, match=what):
            ck.MixturePolicy(policies, weights)
    path = tmp_path / "p.npz"
    one.save(path)
    with pytest.raises(ValueError, match="cmdpkit policy"):
        ck.MixturePolicy.load(path)
    from cmdpkit.files import save_arrays

    save_arrays(path, "cmdpkit mixture", {"log_probabilities": np.zeros((1, 2, 2)), "weights": np.ones(1)})
    with pytest.raises(ValueError, match="sum to 2"):
        ck.MixturePolicy.load(path)
    save_arrays(path, "cmdpkit mixture", {"weights": np.ones(1)})
    with pytest.raises(ValueError, match="log_probabilities"):
        ck.MixturePolicy.load(path)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"rollouts": 0}, "rollouts must be at least 1"),
        ({"rollouts": 2.5}, "whole number"),
        ({"value_rollouts": -1}, "value_rollouts"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 5, "estimator": "geometric"}, "has none"),
        ({"estimator": "magic"}, "'truncated', 'geometric', 'pooled'"),
        ({"schedule": "practice"}, "theory"),
        ({"schedule": "theory"}, "epsilon"),
        ({"schedule": "theory", "epsilon": -1.0}, "epsilon"),
        ({"schedule": "theory", "epsilon": 0.1, "estimator": "pooled"}, "truncated"),
        ({"epsilon": 0.1}, "schedule"),
        ({"schedule": "theory", "epsilon": 0.1, "rollouts": 7}, "rollouts itself"),
        ({"confidence": 1.0}, "confidence"),
        ({"schedule": "theory", "epsilon": 0.1, "slater": 0.0}, "slater"),
        ({"certificate_rollouts": 1}, "certificate_rollouts"),
    ],
)
def test_bad_samplings_are_refused(settings, what):
    with pytest.raises((ValueError, TypeError), match=what):
        ck.Sampling(**settings)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"method": "lp", "sampling": ck.Sampling()}, "needs a model"),
        ({"method": "pmd-pd-zero", "sampling": ck.Sampling()}, "needs a model"),
        ({"sampling": 20}, "cmdpkit.Sampling"),
        ({"budget": 100}, "learning from samples"),
        ({"checkpoint": "x.npz"}, "keeps no checkpoint"),
        ({"sampling": ck.Sampling(), "budget": -1}, "budget"),
        ({"sampling": ck.Sampling(), "checkpoint": 3}, "checkpoint"),
        ({"sampling": ck.Sampling(), "schedule": "theory"}, r"Sampling\(schedule"),
        ({"sampling": ck.Sampling(), "nonsense": 1}, "unknown option"),
        ({"method": "crpo", "sampling": ck.Sampling(schedule="theory", epsilon=0.1)}, "Theorem 3"),
        ({"sampling": ck.Sampling(schedule="theory", epsilon=0.1), "step": 1.0, "method": "pmd-pd"}, "Theorem 3 sets"),
        ({"sampling": ck.Sampling(schedule="theory", epsilon=0.1), "initial_multipliers": [5.0]}, "Theorem 3 sets"),
    ],
)
def test_bad_calls_are_refused(settings, what):
    with pytest.raises((ValueError, TypeError), match=what):
        ck.solve(ck.problems.paper(), **settings)


def test_theorem_3_is_refused_where_it_does_not_hold():
    theory = ck.Sampling(schedule="theory", epsilon=0.5)
    with pytest.raises(ValueError, match="slater"):
        ck.solve(twin(small_instance()), sampling=theory)
    free = twin(small_instance())
    free.bounds = None
    with pytest.raises(ValueError, match="bounds"):
        ck.solve(free, sampling=ck.Sampling(schedule="theory", epsilon=0.5, slater=0.4))
    with pytest.raises(ValueError, match="size at most 1"):
        ck.solve(ck.problems.inventory(), sampling=theory)
    unconstrained = ck.CMDP(np.ones((1, 2, 1)), reward=[[0.0, 1.0]], gamma=0.5)
    with pytest.raises(ValueError, match="at least one constraint"):
        ck.solve(unconstrained, sampling=theory)


@pytest.mark.parametrize("method", ["lp", "columns", "npg", "pmd-pd-zero"])
def test_a_simulator_cannot_be_solved_exactly(method):
    with pytest.raises(ValueError, match=r"needs a model|only with: exact|ignores constraints"):
        ck.solve(twin(small_instance()), method)


# -- the command line ------------------------------------------------------------------------------------------------


def test_the_bar_shows_transitions_and_the_time_left():
    code, screen, text = on_screen("solve", "paper", "--sample", "--rollouts", 100, "--max-iterations", 300)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"\d+/300 [\d.]+M transitions, objective \d\.\d+ +[\d:-]+ left", plain)
    assert screen.text.startswith("ITERATION LIMIT")


def test_sampling_on_the_command_line(tmp_path):
    arguments = ("--sample", "--estimator", "pooled", "--rollouts", 5, "--max-iterations", 5, "--seed", 3, "--json")
    run = program("solve", "paper", *arguments, "--checkpoint", tmp_path / "run.npz", "--out", tmp_path / "p.npz")
    assert run.code == 0, run.err
    assert run.json["samples"] == 200 * 5 * 6
    again = program("solve", "paper", *arguments, "--checkpoint", tmp_path / "run.npz")
    assert again.json["objective"] == run.json["objective"]
    spent = program("solve", "paper", "--sample", "--budget", 100_000, "--json")
    assert spent.json["status"] == "sample limit"
    for extra, what in (
        (("--rollouts", 5), "--sample"),
        (("--budget", 5), "--sample"),
        (("--sample", "--rollouts", 0), "at least 1"),
        (("--sample", "--method", "lp"), "needs a model"),
    ):
        refused = program("solve", "paper", *extra)
        assert refused.code == 2
        assert what in refused.err
