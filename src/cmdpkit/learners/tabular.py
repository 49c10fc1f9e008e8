"""What the tabular learners share: scales, the floor under log-probabilities, and steps within a radius."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.model import Pairs
from cmdpkit.policy import TabularPolicy

LOWEST_LOG_PROBABILITY = -700.0
"""Smaller probabilities underflow, and their logarithms would take many steps to recover."""

BISECTIONS = 60


def reference_span(spans: Array) -> Array:
    """Spans that set the scale of steps; a constant cost has span one."""
    return np.where(spans > 0.0, spans, 1.0)


def above_floor(policy: TabularPolicy, floor: float = LOWEST_LOG_PROBABILITY) -> TabularPolicy:
    """The same policy up to rounding, with log-probabilities raised to `floor`, from which an action can recover."""
    log_pi = policy.log_pi
    return policy if log_pi.min() >= floor else TabularPolicy.softmax(policy.pairs, np.maximum(log_pi, floor))


def within_radius(old: TabularPolicy, new: TabularPolicy, radius: float, visits: Array | None = None) -> TabularPolicy:
    """The policy farthest along the path from `old` to `new` whose divergence from `old` is at most `radius`.

    Args:
        old, new: the ends of the path, which is a straight line in log-probabilities.
        radius: the largest KL(old ‖ π): its mean over the states, or its maximum if `visits` is None.
        visits: expected visits to each state, up to a factor.
    """
    if _divergence(old, new, visits) <= radius:
        return new
    start, direction = old.log_pi, new.log_pi - old.log_pi
    low, high, best = 0.0, 1.0, old
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        between = TabularPolicy.softmax(old.pairs, start + middle * direction)
        if _divergence(old, between, visits) <= radius:
            low, best = middle, between
        else:
            high = middle
    return best


def projected(pairs: Pairs, table: PairTable) -> TabularPolicy:
    """The policy nearest to a table in every state, in the Euclidean norm (Michelot 1986)."""
    # π = (x − θ)₊ with Σ π = 1: θ is a mean over the actions with x > θ, of which there are fewer in every turn.
    # A constant per state changes nothing; with max x = 0 the best action stays above θ < 0 whatever the scale is.
    table = table - pairs.over(pairs.max(table))
    chosen = np.ones(pairs.shape, dtype=np.bool_)
    while True:
        level = (pairs.sum(np.where(chosen, table, 0.0)) - 1.0) / pairs.sum(chosen.astype(float))
        above = chosen & (table > pairs.over(level))
        if np.array_equal(above, chosen):
            log_pi = np.full(pairs.shape, -np.inf)
            np.log(table - pairs.over(level), out=log_pi, where=chosen)
            return TabularPolicy.stored(pairs, log_pi)  # as from a checkpoint, to the last bit
        chosen = above


def _divergence(old: TabularPolicy, new: TabularPolicy, visits: Array | None) -> float:
    # Σ_a π (log π − log π′) per state
    divergence = old.pairs.sum(old.pi * (old.log_pi - new.log_pi))
    return float(divergence.max() if visits is None else visits @ divergence / visits.sum())
