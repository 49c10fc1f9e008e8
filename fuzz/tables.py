"""Tables of costs (S, A), and limits on them that are slack, tight, at the last double, or out of reach."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

import cmdpkit as ck
from fuzz.averages import ExactAverages
from fuzz.exact import ExactModel, above, below

Generator = np.random.Generator

PLAIN = ("normal", "uniform", "coins", "few", "state", "action")
NASTY = ("constant", "zero", "narrow", "wide", "huge", "tiny", "denormal", "large", "small")

LIMITS = ("slack", "tight", "attained", "exact", "below", "above", "near", "hair", "far", "optimum")


def table(rng: Generator, shape: tuple[int, int], kind: str) -> Any:
    """A table of costs of the given kind."""
    plain = rng.normal(size=shape)
    if kind == "uniform":
        return rng.random(shape)
    if kind == "coins":  # ties
        return rng.integers(0, 2, size=shape).astype(float)
    if kind == "few":
        return plain * (rng.random(shape) < 0.2)
    if kind == "state":
        return np.repeat(plain[:, :1], shape[1], axis=1)
    if kind == "action":
        return np.repeat(plain[:1], shape[0], axis=0)
    if kind == "constant":
        return np.full(shape, rng.choice([1.0, -0.1, 1e6, 1e-9]))
    if kind == "zero":
        return np.zeros(shape)
    if kind == "narrow":  # a tiny span around a large constant
        return rng.choice([1.0, 1e6, -1e9]) * (1.0 + 10.0 ** -rng.uniform(6.0, 15.5) * rng.random(shape))
    if kind == "wide":
        return plain * 10.0 ** rng.uniform(-12.0, 12.0, size=shape)
    scale = {"huge": 1e100, "tiny": 1e-100, "denormal": 1e-310, "large": 1e8, "small": 1e-8}.get(kind, 1.0)
    return plain * (10.0 ** rng.uniform(-3, 40) if kind == "huge" else 1.0) * scale


def constraint(rng: Generator, outline: dict[str, Any], values: Any, kind: str, name: str, stage: Any = None) -> Any:
    """A limit of the given kind, placed by exact arithmetic."""
    per_step, at_least = bool(rng.random() < 0.3), bool(rng.random() < 0.5)
    per_step = per_step and "gamma" in outline
    limit = place(rng, outline, values, kind, per_step, at_least, stage)
    return (ck.AtLeast if at_least else ck.AtMost)(values, limit, name=name, per_step=per_step, stage=stage)


def both_sides(rng: Generator, outline: dict[str, Any], values: Any, name: str, stage: Any = None) -> Any:
    """`Equal` or `Between`: attained, at an end, out of reach by a last digit or by much; wide, narrow, or a point."""
    per_step = bool(rng.random() < 0.3) and "gamma" in outline
    kind = str(rng.choice(["attained", "tight", "near", "exact", "above", "below", "optimum", "hair", "far"]))
    end = place(rng, outline, values, kind, per_step, bool(rng.random() < 0.5), stage)
    if rng.random() < 0.5:
        return ck.Equal(values, end, name, per_step, stage)
    width = max(abs(end), 1e-3) * 10.0 ** -rng.uniform(0.0, 16.0)
    low, high = sorted((end, float(end + rng.choice([-1.0, 1.0]) * width)))
    if low == high:  # the width is less than a last digit
        return ck.Equal(values, low, name, per_step, stage)
    return ck.Between(values, low, high, name, per_step, stage)


def place(
    rng: Generator, outline: dict[str, Any], values: Any, kind: str, per_step: bool, at_least: bool, stage: Any = None
) -> float:
    """The limit: measured from the best attainable value, as a part of the range of values."""
    sign = -1 if at_least else 1
    model = exact_model(outline, sign * values, per_step, stage)
    best, worst = model.minimum([0.0, 1.0]), -exact_model(outline, -sign * values, per_step, stage).minimum([0.0, 1.0])
    spread = worst - best
    if kind == "slack":
        limit = worst + spread
    elif kind == "tight":
        limit = best + spread * Fraction(rng.uniform(0.05, 0.6))
    elif kind in ("attained", "optimum"):  # what the common random policy, or the best for the objective, uses
        limit = model.values(outline["policy"] if kind == "attained" else model.minimiser([1.0, 0.0]))[1]
    elif kind == "near":
        limit = best + spread * Fraction(10.0 ** -rng.uniform(2.0, 15.0))
    elif kind == "hair":
        limit = best - max(spread, abs(best)) * Fraction(10.0 ** -rng.uniform(6.0, 15.0))
    elif kind == "far":
        limit = best - max(spread, abs(best), Fraction(1, 100)) * Fraction(rng.uniform(0.1, 2.0))
    else:
        limit = best
    if kind == "exact":
        return float(sign * limit)
    # `below` is the last double that is out of reach, or the value itself; everything else is rounded to be reachable
    rounding = below if kind == "below" else above
    return float(sign * rounding(limit)) + 0.0


def exact_model(outline: dict[str, Any], values: Any, per_step: bool, stage: Any = None) -> Any:
    """V_1 is the value itself: the limit is zero."""
    kind = "reward" if outline["maximise"] else "cost"
    cmdp = ck.CMDP(
        outline["transitions"],
        action_axis=1,
        constraints=[ck.AtMost(values, 0.0, per_step=per_step, stage=stage)],
        initial=outline["initial"],
        available=outline.get("available"),
        **criterion(outline),
        **{kind: outline["objective"]},
    )
    return ExactAverages(cmdp) if cmdp.criterion == "average" else ExactModel(cmdp)


def criterion(outline: dict[str, Any]) -> dict[str, Any]:
    """What a value is: by default the discounted sum."""
    return outline.get("criterion") or {"gamma": outline["gamma"]}
