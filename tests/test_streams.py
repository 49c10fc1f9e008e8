"""Random streams: whatever is drawn in a run and in the certificates of its result, no stream is used twice."""

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.certificates import rollouts as judging
from cmdpkit.learners import estimators
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
    monkeypatch.setattr(simulator, "BLOCK", 40)
    monkeypatch.setattr(known_model.ModelSimulator, "block", 40)
    monkeypatch.setattr(estimators, "STEPS", 40)
    monkeypatch.setattr(simulator, "TOGETHER", 8)
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
