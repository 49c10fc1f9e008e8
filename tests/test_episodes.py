"""Certificates on episodes by hand: every reward and cost is written down, and the intervals computed from it."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from scipy.stats import t as student

import cmdpkit as ck
from cmdpkit.learners.neural.policy import Actions

BOUNDS = [(-1.0, 2.0), (0.5, 3.0)]
STEPS, GAMMA, EPISODES = 6, 0.8, 25
LOW, HIGH = np.array(BOUNDS).T


class Dice(gymnasium.Env):
    """Reward and cost are uniform within BOUNDS, and an episode ends with probability 0.1 after every step.

    `log` has an entry of (reward, cost) pairs for the first episode after every reset with a seed: what is judged.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    log: list = []  # noqa: RUF012
    every: list = []  # noqa: RUF012 - the same with all steps of a rollout, also of later episodes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.mine, self.all = [], []
            self.log.append(self.mine)
            self.every.append(self.all)
        else:
            self.mine = []  # a later episode: not judged
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward, cost = self.np_random.uniform(LOW, HIGH)
        self.mine.append((reward, cost))
        self.all.append((reward, cost))
        return np.zeros(1, np.float32), reward, bool(self.np_random.random() < 0.1), False, {"cost": cost}


@pytest.fixture(autouse=True)
def _fresh():
    Dice.log.clear()
    Dice.every.clear()


POLICY = ck.NeuralPolicy([(np.zeros((2, 1)), np.zeros(2))], Actions(True, 0, 1))


def certify(limit=5.0, **settings):
    given = {"episodes": EPISODES, "steps": STEPS, "gamma": GAMMA, "num_envs": 10, "confidence": 0.9, "seed": 2}
    return ck.certify_on_episodes(Dice, POLICY, [limit], **given | settings)


def samples(measure):
    """(episodes, 2) of reward and cost, in the order in which they were drawn; of three batches the first 25."""
    if measure == "step":
        return np.array([np.mean(steps, axis=0) for steps in Dice.every])[:EPISODES]
    discount = GAMMA if measure == "discounted" else 1.0
    return np.array([discount ** np.arange(len(steps)) @ np.array(steps) for steps in Dice.log])[:EPISODES]


def half_widths(measure, table, bounds):
    share = 0.1 / 2  # of δ for each of the two quantities
    variance = table.var(axis=0, ddof=1)
    if bounds is None:
        return student.ppf(1.0 - share / 2.0, EPISODES - 1) * np.sqrt(variance / EPISODES)
    # An episode may end early, and later steps count 0: a sum over at most T steps can be 0 too
    span = np.maximum(HIGH, 0.0) - np.minimum(LOW, 0.0)
    length = {"episode": STEPS, "discounted": (1.0 - GAMMA**STEPS) / (1.0 - GAMMA)}.get(measure)
    width = HIGH - LOW if measure == "step" else span * length
    log = np.log(4.0 / share)
    return np.sqrt(2.0 * variance * log / EPISODES) + 7.0 * width * log / (3.0 * (EPISODES - 1))


@pytest.mark.parametrize("bounds", [None, BOUNDS])
@pytest.mark.parametrize("measure", ["episode", "discounted", "step"])
def test_intervals_by_hand(measure, bounds):
    proof = certify(measure=measure, bounds=bounds)
    table = samples(measure)
    assert len(Dice.log) == 30  # three batches of ten
    assert min(map(len, Dice.log)) < STEPS <= max(map(len, Dice.log))  # some episodes ended early
    assert proof.samples == 3 * 10 * STEPS
    mean, width = table.mean(axis=0), half_widths(measure, table, bounds)
    tail = GAMMA**STEPS / (1.0 - GAMMA) if measure == "discounted" and bounds else 0.0
    lower = mean - width + tail * np.minimum(LOW, 0.0)
    upper = mean + width + tail * np.maximum(HIGH, 0.0)
    if bounds:  # intervals do not leave what is possible
        length = {"episode": STEPS, "discounted": 1.0 / (1.0 - GAMMA)}.get(measure)
        least = LOW if measure == "step" else np.minimum(LOW, 0.0) * length
        most = HIGH if measure == "step" else np.maximum(HIGH, 0.0) * length
        lower, upper = np.maximum(lower, least), np.minimum(upper, most)
    assert proof.objective == pytest.approx(mean[0], rel=1e-12)
    np.testing.assert_allclose(proof.objective_interval, [lower[0], upper[0]], rtol=1e-9)
    np.testing.assert_allclose(proof.intervals[0], [lower[1], upper[1]], rtol=1e-9)
    assert proof.rollouts == EPISODES
    # Verdicts change at the ends of the interval
    tiny = 1e-6
    expected = {upper[1] + tiny: "satisfied", upper[1] - tiny: "undecided", lower[1] - tiny: "violated"}
    for limit, verdict in expected.items():
        assert certify(limit, measure=measure, bounds=bounds).verdicts == [verdict]


def test_no_two_batches_are_the_same():
    certify()
    firsts = [tuple(Dice.log[batch * 10][0]) for batch in range(3)]
    assert len(set(firsts)) == 3


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        ([(-1.0, 1.9), (0.5, 3.0)], "the reward left its bounds"),
        ([(-0.9, 2.0), (0.5, 3.0)], "the reward left its bounds"),
        ([(-1.0, 2.0), (0.5, 2.9)], "cost 1 left its bounds"),
        ([(-1.0, 2.0), (0.6, 3.0)], "cost 1 left its bounds"),
    ],
)
def test_what_leaves_its_bounds_is_refused(bounds, what):
    with pytest.raises(ValueError, match=what):
        certify(bounds=bounds, episodes=100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.0}, "gamma must be in"),
        ({"gamma": 1.5}, "gamma must be in"),
        ({"limits": [np.nan]}, r"limits\[0\] must be finite"),
        ({"limits": 5.0}, "limits must be a list with one number per cost"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"deterministic": "no"}, "deterministic must be True or False"),
        ({"policy": None}, "a cmdpkit.NeuralPolicy is needed, not NoneType"),
        ({"policy": SimpleNamespace(policy=POLICY)}, "pass its .policy"),
    ],
)
def test_what_a_certificate_cannot_mean_is_refused(settings, message):
    """With gamma above 1 what follows the last step would count with the wrong sign, and a limit as satisfied."""
    given = {"policy": POLICY, "limits": [5.0], "measure": "discounted", "bounds": BOUNDS, "steps": STEPS}
    given = given | settings
    with pytest.raises((ValueError, TypeError), match=message):
        ck.certify_on_episodes(Dice, given.pop("policy"), given.pop("limits"), episodes=EPISODES, **given)
