"""Environments that persist across iterations: sums of whole episodes, and runs that are resumed bit for bit."""

import gymnasium
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.learners.neural import stream
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.neural.policy import Actions, NeuralPolicy
from cmdpkit.rules import Weights


class Walk(gymnasium.Env):
    """25 steps that show their place and time; action 1 earns 1 and goes up by a random amount, which is the cost."""

    observation_space = gymnasium.spaces.Box(-99.0, 99.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    length = 25

    def seen(self):
        return np.array([self.place, 0.1 * self.time], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(), 0
        return self.seen(), {}

    def step(self, action):
        up = self.np_random.random() if action else 0.0
        self.place, self.time = self.place + up, self.time + 1
        return self.seen(), float(action), False, self.time == self.length, {"cost": up}


class Careless(Walk):
    """Does not follow its seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


OPTIONS = {"steps": 10, "num_envs": 3, "hidden": [4], "persist": True}
ALWAYS = NeuralPolicy([(np.zeros((2, 2)), [0.0, 50.0])], Actions(True, 0, 1))


def rolled(number, discount=1.0):
    """A stream after `number` rollouts of 10 steps, and all costs of them, (steps, 3)."""
    flow = stream.Stream(ck.envs.as_batch(Walk, 3), 1, 0, discount)
    costs = []
    for k in range(number):
        rollout = flow.roll(ALWAYS, 10, k)
        costs.append(rollout.quantities[..., 1])
        if k < number - 1:
            flow.proceed(rollout)
    return flow, rollout, np.concatenate(costs)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_sums_are_those_of_whole_episodes(discount):
    """Episodes of 25 steps end in the third and the fifth rollout of 10."""
    weight = discount ** np.arange(25)
    flow, rollout, costs = rolled(3, discount)
    mean, error, length = flow.estimate(rollout)
    sums = weight @ costs[:25]
    assert mean[1] == pytest.approx(sums.mean())
    assert mean[0] == pytest.approx(-weight.sum())
    assert error[1] == pytest.approx(sums.std(ddof=1) / np.sqrt(3.0))
    assert length == pytest.approx(weight.sum())
    # In the fourth none ends: the last three still count. In the fifth the next three do.
    flow, rollout, _ = rolled(4, discount)
    assert flow.estimate(rollout).mean[1] == pytest.approx(sums.mean())
    flow, rollout, costs = rolled(5, discount)
    assert flow.estimate(rollout).mean[1] == pytest.approx((weight @ costs[25:50]).mean())
    # And before any has ended, what there is
    flow, rollout, costs = rolled(2, discount)
    assert flow.estimate(rollout).mean[1] == pytest.approx((weight[:20] @ costs).mean())


def test_environments_go_on_and_are_reset_at_marks(monkeypatch):
    monkeypatch.setattr(stream, "MARK", 3)
    flow = stream.Stream(ck.envs.as_batch(Walk, 3), 1, 0, 1.0)
    times = []
    for k in range(7):
        rollout = flow.roll(ALWAYS, 10, k)
        times.append(round(10.0 * float(rollout.seen[0, 0, 1])))
        flow.proceed(rollout)
    assert times == [0, 10, 20, 0, 10, 20, 0]


@pytest.mark.parametrize("mark", [50, 2])
@pytest.mark.parametrize("measure", ["episode", "step"])
def test_a_restored_learner_goes_on_bit_for_bit(monkeypatch, mark, measure):
    monkeypatch.setattr(stream, "MARK", mark)
    weights = Weights(0.0, np.ones(1))

    def gone(learner, iterations):
        values = []
        for _ in range(iterations):
            learner.improve(weights)
            values.append(learner.look().values)  # as the loop does: the next rollout is drawn before a state is taken
        return values

    straight = NeuralLearner(Walk, [5.0], measure, seed=3, **OPTIONS)
    expected = gone(straight, 6)
    first = NeuralLearner(Walk, [5.0], measure, seed=3, **OPTIONS)
    gone(first, 3)
    state = first.state()
    gone(first, 1)  # going on does not reach into a state that was taken
    second = NeuralLearner(Walk, [5.0], measure, seed=3, **OPTIONS)
    second.restore(state)
    np.testing.assert_array_equal(gone(second, 3), expected[3:])
    for name, value in straight.state().items():
        np.testing.assert_array_equal(second.state()[name], value, err_msg=name)
    first.restore(state)  # in the same process, as after a failure
    np.testing.assert_array_equal(gone(first, 3), expected[3:])


def test_runs_are_resumed_from_their_folder(tmp_path):
    whole = ck.train(Walk, limits=[5.0], iterations=7, **OPTIONS)
    ck.train(Walk, limits=[5.0], iterations=4, out=tmp_path / "run", **OPTIONS)
    rest = ck.train(Walk, limits=[5.0], iterations=7, out=tmp_path / "run", **OPTIONS)
    for column in ("objective", "constraint_values", "multipliers", "divergence"):
        np.testing.assert_array_equal(rest.history[column], whole.history[column])
    for (w, b), (w2, b2) in zip(rest.policy.layers, whole.policy.layers, strict=True):
        np.testing.assert_array_equal(w, w2)
        np.testing.assert_array_equal(b, b2)


def test_environments_that_do_not_repeat_themselves_are_refused():
    learner = NeuralLearner(Careless, [5.0], **OPTIONS)
    for _ in range(2):
        learner.improve(Weights(1.0, np.zeros(1)))
    other = NeuralLearner(Careless, [5.0], **OPTIONS)
    other.restore(learner.state())
    with pytest.raises(ValueError, match="did not repeat"):
        other.look()


def test_short_rollouts_hold_a_limit():
    """25 steps, each of which may cost ½ on average: at most 5 of 12½, learned from rollouts of 10 steps."""
    result = ck.train(Walk, limits=[5.0], iterations=60, num_envs=20, steps=10, hidden=[8], persist=True)
    assert result.recent(20)[1][0] == pytest.approx(5.0, abs=1.0)
