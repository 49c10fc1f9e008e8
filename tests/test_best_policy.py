"""The best policy within the limits, the most likely actions, and safety margins."""

import json

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.neural.policy import Actions, NeuralPolicy
from cmdpkit.rules import Weights
from cmdpkit.run.training_folder import load_run
from test_cli import program
from test_training import ACROBOT, COIN, SMALL, Coin

TINY = {"steps": 10, "num_envs": 4, "hidden": [4]}


def test_the_best_is_within_the_limits_and_earns_the_most_errors_counted():
    learner = NeuralLearner(Coin, [5.0], **TINY)

    def told(reward, cost, reward_error=0.0, cost_error=0.0):
        learner.iteration += 1
        learner._remember(np.array([-reward, cost]), np.array([reward_error, cost_error]))
        return None if learner.best is None else learner.best.evidence["objective"]

    assert told(9.0, 5.1) is None  # over the limit
    assert told(9.0, 4.9, cost_error=0.2) is None  # not surely within
    assert told(3.0, 4.9, cost_error=0.1) == 3.0
    assert told(2.9, 1.0) == 3.0
    assert told(4.0, 4.0, reward_error=1.0) == 3.0  # 4 − 1 is no more than 3
    assert told(4.0, 4.0, reward_error=0.5) == 4.0
    assert told(3.6, 4.0, reward_error=0.05) == 3.6  # surely more than 3.5
    assert learner.best.evidence == {
        "iteration": 8,
        "objective": 3.6,
        "objective_error": 0.05,
        "constraint_values": [4.0],
        "errors": [0.0],
    }


def test_the_best_policy_is_the_one_of_its_iteration():
    """Also when observations are normalised: with the moments of that time, not of the end."""
    learner = NeuralLearner(Coin, [20.0], **TINY)  # every policy is within
    seen = np.array([[1.0, 0.0], [0.3, 0.7]])
    outputs = []
    for _ in range(4):
        outputs.append(learner.policy.outputs(learner.policy.inputs(seen)))
        learner.improve(Weights(-1.0, np.zeros(1)))  # gets worse
    best = learner.best
    assert best is not None
    at = best.evidence["iteration"] - 1
    assert at < 3
    policy = learner.best_policy
    np.testing.assert_array_equal(policy.outputs(policy.inputs(seen)), outputs[at])
    again = NeuralLearner(Coin, [20.0], **TINY)
    state = learner.state()
    again.restore(state | {"best_evidence": json.loads(json.dumps(state["best_evidence"]))})
    assert again.best.evidence == best.evidence
    np.testing.assert_array_equal(again.best_policy.outputs(again.best_policy.inputs(seen)), outputs[at])


def test_a_run_returns_its_best_policy_and_keeps_it(tmp_path):
    result = ck.train(ACROBOT, limits=[40, 40], iterations=3, out=tmp_path / "run", **SMALL)
    assert result.best["iteration"] in (1, 2, 3)
    row = result.best["iteration"] - 1
    assert result.best["objective"] == pytest.approx(result.history["objective"][row])
    np.testing.assert_allclose(result.best["constraint_values"], result.history["constraint_values"][row])
    assert "best policy within the limits" in str(result)
    observation = np.array([1, 0, 1, 0, 0.5, -0.5])
    expected = result.best_policy.outputs(result.best_policy.inputs(observation))
    result.save(tmp_path / "result.npz")
    for kept in (ck.TrainingResult.load(tmp_path / "result.npz"), load_run(tmp_path / "run")):
        assert kept.best == result.best
        np.testing.assert_array_equal(kept.best_policy.outputs(kept.best_policy.inputs(observation)), expected)
    more = ck.train(ACROBOT, limits=[40, 40], iterations=5, out=tmp_path / "run", **SMALL)
    straight = ck.train(ACROBOT, limits=[40, 40], iterations=5, **SMALL)
    assert more.best == straight.best
    hopeless = ck.train(ACROBOT, limits=[-1, 40], iterations=1, **SMALL)
    assert hopeless.best is hopeless.best_policy is None


# -- the most likely actions -------------------------------------------------------------------------------------------

LEANING = NeuralPolicy([(np.zeros((2, 2)), [0.0, 0.5])], Actions(True, 0, 1))  # action 1 with 62 %


def test_acting_with_the_most_likely_actions():
    rng, seen = np.random.default_rng(0), np.zeros((200, 2))
    assert LEANING.act(seen).all()
    assert LEANING.act(seen, rng, deterministic=True).all()
    drawn = LEANING.act(seen, rng, deterministic=False)
    assert 0.5 < drawn.mean() < 0.75
    with pytest.raises(ValueError, match="pass rng"):
        LEANING.act(seen, deterministic=False)
    normal = NeuralPolicy([(np.zeros((1, 2)), [0.3])], Actions(False, np.array([-1.0]), np.array([1.0])), [0.0])
    assert normal.act(np.zeros(2), rng, deterministic=True) == pytest.approx(0.3)


def test_certificates_say_which_actions_they_judge():
    settings = {"episodes": 200, "steps": 10, "bounds": [(0, 1), (0, 1)]}
    drawn = ck.certify_on_episodes(Coin, LEANING, [8.0], **settings)
    likeliest = ck.certify_on_episodes(Coin, LEANING, [8.0], deterministic=True, **settings)
    assert drawn.constraint_values[0] == pytest.approx(10 / (1 + np.exp(-0.5)), abs=0.4)
    assert (drawn.verdicts, drawn.deterministic) == (["satisfied"], False)
    assert likeliest.constraint_values[0] == 10.0
    assert (likeliest.verdicts, likeliest.deterministic) == (["violated"], True)
    assert likeliest.to_dict()["deterministic"] is True


def test_best_and_likeliest_on_the_command_line(tmp_path):
    flags = ("--limit", 41, "--limit", 41, "--steps", 40, "--num-envs", 4, "--iterations", 2, "--out", tmp_path / "run")
    assert program("train", ACROBOT, *flags).code == 0
    run = program("evaluate", tmp_path / "run", "--best", "--deterministic", "--episodes", 20)
    assert run.code == 0, run.err
    assert "most likely actions" in " ".join(run.out.split())
    run = program("evaluate", tmp_path / "run", "--episodes", 20)
    assert "actions drawn from the policy" in " ".join(run.out.split())
    (tmp_path / "run" / "best_policy.npz").unlink()
    refused = program("evaluate", tmp_path / "run", "--best")
    assert refused.code == 2
    assert "has no best policy" in refused.err


# -- margins -----------------------------------------------------------------------------------------------------------


def test_a_margin_moves_the_aim_and_not_the_limit():
    result = ck.train(Coin, limits=[6.0], margin=2.0, iterations=80, **COIN)
    _, costs = result.recent(30)
    assert costs[0] == pytest.approx(4.0, abs=0.3)
    assert result.limits[0] == 6.0
    assert result.violations[0] == 0.0
    learner = NeuralLearner(Coin, [6.0], margin=[2.0], **TINY)
    plain = NeuralLearner(Coin, [6.0], **TINY)
    assert learner.look().values[0] == plain.look().values[0] + 2.0
    learner.improve(Weights(1.0, np.zeros(1)))
    plain.improve(Weights(1.0, np.zeros(1)))
    np.testing.assert_allclose(learner.updates[0].values, plain.updates[0].values)


def test_bad_margins_are_refused():
    for wrong in (-1.0, [1.0, 2.0], "wide"):
        with pytest.raises((ValueError, TypeError), match="margin"):
            ck.train(Coin, limits=[6.0], margin=wrong, **COIN)
