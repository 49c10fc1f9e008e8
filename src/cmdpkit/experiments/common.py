"""Helpers of the experiments: data files, figures, fitted rates, and claims."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.drawing import save
from cmdpkit.files import write_csv as write_csv
from cmdpkit.model import CMDP, AtLeast
from cmdpkit.run.result import Result
from cmdpkit.solver import solve

ALGORITHMS = ("pmd-pd", "npg-pd", "crpo")
DUAL_STEP: dict[str, dict[str, Any]] = {"pmd-pd": {"eta_dual": 1.0}, "npg-pd": {"eta_dual": 1.0}, "crpo": {}}

Item = TypeVar("Item")
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Wraps a sequence and shows the progress of iterating over it."""


def plain(items: Sequence[Any], _: str) -> Iterable[Any]:
    """Show nothing."""
    return items


class Claim(NamedTuple):
    """One statement of the paper, what was measured, and whether it holds."""

    statement: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Section:
    """What one experiment contributes to docs/results.md."""

    title: str
    claims: list[Claim]
    figures: list[tuple[str, str]]  # file, caption
    remarks: str = ""
    commands: tuple[str, ...] = ()  # that its data come from, if not the experiment's name and the number of seeds


class Settings(NamedTuple):
    """Output folder, number of random instances, whether to run only a quick check, and other formats of figures.

    `methods` and `robots` are those of the experiment velocity; no robots means all.
    """

    folder: Path
    seeds: int = 30
    quick: bool = False
    track: Track = plain
    formats: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("pmd-pd",)
    robots: tuple[str, ...] = ()

    def save(self, drawing: Any, name: str) -> None:
        """Write a figure as PNG, for the page, and in the other formats."""
        save(drawing, self.folder / f"{name}.png", self.formats)


def run_fixed(cmdp: CMDP, method: str, steps: int, step: float = 1.0, **options: Any) -> Result:
    """Exactly `steps` macro steps; the paper's dual step unless another is given."""
    return solve(cmdp, method, tol=0.0, max_iterations=steps, step=step, **{**DUAL_STEP[method], **options})


def random_instance(seed: int, constraints: int = 1, gamma: float | None = None) -> CMDP:
    """A model like the paper's: dense, costs in [0, 1], utilities with limits that can be met and that bind."""
    rng = np.random.default_rng(seed)
    states, actions = int(rng.integers(8, 25)), int(rng.integers(4, 11))
    gamma = float(rng.choice([0.5, 0.7, 0.8, 0.9, 0.95])) if gamma is None else gamma
    transitions = rng.uniform(size=(states, actions, states))
    transitions /= transitions.sum(axis=2, keepdims=True)
    reward, utilities = rng.uniform(size=(states, actions)), rng.uniform(size=(constraints, states, actions))
    # Limits that the policy greedy for the sum of all utilities meets, and the one greedy for the reward violates.
    plain = CMDP(transitions, action_axis=1, reward=reward, gamma=gamma)
    together = CMDP(transitions, action_axis=1, reward=utilities.sum(axis=0), gamma=gamma)
    limits = []
    for i, utility in enumerate(utilities):
        probe = CMDP(transitions, action_axis=1, reward=reward, constraints=[AtLeast(utility, 0.0)], gamma=gamma)
        low, high = (value_of(probe, solve(model).policy) for model in (plain, together))
        limits.append(
            AtLeast(utility, min(low, high) + rng.uniform(0.3, 0.7) * abs(high - low), name=f"utility {i + 1}")
        )
    return CMDP(transitions, action_axis=1, reward=reward, constraints=limits, gamma=gamma)


def value_of(cmdp: CMDP, policy: Any) -> float:
    from cmdpkit.evaluation import evaluate

    return float(evaluate(cmdp, policy).constraint_values[0])


def errors(result: Result, optimum: float) -> tuple[Array, Array, Array, Array]:
    """Gap and largest signed violation (limit minus utility) of the average and of the last iterate, step by step."""
    cmdp, history = result.model, result.history

    def violation(values: Array) -> Array:
        return np.asarray((cmdp.signs * (values - cmdp.limits)).max(axis=1))

    sign = -cmdp.sense
    average, last = history["average_constraint_values"], history["constraint_values"]
    return (
        sign * (optimum - history["average_objective"]),
        violation(average),
        sign * (optimum - history["objective"]),
        violation(last),
    )


def slope(k: Array, error: Array, start: int) -> float:
    """The exponent of |error| ~ k^slope, fitted from step `start` on at points evenly spaced in log k."""
    points = np.unique(np.geomspace(start, k[-1], 60).astype(int)) - 1
    size = np.abs(error[points])
    good = size > 1e-14
    return float(np.polyfit(np.log(k[points][good]), np.log(size[good]), 1)[0]) if good.sum() > 2 else float("nan")


def linear_rate(error: Array, floor: float = 1e-11) -> float:
    """The factor per step by which |error| shrinks, fitted on the second half of the steps above `floor`."""
    size = np.maximum.accumulate(np.abs(error)[::-1])[::-1]  # oscillations: the largest error from here on
    good = np.flatnonzero(size > floor)
    tail = good[len(good) // 2 :]
    return float(np.exp(np.polyfit(tail, np.log(size[tail]), 1)[0])) if len(tail) > 2 else float("nan")


# -- files -----------------------------------------------------------------------------------------------------------


def append_row(columns: dict[str, list[Any]], row: Sequence[Any]) -> None:
    """Add one entry to every column, in order."""
    for column, value in zip(columns.values(), row, strict=True):
        column.append(value)


def read_csv(path: Path) -> dict[str, Array]:
    """Read the columns of a file written by `write_csv`; numbers as numbers, text as text."""
    with open(path, newline="") as file:
        header, *rows = list(csv.reader(file))
    columns: dict[str, Array] = {}
    for name, values in zip(header, zip(*rows, strict=True), strict=True):
        try:
            columns[name] = np.array(values, dtype=float)
        except ValueError:
            columns[name] = np.array(values)
    return columns


def thinned(steps: int, points: int = 300) -> Array:
    """Indices of about `points` steps, evenly spaced in their logarithm, for plots and data files."""
    return np.unique(np.geomspace(1, steps, points).astype(int)) - 1
