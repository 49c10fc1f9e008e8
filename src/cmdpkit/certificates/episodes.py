"""Statistical certificates of policies on environments: what fresh episodes prove about each limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cmdpkit.certificates.rollouts import ROUNDING, SimulationCertificate, half_width, rollouts_that_decide, verdict_of
from cmdpkit.checks import Array, check_confidence, check_cost_limits, check_count, check_flag, check_gamma

NORMAL = "the means of so many episodes are nearly normal"
NOTHING_LATER = ", and what comes after the last step does not count"
"""What intervals assume when it is not known how large the quantities of one step can be."""


def judge_on_episodes(
    env: Any,
    policy: Any,
    limits: Sequence[float],
    measure: str,
    confidence: float,
    episodes: int,
    steps: int,
    gamma: float,
    bounds: Sequence[tuple[float, float]] | None,
    num_envs: int,
    seed: int,
    deterministic: bool = False,
    track: Callable[[Sequence[int]], Iterable[int]] = lambda batches: batches,
) -> SimulationCertificate:
    """`certify_on_episodes`; `track` is given the batches to go through, and may show how far they are."""
    from scipy.stats import t as student

    from cmdpkit.envs.batch import spread
    from cmdpkit.learners.neural.rollouts import JUDGING, MEASURES, collect

    _check_policy(policy)
    limits = check_cost_limits(limits).tolist()
    check_confidence(confidence)
    counts = (("episodes", episodes, 2), ("steps", steps, 1), ("num_envs", num_envs, 1), ("seed", seed, 0))
    for name, value, least in counts:
        check_count(value, name, least)
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
    check_gamma(gamma)
    check_flag(deterministic, "deterministic")
    envs = spread(env, min(num_envs, episodes) if not hasattr(env, "num_envs") else env.num_envs)
    known = bounds if bounds is not None else envs.metadata.get("bounds")
    if known is not None:
        ends, spans, rest = _spans(known, len(limits) + 1, measure, steps, gamma)
    parts: list[Array] = []
    batches = range(-(-episodes // envs.num_envs))
    for batch in track(batches):
        # A stream apart from those of training: episodes that were learned from would flatter the policy.
        rollout = collect(
            envs, policy, steps, len(limits), np.random.default_rng([seed, JUDGING, batch]), deterministic
        )
        _check_bounds(known, rollout.quantities)
        parts.append(rollout.samples(measure, gamma))
    samples = np.concatenate(parts)[:episodes]
    mean, variance = samples.mean(axis=0), samples.var(axis=0, ddof=1)
    share = (1.0 - confidence) / mean.size
    if known is None:
        width = student.ppf(1.0 - share / 2.0, episodes - 1) * np.sqrt(variance / episodes)
        spans, rest = np.zeros(mean.size), np.zeros((mean.size, 2))
    else:
        width = half_width(variance, spans, episodes, share)
    lower, upper = mean - width + rest[:, 0], mean + width + rest[:, 1]
    if known is not None:
        slack = ROUNDING * np.abs(ends)
        lower, upper = np.maximum(lower, (ends - slack)[:, 0]), np.minimum(upper, (ends + slack)[:, 1])
    verdicts: list[str] = []
    more: list[int | None] = []
    for i, limit in enumerate(limits, start=1):
        verdicts.append(verdict_of(lower[i], upper[i], -np.inf, limit))
        distance = abs(float(mean[i]) - limit)
        undecided = verdicts[-1] == "undecided"
        more.append(rollouts_that_decide(variance[i], spans[i], episodes, share, distance) if undecided else 0)
    return SimulationCertificate(
        confidence=confidence,
        objective=0.0 - float(mean[0]),
        objective_interval=(-float(upper[0]), -float(lower[0])),
        constraint_values=mean[1:],
        intervals=np.stack([lower, upper], axis=1)[1:],
        verdicts=verdicts,
        more_rollouts=more,
        rollouts=episodes,
        horizon=steps,
        samples=len(parts) * envs.num_envs * steps,
        assumption="" if known is not None else NORMAL + (NOTHING_LATER if measure == "discounted" else ""),
        deterministic=deterministic,
    )


def _check_policy(policy: Any) -> None:
    from cmdpkit.learners.neural.policy import NeuralPolicy

    if not isinstance(policy, NeuralPolicy):
        hint = "; pass its .policy" if isinstance(getattr(policy, "policy", None), NeuralPolicy) else ""
        raise TypeError(f"a cmdpkit.NeuralPolicy is needed, not {type(policy).__name__}{hint}")


def _check_bounds(bounds: Any, quantities: Array) -> None:
    """Quantities are −reward and the costs; bounds are the user's, of reward and costs."""
    if bounds is None:
        return
    table = np.asarray(bounds, dtype=float)
    seen = np.concatenate([-quantities[..., :1], quantities[..., 1:]], axis=-1).reshape(-1, len(table))
    bad = ((seen < table[:, 0]) | (seen > table[:, 1])).any(axis=0)
    if bad.any():
        i = int(bad.argmax())
        what = "the reward" if i == 0 else f"cost {i}"
        low, high = table[i]
        raise ValueError(
            f"{what} left its bounds ({low}, {high}): it went from {seen[:, i].min()} to {seen[:, i].max()}"
        )


def _spans(bounds: Any, count: int, measure: str, steps: int, gamma: float) -> tuple[Array, Array, Array]:
    """What each measure (−reward, costs) can be, low and high; its width up to the last step; what can follow it."""
    table = np.asarray(bounds, dtype=float)
    if table.shape != (count, 2) or not np.isfinite(table).all() or (table[:, 0] > table[:, 1]).any():
        raise ValueError(f"bounds must be {count} pairs (low, high), for the reward and each cost, got {bounds!r}")
    if measure == "step":
        ends = np.concatenate([-table[:1, ::-1], table[1:]])
        return ends, np.asarray(table[:, 1] - table[:, 0]), np.zeros((count, 2))
    # An episode may end early, after which every step counts 0.
    table = np.stack([np.minimum(table[:, 0], 0.0), np.maximum(table[:, 1], 0.0)], axis=1)
    table[0] = -table[0, ::-1]
    discounted = measure == "discounted"
    length = (1.0 - gamma**steps) / (1.0 - gamma) if discounted else steps
    rest = table * (gamma**steps / (1.0 - gamma) if discounted else 0.0)
    return table * length + rest, np.asarray((table[:, 1] - table[:, 0]) * length), rest
