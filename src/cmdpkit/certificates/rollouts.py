"""Statistical certificates: what fresh rollouts prove about a policy, at finite samples.

The return of a rollout of N steps lies in an interval of known width R, so that empirical Bernstein bounds (Maurer and
Pontil 2009) hold at any number n of rollouts: with probability 1 − δ,

    |mean − E| ≤ sqrt(2 v ln(4/δ) / n) + 7 R ln(4/δ) / (3 (n − 1)),        v the sample variance.

The m + 1 quantities share δ equally. What is cut off after N steps lies between γ^N low/(1 − γ) and γ^N high/(1 − γ),
and is part of the interval. Rollouts over a finite horizon end after T steps: nothing is cut off, and R is the sum of
the ranges of all stages. When rollouts are added until every limit is decided, look number k spends
δ/(k (k + 1)), so that the intervals hold at all looks together.

The mean over T steps differs from a long-run average by at most B/T times the range of a step, where B is the span of
the bias, relative to that range, or the expected number of steps to some state that all others lead to
(docs/theory.md). That is part of the interval too. B is proved where the model is known; of a simulator the user
states it. T grows in proportion to n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array, check_confidence, check_count, check_nonnegative
from cmdpkit.cluster import check_cluster, in_order, using
from cmdpkit.evaluation.gain_bounds import LONGEST, bias_bound
from cmdpkit.model import CMDP
from cmdpkit.policy import MixturePolicy, as_any_policy, lowered_policy
from cmdpkit.simulators import JUDGING, Returns, Simulator, as_simulator, stream

ROUNDING = 1e-14
"""Relative error of sums of bounds: intervals are cut off at what is possible, and no tighter than that."""

SHARE_CUT_OFF = 0.1
"""By default the horizon is so long that what is cut off is below this part of the statistical error at its best."""

MOST_TRANSITIONS = 10**12
"""A certificate of an average that needs more is not begun: compiled rollouts take hours for so many."""

COMMON_STATE = "from every state that the policy can reach it comes to one common state within {} steps on average"
"""What is stated of a long-run average where the model is not known."""


@dataclass(frozen=True, eq=False)
class SimulationCertificate:
    """Intervals that hold all together with the given confidence, in the user's sense and units."""

    confidence: float
    objective: float
    objective_interval: tuple[float, float]
    constraint_values: Array  # (m,)
    intervals: Array  # (m, 2)
    verdicts: list[str]  # satisfied, violated or undecided, one per limit; an `Equal` is never proved by sampling
    more_rollouts: list[int | None]  # about how many more would decide each undecided limit; None: out of reach
    rollouts: int
    horizon: int
    samples: int  # transitions drawn
    assumption: str = ""  # what the intervals assume beyond independent rollouts; usually nothing
    deterministic: bool = False  # the policy took its most likely actions, instead of drawing them

    @property
    def satisfied(self) -> bool:
        """Every limit is met, with the confidence."""
        return all(verdict == "satisfied" for verdict in self.verdicts)

    def __repr__(self) -> str:
        parts = zip(self.constraint_values, self.intervals, self.verdicts, self.more_rollouts, strict=True)
        limits = [
            f"{value:.6g} in {_interval(ends)} {verdict}" + (f" ({more_text(more)})" if verdict == "undecided" else "")
            for value, ends, verdict, more in parts
        ]
        return (
            f"SimulationCertificate(confidence={self.confidence:g}, rollouts={self.rollouts}, "
            f"objective={self.objective:.6g} in {_interval(self.objective_interval)}, "
            f"constraints=[{', '.join(limits)}])"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings for JSON."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns.items()}


def _interval(ends: Any) -> str:
    return f"[{ends[0]:.6g}, {ends[1]:.6g}]"


def more_text(more: int | None, what: str = "rollouts") -> str:
    """How much more sampling would decide a limit, in words."""
    return "a decision is out of reach" if more is None else f"about {float(f'{more:.2g}'):,.0f} more {what} decide"


def certify_by_simulation(
    simulator: Any,
    policy: Any,
    confidence: float = 0.95,
    rollouts: int = 10_000,
    horizon: int | None = None,
    until_decided: bool = False,
    max_rollouts: int = 10_000_000,
    seed: int = 0,
    cluster: str | None = None,
    mixing: float | None = None,
) -> SimulationCertificate:
    """Prove by simulation what a policy earns and whether it keeps the limits.

    Args:
        simulator: a `Simulator` with bounds, or a `CMDP`.
        policy: a `TabularPolicy`, an (S, A) array of probabilities, or a `MixturePolicy`; for a finite horizon also a
            `StagedPolicy`.
        confidence: all intervals hold together with at least this probability.
        rollouts: how many; the first look when `until_decided`.
        horizon: steps of each; by default enough that the rest hardly matters. A model with a finite horizon has its
            own. For a long-run average the default is in proportion to `rollouts`: all parts of the interval shrink
            as 1/rollouts, and twice as many take four times as long.
        until_decided: double the rollouts until every limit is decided, or `max_rollouts` are reached.
        max_rollouts: the most that `until_decided` may draw.
        seed: of the rollouts.
        cluster: "local", "auto" or the address of a Ray cluster whose workers draw the rollouts, with the same result;
            see docs/cluster.md.
        mixing: for long-run averages, a number N of steps: from every state that the policy can reach it comes to one
            common state within N steps on average. A `Simulator` needs it, and the certificate repeats it in
            `assumption`; for a `CMDP` a number that does as much is proved if it is not given.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.paper()
        >>> uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
        >>> ck.certify_by_simulation(cmdp, uniform).verdicts
        ['violated']
    """
    model, simulator = simulator, as_simulator(simulator, "certify_by_simulation", others=True)
    lowered = isinstance(model, CMDP) and model.lowering is not None
    fitted = as_any_policy(lowered_policy(model, policy) if lowered else policy, simulator.pairs)
    mixture = fitted if isinstance(fitted, MixturePolicy) else MixturePolicy([fitted])
    _check_call(simulator, confidence, rollouts, horizon, max_rollouts, seed, mixing)
    if simulator.criterion == "average":
        lengths = averaging(simulator, _bias(model, mixture, mixing), confidence, rollouts, horizon)
    else:
        # A horizon that suits the last look: what is cut off does not shrink with more rollouts.
        last = max_rollouts if until_decided else rollouts
        lengths = Lengths(horizon or simulator.ends_within or judging_horizon(simulator.gamma, last))
    with using(check_cluster(cluster)):
        found = _look(simulator, mixture, lengths, rollouts, until_decided, max_rollouts, confidence, seed)
    return found if mixing is None else replace(found, assumption=COMMON_STATE.format(f"{mixing:g}"))


@dataclass(frozen=True)
class Lengths:
    """Steps of a rollout: the same for any number of rollouts or, for an average, in proportion to it."""

    fixed: int | None
    bias: float = 0.0  # B, of an average
    delta: float = 0.05  # what the interval of one quantity may spend

    def of(self, rollouts: int) -> int:
        """T with B/T ≤ 7 ln(4/δ) / (3 (n − 1)): the bias is no larger than the interval for variance 0."""
        if self.fixed is not None:
            return self.fixed
        return math.ceil(max(1.0, self.bias) * 3.0 * (rollouts - 1) / (7.0 * math.log(4.0 / self.delta)))

    def too_many(self, rollouts: int) -> bool:
        steps = self.of(rollouts)
        return self.fixed is None and (rollouts * steps > MOST_TRANSITIONS or steps > LONGEST)


def averaging(
    simulator: Simulator, bias: float, confidence: float, rollouts: int, horizon: int | None = None
) -> Lengths:
    """The lengths of rollouts for averages; raises an error if they would be impractically long."""
    lengths = Lengths(horizon, bias, (1.0 - confidence) / (1 + simulator.num_constraints))
    if lengths.too_many(rollouts):
        raise ValueError(
            f"{rollouts} rollouts that are long enough for this average have {rollouts * lengths.of(rollouts):.1e} "
            f"transitions, because the process mixes slowly, within about {bias:.3g} steps. Take fewer "
            "rollouts, or give horizon, for wider intervals; evaluate() and certify() of a model are exact"
        )
    return lengths


def _look(
    simulator: Simulator,
    mixture: MixturePolicy,
    lengths: Lengths,
    rollouts: int,
    until_decided: bool,
    max_rollouts: int,
    confidence: float,
    seed: int,
) -> SimulationCertificate:
    """Draw rollouts, once or until every limit is decided."""
    steps = lengths.of(rollouts)
    look, total = 1, fresh_returns(simulator, mixture, steps, rollouts, (seed, JUDGING, 1))
    while True:
        delta = (1.0 - confidence) / (look * (look + 1) if until_decided else 1)
        certificate = _certificate(simulator, total, steps, lengths, delta, confidence)
        finished = "undecided" not in certificate.verdicts or total.rollouts >= max_rollouts
        more = min(total.rollouts, max_rollouts - total.rollouts)
        if not until_decided or finished or lengths.too_many(total.rollouts + more):
            return certificate
        look += 1
        longer = lengths.of(total.rollouts + more)
        count = total.rollouts + more if longer > steps else more
        fresh = fresh_returns(simulator, mixture, longer, count, (seed, JUDGING, look))
        # Rollouts of another length have another mean
        steps, total = longer, fresh if longer > steps else total + fresh


def _bias(model: Any, mixture: MixturePolicy, mixing: float | None) -> float:
    """B, in expectation over the policies of a mixture: as stated, or proved for the model."""
    if mixing is not None:
        return mixing
    if not isinstance(model, CMDP):
        raise ValueError(
            "certifying a long-run average by rollouts requires a bound on the mixing time, which samples cannot "
            "provide: pass certify_by_simulation(..., mixing=N) or Sampling(mixing=N) if "
            f"{COMMON_STATE.format('N')}"
        )
    bounds = [bias_bound(model, policy.pi) for policy in mixture.policies]
    if not np.isfinite(bounds).all():
        raise ValueError(
            "no bound on the mixing time can be proved: parts of the model are left too seldom. "
            f"evaluate() and certify() of it are exact; or give mixing=N if {COMMON_STATE.format('N')}"
        )
    return float(mixture.weights @ np.array(bounds))


def fresh_returns(
    simulator: Simulator, mixture: MixturePolicy, horizon: int, rollouts: int, seed: tuple[int, ...]
) -> Returns:
    """Returns of rollouts that each draw a policy of the mixture first: i.i.d., though counted policy by policy.

    Every step counts from the quantity's lower bound on, so that large numbers do not drown their own variance.
    """
    low = simulator.bounds[:, 0]
    counts = np.random.default_rng(stream((*seed, 0))).multinomial(rollouts, mixture.weights)
    blocks = [
        (policy.pi, int(count), (*seed, i))
        for i, (policy, count) in enumerate(zip(mixture.policies, counts, strict=True), start=1)
        if count
    ]
    parts = list(in_order(_roll, blocks, simulator, (horizon, low), name=_name))
    return sum(parts[1:], start=parts[0])


def _roll(simulator: Simulator, shared: tuple[int, Array], block: tuple[Array, int, tuple[int, ...]]) -> Returns:
    (horizon, low), (pi, count, seed) = shared, block
    return simulator.returns(pi, horizon, count, seed, offset=low)


def _name(block: tuple[Array, int, tuple[int, ...]]) -> str:
    return f"{block[1]} rollouts of policy {block[2][-1]} of the mixture, seed {block[2][0]}"


def judging_horizon(gamma: float, rollouts: int) -> int:
    """N with γ^N ≤ 0.1 / sqrt(n): the part cut off is small beside the error of n rollouts, 1/sqrt(n) at best."""
    return 1 if gamma == 0.0 else max(1, math.ceil(math.log(SHARE_CUT_OFF / math.sqrt(rollouts)) / math.log(gamma)))


def half_width(variance: Array, span: Array, rollouts: int, delta: float) -> Array:
    # sqrt(2 v ln(4/δ) / n) + 7 R ln(4/δ) / (3 (n − 1))
    log = math.log(4.0 / delta)
    width: Array = np.sqrt(2.0 * variance * log / rollouts) + 7.0 * span * log / (3.0 * (rollouts - 1))
    return width


def _certificate(
    simulator: Simulator,
    total: Returns,
    horizon: int,
    lengths: Lengths,
    delta: float,
    confidence: float,
) -> SimulationCertificate:
    n, stated = total.rollouts, np.append(0, 1 + simulator.stated(np.arange(simulator.num_rows)))
    least_sum, span, rest_low, rest_high, lowest, highest = (
        part[stated] for part in simulator.sums(horizon, lengths.bias)
    )
    above = total.means[0, stated]  # of what is above the lower bound in every step
    variance = np.maximum(total.squares[0, stated] - n * above**2, 0.0) / (n - 1)
    mean = above + least_sum
    share = delta / mean.size
    width = half_width(variance, span, n, share)
    # A quantity per step is (1 − γ) times the discounted sum, and an average that of T steps divided by T.
    units = np.abs(simulator.units[stated]) / (horizon if simulator.criterion == "average" else 1)
    # No value lies outside of what the bounds of one step allow.
    slack = ROUNDING * (np.abs(least_sum) + span)
    lower = units * np.maximum(mean - width + rest_low, lowest - slack)
    upper = units * np.minimum(mean + width + rest_high, highest + slack)
    values = units * (mean + 0.5 * (rest_low + rest_high))
    verdicts: list[str] = []
    more: list[int | None] = []
    for i, limit in enumerate(simulator.constraints, start=1):
        least, most = limit.ends
        verdicts.append(verdict_of(lower[i], upper[i], least, most))
        distance = min(abs(values[i] - least), abs(values[i] - most)) / units[i]
        off = 0.5 * (rest_high[i] - rest_low[i])
        if verdicts[-1] != "undecided":
            more.append(0)
        elif lengths.fixed is None:
            # rollouts grow with their number: all parts of the interval shrink in proportion to it
            needed = n * (width[i] + off) / distance if distance else np.inf
            more.append(max(math.ceil(needed) - n, 1) if needed < OUT_OF_REACH else None)
        else:
            more.append(rollouts_that_decide(variance[i], span[i], n, share, distance - off))
    return SimulationCertificate(
        confidence=confidence,
        objective=float(values[0]),
        objective_interval=(float(lower[0]), float(upper[0])),
        constraint_values=values[1:],
        intervals=np.stack([lower[1:], upper[1:]], axis=1),
        verdicts=verdicts,
        more_rollouts=more,
        rollouts=n,
        horizon=horizon,
        samples=total.transitions,
    )


def verdict_of(lower: float, upper: float, least: float, most: float) -> str:
    """What an interval that contains a value says about its limits."""
    if least <= lower and upper <= most:
        return "satisfied"
    return "violated" if lower > most or upper < least else "undecided"


OUT_OF_REACH = 10**12
"""Larger numbers of rollouts are reported as out of reach."""


def rollouts_that_decide(variance: float, span: float, rollouts: int, delta: float, distance: float) -> int | None:
    """How many more until the interval no longer reaches the limit, if mean and variance stay as they are.

    None if that is out of reach.
    """
    if half_width(np.array(variance), np.array(span), OUT_OF_REACH, delta) >= distance:
        return None
    needed = rollouts
    while half_width(np.array(variance), np.array(span), needed, delta) >= distance:
        needed *= 2
    low = needed // 2
    while needed - low > max(1, low // 100):
        middle = (low + needed) // 2
        wide = half_width(np.array(variance), np.array(span), middle, delta) >= distance
        low, needed = (middle, needed) if wide else (low, middle)
    return max(needed - rollouts, 1)


def _check_call(
    simulator: Simulator, confidence: Any, rollouts: Any, horizon: Any, max_rollouts: Any, seed: Any, mixing: Any
) -> None:
    check_confidence(confidence)
    check_count(rollouts, "rollouts", least=2)
    check_count(1 if horizon is None else horizon, "horizon", least=1)
    check_count(max_rollouts, "max_rollouts", least=2)
    check_count(seed, "seed", least=0)
    if horizon is not None and simulator.ends_within not in (None, horizon):
        raise ValueError(f"a rollout of this model has {simulator.ends_within} steps, its horizon; leave out horizon")
    if max_rollouts < rollouts:
        raise ValueError(f"max_rollouts must be at least rollouts, got {max_rollouts} and {rollouts}")
    if simulator.bounds is None:
        raise ValueError(
            "statistical certificates need to know how large the quantities of one step can be: "
            "Simulator(..., bounds=[(low, high), ...])"
        )
    if simulator.criterion == "average" and horizon is not None and horizon > LONGEST:
        raise ValueError(f"horizon must be at most {LONGEST:.0e} for a long-run average, got {horizon}")
    if mixing is not None:
        check_nonnegative(mixing, "mixing")
        if simulator.criterion != "average":
            raise ValueError(f"mixing is for long-run averages; the criterion here is the {simulator.value_name}")
