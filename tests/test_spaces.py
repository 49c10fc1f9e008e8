"""Several discrete actions at once, costs without a limit, and vector environments that know their number."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cmdpkit as ck
from cmdpkit.learners.neural.distributions import Softmaxes
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.neural.policy import Actions, NeuralPolicy
from cmdpkit.rules.registry import names
from cmdpkit.run.training_folder import load_run


class Locks(gymnasium.Env):
    """Two dials: 1 for the first at 2 of 3, 1 for the second at 0 of 2. Costs: the first dial's place, the reward."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, start=0, costs=1):
        self.costs = costs
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 2], start=[start, 0])
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.age += 1
        first, second = action[0] - self.start, action[1]
        reward = float(first == 2) + float(second == 0)
        info = {"costs": np.array([float(first), reward])[: self.costs]}
        return np.zeros(1, dtype=np.float32), reward, False, self.age == 10, info


def test_several_softmaxes_against_torch():
    rng = np.random.default_rng(0)
    y, other = (torch.from_numpy(rng.normal(size=(7, 5))).requires_grad_() for _ in range(2))
    actions = torch.from_numpy(np.stack([rng.integers(0, 3, 7), rng.integers(0, 2, 7)], axis=1))
    pi = Softmaxes([3, 2])

    def reference(y):
        return [torch.distributions.Categorical(logits=part) for part in (y[:, :3], y[:, 3:])]

    expected = sum(one.log_prob(actions[:, i]) for i, one in enumerate(reference(y)))
    torch.testing.assert_close(pi.log_prob(y, actions), expected)
    divergence = sum(map(torch.distributions.kl_divergence, reference(y), reference(other)))
    torch.testing.assert_close(pi.divergence(y, other), divergence)
    (score,) = torch.autograd.grad(expected.sum(), y)
    torch.testing.assert_close(pi.score(y.detach(), actions), score)
    dense = torch.autograd.functional.hessian(lambda t: pi.divergence(y[:1].detach(), t).sum(), y[:1].detach())
    columns = torch.stack([pi.metric(y[:1].detach())(e[None])[0] for e in torch.eye(5, dtype=torch.double)])
    torch.testing.assert_close(columns, dense.reshape(5, 5))


def test_draws_of_several_actions_follow_their_parts(tmp_path):
    actions = Actions(True, np.array([4, 0]), np.array([6, 1]))
    assert (actions.outputs, actions.choices) == (5, [3, 2])
    y = np.log(np.array([0.2, 0.3, 0.5, 0.9, 0.1], dtype=np.float32))
    drawn = actions.for_env(actions.draw(np.tile(y, (20_000, 1)), actions.noise(np.random.default_rng(0), (20_000,))))
    assert drawn.shape == (20_000, 2)
    np.testing.assert_allclose(np.bincount(drawn[:, 0])[4:] / 20_000, [0.2, 0.3, 0.5], atol=0.015)
    assert np.mean(drawn[:, 1] == 0) == pytest.approx(0.9, abs=0.01)
    policy = NeuralPolicy([(np.zeros((5, 1)), y)], actions)
    np.testing.assert_array_equal(policy.act(np.zeros(1)), [6, 0])
    assert "3 x 2 discrete actions" in repr(policy)
    policy.save(tmp_path / "policy.npz")
    np.testing.assert_array_equal(NeuralPolicy.load(tmp_path / "policy.npz").act(np.zeros((4, 1))), [[6, 0]] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"surrogate": "clip", "policy_rate": 0.01}])
def test_several_actions_learn_within_a_limit(options):
    """Without the limit the dials stand at 2 and 0, reward and cost are 20; with it the first is there half of it."""
    settings = {"iterations": 25, "steps": 100, "hidden": [8], "radius": 0.05, "persist": True} | options
    free = ck.train(lambda: Locks(start=3), limits=[float("inf")], **settings)
    assert free.history["objective"][-3:].mean() > 18.0
    held = ck.train(Locks, "crpo", limits=[10.0], **settings)
    assert held.history["constraint_values"][-5:].mean() < 12.0
    assert held.history["objective"][-5:].mean() > 12.0


# -- costs without a limit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", names("neural"))
def test_a_cost_without_a_limit_is_recorded_and_does_nothing(method, tmp_path):
    """The same run as without that cost, whatever the method, and the cost beside it."""
    pair = partial(Locks, costs=2)
    settings = {"iterations": 4, "steps": 20, "hidden": [4], "num_envs": 2, "critic_epochs": 1}
    one = ck.train(Locks, method, limits=[5.0], **settings)
    both = ck.train(pair, method, limits=[5.0, float("inf")], out=tmp_path, **settings)
    # the critics share a network, so that only the first iteration's numbers are the same
    np.testing.assert_array_equal(both.history["objective"][0], one.history["objective"][0])
    np.testing.assert_array_equal(both.history["constraint_values"][0, 0], one.history["constraint_values"][0, 0])
    np.testing.assert_allclose(both.history["constraint_values"][:, 1], both.history["objective"], rtol=1e-6)
    assert (both.history["multipliers"][:, 1] == 0.0).all()
    assert both.violations[1] == 0.0
    again = ck.train(pair, method, limits=[5.0, float("inf")], out=tmp_path, **settings | {"iterations": 6})
    assert again.iterations >= 6
    assert load_run(tmp_path).limits.tolist() == [5.0, float("inf")]


def test_a_limit_may_be_infinite_above_only():
    for bad in (-float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"limits\[0\] must be finite"):
            NeuralLearner(Locks, [bad])


def test_without_any_limit_methods_agree():
    """With no limit that binds, every method of the trust region takes the same steps on the reward."""
    settings = {"iterations": 3, "steps": 20, "hidden": [4], "inner_steps": 1}
    runs = [
        ck.train(Locks, method, limits=[float("inf")], **settings) for method in ("npg-pd", "rcpo", "crpo", "pmd-pd")
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.history["objective"], runs[0].history["objective"])


def test_episodes_judge_costs_without_a_limit():
    learner = NeuralLearner(Locks, [float("inf")], steps=10, hidden=[4])
    proof = ck.certify_on_episodes(Locks, learner.policy, [float("inf")], episodes=20, steps=10)
    assert proof.verdicts == ["satisfied"]


def test_a_vector_environment_knows_its_number():
    envs = SyncVectorEnv([Locks] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    result = ck.train(envs, limits=[15.0], iterations=2, steps=10, hidden=[4])
    assert result.samples == 2 * 3 * 10
