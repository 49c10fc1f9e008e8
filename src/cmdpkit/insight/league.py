"""Runs of several methods side by side: intervals over seeds, the league table, and its files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.certificates.certificate import finite
from cmdpkit.checks import Array
from cmdpkit.files import PathLike, write_csv
from cmdpkit.tables import Table, text_html

BY = ("iterations", "evaluations", "seconds", "samples")
FLOOR = 1e-16
"""Errors below this are rounding, and count as this."""
EVERYTHING = (-np.inf, np.inf)
DISAGREEMENT = 10.0
"""A result that claims to be optimal and errs by more tolerances than this disagrees with the certified optimum."""


class Interval(NamedTuple):
    """A mean over seeds with its confidence interval; the ends are not numbers if there is one seed only."""

    mean: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Interval:
        """The interval without values that are not possible."""
        return self._replace(low=float(np.clip(self.low, least, most)), high=float(np.clip(self.high, least, most)))

    def __str__(self) -> str:
        shown = _number(self.mean)
        return shown if np.isnan(self.low) else f"{shown} [{_number(self.low)}, {_number(self.high)}]"


def interval(values: Any, confidence: float, geometric: bool = False) -> Interval:
    """Student's interval for the mean of the values or, with `geometric`, of their logarithms (and back).

    Example:
        >>> interval([1.0, 2.0, 3.0], 0.95)
        Interval(mean=2.0, low=-0.48..., high=4.48...)
    """
    table = np.asarray(values, dtype=float)
    if geometric and table.size > 1:
        return Interval(*(float(x) for x in np.exp(interval(np.log(table), confidence))))
    if table.size < 2 or not np.isfinite(table).all():
        return Interval(float(table.mean()), np.nan, np.nan)
    from scipy.stats import t as student

    width = float(student.ppf(0.5 + confidence / 2.0, table.size - 1) * table.std(ddof=1) / np.sqrt(table.size))
    return Interval(float(table.mean()), float(table.mean()) - width, float(table.mean()) + width)


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One run of one method: a row per iteration, and what it ended with.

    Attributes:
        model, method, seed: what was run.
        status: how the run ended, in words.
        axes: by iterations, evaluations, seconds and samples: the count at every row, where it is known.
        objective, values: (K,) and (K, m) of the policy after each iteration, in the user's units.
        gap, violation: (K,) relative errors against the certified optimum; None where there is none.
        final: gap and violation of the policy that the run returned, or None.
        ended: objective and (m,) values of that policy.
        random: whether another seed would give another run.
    """

    model: str
    method: str
    seed: int
    status: str
    axes: dict[str, Array]
    objective: Array
    values: Array
    gap: Array | None
    violation: Array | None
    final: tuple[float, float] | None
    ended: tuple[float, Array]
    seconds: float
    random: bool

    @property
    def error(self) -> Array:
        """The larger of gap and violation at every row: what `tol` bounds."""
        assert self.gap is not None
        assert self.violation is not None
        return np.maximum(np.maximum(self.gap, self.violation), FLOOR)

    @property
    def final_error(self) -> float:
        assert self.final is not None
        return max(*self.final, FLOOR)

    def reached(self, by: str, tol: float) -> float:
        """The count at the first row from which the error stays within `tol`; infinite if there is none."""
        outside = np.flatnonzero(~(self.error <= tol))
        row = int(outside[-1]) + 1 if outside.size else 0
        return float(self.axes[by][row]) if row < len(self.error) else np.inf


@dataclass(frozen=True)
class Standing:
    """One method on one model, over all seeds."""

    model: str
    method: str
    runs: list[Run] = field(repr=False)
    reached: int  # runs whose error is within the tolerance at the end
    cost: Interval | None  # what it took until then; None unless all runs came there
    error: Interval | None  # of the policies returned
    objective: Interval
    values: list[Interval]
    verdicts: list[str]  # on the limits, where there is no certified optimum
    status: str
    verdict: str = ""  # worse than the first, equal or undecided; the first is best if all others are worse


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found.

    Attributes:
        runs: every run with its curves.
        standings: the league, best first within each model.
        by: what the curves are drawn against.
        tol, confidence: as given.
        constraints, maximise, possible: by model: its limits, its sense, and bounds on what a run can show.
        notes: what a reader of the figures must know.
        complete: False if the comparison was interrupted.
    """

    runs: list[Run] = field(repr=False)
    by: str
    tol: float
    confidence: float
    constraints: dict[str, list[Any]] = field(repr=False)  # by model
    maximise: dict[str, bool] = field(repr=False)
    possible: dict[str, dict[int, tuple[float, float]]] = field(repr=False)  # of objective 0 and values 1..m, if known
    notes: list[str]
    complete: bool = True

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(run.model for run in self.runs))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs))

    def of(self, model: str, method: str) -> list[Run]:
        """The runs of one method on one model, by seed."""
        return [run for run in self.runs if (run.model, run.method) == (model, method)]

    @cached_property
    def standings(self) -> list[Standing]:
        return [standing for model in self.models for standing in self._league(model)]

    def _league(self, model: str) -> Iterator[Standing]:
        entries = [self._standing(model, method) for method in self.methods if self.of(model, method)]
        entries.sort(key=self._rank)
        verdicts = [self._verdict(entries[0], entry) for entry in entries[1:]]
        first = "best" if set(verdicts) <= {"worse"} else "first"
        for entry, verdict in zip(entries, [first, *verdicts], strict=True):
            yield replace(entry, verdict=verdict)

    def _standing(self, model: str, method: str) -> Standing:
        runs = self.of(model, method)
        exact = runs[0].gap is not None
        costs = [run.reached(self.by, self.tol) for run in runs] if exact else []
        ends = np.array([[run.ended[0], *run.ended[1]] for run in runs]).T
        objective, *values = [
            interval(row, self.confidence).within(*self.possible.get(model, {}).get(i, EVERYTHING))
            for i, row in enumerate(ends)
        ]
        verdicts = [_kept(c, v) for c, v in zip(self.constraints[model], values, strict=True)]
        return Standing(
            model,
            method,
            runs,
            reached=int(np.isfinite(costs).sum()),
            cost=interval(costs, self.confidence, geometric=True) if exact and np.isfinite(costs).all() else None,
            error=interval([r.final_error for r in runs], self.confidence, geometric=True) if exact else None,
            objective=objective,
            values=values,
            verdicts=[] if exact else verdicts,
            status=self._status(runs),
        )

    def _status(self, runs: Sequence[Run]) -> str:
        """How the runs ended, the most frequent first; results that contradict the certified optimum are called so."""
        words = [self._word(run) for run in runs]
        counts = {word: words.count(word) for word in dict.fromkeys(words)}
        if len(counts) == 1:
            return words[0]
        ordered = sorted(counts, key=lambda word: -counts[word])
        return ", ".join(f"{word} {counts[word]} of {len(words)}" for word in ordered)

    def _word(self, run: Run) -> str:
        if run.status == "optimal":
            assert run.final is not None
            return "DISAGREES" if run.final_error > DISAGREEMENT * self.tol else "proved"
        return run.status

    def _rank(self, entry: Standing) -> tuple[Any, ...]:
        if entry.error is not None:
            cost = entry.cost.mean if entry.cost is not None else np.inf
            return -entry.reached / len(entry.runs), cost, entry.error.mean
        broken = sum(verdict == "violated" for verdict in entry.verdicts)
        return broken, -entry.objective.mean if self.maximise[entry.model] else entry.objective.mean, 0.0

    def _verdict(self, best: Standing, other: Standing) -> str:
        """Whether the method is worse than the first one: by paired differences over seeds, where runs are random."""
        if best.error is None and [v == "violated" for v in best.verdicts] != [v == "violated" for v in other.verdicts]:
            return "worse"
        pairs = zip(best.runs, other.runs, strict=False)  # an interrupted comparison lacks some
        apart = np.array([self._score(mine, best) - self._score(first, best) for first, mine in pairs])
        if len(apart) == 1:
            if other.runs[0].random or self.by == "seconds":
                return "undecided: one seed"
            return "worse" if apart[0] > 0.0 else "equal"
        never = np.isinf(apart).any()  # a run that never came there is infinitely far behind
        return "worse" if ((apart > 0.0).all() and never) or interval(apart, self.confidence).low > 0.0 else "undecided"

    def _score(self, run: Run, best: Standing) -> float:
        """What counts, the smaller the better, on a scale on which differences can be averaged."""
        if best.error is None:
            return -run.ended[0] if self.maximise[run.model] else run.ended[0]
        return float(np.log(run.reached(self.by, self.tol) if best.cost is not None else run.final_error))

    # -- shown ---------------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """The league: one row per model and method, best first."""
        several = len(self.models) > 1
        exact = [s for s in self.standings if s.error is not None]
        columns: dict[str, list[Any]] = {"model": [s.model for s in self.standings]} if several else {}
        columns |= {"method": [s.method for s in self.standings], "seeds": [len(s.runs) for s in self.standings]}
        if exact:
            columns[f"{self.by} to {self.tol:g}"] = [self._cost_text(s) for s in self.standings]
            columns["final error"] = ["" if s.error is None else str(s.error) for s in self.standings]
        if len(exact) < len(self.standings):
            columns["objective"] = [str(s.objective) for s in self.standings]
            columns["limits"] = [self._limits_text(s) for s in self.standings]
        columns["status"] = [s.status for s in self.standings]
        columns["verdict"] = [s.verdict for s in self.standings]
        return Table(columns)

    def _cost_text(self, standing: Standing) -> str:
        if standing.error is None:
            return ""
        if standing.cost is not None:
            return str(standing.cost)
        return "not reached" if not standing.reached else f"{standing.reached} of {len(standing.runs)} runs"

    def _limits_text(self, standing: Standing) -> str:
        named = zip(self.constraints[standing.model], standing.values, standing.verdicts, strict=False)
        return "; ".join(f"{c.name} {value} ({verdict})" for c, value, verdict in named)

    def __str__(self) -> str:
        return "\n".join([self.table().text(), "", *self.notes])

    def _repr_html_(self) -> str:
        return self.table().html() + text_html("\n".join(self.notes))

    # -- files ---------------------------------------------------------------------------------------------------------

    def curves(self) -> Table:
        """Every row of every run, as one long table."""
        columns: dict[str, list[Any]] = {name: [] for name in ("model", "method", "seed", *BY, "gap", "violation")}
        most = max(run.values.shape[1] for run in self.runs)
        names = ["objective", *(f"value {i + 1}" for i in range(most))]
        columns |= {name: [] for name in names}
        for run in self.runs:
            count = len(run.objective)
            for name in ("model", "method", "seed"):
                columns[name] += [getattr(run, name)] * count
            for name in BY:
                columns[name] += run.axes[name].tolist() if name in run.axes else [""] * count
            for name in ("gap", "violation"):
                column = getattr(run, name)
                columns[name] += [""] * count if column is None else column.tolist()
            columns["objective"] += run.objective.tolist()
            for i, name in enumerate(names[1:]):
                columns[name] += run.values[:, i].tolist() if i < run.values.shape[1] else [""] * count
        return Table(columns)

    def to_csv(self, path: PathLike) -> None:
        """Write the curves: one row per run and iteration."""
        write_csv(path, self.curves().columns)

    def plot(self, path: PathLike, formats: Sequence[str] = ()) -> None:
        """Draw the curves to an image file (.png, .pdf, .svg), and to further formats. Needs matplotlib."""
        from cmdpkit.insight.plots import plot_comparison

        plot_comparison(self, path, formats)

    def to_dict(self) -> dict[str, Any]:
        """The league as plain numbers, lists and strings."""
        return {
            "by": self.by,
            "tol": self.tol,
            "confidence": self.confidence,
            "complete": self.complete,
            "league": [_plain(standing) for standing in self.standings],
            "notes": self.notes,
        }


def _plain(standing: Standing) -> dict[str, Any]:
    def numbers(found: Interval | None) -> list[float | None] | None:
        return None if found is None else [finite(number) for number in found]

    return {
        "model": standing.model,
        "method": standing.method,
        "seeds": [run.seed for run in standing.runs],
        "reached": standing.reached,
        "cost": numbers(standing.cost),
        "error": numbers(standing.error),
        "objective": numbers(standing.objective),
        "constraint_values": [numbers(value) for value in standing.values],
        "verdicts": standing.verdicts,
        "status": standing.status,
        "verdict": standing.verdict,
    }


def _kept(constraint: Any, value: Interval) -> str:
    """Whether a limit is kept, judged by the interval over seeds; one seed decides nothing."""
    low, high = constraint.ends
    if np.isnan(value.low):
        return "undecided"
    if value.low >= low and value.high <= high:
        return "satisfied"
    return "violated" if value.high < low or value.low > high else "undecided"


def _number(value: float) -> str:
    if not np.isfinite(value):
        return str(value)
    if 1.0 <= abs(value) < 1e7 and (abs(value) >= 1e3 or math.isclose(value, round(value), rel_tol=1e-9)):
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 100.0 else f"{value:.3g}"
