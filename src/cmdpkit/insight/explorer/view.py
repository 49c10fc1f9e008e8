"""What the explorer shows of an answer, as components of Dash. Text from users is text, never HTML."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from dash import html

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.evaluation import evaluate
from cmdpkit.insight.choices import Choices, choices_of
from cmdpkit.insight.explorer.dials import Dial, Setting
from cmdpkit.insight.figures import Figure, action_table, layout, policy_map, stage_map
from cmdpkit.insight.places import find_map
from cmdpkit.insight.words import is_proved, number, objective_name, proof_words, state_label
from cmdpkit.run.result import Result
from cmdpkit.run.status import Status

SHOWN = 12
"""Rows of the table of the most visited states."""

TABLE_STATES, TABLE_ACTIONS = 300, 60

KINDS = {Status.OPTIMAL: "good", Status.INFEASIBLE: "bad"}
SIGNS = {"good": "✓ ", "bad": "✕ ", "open": "… "}


def headline(result: Result) -> list[Any]:
    """The status, with what it means."""
    status, told = (Status.OPTIMAL, Status.OPTIMAL.advice) if is_proved(result) else (result.status, result.message)
    kind = KINDS.get(status, "open")
    return [
        html.Span(SIGNS[kind] + status.value, className=f"badge {kind}", id="status"),
        html.Span(f" {told}", id="message"),
        html.Span(f" {result.time:.3g} s", className="note", id="seconds"),
    ]


def cards(result: Result) -> list[Any]:
    """Objective, bound, gap and violation."""
    proof = result.certificate
    shown = [(objective_name(result.model), number(result.objective, 9), "objective")]
    if isinstance(proof, Certificate) and proof.infeasibility is None:
        shown += [
            ("proved bound", number(proof.bound, 9) if isfinite(proof.bound) else "none yet", "bound"),
            ("gap", f"{proof.gap:.1e}" if isfinite(proof.gap) else "none yet", "gap"),
            ("violation", f"{proof.violation:.1e}", "violation"),
        ]
    return [
        html.Div([html.Div(name, className="name"), html.Div(text, className="number", id=place)], className="card")
        for name, text, place in shown
    ]


def limits(result: Result) -> Any:
    """Every limit with value, slack and shadow price."""
    problem, proof = result.model, result.certificate
    infeasible = proof.infeasibility is not None
    prices = proof.infeasibility if infeasible else result.multipliers
    rows = []
    for i, c in enumerate(problem.constraints):
        value = float(result.constraint_values[i])
        slack = c.slack(value)
        cells = [f"{c.name}{c.unit}", str(c), number(value), number(0.0 if abs(slack) < 1e-12 else slack, 3)]
        cells.append(number(float(prices[i])))
        rows.append(
            html.Tr([html.Td(text) for text in cells], className="missed" if result.violations[i] > 1e-6 else "")
        )
    titles = ["limit on", "limit", "value", "slack", "weight in the proof" if infeasible else "shadow price"]
    return html.Table([_head(titles), html.Tbody(rows)], id="limits-table")


def proof(result: Result) -> Any:
    return html.Details([html.Summary("What is proved"), html.Ul([html.Li(text) for text in proof_words(result)])])


def policy(result: Result, axes: Any) -> tuple[Figure, Any]:
    """The policy as a figure, and a table of its most visited states."""
    problem = result.model
    choices = choices_of(result.policy, evaluate(problem, result.policy).pair_occupancy)
    return _policy_figure(problem, choices, axes), _visited(problem, choices)


def _policy_figure(problem: Any, choices: Choices, axes: Any) -> Figure:
    where = find_map(problem, axes)
    if where is not None:
        return policy_map(problem, choices, where)
    if choices.horizon is not None and choices.best.size <= 20_000:
        return stage_map(problem, choices)
    if problem.states <= TABLE_STATES and problem.actions <= TABLE_ACTIONS and choices.horizon is None:
        return action_table(problem, choices)
    return empty_figure("no map of so many states")


def empty_figure(told: str) -> Figure:
    """Nothing to draw, and why."""
    hidden = {"visible": False}
    text = {"text": told, "showarrow": False, "font": {"size": 14}}
    return {"data": [], "layout": layout(120, xaxis=hidden, yaxis=hidden, annotations=[text])}


def _visited(problem: Any, choices: Choices) -> Any:
    stages, states = choices.most_visited(SHOWN)
    staged = choices.horizon is not None
    titles = [*(["stage"] if staged else []), "state", "action", "visits"]
    rows = []
    for t, s in zip(stages.tolist(), states.tolist(), strict=True):
        assert choices.visits is not None
        cells = [*([str(t)] if staged else []), state_label(problem, s), choices.words(t, s)]
        rows.append(html.Tr([html.Td(text) for text in [*cells, f"{choices.visits[t, s]:.3g}"]]))
    return html.Table([_head(titles), html.Tbody(rows)], id="visited-table")


def comparison(dials: Sequence[Dial], columns: Sequence[tuple[str, Setting, Result]]) -> Any:
    """Settings side by side: what was set, and what came out. What differs stands out."""
    if not columns:
        return html.P("Pin a setting as A or B to compare it with the one on screen.", className="note")
    rows = []
    for k, dial in enumerate(dials):
        rows.append(_compared(dial.name, [number(setting[k]) for _, setting, _ in columns]))
    first = columns[0][2]
    rows.append(_compared("status", [result.status.value for _, _, result in columns]))
    rows.append(_compared(objective_name(first.model), [number(result.objective, 7) for _, _, result in columns]))
    for i, c in enumerate(first.model.constraints):
        rows.append(_compared(f"{c.name}: value", [number(float(r.constraint_values[i])) for _, _, r in columns]))
        rows.append(_compared(f"{c.name}: shadow price", [number(float(r.multipliers[i])) for _, _, r in columns]))
    return html.Table([_head(["", *(name for name, _, _ in columns)]), html.Tbody(rows)], id="pins-table")


def _compared(name: str, cells: list[str]) -> Any:
    return html.Tr([html.Td(name), *map(html.Td, cells)], className="differs" if len(set(cells)) > 1 else "")


def _head(titles: Sequence[str]) -> Any:
    return html.Thead(html.Tr([html.Th(title) for title in titles]))
