"""Plain tables for people: as text, HTML, CSV and pandas frames. No display library is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from cmdpkit.files import PathLike, write_csv

SHOWN = 20
"""Rows of a table that a notebook or an interactive session shows."""


class Table:
    """Columns of equal length, of which `total` rows exist.

    Iterating gives the rows as tuples; `str()` and `print` show all of them, a notebook the first 20.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], total: int | None = None) -> None:
        self.columns = dict(columns)
        self.total = len(self) if total is None else total

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.columns.values(), strict=True)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return list(self)

    def head(self, limit: int | None) -> Table:
        """The first rows."""
        return Table({name: column[:limit] for name, column in self.columns.items()}, self.total)

    def text(self) -> str:
        """Aligned columns: numbers to the right, and a last line that counts the rows that are not there."""
        cells = [[name, *map(show, column)] for name, column in self.columns.items()]
        right = [all(isinstance(x, (int, float, np.number)) for x in column) for column in self.columns.values()]
        widths = [max(map(len, column)) for column in cells]
        lines = [
            "  ".join(x.rjust(w) if r else x.ljust(w) for x, w, r in zip(row, widths, right, strict=True)).rstrip()
            for row in zip(*cells, strict=True)
        ]
        return "\n".join([*lines, *([f"... {self._more()}"] if self.total > len(self) else [])])

    def html(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(show(x))}</td>" for x in row) + "</tr>" for row in self)
        more = f"<p>... {self._more()}</p>" if self.total > len(self) else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _more(self) -> str:
        left = self.total - len(self)
        return f"{left:,} more row{'' if left == 1 else 's'} of {self.total:,}"

    def to_csv(self, path: PathLike) -> None:
        write_csv(path, self.columns)

    def to_frame(self) -> Any:
        """The table as a pandas frame."""
        try:
            import pandas as pd  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise ImportError("to_frame needs pandas, which is not installed; table() and to_csv() do not") from None
        data: dict[str, Any] = {name: _column(values) for name, values in self.columns.items()}
        return pd.DataFrame(data)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.head(SHOWN).text()

    def _repr_html_(self) -> str:
        return self.head(SHOWN).html()


def _column(values: Sequence[Any]) -> Any:
    """Labels that are tuples stay single values in a frame."""
    if isinstance(values, np.ndarray):
        return values
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column if any(isinstance(value, tuple) for value in values) else list(values)


def show(value: Any) -> str:
    """A cell: numbers to six digits, anything else as it prints."""
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return str(value)


# -- what the tables hold ---------------------------------------------------------------------------------------------


def label(labels: Sequence[Any] | None, index: int) -> Any:
    """What a state or an action is called: its label, or its number."""
    return int(index) if labels is None else labels[int(index)]


def policy_table(policy: Any, limit: int | None = None) -> Table:
    """State, action and probability of every pair that a policy may play: by state, the most probable action first."""
    pairs, pi = policy.pairs, policy.pi.reshape(-1)
    rows = np.flatnonzero(pi > 0.0)
    states, actions = pairs.of(rows)
    order = np.lexsort((actions, -pi[rows], states))[:limit]
    columns = {
        "state": [label(pairs.state_labels, s) for s in states[order]],
        "action": [label(pairs.action_labels, a) for a in actions[order]],
        "probability": pi[rows][order].tolist(),
    }
    return Table(columns, total=rows.size)


def limits_table(problem: Any, values: Any = None, prices: Any = None, price: str = "shadow price") -> Table:
    """The limits of a model and, if they are known, a policy's values and prices."""
    limits = problem.constraints
    columns: dict[str, list[Any]] = {
        "constraint": [f"{c.name}{c.unit}" for c in limits],
        "limit": [str(c) for c in limits],
    }
    if values is not None:
        columns["value"] = [float(value) for value in values]
        columns[price] = [float(value) for value in prices]
    return Table(columns)


def model_facts(problem: Any) -> dict[str, Any]:
    """Sizes, criterion and names of a model, as words."""
    pairs = problem.pairs
    facts: dict[str, Any] = {"states": f"{problem.states:,}{_names(pairs.state_labels)}"}
    facts["actions"] = f"{problem.actions:,}{_names(pairs.action_labels)}"
    if not pairs.is_full:
        facts["available"] = f"{pairs.count:,} of {problem.states * problem.actions:,} pairs of state and action"
    named = f"{problem.objective_name}: " if problem.objective_name else ""
    per_step = " per step" if problem.objective_per_step else ""
    kind, sense = ("reward", "maximised") if problem.maximise else ("cost", "minimised")
    facts["objective"] = f"{named}{kind}{per_step}, {sense}"
    if problem.criterion == "horizon":
        facts["horizon"] = f"{problem.horizon:,}"
    if problem.criterion == "average":
        facts["criterion"] = "long-run averages"
    elif problem.criterion != "horizon" or problem.gamma < 1.0:
        facts["gamma"] = f"{problem.gamma:g}" + (", totals until the end" if problem.criterion == "total" else "")
    initial = getattr(problem, "initial", None)
    if isinstance(initial, np.ndarray):
        facts["initial"] = start_words(initial, pairs.state_labels)
    return facts


def _names(labels: Sequence[Any] | None, most: int = 6) -> str:
    if labels is None:
        return ""
    return f" ({', '.join(map(str, labels[:most]))}{', ...' if len(labels) > most else ''})"


def start_words(initial: Any, labels: Sequence[Any] | None) -> str:
    """Where a process starts."""
    at = np.flatnonzero(initial > 0.0)
    if at.size == 1:
        return f"state {label(labels, at[0])}"
    same = np.ptp(initial[at]) <= 1e-12
    return f"{'uniform' if same else 'distributed'} over {at.size:,} states"


# -- notebooks --------------------------------------------------------------------------------------------------------


def facts_table(facts: Mapping[str, Any]) -> Table:
    return Table({"": list(facts), " ": list(facts.values())})


def page(title: str, *tables: Table, note: str = "") -> str:
    """A title, tables and a note, as HTML."""
    parts = [f"<strong>{escape(title)}</strong>", *(table.head(SHOWN).html() for table in tables if len(table))]
    return "<div>" + "".join([*parts, f"<p>{escape(note)}</p>" if note else ""]) + "</div>"


def model_html(problem: Any) -> str:
    return page(type(problem).__name__, facts_table(model_facts(problem)), limits_table(problem))


def policy_html(policy: Any) -> str:
    stages = f"{policy.horizon:,} stages, " if hasattr(policy, "horizon") else ""
    sizes = f"{stages}{policy.states:,} states, {policy.actions:,} actions"
    return page(f"{type(policy).__name__}: {sizes}", policy.table(SHOWN))


def mixture_html(mixture: Any) -> str:
    columns = {"policy": range(len(mixture)), "weight": mixture.weights.tolist()}
    return page(f"MixturePolicy: {len(mixture):,} policies, one drawn per episode", Table(columns))


def certificate_facts(certificate: Any) -> dict[str, Any]:
    facts = {"objective": f"{certificate.objective:.9g}"}
    if certificate.infeasibility is not None:
        return facts | {"proof that the limits cannot be met": f"{certificate.infeasibility_margin:.3g} > 0"}
    facts["bound"] = f"{certificate.bound:.9g}"
    return facts | {"gap": f"{certificate.gap:.1e}", "violation": f"{certificate.violation:.1e}"}


def certificate_html(certificate: Any) -> str:
    values = {"value": certificate.constraint_values.tolist(), "violation": certificate.violations.tolist()}
    prices = certificate.multipliers if certificate.infeasibility is None else certificate.infeasibility
    numbers: dict[str, Sequence[Any]] = {"constraint": range(1, len(prices) + 1), **values, "price": prices.tolist()}
    return page("Certificate", facts_table(certificate_facts(certificate)), Table(numbers))


def result_html(result: Any) -> str:
    title = f"{result.status.value.upper()}: {result.method}, {result.iterations} iterations, {result.time:.3g} s"
    exact = hasattr(result.certificate, "bound")
    facts = certificate_facts(result.certificate) if exact else {"objective": f"{result.objective:.9g}"}
    if getattr(result, "deterministic_bound", None) is not None:
        facts["bound for deterministic policies"] = f"{result.deterministic_bound:.9g}"
    limits = limits_table(result.model, result.constraint_values, result.multipliers)
    return page(title, facts_table(facts), limits, note=result.message)


def text_html(text: str) -> str:
    """Text as it is, for results that have no table of their own."""
    return f"<pre>{escape(text)}</pre>"
