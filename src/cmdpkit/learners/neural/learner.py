"""The neural learner: trust-region natural-gradient steps on a Gymnasium environment, from samples.

The policy of iteration k is rolled out in many environments at once, which estimates its values; critics turn the
rollout into advantages A_0..A_m; and the policy moves along the natural gradient of the advantage of the mixed cost

    Ã = w_0 A_0 + Σ w_i A_i + α · (log π/π_k, and the divergence to π_k of the states that follow, discounted).

The rules and the loop are those of the tabular learners.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cmdpkit.checks import Array, check_number
from cmdpkit.envs.batch import spread
from cmdpkit.learners.neural.critics import Critics, Moments
from cmdpkit.learners.neural.distributions import Distribution, Gaussian, Softmax
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.policy import Actions, NeuralPolicy
from cmdpkit.learners.neural.rollouts import MEASURES, Rollout, collect, discounted, fingerprint
from cmdpkit.learners.neural.trust_region import PolicyStep, trust_region_step
from cmdpkit.model import AtMost, Problem
from cmdpkit.options import validated
from cmdpkit.rules.base import View, Weights
from cmdpkit.settings import NeuralSettings


class Update(NamedTuple):
    """One policy iteration: the values of the policy before the step, and the outcome of the step."""

    iteration: int
    objective: float  # V_0, minimised: minus the reward
    values: Array  # V_1..V_m, feasible when ≤ 0
    divergence: float  # mean KL(old ‖ new) of the step
    gain: float  # gain of the surrogate, in standard deviations of the mixed advantage
    trials: int  # trials of the line search
    verdict: str  # "accepted", "no gradient", "line search failed" or "not finite"
    fit: Array  # (m + 1,): fraction of the variance of the returns that the critics explained before the update
    finished: float  # time.perf_counter() at its end


class NeuralLearner:
    """Natural policy gradient with neural networks, within a trust region.

    Every iteration starts with a reset of all environments, and its random numbers depend only on the seed and the
    iteration number: a learner restored from `state()` continues bit for bit, if its environments respect their seeds.

    Args:
        env: a registered name, a function that makes an environment, or a vector environment (see `envs.as_batch`).
            The costs are in `info["cost"]` or `info["costs"]`.
        limits: one per cost; V_i is the measure of cost i minus its limit.
        measure: what limits bound and the objective measures: "episode", the expected sum over an episode of at most
            `steps` steps; "discounted", the expected discounted sum; "step", the average per step.
        seed: seed of all random numbers.
        settings: settings of the learner; or
        **options: fields of `NeuralSettings`.

    Example:
        >>> from itertools import islice
        >>> from cmdpkit.primal_dual import primal_dual
        >>> from cmdpkit.rules import PMDPD
        >>> learner = NeuralLearner("cmdpkit/ConstrainedAcrobot-v0", limits=[50, 50], steps=100, hidden=[16])
        >>> [iterate.v.shape for iterate in islice(primal_dual(learner, PMDPD(5e-4)), 2)]
        [(2,), (2,)]
    """

    def __init__(
        self,
        env: Any,
        limits: Sequence[float],
        measure: str = "episode",
        seed: int = 0,
        settings: NeuralSettings | None = None,
        **options: Any,
    ) -> None:
        if measure not in MEASURES:
            raise ValueError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
        settings = validated(NeuralSettings, options) if settings is None else settings
        self.settings: NeuralSettings = settings
        bounds = [check_number(limit, f"limits[{i}]") for i, limit in enumerate(limits)]
        self.limits = np.array(bounds)
        self.problem = Problem.described(
            states=0,
            actions=0,
            gamma=settings.gamma,
            maximise=True,
            constraints=tuple(AtMost(None, limit, name=f"cost {i}") for i, limit in enumerate(bounds, start=1)),
        )
        self.measure, self.seed, self.steps, self.gamma = measure, seed, settings.steps, settings.gamma
        self.envs = spread(env, settings.num_envs)
        self.actions = Actions.of(self.envs.single_action_space)
        width = _width(self.envs.single_observation_space)
        rng = np.random.default_rng([seed, 0])
        free = 0 if self.actions.discrete else self.actions.outputs
        self.network = Network([width, *settings.hidden, self.actions.outputs], free)
        self.distribution: Distribution = Softmax() if self.actions.discrete else Gaussian()
        self.theta = self.network.initial(rng, last=0.01)  # nearly uniform initially, or mean 0 and σ 1
        self._anchor = self.theta  # of the last step
        regression = (settings.critic_rate, settings.critic_epochs, settings.critic_minibatch)
        self.critics = Critics(width, len(limits) + 1, settings.hidden, rng, *regression)
        self.observed = Moments(width)
        self.iteration = 0
        self.updates: list[Update] = []  # updates of the last `improve`
        self.verdicts: Counter[str] = Counter()  # counts over all policy steps, and of "critics not finite"
        self._rollout: Rollout | None = None
        torch.set_num_threads(1)  # products are small: more threads do not pay off, and are very slow on a busy machine

    @property
    def policy(self) -> NeuralPolicy:
        """The current policy, acting with NumPy alone."""
        layers = [(w.numpy().copy(), b.numpy().copy()) for w, b in self.network.layers(self.theta)]
        log_std = None if self.actions.discrete else self.theta[-self.network.free :].numpy().copy()
        if not self.settings.normalise or not self.observed.count:
            return NeuralPolicy(layers, self.actions, log_std)
        return NeuralPolicy(layers, self.actions, log_std, self.observed.mean, self.observed.deviation)

    def rollout(self) -> Rollout:
        """Samples of the current policy; drawn once per policy."""
        if self._rollout is None:
            rng = np.random.default_rng([self.seed, 1, self.iteration])
            self._rollout = collect(self.envs, self.policy, self.steps, self.limits.size, rng)
        return self._rollout

    @property
    def environment_steps(self) -> int:
        """Environment steps used for learning."""
        return int(self.iteration * self.steps * self.envs.num_envs)

    def fingerprint(self) -> str:
        """What tells this environment from others, as far as a few steps of it show."""
        return fingerprint(self.envs, self.policy, self.limits.size)

    def samples(self) -> Array:
        """(num_envs, m + 1): independent samples of the measures of −reward and the costs."""
        return self.rollout().samples(self.measure, self.gamma)

    def look(self) -> View:
        samples = self.samples()
        values = np.asarray(samples[:, 1:].mean(axis=0) - self.limits)
        return View(float(samples[:, 0].mean()), values, gamma=self.gamma)

    def improve(self, weights: Weights) -> int:
        """t_k policy iterations on c̃, each with its own samples, anchored at the current policy.

        A step is as long as the radius allows, or as `weights.step` says if that is shorter. The accuracy of estimates
        depends on the samples alone, whatever `weights.accuracy` is.
        """
        if weights.anchor == "return":
            self.theta, self._rollout = self._anchor, None
        elif weights.anchor is None:
            self._anchor = self.theta
        anchor = self._anchor
        steps = self.settings.inner_steps if weights.inner_steps is None else weights.inner_steps
        self.updates = [self._iterate(weights, anchor) for _ in range(steps)]
        return steps

    def _iterate(self, weights: Weights, anchor: torch.Tensor) -> Update:
        rollout, view = self.rollout(), self.look()
        x = rollout.inputs.reshape(-1, rollout.inputs.shape[-1])
        guess = self.critics.values(x).reshape(rollout.quantities.shape)
        advantages = rollout.advantages(
            guess, self.critics.values(rollout.following), self.gamma, self.settings.smoothing
        )
        returns = advantages + guess
        outcome = self._step(rollout, torch.from_numpy(x), advantages, weights, anchor)
        if not self.critics.fit(x, returns.reshape(len(x), -1), np.random.default_rng([self.seed, 2, self.iteration])):
            self.verdicts["critics not finite"] += 1
        self.verdicts[outcome.verdict] += 1
        if self.settings.normalise:
            self.observed.update(rollout.seen.reshape(x.shape))
        self.theta, self._rollout = outcome.theta, None
        self.iteration += 1
        explained = 1.0 - advantages.var(axis=(0, 1)) / np.maximum(returns.var(axis=(0, 1)), 1e-12)
        return Update(self.iteration, view.objective, view.values, *outcome[1:], explained, time.perf_counter())

    def _step(
        self, rollout: Rollout, x: torch.Tensor, advantages: Array, weights: Weights, anchor: torch.Tensor
    ) -> PolicyStep:
        """The trust-region step on the standardised advantage of the mixed cost."""
        theta, network, pi, settings = self.theta, self.network, self.distribution, self.settings
        actions = torch.from_numpy(rollout.actions).flatten(0, 1)
        hidden = network.activations(theta, x)
        y = hidden[-1]
        log_prob = pi.log_prob(y, actions)
        # Ã = w_0 A_0 + Σ w_i A_i                                                        (eq. tilde-c)
        mixed = advantages @ np.append(weights.objective, weights.constraints)
        if settings.alpha and theta is not anchor:
            mixed += settings.alpha * self._to_anchor(rollout, y, log_prob, network(anchor, x), actions)
        # Costs are minimised; the trust region maximises −Ã in units of its deviation.
        deviation = float(mixed.std())
        benefit = torch.from_numpy(_standardised(-mixed).astype(np.float32).ravel())

        def judge(candidate: torch.Tensor) -> tuple[float, float]:
            moved = network(candidate, x)
            ratio = (pi.log_prob(moved, actions) - log_prob).exp()
            return float((ratio * benefit).mean()), float(pi.divergence(y, moved).mean())

        # g = (1/N) Jᵀ (benefit · ∂ log π/∂y),   F v = (1/N) Jᵀ M J v
        gradient = network.gradient(theta, hidden, pi.score(y, actions) * benefit[:, None]).div_(len(x))
        metric = pi.metric(y)

        def fisher(v: torch.Tensor) -> torch.Tensor:
            return network.gradient(theta, hidden, metric(network.forward_derivative(theta, hidden, v))).div_(len(x))

        return trust_region_step(
            theta,
            gradient,
            fisher,
            judge,
            settings.radius if weights.radius is None else weights.radius,
            settings.damping,
            settings.cg_steps,
            settings.line_search,
            # step · F⁻¹ ∇ of the mixed advantage itself; the gradient here is in units of its deviation
            None if weights.step is None else weights.step * deviation,
        )

    def _to_anchor(self, rollout: Rollout, y: Any, log_prob: Any, y_anchor: Any, actions: Any) -> Array:
        """log π/π_k at the step itself, and the discounted KL(π ‖ π_k) of the states after it  (eq. regu-Q)."""
        shape = rollout.ended.shape
        ratio = (log_prob - self.distribution.log_prob(y_anchor, actions)).numpy().reshape(shape)
        divergence = self.distribution.divergence(y, y_anchor).numpy().reshape(shape)
        return np.asarray(ratio - divergence + discounted(divergence, rollout.ended, self.gamma))

    def state(self) -> dict[str, Any]:
        """The complete state, as arrays and numbers. The current rollout is not included; it is drawn again."""
        critics = self.critics
        return {
            "policy": self.theta.numpy().copy(),
            "anchor": self._anchor.numpy().copy(),
            "critics": critics.theta.numpy().copy(),
            "critics_first": critics.first.numpy().copy(),
            "critics_second": critics.second.numpy().copy(),
            "critics_steps": critics.steps,
            **{f"returns_{name}": value for name, value in vars(critics.returns).items()},
            **{f"observed_{name}": value for name, value in vars(self.observed).items()},
            "iteration": self.iteration,
            "seed": self.seed,
            "verdicts": dict(self.verdicts),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state()`. The learner must have been created with the same settings."""
        for name, mine in (("policy", self.theta), ("critics", self.critics.theta)):
            if np.shape(state[name]) != tuple(mine.shape):
                raise ValueError(
                    f"{name} has {np.size(state[name])} parameters, but this learner's has {mine.numel()}; "
                    "were the networks or the environment different?"
                )
        if state["seed"] != self.seed:
            raise ValueError(f"the state is of a run with seed {state['seed']}, but this learner has seed {self.seed}")
        critics = self.critics
        self.theta, critics.theta = _tensor(state["policy"]), _tensor(state["critics"])
        same = np.array_equal(state["anchor"], state["policy"])
        self._anchor = self.theta if same else _tensor(state["anchor"])
        critics.first, critics.second = _tensor(state["critics_first"]), _tensor(state["critics_second"])
        critics.steps, self.iteration = int(state["critics_steps"]), int(state["iteration"])
        for moments, name in ((critics.returns, "returns"), (self.observed, "observed")):
            moments.count = float(state[f"{name}_count"])
            moments.mean, moments.squares = np.array(state[f"{name}_mean"]), np.array(state[f"{name}_squares"])
        self.verdicts = Counter(state["verdicts"])
        self._rollout, self.updates = None, []


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _standardised(x: Array) -> Array:
    """Standardise to mean 0 and deviation 1; a constant gives zeros."""
    away, deviation = x - x.mean(), x.std()
    return np.asarray(np.zeros_like(x) if deviation <= 1e-8 else away / deviation)


def _width(space: Any) -> int:
    if type(space).__name__ != "Box":
        raise TypeError(f"observations must be a Box, not {space}; use gymnasium.wrappers.FlattenObservation")
    return int(np.prod(space.shape))
