"""The default dual of `train`, on a plant whose optimum is known; the local model and the estimates it relies on."""

from dataclasses import dataclass, replace
from itertools import islice

import gymnasium
import numpy as np
import pytest
import torch

import cmdpkit as ck
from cmdpkit.learners.neural.distributions import Softmax
from cmdpkit.learners.neural.learner import NeuralLearner
from cmdpkit.learners.neural.local import LocalModel
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.rollouts import Rollout
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules import TrustRegionPMDPD, View
from cmdpkit.rules.base import Prediction
from cmdpkit.run.choice import choose
from cmdpkit.settings import NeuralSettings

RADIUS = 1e-3


@dataclass(frozen=True)
class PlantView(View):
    found: Prediction | None = None

    @property
    def prediction(self):
        return self.found


class Plant:
    """θ with the reward rᵀθ − ½ |θ|², costs c_iᵀθ ≤ limit_i and steps in the metric 1 + noise: the optimum is that of
    the quadratic program, r − θ = Σ λ_i c_i."""

    def __init__(self, reward, costs, limits, noise=0.3, optimism=1.0, units=None):
        self.reward, self.costs, self.limits = np.array(reward), np.array(costs, dtype=float), np.array(limits)
        self.noise, self.optimism = noise, optimism
        self.units = np.ones(len(self.costs) + 1) if units is None else np.array(units)
        self.theta = np.zeros(self.reward.size)
        self.path = [self.theta]

    def gradients(self):
        return self.units[:, None] * np.vstack([self.theta - self.reward, self.costs])

    def look(self):
        g = self.gradients()
        sizes = np.linalg.norm(g, axis=1)
        unit = np.divide(g, sizes[:, None], where=sizes[:, None] > 0.0, out=np.zeros_like(g))
        gram = unit @ unit.T
        objective = self.units[0] * float(0.5 * self.theta @ self.theta - self.reward @ self.theta)
        values = self.units[1:] * (self.costs @ self.theta - self.limits)
        found = Prediction(sizes, gram + self.noise * np.eye(len(g)), self.optimism * gram, RADIUS, 1.0)
        return PlantView(objective, values, found=found)

    def improve(self, weights):
        view, g = self.look(), self.gradients()
        w = np.append(weights.objective, weights.constraints) * view.found.deviations
        w, mixed = w / np.linalg.norm(w), np.append(weights.objective, weights.constraints) @ g
        along = mixed / np.linalg.norm(np.append(weights.objective, weights.constraints) * view.found.deviations)
        self.theta = self.theta - np.sqrt(2.0 * RADIUS / (w @ view.found.metric @ w)) * along
        self.path.append(self.theta)
        return 1


def run(plant, steps=400, rule=None):
    return list(islice(primal_dual(plant, TrustRegionPMDPD() if rule is None else rule), steps))


ONE = ([2.0, 1.0], [[1.0, 0.0]], [0.5])  # θ* = (½, 1), λ* = 1½
TWO = ([2.0, 1.0, 0.5], [[1.0, 0.0, 0.0], [0.3, 1.0, 0.0]], [0.5, 5.0])  # the second limit is slack


@pytest.mark.parametrize(
    ("problem", "optimum", "prices"), [(ONE, [0.5, 1.0], [1.5]), (TWO, [0.5, 1.0, 0.5], [1.5, 0.0])]
)
def test_it_ends_at_the_optimum(problem, optimum, prices):
    plant = Plant(*problem)
    last = run(plant)[-100:]
    np.testing.assert_allclose(np.mean(plant.path[-100:], axis=0), optimum, atol=0.05)
    np.testing.assert_allclose(np.mean([i.multipliers for i in last], axis=0), prices, atol=0.15)
    assert max(i.v[0] for i in last) < 0.05


def test_two_limits_that_pull_apart():
    """θ_0 ≤ ½ and −θ_0 + θ_1 ≤ −1: the optimum of 2 θ_0 + θ_1 − ½|θ|² is (½, −½), with λ = (3, 1½)."""
    plant = Plant([2.0, 1.0], [[1.0, 0.0], [-1.0, 1.0]], [0.5, -1.0])
    last = run(plant, 600)[-100:]
    np.testing.assert_allclose(np.mean(plant.path[-100:], axis=0), [0.5, -0.5], atol=0.05)
    np.testing.assert_allclose(np.mean([i.multipliers for i in last], axis=0), [3.0, 1.5], atol=0.3)


@pytest.mark.parametrize("optimism", [0.3, 1.0, 5.0])
def test_wrong_predictions_do_not_move_the_limit(optimism):
    """Responses that are not what they were said to be shift the prices, and the sum of the violations shifts back."""
    plant = Plant(*ONE, optimism=optimism)
    values = np.array([i.v[0] for i in run(plant, 600)])
    assert abs(values[-200:].mean()) < 0.01
    assert np.abs(values[-200:]).max() < 0.1


class Heater(gymnasium.Env):
    """A room that is to be warm, at the cost of heating, in any units."""

    observation_space = gymnasium.spaces.Box(-50.0, 50.0, (2,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward=1.0, cost=1.0):
        self.reward, self.cost = reward, cost

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.inside, self.outside, self.minute = 20.0, self.np_random.uniform(0.0, 5.0), 0
        return np.array([self.inside, self.outside], dtype=np.float32), {}

    def step(self, action):
        self.inside += 0.03 * (self.outside - self.inside) + 1.2 * action
        self.minute += 1
        seen = np.array([self.inside, self.outside], dtype=np.float32)
        return seen, -self.reward * abs(self.inside - 20.0), False, self.minute >= 50, {"cost": self.cost * action}


@pytest.mark.parametrize("method", ["pmd-pd", "cpo", "pcpo", "crpo"])
def test_training_does_not_depend_on_units(method):
    """Powers of two, however small: the same rewards, costs and verdicts of all steps, in these units."""

    def run(reward, cost):
        def make():
            return Heater(reward, cost)

        found = ck.train(make, method, limits=[20.0 * cost], steps=50, num_envs=4, iterations=6, hidden=[8], seed=0)
        history = found.history
        return history.objective / reward, history.constraint_values / cost, list(history.verdict)

    plain = run(1.0, 1.0)
    assert set(plain[2]) <= {"accepted", "line search failed"}
    for units in ((2.0**-30, 1.0), (1.0, 2.0**-30), (2.0**-100, 2.0**-200), (2.0**30, 2.0**40)):
        scaled = run(*units)
        np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-12)
        np.testing.assert_allclose(scaled[1], plain[1], rtol=1e-12)
        assert scaled[2] == plain[2]


def test_what_cannot_be_learned_from_is_refused():
    with pytest.raises(ck.TrainingFailed, match=r"must not exceed 1e\+100: use a larger unit"):
        ck.train(lambda: Heater(1e160), limits=[20.0], steps=50, num_envs=1, iterations=1)

    class Blind(Heater):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (0,), dtype=np.float32)

    with pytest.raises(TypeError, match="at least one number"):
        ck.train(Blind, limits=[20.0], steps=50, num_envs=1, iterations=1)


def test_units_do_not_matter():
    """Costs in thousandths and rewards in millions give the same path, and multipliers in the quotient of the units."""
    plain, scaled = Plant(*TWO), Plant(*TWO, units=[1e6, 1e-3, 1e4])
    ours, theirs = run(plain, 100), run(scaled, 100)
    np.testing.assert_allclose(scaled.path, plain.path, atol=1e-9)
    np.testing.assert_allclose(theirs[-1].multipliers, ours[-1].multipliers * [1e9, 1e2], rtol=1e-6)


def test_far_from_the_limit_the_step_is_on_the_cost():
    """V starts at 20, and a step can remove at most √(2 · 0.001/1.3): once the price is high, nearly all of it is."""
    plant = Plant([2.0, 1.0], [[1.0, 0.0]], [-20.0])
    values = [i.v[0] for i in run(plant, 40)]
    fastest = np.sqrt(2.0 * RADIUS / 1.3)
    assert -np.diff(values)[10:].max() > 0.75 * fastest
    assert -np.diff(values)[30:].max() > 0.9 * fastest
    # the violations of the way do not add up to more than one step can do, and the price does not grow without end
    state = run(plant, 60)[-1].state
    assert state.rest[0] <= fastest * (1.0 + 1e-9)
    assert state.prices[0] == 5.0


def view(values, deviations, metric, response):
    found = Prediction(np.array(deviations), np.array(metric), np.array(response), 0.02, 10.0)
    return PlantView(0.0, np.array(values), found=found)


def test_one_step_by_hand():
    """σ = (4, ½), M = 1 and an estimate (1, −½; −½, 1) of H: r = 1, S = ¼ · 2, the scatter is all of its 2.5,
    so that ω = ½/3 and H_01 = −1/12. With u = 0 before, far = 10 · ½ · √0.04 = 1, and with V = 2
    a = 0.2 · 2 = 0.4, slope = 0.4 + 1/12 = 29/60, hessian = 1 + 2, u = 29/180, λ = u · 4/½."""
    rule, seen = TrustRegionPMDPD(pull=0.2), view([2.0], [4.0, 0.5], np.eye(2), [[1.0, -0.5], [-0.5, 1.0]])
    weights, state = rule.propose(rule.start(seen), seen)
    assert weights.objective == 1.0
    np.testing.assert_allclose(weights.constraints, [58 / 45], rtol=1e-12)
    found = [state.prices, state.reach, state.multipliers]
    np.testing.assert_allclose(found, [[29 / 180], [1.0], [58 / 45]], rtol=1e-12)
    # b = (1 − √0.8)² V, with V = −3 and −30 (at most 1/0.2); never below −R
    share = (1.0 - np.sqrt(0.8)) ** 2
    for v, counted in ((-3.0, -3.0), (-30.0, -5.0), (7.0, 5.0)):
        np.testing.assert_allclose(rule.observe(state, replace(seen, values=np.array([v]))).rest, [share * counted])
    # the second estimate counts half, as much as the first
    _, again = rule.propose(state, replace(seen, found=seen.found._replace(response=np.zeros((2, 2)))))
    np.testing.assert_allclose(again.response, 0.5 * seen.found.response)


def test_costs_that_never_vary_have_no_price():
    rule, seen = TrustRegionPMDPD(), view([-1.0, 3.0], [2.0, 0.0, 1.0], np.eye(3), np.eye(3))
    weights, state = rule.propose(rule.start(seen), seen)
    assert weights.constraints[0] == state.multipliers[0] == 0.0
    assert weights.constraints[1] > 0.0
    np.testing.assert_array_equal(state.known, [1.0, 0.0, 1.0])
    flat = view([-1.0, 3.0], [0.0, 0.0, 1.0], np.eye(3), np.eye(3))
    weights, _ = rule.propose(rule.start(seen), flat)  # no reward to gain: only the cost is left
    assert (weights.objective, weights.constraints[1] > 0.0) == (0.0, True)


def test_one_wild_iteration_hardly_moves_the_price():
    """σ of the reward is a hundred times larger in one iteration: λ changes by 100^0.1, not by 100."""
    rule = TrustRegionPMDPD()
    usual = view([0.0], [2.0, 1.0], np.eye(2), [[1.0, -0.5], [-0.5, 1.0]])
    state = rule.start(usual)
    for _ in range(60):
        _, state = rule.propose(state, usual)
    _, wild = rule.propose(state, replace(usual, found=usual.found._replace(deviations=np.array([200.0, 1.0]))))
    assert state.multipliers[0] == pytest.approx(0.5 * 2.0, rel=1e-3)
    assert wild.multipliers[0] / state.multipliers[0] == pytest.approx(100.0**0.1, rel=1e-3)


def test_responses_that_are_noise_leave_the_price_to_the_metric():
    """Estimates of H scatter by ten times r M, r = 0.1: V = 0 needs u = −M_01/M_11 = ½. Alone they say anything."""
    rule, rng, metric = TrustRegionPMDPD(), np.random.default_rng(0), np.array([[1.0, -0.5], [-0.5, 1.0]])
    state = rule.start(view([0.0], [2.0, 1.0], metric, metric))
    alone, prices = [], []
    for _ in range(300):
        noise = rng.normal(size=(2, 2))
        _, state = rule.propose(state, view([0.0], [2.0, 1.0], metric, 0.1 * metric + 0.5 * (noise + noise.T)))
        alone.append(max(0.0, -state.response[0, 1] / max(state.response[1, 1], 0.003)))
        prices.append(state.prices[0])
    assert np.std(alone[50:]) > 1.0
    assert np.std(prices[50:]) < 0.25
    assert np.mean(prices[50:]) == pytest.approx(0.5, abs=0.1)


def test_estimates_longer_than_their_gradients_are_cut():
    """|H_ij| ≤ √(M_ii M_jj) for every estimate: one wild one does not fill the average."""
    rule, seen = TrustRegionPMDPD(), view([0.0], [2.0, 1.0], np.diag([4.0, 1.0]), [[100.0, -100.0], [-100.0, 100.0]])
    _, state = rule.propose(rule.start(seen), seen)
    np.testing.assert_allclose(state.response, [[4.0, -2.0], [-2.0, 1.0]])


def test_it_is_the_default_and_a_dual_step_asks_for_algorithm_1():
    def rule(**given):
        return type(choose("pmd-pd", given, "neural", NeuralSettings, 1).rule).__name__

    assert rule() == rule(dual="implicit") == rule(pull=0.1) == "TrustRegionPMDPD"
    assert rule(eta_dual=0.1) == rule(dual="fixed") == "PMDPD"
    with pytest.raises(ValueError, match="dual must be 'fixed' or 'implicit'"):
        rule(dual="explicit")
    with pytest.raises(ValueError, match="needs dual='implicit'"):
        rule(dual="fixed", pull=0.1)
    with pytest.raises(ValueError, match="implicit dual steps set 'eta_dual' themselves"):
        rule(dual="implicit", eta_dual=0.1)
    with pytest.raises(ValueError, match="pull must be at most 1"):
        rule(pull=1.5)


# -- the local model ---------------------------------------------------------------------------------------------------


def local_model(advantages, half, damping=0.05, width=2, seed=0):
    rng = np.random.default_rng(seed)
    network = Network([width, 5, 3])
    theta = network.initial(rng)
    x = torch.from_numpy(rng.normal(size=(len(advantages), width)).astype(np.float32))
    actions = torch.from_numpy(rng.integers(0, 3, len(advantages)))
    return LocalModel(theta, network, Softmax(), x, actions, advantages, half, damping, 60, small=1e-5)


def test_products_are_those_of_the_dense_fisher_matrix():
    rng = np.random.default_rng(1)
    advantages = rng.normal(size=(40, 2)) * [3.0, 0.1] + 5.0
    half = np.arange(40) % 2 == 0
    model = local_model(advantages, half)
    old = model.pi.log_prob(model.y, model.actions)

    def gradient(rows):
        """Of the mean over some samples of (π/π_old) · standardised advantage, by autograd."""
        scaled = torch.from_numpy((advantages - advantages.mean(axis=0)) / advantages.std(axis=0)).float()[rows]
        theta = model.theta.clone().requires_grad_()
        ratio = (model.pi.log_prob(model.network(theta, model.x), model.actions) - old).exp()[rows]
        return torch.stack([torch.autograd.grad((ratio * a).mean(), theta, retain_graph=True)[0] for a in scaled.T])

    fisher = torch.autograd.functional.hessian(
        lambda t: model.pi.divergence(model.y, model.network(t, model.x)).mean(), model.theta
    )
    solve = torch.linalg.inv(fisher + 0.05 * torch.eye(len(fisher)))
    everything, first, second = gradient(np.arange(40)), gradient(half), gradient(~half)
    own, across = model.products
    np.testing.assert_allclose(own, everything @ solve @ everything.T, rtol=2e-3, atol=1e-4)
    expected = first @ solve @ second.T
    np.testing.assert_allclose(across, 0.5 * (expected + expected.T), rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(model.deviations, advantages.std(axis=0))


def test_what_is_noise_on_the_samples_is_nothing_on_others():
    """Advantages that have nothing to do with the actions: the step seems to gain, and gains nothing."""
    found = []
    for seed in range(40):
        noise = np.random.default_rng(100 + seed).normal(size=(200, 1))
        found.append([p.item() for p in local_model(noise, np.arange(200) % 2 == 0, seed=seed).products])
    own, across = np.array(found).T
    assert own.min() > 0.0
    assert own.mean() > 0.02
    assert abs(across.mean()) < 3.0 * across.std() / np.sqrt(40.0)
    assert abs(across.mean()) < 0.2 * own.mean()


# -- what episodes of all lengths tell ---------------------------------------------------------------------------------


def episodes(rng, steps=50, n=4, stop=0.04):
    """Each step ends the episode with probability `stop` and costs its age."""
    ended = rng.random((steps, n)) < stop
    age = np.zeros((steps, n))
    for t in range(1, steps):
        age[t] = np.where(ended[t - 1], 0.0, age[t - 1] + 1.0)
    blank = np.zeros((steps, n, 1), dtype=np.float32)
    quantities = np.stack([-np.ones_like(age), age], axis=2)
    return Rollout(blank, blank, np.zeros((steps, n), int), quantities, ended, ended, blank[:0, 0], ~ended)


@pytest.mark.parametrize("measure", ["episode", "discounted"])
def test_all_episodes_estimate_without_bias(measure):
    """E Σ_{t<50} wᵗ c_t with P(age t is reached) = 0.96ᵗ, from all episodes, those cut off by the end included."""
    rng, weight = np.random.default_rng(0), 0.9 if measure == "discounted" else 1.0
    found = [episodes(rng).estimate(measure, 0.9) for _ in range(1_500)]
    t = np.arange(50)
    reached = (weight * 0.96) ** t
    truth = np.array([-reached.sum(), (reached * t).sum()])
    means, errors = np.array([f.mean for f in found]), np.array([f.error for f in found])
    assert (
        np.abs(means.mean(axis=0) - truth) < 3.0 * means.std(axis=0) / np.sqrt(len(found)) + 0.01 * abs(truth)
    ).all()
    assert np.mean([f.length for f in found]) == pytest.approx(reached.sum(), rel=0.02)
    # the error bars are about as wide as the estimates scatter, which is less than with the first episodes alone
    np.testing.assert_allclose(np.sqrt((errors**2).mean(axis=0)), means.std(axis=0), rtol=0.2)
    first = np.array([episodes(rng).samples(measure, 0.9).mean(axis=0) for _ in range(1_500)])
    assert (means.std(axis=0) < 0.9 * first.std(axis=0)).all()


def test_estimates_by_hand():
    """Environment 0: episodes of 2 and 1 (cut); environment 1: one of 3 (cut). Ages seen: 0: three, 1: two, 2: two."""
    ended = np.array([[False, False], [True, False], [False, False]])
    quantities = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])[..., None]
    blank = np.zeros((3, 2, 1), dtype=np.float32)
    rollout = Rollout(blank, blank, np.zeros((3, 2), int), quantities, ended, ended, blank[:0, 0], ~ended)
    mean, error, length = rollout.estimate("episode", 0.5)
    # (1 + 4 + 10)/3 + (2 + 20)/2 + 40/2: of age 2 one could have been seen in environment 0, had it not ended; and
    # environment 0 alone gives 5/2 + 2 + 0, environment 1 alone 10 + 20 + 40
    assert mean[0] == pytest.approx(2 * 36 - (4.5 + 70) / 2)
    assert error[0] == pytest.approx((70 - 4.5) / 2)
    assert length == pytest.approx(1.0 + 1.0 + 0.5)
    step = rollout.estimate("step", 0.5)
    assert (step.mean[0], step.length) == (pytest.approx(77 / 6), 1.0)
    assert step.error[0] == pytest.approx(np.std([7 / 3, 70 / 3], ddof=1) / np.sqrt(2.0))


def test_first_episodes_alone_are_plain_means():
    """Where all episodes last as long as the rollout, mean and error are those of independent samples."""
    rollout = episodes(np.random.default_rng(0), steps=20, n=5, stop=0.0)
    noise = replace(rollout, quantities=rollout.quantities + np.random.default_rng(1).normal(size=(20, 5, 2)))
    mean, error, length = noise.estimate("episode", 0.9)
    samples = noise.samples("episode", 0.9)
    np.testing.assert_allclose(mean, samples.mean(axis=0))
    np.testing.assert_allclose(error, samples.std(axis=0, ddof=1) / np.sqrt(5.0))
    assert length == pytest.approx(20.0)


# -- and all together --------------------------------------------------------------------------------------------------


def test_a_restored_run_goes_on_bit_for_bit():
    options = {"limits": [5, 20], "steps": 60, "hidden": [16], "seed": 4}
    rule = TrustRegionPMDPD()
    straight = NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", **options)
    iterates = list(islice(primal_dual(straight, rule), 4))
    first = NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", **options)
    half = list(islice(primal_dual(first, rule), 2))[-1]
    second = NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", **options)
    second.restore(first.state())
    rest = list(islice(primal_dual(second, rule, half.state), 2))
    for ours, theirs in zip(rest, iterates[2:], strict=True):
        np.testing.assert_array_equal(ours.v, theirs.v)
        np.testing.assert_array_equal(ours.multipliers, theirs.multipliers)


def test_a_limit_is_held_without_an_option_set():
    """Ten steps; action 1 earns 1 and costs 1: the best reward within a limit is the limit."""
    from test_training import COIN, Coin

    result = ck.train(Coin, limits=[4.0], iterations=80, **COIN)
    reward, costs = result.recent(30)
    assert costs[0] == pytest.approx(4.0, abs=0.3)
    assert reward == pytest.approx(costs[0])
    assert result.multipliers[0] == pytest.approx(1.0, abs=0.5)
