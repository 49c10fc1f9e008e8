"""A bound on the optimum from samples alone: valid with a confidence, without knowing the model.

For any multipliers λ ≥ 0 and any function V of the states, the optimum is at least

    Σ ρ(s) V(s) + min over pairs of (E[c_λ + γ V(s′)] − V(s)) / (1 − γ) − Σ λ_i limit_i,        c_λ = c_0 + Σ λ_i c_i.

One half of the transitions chooses λ and V: they solve the empirical model, with every cost lowered by the error that
the other half is expected to leave. Errors grow with λ, and smaller prices than the model's may promise more. The other
half, which knows nothing of this choice, bounds all expectations from below at once (by betting, the pairs sharing δ).
So the bound holds however poor λ and V are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.certificates.rollouts import half_width
from cmdpkit.checks import Array, ConstraintArray, StateArray, check_confidence, check_count
from cmdpkit.exact.mdp import Oracle
from cmdpkit.learners.estimators import Meter, Pooled
from cmdpkit.model import CMDP
from cmdpkit.simulators import JUDGING, STARTS, Simulator, as_simulator, stream
from cmdpkit.solver import solve

SHARE_OF_STARTS = 0.1
"""Part of δ, and of the second half of the samples, that is spent on the initial distribution."""

PILOT, FEW = 4, 30
"""Stream and number of transitions per pair that tell how much costs vary; bets depend on it, the proof does not."""

SHARES = (1.0, 0.5, 0.0)
"""Parts of the empirical model's prices that are tried: where a limit is nearly too tight they are far too high."""

ROUNDS = 3
"""Error bars depend on V, and V on the error bars."""

BLOCK = 2_000_000
"""Transitions drawn together; it bounds the memory used."""

BOLDEST = 0.8
"""Largest bet, as a part of the one that could lose everything."""

BISECTIONS = 40
"""A bound is valid wherever bisection stops."""


@dataclass(frozen=True, eq=False)
class SimulatedBound:
    """A bound on the optimum that holds with the given confidence, in the user's sense and units."""

    bound: float  # no policy that keeps the limits earns more (or costs less)
    confidence: float
    multipliers: ConstraintArray
    samples: int  # transitions and initial states drawn

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON."""
        return vars(self) | {"multipliers": self.multipliers.tolist()}


def bound_by_simulation(
    simulator: Any, samples: int = 100_000, confidence: float = 0.95, multipliers: Any = None, seed: int = 0
) -> SimulatedBound:
    """Bound from samples alone what any policy can achieve within the limits.

    With `certify_by_simulation`, which tells what a policy does achieve, it shows how close to optimal that policy is.

    Args:
        simulator: a `Simulator` with bounds, or a discounted `CMDP`.
        samples: transitions to draw, as many from every pair of state and action.
        confidence: the bound holds with at least this probability.
        multipliers: prices of the limits, not negative; by default those of a model estimated from half of the
            samples. The bound is valid for any, and closest for the optimal ones.
        seed: of all samples.

    Example:
        >>> import cmdpkit as ck
        >>> found = ck.bound_by_simulation(ck.problems.paper(), samples=400_000)  # the optimum is 4.4624
        >>> bool(4.4624 <= found.bound <= 4.57)
        True
    """
    simulator = as_simulator(simulator, "bound_by_simulation")
    check_confidence(confidence)
    check_count(seed, "seed", least=0)
    each = check_count(samples, "samples", least=2) // (2 * simulator.pairs.count)
    if each < 2:
        raise ValueError(
            f"samples must be at least {4 * simulator.pairs.count}, two of each of the {simulator.pairs.count:,} pairs "
            f"in both halves, got {samples}"
        )
    if simulator.bounds is None:
        raise ValueError(
            "a bound needs to know how large the quantities of one step can be: Simulator(..., bounds=...)"
        )
    delta = (1.0 - confidence) * (1.0 - SHARE_OF_STARTS) / simulator.pairs.count
    starts = max(2, int(SHARE_OF_STARTS * each * simulator.pairs.count))
    given = None if multipliers is None else simulator.check_prices(multipliers, "multipliers")
    lam, values, bets = _choice(simulator, given, each, starts, math.log(1.0 / delta), seed)
    # From here on all samples are fresh.
    ahead = _lower_bounds(simulator, lam, values, bets, each, math.log(1.0 / delta), seed)
    residual = ahead - values[simulator.pairs.state]
    initial = values[simulator.start(starts, np.random.default_rng(stream((seed, STARTS, JUDGING))))]
    spent = 2.0 * (1.0 - confidence) * SHARE_OF_STARTS  # a one-sided interval may spend twice the δ
    width = float(half_width(initial.var(axis=0, ddof=1), np.asarray(np.ptp(values)), starts, spent))
    least = float(initial.mean()) - width + residual.min() / (1.0 - simulator.gamma) - float(lam @ simulator.offsets)
    least = max(least, float((simulator.units[0] * simulator.bounds[0]).min()) / (1.0 - simulator.gamma))
    drawn = (2 * each + FEW) * simulator.pairs.count + 2 * starts
    return SimulatedBound(float(np.sign(simulator.units[0]) * least), confidence, simulator.stated_prices(lam), drawn)


def _choice(
    simulator: Simulator, given: ConstraintArray | None, each: int, starts: int, log: float, seed: int
) -> tuple[ConstraintArray, StateArray, Array]:
    """λ, V and bets that promise the best bound, by the first half of the samples."""
    pooled = Pooled(simulator, each, starts, Meter(seed))
    pooled.begin()
    model = pooled.model()
    pilot = _steps(simulator, np.arange(simulator.pairs.count), FEW, np.random.default_rng(stream((seed, PILOT))))[1]
    lam = solve(model, tol=1e-4).multipliers if given is None else given
    best, most = None, -np.inf
    for share in SHARES if given is None and lam.any() else SHARES[:1]:
        values, bets = _optimistic(simulator, model, share * lam, each, log, pilot)
        promised = float(model.initial @ values - share * lam @ simulator.offsets)
        if best is None or promised > most:
            best, most = (share * lam, values, bets), promised
    assert best is not None
    return best


def _optimistic(
    simulator: Simulator, model: CMDP, lam: ConstraintArray, each: int, log: float, pilot: Array
) -> tuple[StateArray, Array]:
    """V that solves the empirical model with every cost lowered by the error expected of as many fresh samples.

    Also the bets of `_lower_bounds`, which for a mean m above the least possible value and a variance v are best at
    b = sqrt(2 ln(1/δ) / (n v)), and leave an error of about ln(1/δ)/(n b) + b v/2.
    """
    weights, oracle = np.append(1.0, lam), Oracle(model)
    cost = weights @ model.costs
    oracle.minimise(weights)
    assert oracle.state_values is not None
    values = oracle.state_values @ weights
    noise = ((weights * simulator.units) @ pilot).reshape(FEW, -1).var(axis=0)
    for _ in range(ROUNDS):
        ahead, squares = (model.transitions @ power for power in (values, values**2))
        variance = noise + simulator.gamma**2 * np.maximum(np.asarray(squares - ahead**2).ravel(), 0.0)
        above = cost + simulator.gamma * np.asarray(ahead).ravel() - _least(simulator, lam, values)
        bets = np.minimum(
            np.sqrt(2.0 * log / (each * np.maximum(variance, 1e-300))), BOLDEST / np.maximum(above, 1e-300)
        )
        lowered = CMDP(
            model.transitions,
            cost=model.pairs.like(cost - log / (each * bets) - 0.5 * bets * variance),
            gamma=model.gamma,
            available=None if model.pairs.is_full else model.pairs.sparse_mask,
        )
        oracle = Oracle(lowered, choice=oracle.choice)
        oracle.minimise(np.ones(1))
        assert oracle.state_values is not None
        values = oracle.state_values[:, 0]
    return np.asarray(values), np.asarray(bets)


def _lower_bounds(
    simulator: Simulator, lam: ConstraintArray, values: StateArray, bets: Array, each: int, log: float, seed: int
) -> Array:
    """E[c_λ + γ V(s′)] of every pair from below, from fresh transitions.

    If X has mean m and X ≥ least, then Π (1 + b (X_j − m)) has mean 1 for any fixed b ≤ 1/(m − least), and exceeds 1/δ
    with probability at most δ: every m for which it does so is too small (Waudby-Smith and Ramdas 2024).
    """
    pairs, mix = simulator.pairs, np.append(1.0, lam) * simulator.units
    least = _least(simulator, lam, values)
    found = np.empty(pairs.count)
    size = max(1, BLOCK // each)
    for block, begin in enumerate(range(0, pairs.count, size)):
        rows = np.arange(begin, min(begin + size, pairs.count))
        following, quantities = _steps(simulator, rows, each, np.random.default_rng(stream((seed, JUDGING, block))))
        above = (mix @ quantities + simulator.gamma * values[following] - least).reshape(each, -1)
        low, high, b = np.zeros(rows.size), np.minimum(above.mean(axis=0), 1.0 / bets[rows]), bets[rows]
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            refuted = np.log1p(b * (above - middle)).sum(axis=0) >= log
            low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
        found[rows] = low
    return found + least


def _steps(simulator: Simulator, rows: Any, each: int, rng: np.random.Generator) -> tuple[Any, Array]:
    """Next states and quantities of `each` transitions of some pairs; the pair changes fastest."""
    return simulator.step(*simulator.pairs.of(np.tile(rows, each)), rng)


def _least(simulator: Simulator, lam: ConstraintArray, values: StateArray) -> float:
    """The least that c_λ + γ V(s′) can be."""
    ends = (np.append(1.0, lam) * simulator.units)[:, None] * simulator.bounds
    return float(ends.min(axis=1).sum() + simulator.gamma * values.min())
