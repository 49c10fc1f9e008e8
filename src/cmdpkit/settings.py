"""Settings of the learners, each with a default, a domain and a one-line help text.

Methods add options of their own (see rules/registry.py). Importing this module imports neither NumPy nor SciPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from cmdpkit.options import (
    FLAG,
    FRACTION,
    GAMMA,
    NONNEGATIVE,
    NONNEGATIVE_EACH,
    OBJECT,
    PART,
    POSITIVE,
    WHOLE,
    WIDTHS,
    Domain,
    choice,
    option,
)


def _confidence(value: Any, name: str, _: int | None) -> float:
    from cmdpkit.checks import check_confidence

    return check_confidence(value, name)


def _several(value: Any, name: str, _: int | None) -> int:
    from cmdpkit.checks import check_count

    return check_count(value, name, least=2)


CONFIDENCE = Domain("a number between 0 and 1", _confidence)
SEVERAL = Domain("a whole number of at least 2", _several, "whole")
POLICY = replace(OBJECT, words="a policy, or an (S, A) table of probabilities")
MULTIPLIERS = replace(OBJECT, words="one nonnegative number per constraint")


@dataclass(frozen=True)
class TabularSettings:
    """Settings of the exact and the sampled learner."""

    step: float | None = option(
        None, POSITIVE, "Step size: the policy is multiplied by exp(-step * Q). The default follows the model's scale."
    )
    inner_steps: int | None = option(None, WHOLE, "Policy steps per dual update.  [default: 1]")
    alpha: float | None = option(
        None,
        NONNEGATIVE,
        "Weight of the KL divergence to the anchor policy; effective from the second inner step on.  "
        "[default: 1 / step]",
    )
    initial_policy: Any = option(None, POLICY, "Initial policy; uniform by default.")
    initial_multipliers: Any = option(None, MULTIPLIERS, "Initial multipliers; chosen by the method by default.")


@dataclass(frozen=True)
class ZeroSettings:
    """Options of pmd-pd-zero in addition to those of pmd-pd."""

    xi: float | None = option(None, POSITIVE, "Slater margin; computed if not given.")


@dataclass(frozen=True)
class NeuralSettings:
    """Settings of the neural learner.

    Every iteration resets all environments, unless they persist; its random numbers depend only on the seed and the
    iteration number.
    """

    num_envs: int | None = option(
        None,
        WHOLE,
        "Environments stepped together. A vector environment has its own number.  [default: 4]",
    )
    steps: int = option(1_000, WHOLE, "Steps per environment and iteration.")
    persist: bool = option(
        False,
        FLAG,
        "Let the environments go on from one iteration to the next, for rollouts shorter than an episode; they are "
        "reset every 50 iterations.",
    )
    gamma: float = option(0.99, GAMMA, "Discount factor of the advantages and of the measure 'discounted'.")
    smoothing: float = option(
        0.93, FRACTION, "Lambda of generalised advantage estimation; 1 gives Monte-Carlo returns minus values."
    )
    hidden: tuple[int, ...] = option((64, 64), WIDTHS, "Sizes of the hidden layers of policy and critics.")
    activation: str = option("tanh", choice("tanh", "relu"), "Activation of the hidden layers.")
    deviation: float = option(
        0.6, POSITIVE, "Initial standard deviation of continuous actions, whose bounds are at -1 and 1."
    )
    least_deviation: float = option(
        0.1, NONNEGATIVE, "Smallest standard deviation of continuous actions; 0 lets them become deterministic."
    )
    surrogate: str = option(
        "trust-region",
        choice("trust-region", "clip", "penalty"),
        "Policy steps: natural gradients within a trust region; or plain gradients in minibatches of the clipped "
        "surrogate of PPO, or of FOCOPS with its penalty on the divergence.",
    )
    radius: float = option(0.02, POSITIVE, "Trust-region radius: largest mean KL divergence of a step.")
    damping: float = option(0.1, NONNEGATIVE, "Added to the diagonal of the Fisher matrix.")
    cg_steps: int = option(15, WHOLE, "Maximum number of conjugate-gradient steps per policy step.")
    fisher_states: int = option(
        500, WHOLE, "Approximate number of states that estimate the Fisher matrix; gradients use all samples."
    )
    line_search: int = option(10, WHOLE, "Maximum number of line-search trials.")
    inner_steps: int = option(1, WHOLE, "Policy iterations per dual update.")
    alpha: float = option(
        1.0, NONNEGATIVE, "Weight of the KL divergence to the anchor policy; effective from the second inner step on."
    )
    clip: float = option(0.2, PART, "Surrogate 'clip': probability ratios are clipped to [1 - clip, 1 + clip].")
    temperature: float = option(1.5, POSITIVE, "Surrogate 'penalty': weight of the divergence.")
    policy_rate: float = option(3e-4, POSITIVE, "Learning rate of the policy, of the surrogates 'clip' and 'penalty'.")
    policy_epochs: int = option(10, WHOLE, "Maximum number of passes over each batch, of 'clip' and 'penalty'.")
    policy_minibatch: int = option(128, WHOLE, "Minibatch size of 'clip' and 'penalty'.")
    normalise: bool = option(True, FLAG, "Scale observations by their running mean and standard deviation.")
    margin: Any = option(
        None, NONNEGATIVE_EACH, "Safety margin: training aims at each limit minus this, in units of the cost."
    )
    critic_rate: float = option(1e-3, POSITIVE, "Learning rate of the critics.")
    critic_epochs: int = option(10, WHOLE, "Passes over each batch when the critics are fitted.")
    critic_minibatch: int = option(128, WHOLE, "Minibatch size of the critics.")

    def __post_init__(self) -> None:
        if self.deviation < self.least_deviation:
            raise ValueError(
                f"deviation={self.deviation:g} starts below least_deviation={self.least_deviation:g}, to which the "
                "first step would raise it: pass a larger deviation, or a smaller least_deviation"
            )

    def refuse_unused(self, given: Iterable[str]) -> None:
        """Raise an error if an option was given that belongs to another surrogate."""
        for name in given:
            used = PARTS.get(name, (self.surrogate,))
            if self.surrogate not in used:
                raise ValueError(
                    f"{name} is an option of surrogate={' or '.join(map(repr, used))}, and has no effect with "
                    f"{self.surrogate!r}, which this run uses; leave it out, or choose that surrogate"
                )


PARTS = {"line_search": ("trust-region",), "clip": ("clip",), "temperature": ("penalty",)} | dict.fromkeys(
    ("policy_rate", "policy_epochs", "policy_minibatch"), ("clip", "penalty")
)
"""Settings of the neural learner that only some surrogates use."""


ESTIMATORS = ("truncated", "geometric", "pooled")


@dataclass(frozen=True)
class Sampling:
    """How values are estimated from a simulator.

    Args:
        rollouts: M_Q, rollouts per state-action pair and policy step.
        value_rollouts: M_V, rollouts from the initial distribution per dual step.
        horizon: N, steps per rollout; by default the smallest N with γ^N ≤ 0.01.
        estimator: "truncated", Algorithm 2 itself: discounted sums of N steps; "geometric", as in Figure 3: sums of a
            Geometric(1 − γ) number of steps, undiscounted and unbiased; or "pooled", not in the paper: all transitions
            drawn so far form an empirical model, each step adds `rollouts` transitions per pair, and the values solve
            the model's equations. That takes far fewer transitions, and memory to keep them. Long-run averages need
            it, and it is the default of a simulator with `average=True`.
        schedule: "theory" sets the macro steps and all of the above as in Theorem 3 (pmd-pd and "truncated" only);
            "paper" does so with the α that the paper prints, which is too small for small γ (docs/theory.md).
        epsilon, confidence: parameters of the theorem: gap and violation are at most epsilon with this confidence.
        slater: the theorem's ξ, the margin by which all limits can be met; computed when a `CMDP` is given.
        certificate_rollouts: fresh rollouts for the certificates of a simulator's result.
        mixing: for the certificates of a simulator with `average=True`, as in `certify_by_simulation`: from every state
            that a policy can reach it comes to one common state within so many steps on average.

    Example:
        >>> import cmdpkit as ck
        >>> few = ck.Sampling(rollouts=20, estimator="pooled")
        >>> result = ck.solve(ck.problems.paper(), "pmd-pd", sampling=few, max_iterations=100, seed=1)
        >>> result.samples, bool(result.certificate.gap < 0.05)
        (404000, True)
    """

    rollouts: int = option(20, WHOLE, "Rollouts per state-action pair and step.")
    value_rollouts: int = option(1_000, WHOLE, "Rollouts from the initial distribution per step.")
    horizon: int | None = option(None, WHOLE, "Steps per rollout; by default the smallest with gamma^steps <= 0.01.")
    estimator: str = option("truncated", choice(*ESTIMATORS), "Method by which values are estimated.")
    schedule: str | None = option(None, choice("theory", "paper"), "Use the parameters of Theorem 3.")
    epsilon: float | None = option(None, POSITIVE, "Theorem 3: accuracy to reach.")
    confidence: float = option(0.95, CONFIDENCE, "Confidence of Theorem 3 and of the certificates.")
    slater: float | None = option(None, POSITIVE, "Theorem 3: margin by which all limits can be met.")
    certificate_rollouts: int = option(10_000, SEVERAL, "Fresh rollouts for the certificates of a simulator's result.")
    mixing: float | None = option(
        None,
        NONNEGATIVE,
        "Certificates of a simulator's averages: upper bound on the expected number of steps to a common state.",
    )

    def __post_init__(self) -> None:
        from cmdpkit.options import options_of

        for name, declared in options_of(Sampling).items():
            if getattr(self, name) is not None or declared.default is not None:
                object.__setattr__(self, name, declared.domain.check(getattr(self, name), name, None))
        if self.horizon is not None and self.estimator != "truncated":
            raise ValueError(f"horizon is an option of the truncated estimator; {self.estimator!r} has none")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule is None:
            unused = [name for name in ("epsilon", "slater") if getattr(self, name) is not None]
            if unused:
                raise ValueError(f"{unused[0]} is a parameter of schedule='theory'")
            return
        plain = Sampling()
        fixed = ("estimator", "horizon", "rollouts", "value_rollouts")
        given = [name for name in fixed if getattr(self, name) != getattr(plain, name)]
        if given:
            raise ValueError(
                f"schedule={self.schedule!r} sets {given[0]} itself (with the truncated estimator); leave it out"
            )
        if self.epsilon is None:
            raise ValueError(f"schedule={self.schedule!r} needs a positive epsilon, the accuracy to reach")
