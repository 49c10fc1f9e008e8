"""Environments in other processes: the same numbers for any number of them, errors that are told, and clean ends."""

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.envs.scattered import Scattered
from cmdpkit.learners.neural.learner import NeuralLearner

SMALL = {"iterations": 3, "steps": 25, "hidden": [8], "num_envs": 5, "critic_epochs": 1}


class Coins(gymnasium.Env):
    """Random rewards; fails at a given age."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fails_at=None, lethal=False):
        self.fails_at, self.lethal = fails_at, lethal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.age += 1
        if self.age == self.fails_at:
            if self.lethal:
                import os

                os._exit(7)
            raise ZeroDivisionError("the coin is gone")
        observation = self.np_random.normal(size=2).astype(np.float32)
        info = {"cost": float(action)}
        return observation, float(observation[0] * action), bool(self.np_random.random() < 0.05), self.age == 30, info


@pytest.mark.parametrize("persist", [False, True])
def test_numbers_do_not_depend_on_the_workers(persist):
    """A lambda, which could not be imported there, and five environments on 1 and 3 processes."""
    runs = [ck.train(lambda: Coins(), limits=[5.0], workers=workers, persist=persist, **SMALL) for workers in (None, 3)]
    for run in runs[1:]:
        for name in ("objective", "constraint_values", "multipliers", "divergence"):
            np.testing.assert_array_equal(run.history[name], runs[0].history[name])


@pytest.mark.slow
def test_a_run_continues_with_other_workers(tmp_path):
    whole = ck.train(Coins, limits=[5.0], persist=True, **SMALL | {"iterations": 4})
    for workers, iterations in ((2, 2), (None, 3), (3, 4)):
        settings = SMALL | {"iterations": iterations}
        last = ck.train(Coins, limits=[5.0], persist=True, out=tmp_path, workers=workers, **settings)
    np.testing.assert_array_equal(last.history["objective"], whole.history["objective"])


@pytest.mark.parametrize(
    ("lethal", "what"), [(False, "the coin is gone"), (True, "the process of environments 0 to 1")]
)
def test_what_fails_there_is_told_here(lethal, what):
    with pytest.raises(RuntimeError, match=what):
        ck.train(lambda: Coins(7, lethal), limits=[5.0], workers=2, **SMALL | {"num_envs": 4})


def test_processes_end_with_the_learner():
    learner = NeuralLearner(Coins, [5.0], steps=5, hidden=[4], workers=2)
    assert isinstance(learner.envs, Scattered)
    started = learner.envs._crew._started
    learner.rollout()
    assert [process.poll() for process in started] == [None, None]
    del learner
    assert [process.poll() for process in started] == [0, 0]


def test_workers_are_refused_before_any_work():
    with pytest.raises(ValueError, match="workers must be at least 1"):
        ck.train(Coins, limits=[5.0], workers=0)
    envs = gymnasium.vector.SyncVectorEnv([Coins] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="cannot be divided among workers"):
        ck.train(envs, limits=[5.0], workers=2)
