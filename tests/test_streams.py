"""Random streams: whatever is drawn in a run and in the certificates of its result, no stream is used twice."""

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.certificates import rollouts as judging
from cmdpkit.learners import estimators
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.rules import Weights
from cmdpkit.simulators import JUDGING, LEARNING, STARTS, known_model, simulator


@pytest.fixture
def streams(monkeypatch):
    """Every seed of a stream that is opened, with small parts and blocks so that there are many of them."""
    opened = []

    def stream(seed):
        opened.append(tuple(int(number) for number in seed))
        return np.random.SeedSequence(seed[0], spawn_key=tuple(seed[1:]))

    for module in (simulator, known_model, estimators, judging):
        monkeypatch.setattr(module, "stream", stream)
    monkeypatch.setattr(estimators, "PART", {True: 40.0, False: 40.0})
    monkeypatch.setattr(simulator, "BLOCK", 8)
    return opened


def users_own(bounds):
    def step(states, actions, rng):
        return rng.integers(2, size=states.size), np.stack([rng.random(states.size), 1.0 * actions])

    return ck.Simulator(
        step,
        lambda n, rng: rng.integers(2, size=n),
        states=2,
        actions=2,
        gamma=0.5,
        constraints=[ck.AtMost(None, 1.0)],
        bounds=bounds,
    )


@pytest.mark.parametrize("estimator", ["truncated", "geometric", "pooled"])
@pytest.mark.parametrize("kind", ["compiled", "user's own"])
def test_no_stream_is_used_twice(kind, estimator, streams):
    model = (
        ck.problems.garnet(states=6, actions=2, constraints=1, seed=1) if kind == "compiled" else users_own(bounds=None)
    )
    sampling = ck.Sampling(rollouts=30, value_rollouts=60, estimator=estimator)
    ck.solve(model, "pmd-pd", sampling=sampling, max_iterations=3, step=1.0, eta_dual=0.1, inner_steps=2, seed=7)
    learned = len(streams)
    assert learned > 20
    policies = [ck.TabularPolicy.uniform(model.states, model.actions)] * 2
    judged = model if kind == "compiled" else users_own(bounds=[(0.0, 1.0), (0.0, 1.0)])
    ck.certify_by_simulation(
        judged, ck.MixturePolicy(policies), rollouts=20, until_decided=True, max_rollouts=100, seed=7
    )
    assert len(streams) > learned + 2
    assert len(set(streams)) == len(streams)


def test_purposes_are_told_apart():
    assert len({LEARNING, JUDGING, STARTS}) == 3


class Coin(gymnasium.Env):
    """Ten steps; action 1 earns 1 and costs 1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    seeds: list = []  # noqa: RUF012 - of all resets, in order

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.seeds.append(seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), float(action), self.time == 10, False, {"cost": float(action)}


def test_no_generator_of_a_training_run_or_its_certificate_is_made_twice(monkeypatch):
    made, make = [], np.random.default_rng

    def default_rng(seed=None):
        if isinstance(seed, list):
            made.append(tuple(seed))
        return make(seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)
    Coin.seeds.clear()
    learner = NeuralLearner(Coin, [4.0], seed=7, num_envs=3, steps=10, hidden=[4])
    for _ in range(3):
        learner.improve(Weights(1.0, np.zeros(1)))
    learner.look()
    trained = len(Coin.seeds)
    assert trained == 4 * 3  # three rollouts and the one that `look` drew, of three environments each
    ck.certify_on_episodes(Coin, learner.policy, [4.0], episodes=9, steps=10, num_envs=3, seed=7)
    assert len(made) == len(set(made)) == 1 + 4 + 3 + 3  # the start, rollouts, regressions, batches of episodes
    # The seeds of the environments follow from them, and differ as well
    assert len(Coin.seeds) == len(set(Coin.seeds)) == trained + 9
