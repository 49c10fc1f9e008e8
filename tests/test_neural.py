"""The neural learner: derivatives against autograd, the trust region, advantages by hand, and one whole learner."""

import hashlib
import json
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch

import cmdpkit as ck
from cmdpkit.envs import WithCosts, as_batch
from cmdpkit.envs.lean import LeanBatch
from cmdpkit.learners import ExactLearner
from cmdpkit.learners.neural import regression
from cmdpkit.learners.neural.acting import Acting
from cmdpkit.learners.neural.critics import Critics, Moments
from cmdpkit.learners.neural.distributions import Gaussian, Softmax
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.policy import Actions, NeuralPolicy
from cmdpkit.learners.neural.rollouts import Rollout, collect, discounted
from cmdpkit.learners.neural.tanh import tanh
from cmdpkit.learners.neural.trust_region import conjugate_gradients, trust_region_step
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules import CRPO, NPGPD, PMDPD, Weights

ACROBOT = "cmdpkit/ConstrainedAcrobot-v0"
CASES = [(Softmax(), 0), (Gaussian(), 3)]  # a distribution, and its free outputs (log σ)


def tiny(free, seed=0, activation="relu"):
    """A network with 2 inputs and 3 outputs in float64, its θ, and 7 inputs."""
    rng = np.random.default_rng(seed)
    network = Network([2, 5, 4, 3], free, activation)
    theta = network.initial(rng).double()
    if free:
        theta[-free:] = torch.tensor([0.3, -0.2, 0.1])
    return network, theta, torch.from_numpy(rng.normal(size=(7, 2)))


def some_actions(distribution, seed=1):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 3, 7) if isinstance(distribution, Softmax) else rng.normal(size=(7, 3)))


# Derivatives


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("free", [0, 3])
def test_both_derivatives_are_the_jacobian(free, activation):
    network, theta, x = tiny(free, activation=activation)
    jacobian = torch.autograd.functional.jacobian(lambda t: network(t, x), theta)  # (7, outputs, parameters)
    hidden = network.activations(theta, x)
    v, u = torch.randn(network.parameters, dtype=torch.double), torch.randn_like(hidden[-1])
    derivatives = network.derivatives(theta, hidden)
    for _ in range(2):  # the second time in the room of the first
        torch.testing.assert_close(derivatives.forward(v), jacobian @ v)
        torch.testing.assert_close(derivatives.gradient(u), torch.einsum("no,nop->p", u, jacobian))


@pytest.mark.parametrize(("distribution", "free"), CASES)
def test_score_is_the_gradient_of_log_prob(distribution, free):
    network, theta, x = tiny(free)
    actions = some_actions(distribution)
    y = network(theta, x).requires_grad_()
    (expected,) = torch.autograd.grad(distribution.log_prob(y, actions).sum(), y)
    torch.testing.assert_close(distribution.score(y.detach(), actions), expected)


@pytest.mark.parametrize(("distribution", "free"), CASES)
def test_log_prob_and_divergence_against_torch(distribution, free):
    network, theta, x = tiny(free)
    y, other = network(theta, x), network(theta + 0.1 * torch.randn_like(theta), x)

    def reference(y):
        if isinstance(distribution, Softmax):
            return torch.distributions.Categorical(logits=y)
        mean, log_std = y.chunk(2, dim=1)
        return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)

    actions = some_actions(distribution)
    torch.testing.assert_close(distribution.log_prob(y, actions), reference(y).log_prob(actions))
    expected = torch.distributions.kl_divergence(reference(y), reference(other))
    torch.testing.assert_close(distribution.divergence(y, other), expected)


@pytest.mark.parametrize(("distribution", "free"), CASES)
def test_fisher_product_against_the_dense_fisher_matrix(distribution, free):
    """F is the Hessian of the mean divergence KL(π_θ ‖ π_θ′) in θ′ at θ, by autograd, column by column."""
    network, theta, x = tiny(free)
    y = network(theta, x)
    dense = torch.autograd.functional.hessian(lambda t: distribution.divergence(y, network(t, x)).mean(), theta)
    derivatives, metric = network.derivatives(theta, network.activations(theta, x)), distribution.metric(y)
    columns = [
        derivatives.gradient(metric(derivatives.forward(e))) / len(x)
        for e in torch.eye(network.parameters, dtype=torch.double)
    ]
    torch.testing.assert_close(torch.stack(columns), dense, atol=1e-9, rtol=1e-7)


def test_surrogate_gradient_against_autograd():
    """The learner's gradient is that of mean(ratio · benefit) at the old policy."""
    network, theta, x = tiny(0)
    actions, benefit = some_actions(Softmax()), torch.randn(7, dtype=torch.double)
    old = Softmax().log_prob(network(theta, x), actions)
    moving = theta.clone().requires_grad_()
    surrogate = ((Softmax().log_prob(network(moving, x), actions) - old).exp() * benefit).mean()
    (expected,) = torch.autograd.grad(surrogate, moving)
    hidden = network.activations(theta, x)
    ours = network.derivatives(theta, hidden).gradient(Softmax().score(hidden[-1], actions) * benefit[:, None]) / 7
    torch.testing.assert_close(ours, expected)


# The trust region


def test_conjugate_gradients_solve():
    rng = np.random.default_rng(0)
    root = torch.from_numpy(rng.normal(size=(12, 12)))
    matrix, b = root @ root.T + 0.1 * torch.eye(12, dtype=torch.double), torch.from_numpy(rng.normal(size=12))
    x = conjugate_gradients(lambda v: matrix @ v, b, steps=40)
    torch.testing.assert_close(matrix @ x, b, atol=1e-4, rtol=0.0)
    short = conjugate_gradients(lambda v: matrix @ v, b, steps=3)  # stops when told: the best in 3 directions
    assert (matrix @ short - b).norm() > 0.01 > (matrix @ x - b).norm()


def test_step_on_a_quadratic_is_the_natural_gradient():
    """With an exact divergence ½ sᵀFs the step ends on the boundary, along F⁻¹g."""
    fisher, gradient, radius = torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0]), 0.02
    theta = torch.tensor([1.0, 2.0])
    outcome = trust_region_step(
        theta,
        gradient,
        lambda v: fisher * v,
        lambda t: (float(gradient @ (t - theta)), float(0.5 * ((t - theta) ** 2 * fisher).sum()) * 0.999999),
        radius,
        damping=0.0,
    )
    # x = F⁻¹g = (1/4, 1), xᵀFx = 5/4, s = √(2 · 0.02 · 4/5) x
    expected = np.sqrt(0.04 * 0.8) * np.array([0.25, 1.0])
    np.testing.assert_allclose((outcome.theta - theta).numpy(), expected, rtol=1e-5)
    assert outcome.verdict == "accepted"
    assert outcome.trials == 1
    assert outcome.divergence == pytest.approx(radius, rel=1e-4)


def quadratic_step(**settings):
    """A step for F = diag(4, 1) and g = (1, 1) whose surrogate is linear and whose divergence ½ sᵀFs."""
    fisher, gradient, theta = torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0])
    outcome = trust_region_step(
        theta,
        gradient,
        lambda v: fisher * v,
        lambda t: (float(gradient @ (t - theta)), float(0.5 * ((t - theta) ** 2 * fisher).sum())),
        **{"radius": 0.02, "damping": 0.0} | settings,
    )
    return (outcome.theta - theta).numpy(), outcome


def test_damping_is_part_of_the_metric():
    """x = (F + 1)⁻¹ g = (1/5, 1/2), xᵀ(F + 1)x = gᵀx = 0.7, s = √(2 · 0.02 / 0.7) x."""
    step, outcome = quadratic_step(damping=1.0)
    np.testing.assert_allclose(step, np.sqrt(0.04 / 0.7) * np.array([0.2, 0.5]), rtol=1e-5)
    assert outcome.trials == 1


def test_a_given_length_counts_within_the_region_only():
    """length · F⁻¹g = length · (1/4, 1); the region ends at √(2 · 0.02 / 1.25) = 0.1789."""
    np.testing.assert_allclose(quadratic_step(length=0.1)[0], [0.025, 0.1], rtol=1e-5)
    # beyond it a first trial would leave the region: the length is cut before, not by the line search
    far, outcome = quadratic_step(length=5.0, radius=0.02)
    edge, _ = quadratic_step()
    np.testing.assert_allclose(far, edge, rtol=1e-6)
    assert outcome.divergence <= 0.02
    assert outcome.trials <= 2
    step, outcome = quadratic_step(length=0.0)
    np.testing.assert_array_equal(step, 0.0)


def judged(judge, gradient=(1.0, 1.0)):
    theta = torch.zeros(2)
    return trust_region_step(theta, torch.tensor(gradient), lambda v: v.clone(), judge, radius=0.01, damping=0.0)


def test_line_search_goes_back_until_both_conditions_hold():
    far = judged(lambda t: (float(t.sum()), float(3.0 * t @ t)))  # the divergence is six times what F says
    assert far.accepted
    assert far.trials > 1
    assert far.divergence <= 0.01
    # s = (0.1, 0.1), which promises 0.2: the surrogate t − 9.6 t² rises by 0.008 there, and by 0.052 at half of it
    shallow = judged(lambda t: (float((t - 9.6 * t * t).sum()), float(0.4 * t @ t)))
    assert shallow.accepted
    assert shallow.trials == 2
    np.testing.assert_allclose(shallow.theta.numpy(), 0.05, rtol=1e-5)


def test_steps_that_cannot_be_trusted_are_refused_and_named():
    assert judged(lambda t: (-1.0, 0.0)).verdict == "line search failed"
    assert judged(lambda t: (float("nan"), 0.0)).verdict == "not finite"
    assert judged(lambda t: (1.0, 0.0), gradient=(float("nan"), 1.0)).verdict == "not finite"
    assert judged(lambda t: (1.0, 0.0), gradient=(0.0, 0.0)).verdict == "no gradient"
    for judge in (lambda t: (-1.0, 0.0), lambda t: (1.0, float("inf"))):
        np.testing.assert_array_equal(judged(judge).theta.numpy(), np.zeros(2))


# Rollouts


def test_discounted_sums_by_hand():
    ended = np.array([[False], [True], [False], [False]])
    # 1 + ½·2, 2 (the episode ends), 4 + ½·8, 8
    np.testing.assert_array_equal(discounted(np.array([[1.0], [2.0], [4.0], [8.0]]), ended, 0.5).ravel(), [2, 2, 8, 8])


def hand_made(ended, terminated, quantities):
    ended, terminated = np.array(ended)[:, None], np.array(terminated)[:, None]
    cut = ended & ~terminated
    cut[-1] = ~terminated[-1]
    steps = len(ended)
    empty = np.zeros((steps, 1, 1), dtype=np.float32)
    following = np.zeros((int(cut.sum()), 1), dtype=np.float32)
    return Rollout(
        empty, empty, np.zeros((steps, 1), int), np.array(quantities)[:, None, None], ended, terminated, following, cut
    )


def test_advantages_by_hand():
    """Steps 0, 1 end in a terminal state; steps 2, 3 are cut off by a time limit; step 4 by the end of the rollout."""
    no, yes = False, True
    rollout = hand_made([no, yes, no, yes, no], [no, yes, no, no, no], [1.0, 2.0, 3.0, 4.0, 5.0])
    values = np.array([10.0, 20.0, 30.0, 40.0, 50.0])[:, None, None]
    beyond = np.array([[100.0], [200.0]])  # V after step 3 and after step 4
    # Monte-Carlo: 1 + ½·2, 2, 3 + ½·(4 + ½·100), 4 + ½·100, 5 + ½·200, minus the values
    advantages = rollout.advantages(values, beyond, gamma=0.5, smoothing=1.0).ravel()
    np.testing.assert_allclose(advantages, [2.0 - 10, 2.0 - 20, 30.0 - 30, 54.0 - 40, 105.0 - 50])
    # λ = 0: one step ahead, c + ½ V(s′) − V(s)
    advantages = rollout.advantages(values, beyond, gamma=0.5, smoothing=0.0).ravel()
    np.testing.assert_allclose(advantages, [1 + 10 - 10, 2 - 20, 3 + 20 - 30, 4 + 50 - 40, 5 + 100 - 50])
    # λ = ½: A_0 = δ_0 + ¼ δ_1 = 1 − 18/4
    assert rollout.advantages(values, beyond, gamma=0.5, smoothing=0.5).ravel()[0] == pytest.approx(1 - 18 / 4)


def test_measures_by_hand():
    no, yes = False, True
    rollout = hand_made([no, no, yes, no], [no, no, yes, no], [1.0, 2.0, 4.0, 8.0])
    assert rollout.samples("episode", 0.5) == [[7.0]]  # the first episode only
    assert rollout.samples("discounted", 0.5) == [[1.0 + 1.0 + 1.0]]
    assert rollout.samples("step", 0.5) == [[15.0 / 4.0]]


class Corridor(gymnasium.Env):
    """Three cells; action 1 walks on, action 0 stays. Ends behind the last cell, or is cut off after `limit` steps."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, limit=100, bad=None):
        self.limit, self.bad, self.cell, self.age = limit, bad, 0, 0

    def seen(self):
        return np.array([self.cell], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = self.age = 0
        return self.seen(), {}

    def step(self, action):
        assert action in (5, 6)
        self.cell, self.age = self.cell + int(action == 6), self.age + 1
        if self.bad == "raise" and self.age == 3:
            raise OSError("the motor is gone")
        seen = self.seen() * (np.nan if self.bad == "observation" and self.age == 3 else 1.0)
        return seen, 1.0, self.cell == 3, self.age == self.limit, {"cost": float(action == 6)}


def corridor(limit=100, bad=None, num_envs=2):
    return as_batch(lambda: Corridor(limit, bad), num_envs)


def walker(outputs):
    """A policy with the same outputs everywhere."""
    return NeuralPolicy([(np.zeros((2, 1)), outputs)], Actions.of(Corridor.action_space))


def test_lean_copies_and_other_batches_give_the_same_rollouts():
    lean = LeanBatch(lambda: Corridor(limit=2), 2)
    for outputs in ([0.0, 50.0], [0.0, 0.0]):
        ours, theirs = (
            collect(envs, walker(outputs), 9, 1, np.random.default_rng(0)) for envs in (lean, corridor(limit=2))
        )
        for name, values in vars(ours).items():
            np.testing.assert_array_equal(values, getattr(theirs, name), err_msg=name)


@pytest.mark.parametrize("count", [1, 3])
def test_lean_copies_take_one_action_each(count):
    lean = LeanBatch(lambda: Corridor(limit=2), 2)
    lean.reset(seed=0)
    with pytest.raises(ValueError, match=f"2 environments, but {count} action"):
        lean.step(np.zeros(count, dtype=np.int64))


def test_rollouts_tell_ends_from_cuts():
    rollout = collect(corridor(), walker([0.0, 50.0]), 7, 1, np.random.default_rng(0))
    np.testing.assert_array_equal(rollout.seen[:, 0, 0], [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(rollout.terminated[:, 0], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(rollout.cut[:, 0], [0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(rollout.following, [[1.0], [1.0]])
    np.testing.assert_array_equal(rollout.quantities[..., 0], -1.0)
    np.testing.assert_array_equal(rollout.quantities[..., 1], 1.0)
    np.testing.assert_array_equal(rollout.actions, 1)
    stay = collect(corridor(limit=4), walker([50.0, 0.0]), 6, 1, np.random.default_rng(0))
    np.testing.assert_array_equal(stay.cut[:, 0], [0, 0, 0, 1, 0, 1])
    assert not stay.terminated.any()
    assert len(stay.following) == 4
    # A terminal state in the very last step: nothing follows it, so that nothing is bootstrapped from
    whole = collect(corridor(), walker([0.0, 50.0]), 3, 1, np.random.default_rng(0))
    np.testing.assert_array_equal(whole.terminated[:, 0], [0, 0, 1])
    assert not whole.cut.any()
    assert whole.following.shape == (0, 1)
    np.testing.assert_array_equal(
        whole.advantages(np.full((3, 2, 2), 100.0), np.zeros((0, 2)), 1.0, 1.0)[:, 0, 1], [3 - 100, 2 - 100, 1 - 100]
    )
    # A time limit cuts an episode in the middle: what follows is its own last observation, not the next one's first
    short = collect(corridor(limit=2), walker([0.0, 50.0]), 4, 1, np.random.default_rng(0))
    np.testing.assert_array_equal(short.cut[:, 0], [0, 1, 0, 1])
    np.testing.assert_array_equal(short.following, np.full((4, 1), 2.0))
    # A time limit in the very last step, in one environment of two: the tails keep their order.
    mixed = as_batch(
        gymnasium.vector.SyncVectorEnv(
            [lambda: Corridor(limit=100), lambda: Corridor(limit=2)],
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        ),
        2,
    )
    last = collect(mixed, walker([0.0, 50.0]), 2, 1, np.random.default_rng(0))
    np.testing.assert_array_equal(last.cut, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(last.following, [[2.0], [2.0]])


@pytest.mark.parametrize(("bad", "words"), [("raise", "failed in step 2.*motor"), ("observation", "step 3.*observed")])
def test_bad_environments_are_named(bad, words):
    with pytest.raises((RuntimeError, ValueError), match=words):
        collect(corridor(bad=bad), walker([50.0, 0.0]), 6, 1, np.random.default_rng(0))


class Endless(gymnasium.vector.VectorEnv):
    """Two environments whose episodes are cut after two steps, without their last observations."""

    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    num_envs = 2
    single_observation_space, single_action_space = Corridor.observation_space, Corridor.action_space

    def reset(self, *, seed=None, options=None):
        self.age = 0
        return np.zeros((2, 1)), {}

    def step(self, actions):
        self.age = (self.age + 1) % 2
        cut = np.full(2, self.age == 0)
        return np.full((2, 1), self.age), np.ones(2), np.zeros(2, dtype=bool), cut, {"cost": np.ones(2)}


def test_a_cut_without_its_last_observation_is_not_taken_for_an_end():
    with pytest.raises(RuntimeError, match=r"step 1 .*truncated an episode without its last observation.*final_obs"):
        collect(Endless(), walker([0.0, 0.0]), 5, 1, np.random.default_rng(0))


# Acting


def test_numpy_forward_is_torch_forward():
    learner = NeuralLearner(ACROBOT, [50, 50], hidden=[32, 16], steps=20)
    x = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    np.testing.assert_allclose(
        learner.policy.outputs(x), learner.network(learner.theta, torch.from_numpy(x)).numpy(), atol=1e-6
    )


def test_draws_follow_the_softmax_and_the_normal():
    rng = np.random.default_rng(0)
    y = np.log(np.array([0.2, 0.5, 0.3], dtype=np.float32))
    discrete = Actions(True, 0, 2)
    draws = discrete.draw(np.broadcast_to(y, (40_000, 3)), discrete.noise(rng, (40_000,)))
    np.testing.assert_allclose(np.bincount(draws) / 40_000, [0.2, 0.5, 0.3], atol=0.01)
    box = Actions.of(gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)))
    draws = box.draw(np.broadcast_to(np.float32([0.5, -1.0, 0.0, -1.0]), (40_000, 4)), box.noise(rng, (40_000,)))
    np.testing.assert_allclose(draws.mean(axis=0), [0.5, -1.0], atol=0.02)
    np.testing.assert_allclose(draws.std(axis=0), [1.0, np.exp(-1.0)], atol=0.02)
    np.testing.assert_allclose(box.for_env(np.array([[0.5, -0.5], [3.0, 3.0]])), [[1.0, 2.5], [2.0, 10.0]])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [[6, 5, 3], [1, 2], [17, 64, 63, 6], [4, 8, 1]])
def test_compiled_actions_are_those_of_numpy(sizes, activation):
    """Also where the inputs of a layer are not a multiple of four."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(b, a)) / np.sqrt(a), rng.normal(size=b)) for a, b in pairwise(sizes)]
    box = Actions(False, np.full(sizes[-1], -1.0), np.full(sizes[-1], 3.0))
    scaling = {"shift": rng.normal(size=sizes[0]), "scale": np.full(sizes[0], 0.5)}
    policy = NeuralPolicy(layers, box, np.full(sizes[-1], -0.5), **scaling, activation=activation)
    seen, noise = (rng.normal(size=(5, 3, n)).astype(np.float32) for n in (sizes[0], sizes[-1]))
    drawn = box.empty((5, 3))
    act = Acting(policy, seen, noise, drawn)
    for t in range(5):
        expected = box.draw(policy.outputs(policy.inputs(seen[t])), noise[t])
        np.testing.assert_allclose(act(t), box.for_env(expected), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(drawn[t], expected, rtol=1e-5, atol=1e-5)


def test_tanh_of_actions_is_correct_to_two_units_in_the_last_place():
    x = np.append(np.linspace(-12.0, 12.0, 100_001), [1e-40, -1e-30, 3e38, -np.inf]).astype(np.float32)
    y = np.empty_like(x)
    tanh(x, y)
    truth = np.tanh(x.astype(np.float64))
    assert (np.abs(y - truth) <= 2.0 * np.spacing(np.abs(truth).astype(np.float32))).all()
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))
    nan = np.full(1, np.nan, np.float32)
    tanh(nan, nan)
    assert np.isnan(nan[0])


def test_tanh_of_actions_has_the_same_bits_everywhere():
    """Of the C library glibc 2.36, which agrees on all arguments."""
    x = np.arange(0, 2**31, 100_003, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    y = np.empty_like(x)
    tanh(x, y)
    assert hashlib.sha256(y.tobytes()).hexdigest()[:16] == "b2560fb026d671c5"


def test_a_policy_survives_its_arrays():
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(4, 3)), rng.normal(size=4)), (rng.normal(size=(2, 4)), rng.normal(size=2))]
    box = Actions(False, np.array([-1.0, -2.0]), np.array([1.0, 2.0]))
    policy = NeuralPolicy(layers, box, log_std=[0.0, -1.0], shift=np.ones(3), scale=np.full(3, 2.0))
    again = NeuralPolicy.from_arrays(policy.arrays())
    x = rng.normal(size=(5, 3))
    np.testing.assert_array_equal(policy.act(x), again.act(x))
    np.testing.assert_array_equal(policy.act(x, np.random.default_rng(1)), again.act(x, np.random.default_rng(1)))
    assert policy.act(x[0]).shape == (2,)
    with pytest.raises(ValueError, match="missing"):
        NeuralPolicy.from_arrays({"weight_0": np.eye(2)})


# Critics


def test_moments_are_those_of_all_rows():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (100, 4))
    moments = Moments(4)
    for part in np.split(rows, [7, 50]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0))
    np.testing.assert_allclose(moments.deviation, rows.std(axis=0))


def test_old_rows_fade_by_hand():
    """Half of four rows at 0 counts as two; with two rows at 3: mean 1.5, variance 1.5²."""
    moments = Moments(1)
    moments.update(np.zeros((4, 1)))
    moments.update(np.full((2, 1), 3.0), forget=0.5)
    assert (moments.count, moments.mean[0], moments.deviation[0]) == (4.0, 1.5, 1.5)
    # and the spread of the old ones fades as well: four rows at ±2 have squares 16, of which half is left
    spread = Moments(1)
    spread.update(np.array([[2.0], [-2.0], [2.0], [-2.0]]))
    spread.update(np.zeros((2, 1)), forget=0.5)
    assert spread.squares[0] == pytest.approx(8.0)


def test_critics_learn_values_of_any_scale():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (2_000, 2)).astype(np.float32)
    truth = np.stack([1000.0 + 500.0 * np.sin(3.0 * x[:, 0]), 0.01 * x[:, 1] ** 2], axis=1)
    critics = Critics(2, 2, [32, 32], rng, rate=3e-3, epochs=100)
    assert critics.fit(x, truth, rng)
    assert ((critics.values(x) - truth).std(axis=0) < 0.1 * truth.std(axis=0)).all()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("hidden", "rows"), [([64, 64], 400), ([5], 30), ([], 7)])
def test_compiled_critics_are_those_of_pytorch(hidden, rows, activation, monkeypatch):
    """Also in minibatches that are made in several blocks, and in a last one that is smaller."""
    rng = np.random.default_rng(0)
    x, returns = rng.normal(size=(rows, 6)).astype(np.float32), rng.normal(size=(rows, 3))
    fitted = []
    for widest in (regression.WIDEST, 0):
        monkeypatch.setattr(regression, "WIDEST", widest)
        critics = Critics(6, 3, hidden, np.random.default_rng(1), epochs=3, minibatch=150, activation=activation)
        before = critics.theta.copy()
        assert critics.fit(x, returns, np.random.default_rng(2))
        fitted.append(critics)
    compiled, other = fitted
    assert compiled.steps == other.steps == 3 * -(-rows // 150)
    assert np.abs(compiled.theta - before).max() > 1e-3
    for name in ("theta", "first", "second"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(other, name), rtol=1e-4, atol=1e-6)


def test_the_compiled_tanh_is_tanh_in_single_precision():
    x = np.append(np.linspace(-12.0, 12.0, 100_001), [1e-30, -1e-30, 3e38, -3e38]).astype(np.float32)
    y = x.copy()
    regression.squash(y)
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), rtol=4e-7, atol=0.0)


def test_critics_keep_what_they_know_when_numbers_fail():
    rng = np.random.default_rng(0)
    critics = Critics(2, 1, [4], rng, rate=1e38)
    before = critics.theta.copy()
    assert not critics.fit(np.ones((10, 2), np.float32), np.full((10, 1), np.inf), rng)
    assert not critics.fit(np.ones((10, 2), np.float32), np.arange(10.0)[:, None], rng)
    np.testing.assert_array_equal(critics.theta, before)
    assert not critics.first.any()
    assert not critics.second.any()
    assert critics.steps == 0
    assert (critics.returns.count, critics.returns.mean[0], critics.returns.squares[0]) == (0.0, 0.0, 0.0)
    assert np.isfinite(critics.values(np.ones((1, 2), np.float32))).all()


# The learner


class Tabular(gymnasium.Env):
    """A CMDP as an environment that shows its state as a unit vector."""

    def __init__(self, cmdp):
        self.cmdp = cmdp
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (cmdp.states,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(cmdp.actions)

    def seen(self):
        return np.eye(self.cmdp.states, dtype=np.float32)[self.s]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.s = self.np_random.choice(self.cmdp.states, p=self.cmdp.initial)
        return self.seen(), {}

    def step(self, action):
        row = self.s * self.cmdp.actions + action
        reward, cost = self.cmdp.objective[self.s, action], self.cmdp.constraints[0].values[self.s, action]
        self.s = self.np_random.choice(self.cmdp.states, p=self.cmdp.transitions[row])
        return self.seen(), float(reward), False, False, {"cost": float(cost)}


def small_cmdp():
    rng = np.random.default_rng(3)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    return ck.CMDP(transitions, reward=rng.random((3, 2)), constraints=[ck.AtMost(rng.random((3, 2)), 1.0)], gamma=0.8)


def test_direction_is_that_of_the_exact_natural_gradient():
    """A linear softmax of unit vectors is the table itself: log π moves along minus the advantage of the mixed cost."""
    cmdp = small_cmdp()
    weights = Weights(1.0, np.array([0.7]))
    learner = NeuralLearner(
        lambda: Tabular(cmdp), [1.0], measure="discounted", gamma=0.8, num_envs=8, steps=1_500, hidden=[],
        radius=1e-4, damping=1e-6, cg_steps=20,
    )  # fmt: skip
    learner.theta = torch.zeros_like(learner.theta)
    exact = ExactLearner(cmdp, ck.TabularPolicy.uniform(3, 2), step=0.01)
    before = exact.policy.log_probabilities
    # The sampled value agrees with the exact one, discounted from the first state on.
    samples = learner.samples()
    error = samples.std(axis=0) / np.sqrt(len(samples)) * 4.0
    assert abs(learner.look().objective - exact.look().objective) <= error[0]
    assert abs(learner.look().values[0] - exact.look().values[0]) <= error[1]
    learner.improve(weights)
    exact.improve(weights)
    ours = learner.network(learner.theta, torch.eye(3)).log_softmax(dim=1).numpy() - before
    theirs = exact.policy.log_probabilities - before
    cosine = (ours * theirs).sum() / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert cosine > 0.98


@pytest.mark.parametrize("rule", [PMDPD(1e-3), NPGPD(1e-3), CRPO(-0.5, first=True, radii=(0.003, 0.006, 0.01))])
def test_every_rule_drives_it_and_the_step_stays_in_its_region(rule):
    learner = NeuralLearner(ACROBOT, [50, 50], steps=60, hidden=[16], inner_steps=2)
    for iterate in islice(primal_dual(learner, rule), 2):
        assert [u.iteration for u in learner.updates] == [2 * iterate.k - 1, 2 * iterate.k]
        radius = learner.settings.radius if iterate.weights.radius is None else iterate.weights.radius
        assert all(0.0 < u.divergence <= radius for u in learner.updates if u.verdict == "accepted")
        assert iterate.v.shape == (2,)
    assert learner.verdicts.total() == 4
    assert learner.verdicts["accepted"] >= 3


def test_the_pull_is_towards_the_anchor():
    """With a huge α the second inner step undoes the first."""
    distances = []
    for alpha in (0.0, 1e6):
        learner = NeuralLearner(ACROBOT, [50, 50], steps=100, hidden=[16], alpha=alpha, inner_steps=1)
        anchor = learner.theta
        weights = Weights(1.0, np.array([0.1, 0.1]))
        for _ in range(2):
            learner._iterate(weights, anchor)
        x = torch.from_numpy(learner.rollout().inputs.reshape(-1, 6))
        y, y_anchor = learner.network(learner.theta, x), learner.network(anchor, x)
        distances.append(float(learner.distribution.divergence(y, y_anchor).mean()))
    assert distances[1] < 0.5 * distances[0]


def test_it_learns_to_keep_a_limit():
    """CartPole pushed to the right at a price: NPG on the cost alone must bring the cost down."""

    def make():
        return WithCosts(gymnasium.make("CartPole-v1"), lambda step: step.action)

    learner = NeuralLearner(make, [0.2], measure="step", num_envs=4, steps=100, hidden=[16], radius=0.05)
    before = learner.look().values[0] + 0.2
    for _ in range(8):
        learner.improve(Weights(0.0, np.array([1.0])))
    assert before == pytest.approx(0.5, abs=0.1)
    assert learner.look().values[0] + 0.2 < 0.3


class Aim(gymnasium.Env):
    """A number x is shown, an action in [0, 4] is chosen, and its distance from 2 + x is the cost."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(0.0, 4.0, (1,), np.float32)

    def seen(self):
        self.x = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.x

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        cost = abs(float(action[0] - 2.0 - self.x[0]))
        return self.seen(), 0.0, False, False, {"cost": cost}


@pytest.mark.parametrize("seed", [0, 1])
def test_continuous_actions_learn(seed):
    """Stepping on the cost alone finds the target for every x, and takes the noise away; any seed does."""
    learner = NeuralLearner(
        Aim, [0.5], "step", seed, num_envs=4, steps=100, hidden=[16], radius=0.05, gamma=0.0, deviation=1.0
    )
    before = learner.look().values[0] + 0.5
    # E|clip(2 + 2z, 0, 4) − 2 − x| with z normal and x uniform is 1.33
    assert before == pytest.approx(1.33, abs=0.2)
    for _ in range(20):
        learner.improve(Weights(0.0, np.array([1.0])))
    assert learner.look().values[0] + 0.5 < 0.15 * before
    grid = np.linspace(-0.9, 0.9, 7)[:, None]
    np.testing.assert_allclose(learner.policy.act(grid), 2.0 + grid, atol=0.15)
    assert learner.policy.act(np.array([0.5])).shape == (1,)


def test_actions_stay_as_random_as_asked():
    """The cost is the distance from a target, so that every step makes actions more certain."""

    def deviations(**least):
        learner = NeuralLearner(
            Aim, [0.5], "step", 0, num_envs=4, steps=100, hidden=[16], radius=0.05, gamma=0.0, **least
        )
        for _ in range(20):
            learner.improve(Weights(0.0, np.array([1.0])))
        return np.exp(learner.policy.log_std)

    assert deviations(least_deviation=0.0).max() < 0.1
    np.testing.assert_allclose(deviations(), [0.1], rtol=1e-6)
    np.testing.assert_allclose(deviations(least_deviation=0.3), [0.3], rtol=1e-6)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_restored_learner_goes_on_bit_for_bit(normalise):
    options = {"limits": [50, 50], "steps": 60, "hidden": [16], "inner_steps": 2, "normalise": normalise, "seed": 4}
    rule = PMDPD(1e-3)
    straight = NeuralLearner(ACROBOT, **options)
    iterates = list(islice(primal_dual(straight, rule), 4))

    first = NeuralLearner(ACROBOT, **options)
    half = list(islice(primal_dual(first, rule), 2))[-1]
    state = first.state()
    numbers = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    state = {**arrays, **json.loads(json.dumps(numbers))}  # as a file would keep it
    next(primal_dual(first, rule, half.state))  # going on does not reach into a state that was taken
    second = NeuralLearner(ACROBOT, **options)
    second.restore(state)
    rest = list(islice(primal_dual(second, rule, half.state), 2))

    for ours, theirs in zip(rest, iterates[2:], strict=True):
        assert ours.objective == theirs.objective
        np.testing.assert_array_equal(ours.v, theirs.v)
        np.testing.assert_array_equal(ours.multipliers, theirs.multipliers)
    for name, value in straight.state().items():
        np.testing.assert_array_equal(second.state()[name], value, err_msg=name)


def test_equal_seeds_equal_runs_and_others_not():
    def run(seed):
        learner = NeuralLearner(ACROBOT, [50, 50], seed=seed, steps=40, hidden=[8])
        return [iterate.v for iterate in islice(primal_dual(learner, PMDPD(1e-3)), 2)]

    np.testing.assert_array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


def test_a_refused_step_changes_nothing_and_is_counted():
    learner = NeuralLearner(ACROBOT, [50, 50], steps=40, hidden=[8])
    before = learner.theta
    learner.improve(Weights(float("nan"), np.zeros(2)))
    assert learner.updates[0].verdict == "not finite"
    assert learner.theta is before
    learner.improve(Weights(0.0, np.zeros(2)))
    assert learner.updates[0].verdict == "no gradient"
    assert learner.verdicts == {"not finite": 1, "no gradient": 1}


def test_refusals_before_any_work():
    with pytest.raises(ValueError, match="measure must be one of"):
        NeuralLearner(ACROBOT, [50, 50], measure="window")
    with pytest.raises(ValueError, match=r"limits\[1\] must be finite"):
        NeuralLearner(ACROBOT, [50, float("nan")])
    for wrong in ({"steps": 0}, {"hidden": [8, 0.5]}, {"radius": 0.0}, {"damping": -1.0}, {"smoothing": 1.5}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            NeuralLearner(ACROBOT, [50, 50], **wrong)
    with pytest.raises(TypeError, match="MultiDiscrete or a Box"):
        Actions.of(gymnasium.spaces.MultiBinary(2))
    with pytest.raises(TypeError, match="FlattenObservation"):
        NeuralLearner("FrozenLake-v1", [1.0])
    with pytest.raises(ValueError, match="reports no costs"):
        NeuralLearner("CartPole-v1", [1.0], steps=5).look()
    with pytest.raises(ValueError, match="reports 2 costs"):
        NeuralLearner(ACROBOT, [50.0], steps=5).look()


def test_states_of_other_runs_are_refused():
    state = NeuralLearner(ACROBOT, [50, 50], hidden=[8]).state()
    with pytest.raises(ValueError, match="this learner's has"):
        NeuralLearner(ACROBOT, [50, 50], hidden=[9]).restore(state)
    with pytest.raises(ValueError, match="seed 0"):
        NeuralLearner(ACROBOT, [50, 50], hidden=[8], seed=1).restore(state)


# By hand


def test_networks_begin_with_weights_of_the_size_of_their_fan_in():
    """Uniform in ±1/√fan-in, biases too; the last layer is smaller by the factor that is asked for."""
    network = Network([100, 50, 4], free=2)
    theta = network.initial(np.random.default_rng(0), last=0.01)
    (first, bias), (last, _) = network.layers(theta)
    assert 0.097 < float(first.abs().max()) <= 0.1
    assert 0.05 < float(bias.abs().max()) <= 0.1
    assert 0.0013 < float(last.abs().max()) <= 0.01 / np.sqrt(50.0) + 1e-9
    assert not theta[-2:].any()


def test_wild_observations_are_cut():
    policy = NeuralPolicy([(np.eye(2), np.zeros(2))], Actions(True, 0, 1), shift=[1.0, 0.0], scale=[2.0, 1e-6])
    np.testing.assert_array_equal(policy.inputs([5.0, 1.0]), np.array([2.0, 10.0], np.float32))
    np.testing.assert_array_equal(policy.inputs([-99.0, -1.0]), np.array([-10.0, -10.0], np.float32))


def test_the_pull_to_the_anchor_by_hand():
    """log π/π_k of the action, and the divergences of the states that follow, up to the end of the episode."""
    learner = NeuralLearner(Corridor, [1.0], num_envs=1, steps=4, hidden=[], gamma=0.5)
    rollout = hand_made([False, True, False, False], [False, True, False, False], [0.0] * 4)
    pi = np.array([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1], [0.5, 0.5]], dtype=np.float32)
    anchor = np.array([[0.2, 0.8], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=np.float32)
    actions = np.array([0, 1, 0, 1])
    # the network answers with the anchor's logarithms, whatever it is asked
    learner.network = lambda theta, x: torch.from_numpy(np.log(anchor))
    y, taken = torch.from_numpy(np.log(pi)), torch.from_numpy(actions)
    local = SimpleNamespace(x=None, y=y, actions=taken, log_prob=learner.distribution.log_prob(y, taken))
    found = learner._to_anchor(rollout, local, learner.theta)
    ratio = np.log(pi / anchor)[np.arange(4), actions]
    kl = (pi * np.log(pi / anchor)).sum(axis=1)
    # the episode of the first two steps ends with step 1; from step 2 on only step 3 follows
    expected = [ratio[0] + 0.5 * kl[1], ratio[1], ratio[2] + 0.5 * kl[3], ratio[3]]
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-6)


def test_critics_are_fitted_to_returns():
    """With smoothing 1 these are the discounted sums of what follows, whatever the critics said before."""
    settings = {"num_envs": 2, "steps": 9, "hidden": [4], "gamma": 0.5, "smoothing": 1.0}
    learner = NeuralLearner(lambda: Corridor(limit=100), [1.0], **settings)
    learner.critics.returns.update(np.array([[-10.0, 5.0], [-12.0, 7.0]]))  # so that the critics say something
    fitted = []
    learner.critics.fit = lambda x, returns, *_: fitted.append(returns) or True
    rollout = learner.rollout()
    beyond = learner.critics.values(rollout.following)
    learner.improve(Weights(0.0, np.ones(1)))
    expected = np.array(rollout.quantities)
    expected[rollout.cut] += 0.5 * beyond
    for t in range(7, -1, -1):
        expected[t] += 0.5 * expected[t + 1] * ~rollout.ended[t][:, None]
    np.testing.assert_allclose(fitted[0].reshape(expected.shape), expected, atol=1e-5)


def test_a_step_is_measured_in_the_mixed_cost_itself():
    """step · F⁻¹∇ of c̃: twice the cost is twice the step, whatever its deviation in the batch."""
    moves = []
    for weight in (1.0, 2.0):
        learner = NeuralLearner(lambda: Tabular(small_cmdp()), [1.0], num_envs=4, steps=100, hidden=[], damping=1e-3)
        before = learner.theta.clone()
        learner.improve(Weights(0.0, np.array([weight]), step=0.02, radius=10.0))
        moves.append((learner.theta - before).numpy())
    assert np.abs(moves[0]).max() > 0.0
    np.testing.assert_allclose(moves[1], 2.0 * moves[0], rtol=1e-3, atol=1e-6)


def test_a_state_holds_what_the_learner_knows():
    learner = NeuralLearner(ACROBOT, [50, 50], steps=60, num_envs=10, hidden=[8], normalise=True)
    learner.improve(Weights(0.0, np.array([1.0, 0.0]), inner_steps=2))
    state = learner.state()
    assert state["verdicts"] == dict(learner.verdicts)
    assert sum(state["verdicts"].values()) == 2
    assert state["critics_steps"] == learner.critics.steps > 0
    assert state["iteration"] == 2
    assert state["observed_count"] == learner.observed.count == 2 * 60 * 10
    for name, theta in (("policy", learner.theta.numpy()), ("critics", learner.critics.theta)):
        np.testing.assert_array_equal(state[name], theta)
    np.testing.assert_array_equal(state["critics_second"], learner.critics.second)
    np.testing.assert_array_equal(state["returns_mean"], learner.critics.returns.mean)


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
