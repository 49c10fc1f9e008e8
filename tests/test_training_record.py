"""The record of a training run: every iteration is told and remembered, and results are those of the environment."""

import json

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.learners.neural.learner import NeuralLearner, Update
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules import PMDPD, Weights
from cmdpkit.run.budget import Budget
from cmdpkit.run.training_recorder import TrainingRecorder
from test_run import PROBLEM


class Two(gymnasium.Env):
    """Five steps; action 1 earns 2 and costs 1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 2.0 * action, self.time == 5, False, {"cost": float(action)}


SMALL = {"steps": 5, "num_envs": 40, "hidden": [4]}


def test_a_training_result_by_hand(tmp_path):
    """About 2.5 of 5 actions cost: a limit of 1 is violated by about 1.5, one of 4 is not."""
    strict, loose = (ck.train(Two, limits=[limit], iterations=4, radius=1e-3, **SMALL) for limit in (1.0, 4.0))
    assert strict.violations[0] == pytest.approx(strict.constraint_values[0] - 1.0)
    assert strict.violations[0] == pytest.approx(1.5, abs=0.4)
    assert loose.violations[0] == 0.0
    for result in (strict, loose):
        assert result.samples == 4 * 40 * 5
        assert result.objective == pytest.approx(2.0 * result.constraint_values[0])
        np.testing.assert_array_equal(result.history["multipliers"][0], [0.0])


class Late(Two):
    """Shows the time, and charges the last two steps only: reward and cost ask for different policies."""

    def step(self, action):
        _, reward, ended, cut, _ = super().step(action)
        return np.full(1, 0.2 * self.time, np.float32), reward, ended, cut, {"cost": float(action and self.time > 3)}


def test_training_begins_without_multipliers():
    """λ₀ = 0 as in the paper's experiment, also where a limit is slack and the rule would begin with −η′V."""
    result = ck.train(Late, limits=[4.0], iterations=3, eta_dual=0.5, inner_steps=1, seed=2, **SMALL)
    learner, rule = NeuralLearner(Late, [4.0], seed=2, **SMALL), PMDPD(0.5)
    own = rule.start(learner.look())
    assert own.multipliers[0] > 0.1
    for _ in zip(range(3), primal_dual(learner, rule, own._replace(multipliers=np.zeros(1))), strict=False):
        pass
    for (weight, bias), (our_weight, our_bias) in zip(learner.policy.layers, result.policy.layers, strict=True):
        np.testing.assert_array_equal(our_weight, weight)
        np.testing.assert_array_equal(our_bias, bias)


class Rolled:
    """What the record needs of a learner: three iterations in its last macro step."""

    steps, limits, problem = 10, np.zeros(3), PROBLEM

    class envs:
        num_envs = 4

    def __init__(self):
        v, fit = np.array([2.0, 0.1, -1.0]), np.zeros(4)
        verdicts = ("accepted", "no gradient", "line search failed")
        self.updates = [Update(i, -7.0, v, 0.1 * i, 0.0, 1, w, fit, 0.0) for i, w in enumerate(verdicts, start=4)]

    def widened(self, values):
        return values


def test_a_record_of_training_tells_every_iteration():
    recorder = TrainingRecorder(Rolled(), Budget())
    for lam in (0.5, 0.75):
        recorder.add(Iterate(1, 0.0, np.zeros(3), np.full(3, lam), Weights(1.0, np.zeros(3)), 3, None), 0.0)
    news = recorder.news()
    assert [n.iteration for n in news] == [4, 5, 6]
    assert [n.verdict for n in news] == ["accepted", "no gradient", "line search failed"]
    assert [n.samples for n in news] == [4 * 40, 5 * 40, 6 * 40]
    # rows show the multipliers with which the policy was improved, not those that followed
    np.testing.assert_array_equal(recorder.history()["multipliers"][:, 0], [0.0] * 3 + [0.5] * 3)
    np.testing.assert_array_equal(recorder.multipliers, [0.75] * 3)
    again = TrainingRecorder(Rolled(), Budget())
    again.restore(json.loads(json.dumps({n: np.asarray(v).tolist() for n, v in recorder.state().items()})))
    again.rows[:] = recorder.rows
    for column in recorder.history().columns:
        np.testing.assert_array_equal(again.history()[column], recorder.history()[column], err_msg=column)
    np.testing.assert_array_equal(again.multipliers, recorder.multipliers)
