"""The neural learner: trust-region natural-gradient steps on a Gymnasium environment, from samples.

The policy of iteration k is rolled out in many environments at once, which estimates its values; critics turn the
rollout into advantages A_0..A_m; and the policy moves along the natural gradient of the advantage of the mixed cost

    Ã = w_0 A_0 + Σ w_i A_i + α · (log π/π_k, and the divergence to π_k of the states that follow, discounted).

The rules and the loop are those of the tabular learners.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cmdpkit.checks import Array, check_cost_limits
from cmdpkit.envs.batch import spread
from cmdpkit.envs.scattered import Scattered
from cmdpkit.learners.neural.critics import Critics, Moments, own_unit
from cmdpkit.learners.neural.distributions import Distribution, Gaussian, Softmax, Softmaxes
from cmdpkit.learners.neural.first_order import FirstOrder
from cmdpkit.learners.neural.local import CONSTANT, LocalModel, NeuralView
from cmdpkit.learners.neural.networks import Network
from cmdpkit.learners.neural.policy import Actions, Floats, NeuralPolicy
from cmdpkit.learners.neural.rollouts import (
    ASCENDING,
    FITTING,
    MEASURES,
    ROLLING,
    STARTING,
    Estimate,
    Rollout,
    collect,
    discounted,
    fingerprint,
)
from cmdpkit.learners.neural.stream import Stream
from cmdpkit.learners.neural.trust_region import PolicyStep, trust_region_step
from cmdpkit.model import AtMost, Problem
from cmdpkit.options import validated
from cmdpkit.rules.base import Weights, refuse
from cmdpkit.settings import NeuralSettings


class Update(NamedTuple):
    """One policy iteration: the values of the policy before the step, and the outcome of the step."""

    iteration: int
    objective: float  # V_0, minimised: minus the reward
    values: Array  # V_1..V_m, feasible when ≤ 0; without a limit, the measure itself
    divergence: float  # mean KL(old ‖ new) of the step
    gain: float  # gain of the surrogate, in standard deviations of the mixed advantage
    trials: int  # trials of the line search
    verdict: str  # "accepted", "no gradient", "line search failed" or "not finite"
    fit: Array  # (m + 1,): fraction of the variance of the returns that the critics explained before the update
    finished: float  # time.perf_counter() at its end


class Best(NamedTuple):
    """The best policy whose costs were within the limits, by more than their standard errors."""

    theta: torch.Tensor
    shift: Array  # of the observations, as is `scale`; empty if they are not normalised
    scale: Array
    evidence: dict[str, Any]  # iteration, and what its episodes in training showed, with standard errors


class NeuralLearner:
    """Natural policy gradient with neural networks, within a trust region.

    Every iteration starts with a reset of all environments (with `persist`, every 50th), and its random numbers depend
    only on the seed and the iteration number: a learner restored from `state()` continues bit for bit, if its
    environments respect their seeds.

    Args:
        env: a registered name, a function that makes an environment, or a vector environment (see `envs.as_batch`).
            The costs are in `info["cost"]` or `info["costs"]`.
        limits: one per cost; V_i is the measure of cost i minus its limit. A cost with an infinite limit is only
            recorded.
        measure: what limits bound and the objective measures: "episode", the expected sum over an episode of at most
            `steps` steps; "discounted", the expected discounted sum; "step", the average per step.
        seed: seed of all random numbers.
        workers: processes in which the environments run, instead of this one; the numbers do not depend on it.
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
        workers: int | None = None,
        **options: Any,
    ) -> None:
        if measure not in MEASURES:
            raise ValueError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
        settings = validated(NeuralSettings, options) if settings is None else settings
        self.settings: NeuralSettings = settings
        self.limits = check_cost_limits(limits)
        self.limited = np.isfinite(self.limits)  # rules see these costs only, and others are recorded
        bounds = np.where(self.limited, self.limits, 0.0).tolist()
        self.margin = np.zeros(self.limits.size)
        self.margin[self.limited] = 0.0 if settings.margin is None else settings.margin
        self.problem = Problem.described(
            states=0,
            actions=0,
            gamma=settings.gamma,
            maximise=True,
            constraints=tuple(AtMost(None, limit, name=f"cost {i}") for i, limit in enumerate(bounds, start=1)),
        )
        self.measure, self.seed, self.steps, self.gamma = measure, seed, settings.steps, settings.gamma
        self.envs = spread(env, settings.num_envs, workers)
        self.actions = Actions.of(self.envs.single_action_space)
        width = _width(self.envs.single_observation_space)
        rng = np.random.default_rng([seed, STARTING])
        free = 0 if self.actions.discrete else self.actions.outputs
        self.network = Network([width, *settings.hidden, self.actions.outputs], free, settings.activation)
        self.distribution = _distribution(self.actions)
        # nearly uniform initially, or means of nearly 0
        self.theta = self.network.initial(rng, last=0.01, free=math.log(settings.deviation))
        self._anchor = self.theta  # of the last step
        regression = (settings.critic_rate, settings.critic_epochs, settings.critic_minibatch)
        self.critics = Critics(width, len(limits) + 1, settings.hidden, rng, *regression, settings.activation)
        self.observed = Moments(width)
        self.iteration = 0
        self.updates: list[Update] = []  # updates of the last `improve`
        self.verdicts: Counter[str] = Counter()  # counts over all policy steps, and of "critics not finite"
        self.best: Best | None = None
        # environments that go on from one iteration to the next
        discount = settings.gamma if measure == "discounted" else 1.0
        if settings.persist and isinstance(self.envs, Scattered) and not self.envs.keeps:
            raise ValueError(
                "environments that persist would be lost with their worker, and where they stand: "
                "leave out persist, or cluster"
            )
        self.stream = Stream(self.envs, len(limits), seed, discount) if settings.persist else None
        self._rollout: Rollout | None = None  # of the current policy, as are the next two
        self._advantages: tuple[Array, Array] | None = None
        self._local: LocalModel | None = None
        torch.set_num_threads(1)  # products are small: more threads do not pay off, and are very slow on a busy machine

    @property
    def policy(self) -> NeuralPolicy:
        """The current policy, acting with NumPy alone."""
        return self._acting(self.theta, *self._scaling())

    @property
    def best_policy(self) -> NeuralPolicy | None:
        """The policy of `best`."""
        return None if self.best is None else self._acting(*self.best[:3])

    def _scaling(self) -> tuple[Array, Array]:
        """Shift and scale of the observations; empty where they are used as they are."""
        if not self.settings.normalise or not self.observed.count:
            return np.zeros(0), np.zeros(0)
        return self.observed.mean, self.observed.deviation

    def _acting(self, theta: torch.Tensor, shift: Array, scale: Array) -> NeuralPolicy:
        layers = [(w.numpy().copy(), b.numpy().copy()) for w, b in self.network.layers(theta)]
        log_std = None if self.actions.discrete else theta[-self.network.free :].numpy().copy()
        scaling = {"shift": shift, "scale": scale} if shift.size else {}
        return NeuralPolicy(layers, self.actions, log_std, **scaling, activation=self.settings.activation)

    def rollout(self) -> Rollout:
        """Samples of the current policy; drawn once per policy."""
        if self._rollout is None:
            rng = np.random.default_rng([self.seed, ROLLING, self.iteration])
            self._rollout = (
                collect(self.envs, self.policy, self.steps, self.limits.size, rng)
                if self.stream is None
                else self.stream.roll(self.policy, self.steps, self.iteration)
            )
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

    def look(self) -> NeuralView:
        mean, _, length = self.estimate()
        values = (mean[1:] - self.limits + self.margin)[self.limited]
        shown = np.append(True, self.limited)
        return NeuralView(float(mean[0]), values, None, self.gamma, self.local, self.settings.radius, length, shown)

    def widened(self, values: Array, rest: float = 0.0) -> Array:
        """Numbers of the costs with a limit as numbers of all costs."""
        table = np.full(self.limits.size, rest)
        table[self.limited] = values
        return table

    def estimate(self) -> Estimate:
        """The measures of −reward and costs of the current policy, from its rollout."""
        rollout = self.rollout()
        if self.stream is None or self.measure == "step":
            return rollout.estimate(self.measure, self.gamma)
        return self.stream.estimate(rollout)

    def advantages(self) -> tuple[Array, Array]:
        """The generalised advantages of the current rollout (T, n, m + 1), and the critics' values."""
        rollout = self.rollout()
        if self._advantages is None:
            guess = self.critics.values(_rows(rollout.inputs), self._units()).reshape(rollout.quantities.shape)
            beyond = self.critics.values(rollout.following, self._units())
            self._advantages = rollout.advantages(guess, beyond, self.gamma, self.settings.smoothing), guess
        return self._advantages

    def _units(self) -> Array:
        """(m + 1,) the sizes of rewards and costs that are small, 1 for others."""
        return own_unit(np.abs(self.rollout().quantities).max(axis=(0, 1)))

    def local(self) -> LocalModel:
        """The local model of the current policy; computed once per policy."""
        if self._local is None:
            rollout, settings = self.rollout(), self.settings
            self._local = LocalModel(
                self.theta,
                self.network,
                self.distribution,
                torch.from_numpy(_rows(rollout.inputs)),
                torch.from_numpy(rollout.actions).flatten(0, 1),
                _rows(self.advantages()[0]),
                rollout.half().ravel(),
                settings.damping,
                settings.cg_steps,
                rollout.few(settings.fisher_states),
                units=self._units(),
            )
        return self._local

    def improve(self, weights: Weights) -> int:
        """t_k policy iterations on c̃, each with its own samples, anchored at the current policy.

        A step is as long as the radius allows, or as `weights.step` says if that is shorter. The accuracy of estimates
        depends on the samples alone, whatever `weights.accuracy` is.
        """
        refuse(self, weights, "entropy", "optimistic")  # they need a table of probabilities
        if weights.anchor == "return":
            self.theta = self._anchor
            self._forget()
        elif weights.anchor is None:
            self._anchor = self.theta
        anchor = self._anchor
        steps = self.settings.inner_steps if weights.inner_steps is None else weights.inner_steps
        self.updates = [self._iterate(weights, anchor) for _ in range(steps)]
        return steps

    def _iterate(self, weights: Weights, anchor: torch.Tensor) -> Update:
        rollout, x = self.rollout(), _rows(self.rollout().inputs)
        mean, error, _ = self.estimate()
        self._remember(mean, error)
        advantages, guess = self.advantages()
        returns = advantages + guess
        units = self._units()
        outcome = self._step(rollout, self.local(), weights, anchor)
        rng = np.random.default_rng([self.seed, FITTING, self.iteration])
        if not self.critics.fit(x, returns.reshape(len(x), -1), rng, units):
            self.verdicts["critics not finite"] += 1
        self.verdicts[outcome.verdict] += 1
        if self.settings.normalise:
            self.observed.update(rollout.seen.reshape(x.shape))
        self.theta = self._still_random(outcome.theta)
        self._forget()
        self.iteration += 1
        explained = 1.0 - advantages.var(axis=(0, 1)) / np.maximum(returns.var(axis=(0, 1)), 1e-12 * units**2)
        values = np.asarray(mean[1:] - np.where(self.limited, self.limits, 0.0))
        return Update(self.iteration, float(mean[0]), values, *outcome[1:], explained, time.perf_counter())

    def _still_random(self, theta: torch.Tensor) -> torch.Tensor:
        """θ with deviations of at least what was asked: without them nothing is learned of other actions."""
        least = self.settings.least_deviation
        if not self.network.free or not least:
            return theta
        raised = theta.clone()
        raised[-self.network.free :].clamp_(min=math.log(least))
        return raised

    def _remember(self, mean: Array, error: Array) -> None:
        """Keep the current policy as the best if its costs are within the limits and it earns more, errors counted."""
        if (mean[1:] + error[1:] > self.limits).any():
            return
        reward, surely = -float(mean[0]), -float(mean[0] + error[0])
        if self.best is not None:
            before = self.best.evidence
            if before["objective"] - before["objective_error"] >= surely:
                return
        evidence = {
            "iteration": self.iteration + 1,
            "objective": reward,
            "objective_error": float(error[0]),
            "constraint_values": mean[1:].tolist(),
            "errors": error[1:].tolist(),
        }
        self.best = Best(self.theta, *self._scaling(), evidence)

    def _step(self, rollout: Rollout, local: LocalModel, weights: Weights, anchor: torch.Tensor) -> PolicyStep:
        """The step on the standardised advantage of the mixed cost."""
        settings = self.settings
        # Ã = w_0 A_0 + Σ w_i A_i                                                        (eq. tilde-c)
        mixed = local.advantages @ np.append(weights.objective, self.widened(weights.constraints))
        if settings.alpha and self.theta is not anchor:
            mixed += settings.alpha * self._to_anchor(rollout, local, anchor)
        # Costs are minimised; the trust region maximises −Ã in units of its deviation.
        deviation = float(mixed.std())
        benefit = torch.from_numpy(_standardised(-mixed, self._nothing(weights, local)).astype(np.float32))
        radius = settings.radius if weights.radius is None else weights.radius
        judge = local.judge(benefit, self._worst(weights))
        if settings.surrogate != "trust-region":
            return self._by_plain_gradients(local, benefit, judge, radius, weights)
        gradient = local.gradient(benefit)
        return trust_region_step(
            self.theta,
            gradient,
            local.fisher,
            judge,
            radius,
            settings.damping,
            settings.cg_steps,
            settings.line_search,
            # step · F⁻¹ ∇ of the mixed advantage itself; the gradient here is in units of its deviation
            None if weights.step is None else weights.step * deviation,
            local.guess(gradient),
        )

    def _nothing(self, weights: Weights, local: LocalModel) -> float:
        """The deviation of a mixed advantage below which it does not vary."""
        mixed = np.abs(np.append(weights.objective, self.widened(weights.constraints))) @ local.constant
        return min(CONSTANT, float(mixed))

    def _by_plain_gradients(
        self, local: LocalModel, benefit: torch.Tensor, judge: Any, radius: float, weights: Weights
    ) -> PolicyStep:
        settings = self.settings
        if weights.step is not None or weights.allowed_growth is not None:
            raise NotImplementedError("steps of a given size need surrogate='trust-region'")
        pace = (settings.policy_rate, settings.policy_epochs, settings.policy_minibatch)
        ascent = FirstOrder(settings.surrogate, radius, settings.clip, settings.temperature, *pace)
        return ascent.step(local, benefit, judge, np.random.default_rng([self.seed, ASCENDING, self.iteration]))

    def _worst(self, weights: Weights) -> Array | None:
        """By how much the mean advantage of each cost may grow, −reward included."""
        if weights.allowed_growth is None:
            return None
        return np.append(np.inf, self.widened(weights.allowed_growth, np.inf) / self.estimate().length)

    def _to_anchor(self, rollout: Rollout, local: LocalModel, anchor: torch.Tensor) -> Array:
        """log π/π_k at the step itself, and the discounted KL(π ‖ π_k) of the states after it  (eq. regu-Q)."""
        y, shape = self.network(anchor, local.x), rollout.ended.shape
        ratio = (local.log_prob - self.distribution.log_prob(y, local.actions)).numpy().reshape(shape)
        divergence = self.distribution.divergence(local.y, y).numpy().reshape(shape)
        return np.asarray(ratio - divergence + discounted(divergence, rollout.ended, self.gamma)).ravel()

    def _forget(self) -> None:
        """Forget what is known of the last policy."""
        if self.stream is not None and self._rollout is not None:
            self.stream.proceed(self._rollout)
        self._rollout = self._advantages = self._local = None

    def state(self) -> dict[str, Any]:
        """The complete state, as arrays and numbers. The current rollout is not included; it is drawn again."""
        critics = self.critics
        return {
            "policy": self.theta.numpy().copy(),
            "anchor": self._anchor.numpy().copy(),
            "critics": critics.theta.copy(),
            "critics_first": critics.first.copy(),
            "critics_second": critics.second.copy(),
            "critics_steps": critics.steps,
            **{f"returns_{name}": value for name, value in vars(critics.returns).items()},
            **{f"observed_{name}": value for name, value in vars(self.observed).items()},
            "iteration": self.iteration,
            "seed": self.seed,
            "verdicts": dict(self.verdicts),
            **({} if self.best is None else _best_state(self.best)),
            **({} if self.stream is None else {f"stream_{name}": x for name, x in self.stream.state().items()}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state()`. The learner must have been created with the same settings."""
        for name, mine in (("policy", self.theta), ("critics", self.critics.theta)):
            if np.shape(state[name]) != tuple(mine.shape):
                raise ValueError(
                    f"{name} has {np.size(state[name])} parameters, but this learner's has {mine.shape[0]}; "
                    "were the networks or the environment different?"
                )
        if state["seed"] != self.seed:
            raise ValueError(f"the state is of a run with seed {state['seed']}, but this learner has seed {self.seed}")
        critics = self.critics
        self.theta, critics.theta = _tensor(state["policy"]), _floats(state["critics"])
        same = np.array_equal(state["anchor"], state["policy"])
        self._anchor = self.theta if same else _tensor(state["anchor"])
        critics.first, critics.second = _floats(state["critics_first"]), _floats(state["critics_second"])
        critics.steps, self.iteration = int(state["critics_steps"]), int(state["iteration"])
        for moments, name in ((critics.returns, "returns"), (self.observed, "observed")):
            moments.count = float(state[f"{name}_count"])
            moments.mean, moments.squares = np.array(state[f"{name}_mean"]), np.array(state[f"{name}_squares"])
        self.verdicts = Counter(state["verdicts"])
        self.best = None
        if "best_theta" in state:
            shift, scale = np.array(state["best_shift"]), np.array(state["best_scale"])
            self.best = Best(_tensor(state["best_theta"]), shift, scale, dict(state["best_evidence"]))
        self._rollout = None
        self._forget()
        if self.stream is not None:
            self.stream.restore({n.removeprefix("stream_"): x for n, x in state.items() if n.startswith("stream_")})
        self.updates = []


def _distribution(actions: Actions) -> Distribution:
    if not actions.discrete:
        return Gaussian()
    return Softmaxes(actions.choices) if actions.low.ndim else Softmax()


def _best_state(best: Best) -> dict[str, Any]:
    parts = {"theta": best.theta.numpy().copy(), "shift": best.shift, "scale": best.scale, "evidence": best.evidence}
    return {f"best_{name}": value for name, value in parts.items()}


def _floats(array: Any) -> Floats:
    return np.array(array, dtype=np.float32)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(_floats(array))


def _rows(table: NDArray[Any]) -> NDArray[Any]:
    """(T, n, k) as (T · n, k)."""
    return table.reshape(-1, table.shape[-1])


def _standardised(x: Array, constant: float) -> Array:
    """Standardise to mean 0 and deviation 1; what does not vary by more than `constant` gives zeros."""
    away, deviation = x - x.mean(), x.std()
    return np.asarray(np.zeros_like(x) if deviation <= constant else away / deviation)


def _width(space: Any) -> int:
    if type(space).__name__ != "Box":
        raise TypeError(f"observations must be a Box, not {space}; use gymnasium.wrappers.FlattenObservation")
    if not all(space.shape):
        raise TypeError(f"observations must have at least one number, not {space}; observe a constant")
    return int(np.prod(space.shape))
