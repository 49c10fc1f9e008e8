"""Policy steps by plain gradients: surrogates by hand, their gradients, the radius; FOCOPS; tanh; growth of costs."""

import gymnasium
import numpy as np
import pytest
import torch

import cmdpkit as ck
from cmdpkit.envs import WithCosts
from cmdpkit.learners.neural.distributions import Gaussian, Softmax
from cmdpkit.learners.neural.first_order import FirstOrder
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.neural.local import LocalModel
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.policy import NeuralPolicy
from cmdpkit.rules import FOCOPS, Weights


def ascent(surrogate, radius=0.02, **changed):
    settings = {"clip": 0.2, "temperature": 1.5, "rate": 3e-3, "epochs": 5, "minibatch": 16} | changed
    return FirstOrder(surrogate, radius, **settings)


def local_model(distribution, free=0, seed=0, count=40):
    """A network of 2 inputs and 3 outputs in float64, with samples of its actions and random advantages."""
    rng = np.random.default_rng(seed)
    network = Network([2, 5, 3], free)
    theta = network.initial(rng).double()
    x = torch.from_numpy(rng.normal(size=(count, 2)))
    actions = rng.integers(0, 3, count) if not free else rng.normal(size=(count, 3))
    advantages, half = rng.normal(size=(count, 2)), np.arange(count) % 2 == 0
    local = LocalModel(theta, network, distribution, x, torch.from_numpy(actions), advantages, half, 0.1, 10)
    return local, torch.from_numpy(rng.normal(size=count))


def test_the_clipped_surrogate_by_hand():
    """One state, two actions of probability ½ each: y = (log 3, 0) makes the ratios 3/2 and 1/2."""
    network = Network([1, 2])
    x = torch.zeros(4, 1, dtype=torch.double)
    zero = torch.zeros(network.parameters, dtype=torch.double)
    actions, benefit = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.double)
    local = LocalModel(zero, network, Softmax(), x, actions, np.zeros((4, 1)), np.ones(4, bool), 0.1, 10)
    y = torch.tensor([[np.log(3.0), 0.0]] * 4, dtype=torch.double)
    # min(1.5, 1.2) − min(...): 1.2, −1.5, 0.5, −0.8
    value = ascent("clip").value(local, y, torch.arange(4), benefit)
    assert float(value) == pytest.approx((1.2 - 1.5 + 0.5 - 0.8) / 4.0)
    # KL(¾, ¼ ‖ ½, ½) = ¾ log 1.5 + ¼ log 0.5 = 0.1308 is beyond the radius, and nothing counts
    assert float(ascent("penalty").value(local, y, torch.arange(4), benefit)) == 0.0
    kl = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    value = ascent("penalty", radius=0.2).value(local, y, torch.arange(4), benefit)
    assert float(value) == pytest.approx((1.5 - 1.5 + 0.5 - 0.5) / 4.0 / 1.5 - kl)


@pytest.mark.parametrize("surrogate", ["clip", "penalty"])
@pytest.mark.parametrize(("distribution", "free"), [(Softmax(), 0), (Gaussian(), 3)])
def test_gradients_against_autograd(surrogate, distribution, free):
    local, benefit = local_model(distribution, free)
    method, rows = ascent(surrogate, radius=0.3), torch.arange(5, 25)
    moved = (local.theta + 0.1 * torch.randn_like(local.theta)).requires_grad_()
    value = method.value(local, local.network(moved, local.x[rows]), rows, benefit)
    (expected,) = torch.autograd.grad(value, moved)
    torch.testing.assert_close(method.gradient(local, moved.detach(), rows, benefit), expected)


@pytest.mark.parametrize("surrogate", ["clip", "penalty"])
@pytest.mark.parametrize("radius", [1e-4, 1e-2])
def test_steps_gain_and_stay_within_the_radius(surrogate, radius):
    local, benefit = local_model(Softmax())
    outcome = ascent(surrogate, radius, epochs=40).step(local, benefit, local.judge(benefit), np.random.default_rng(0))
    gain, divergence = local.judge(benefit)(outcome.theta)
    assert outcome.verdict == "accepted"
    assert (outcome.gain, outcome.divergence) == (gain, divergence)
    assert 0.1 * radius < divergence <= radius
    assert gain > local.judge(benefit)(local.theta)[0]


def test_growth_of_costs_is_judged():
    """The gain of a candidate whose costs grow by more than allowed is minus the excess, in deviations."""
    local, benefit = local_model(Softmax())
    moved = local.theta + 0.3 * torch.randn_like(local.theta)
    ratio = (Softmax().log_prob(local.network(moved, local.x), local.actions) - local.log_prob).exp().numpy()
    growth = ((ratio - 1.0)[:, None] * local.advantages).mean(axis=0)
    plain = local.judge(benefit)(moved)
    assert local.judge(benefit, growth + 1e-9)(moved) == plain
    gain, divergence = local.judge(benefit, growth - np.array([0.0, 0.5]))(moved)
    assert gain == pytest.approx(-0.5 / local.advantages[:, 1].std(), rel=1e-5)
    assert divergence == plain[1]


def test_focops_by_hand():
    """ν = P(ν + η′ V) on [0, 2], and weights ν σ_0/σ_i; a cost that does not vary has none."""

    class Seen(ck.rules.View):
        deviations = np.array([4.0, 2.0, 0.5, 0.0])

    rule, view = FOCOPS(eta_dual=0.1), Seen(0.0, np.array([3.0, 50.0, 1.0]))
    state = rule.start(view)._replace(multipliers=np.array([0.2, 1.0, 0.0]))
    weights, state = rule.propose(state, view)
    np.testing.assert_allclose(state.multipliers, [0.5, 2.0, 0.1])
    np.testing.assert_allclose(weights.constraints, [1.0, 16.0, 0.0])


def test_tanh_is_what_acts_and_what_is_kept(tmp_path):
    learner = NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", [5, 5], steps=20, hidden=[8, 8], activation="tanh")
    x = np.random.default_rng(0).normal(size=(6, learner.policy.width)).astype(np.float32)
    expected = learner.network(learner.theta, torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(learner.policy.outputs(x), expected, atol=1e-6)
    first, bias = learner.network.layers(learner.theta)[0]
    hidden = learner.network.activations(learner.theta, torch.from_numpy(x))[1]
    np.testing.assert_allclose(hidden, np.tanh(x @ first.numpy().T + bias.numpy()), atol=1e-6)
    learner.policy.save(tmp_path / "policy.npz")
    np.testing.assert_array_equal(NeuralPolicy.load(tmp_path / "policy.npz").outputs(x), learner.policy.outputs(x))


def cart():
    return WithCosts(gymnasium.make("CartPole-v1"), lambda step: abs(step.observation[0]) > 0.1)


@pytest.mark.parametrize(
    ("method", "options"),
    [("cpo", {}), ("pcpo", {}), ("focops", {}), ("rcpo", {}), ("rcpo", {"surrogate": "clip", "activation": "tanh"})],
)
def test_they_earn_more_and_repeat(method, options):
    settings = {"limits": [30.0], "iterations": 6, "steps": 200, "hidden": [16], "seed": 1, "radius": 0.05} | options
    result = ck.train(cart, method, **settings)
    assert result.history["objective"][-2:].mean() > 1.5 * result.history["objective"][:2].mean()
    again = ck.train(cart, method, **settings)
    np.testing.assert_array_equal(again.history["objective"], result.history["objective"])


@pytest.mark.parametrize("method", ["cpo", "pcpo", "focops"])
def test_the_surrogate_belongs_to_the_method(method):
    with pytest.raises(ValueError, match="unknown option 'surrogate'"):
        ck.train(cart, method, limits=[1.0], iterations=1, surrogate="clip")


def test_a_given_size_needs_the_trust_region():
    learner = NeuralLearner(cart, [5.0], steps=20, hidden=[8], surrogate="clip")
    with pytest.raises(NotImplementedError, match="surrogate='trust-region'"):
        learner.improve(Weights(1.0, np.zeros(1), step=0.1))
