"""Figures for the browser, as plain data that Plotly draws: {"data": [...], "layout": {...}}.

Text from users is escaped, because Plotly reads a little HTML in it. Colours are those of Okabe and Ito, and cividis
for numbers: both survive colour blindness, and no figure needs colours alone to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.insight.choices import Choices
from cmdpkit.insight.curves import Frontier
from cmdpkit.insight.places import Map
from cmdpkit.insight.words import number, objective_name
from cmdpkit.model import Problem
from cmdpkit.tables import label

Figure = dict[str, Any]

BLUE, RED, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#7F7F7F"
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")
FEW = len(COLOURS)
"""Up to so many actions have colours of their own; more are shaded by their number."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
GRID = "#e6e9ee"
MOST_POINTS = 2_000
"""Longer curves are thinned out: a screen has no more pixels."""

MIXED = {"symbol": "circle", "size": 9, "color": "#ffffff", "line": {"width": 2, "color": BLACK}}
"""The mark of a randomised state, visible on all colours."""

TEXT_CELLS = 300
"""Maps with at most so many cells also have the actions written in them."""


def safe(text: object, most: int = 60) -> str:
    """Text of a user for Plotly: shown as it is, cut where it is long."""
    plain = str(text)
    return escape(plain if len(plain) <= most else plain[: most - 1] + "…", quote=False)


def rounded(values: Any, digits: int = 7) -> Any:
    """Numbers as nested lists with few digits; None where there is none."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return [rounded(row, digits) for row in values]
    return [None if not np.isfinite(x) else float(f"{x:.{digits}g}") for x in np.asarray(values, dtype=float)]


def layout(height: int, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "height": height,
        "autosize": True,
        "margin": {"l": 64, "r": 16, "t": 28, "b": 48},
        "font": {"family": FONT, "size": 13, "color": BLACK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "#ffffff",
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        "showlegend": True,
    }
    return base | more


def axis(title: str, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "title": {"text": title, "standoff": 8},
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": "#b8bfca",
        "ticks": "outside",
        "tickcolor": "#b8bfca",
        "automargin": True,
    }
    return base | more


def line(x: Any, y: Any, name: str, style: int = 0, **more: Any) -> dict[str, Any]:
    """A curve in the style of this number."""
    kind = style % FEW
    base: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name}
    base["line"] = {"color": COLOURS[kind], "width": 2, "dash": DASHES[kind]} | more.pop("line", {})
    return base | more


# -- frontiers --------------------------------------------------------------------------------------------------------


def frontier_figure(found: Frontier, answer: tuple[float, float] | None = None) -> Figure:
    """The certified band over a limit, what no policy meets, and below it the shadow price.

    `answer` is the limit and the objective of the policy that the page is about.
    """
    index = found.model.names.index(found.name)
    known = found.feasible & np.isfinite(found.lower) & np.isfinite(found.upper)
    limits = found.limits[known]
    xs = rounded(limits)
    low, high = found.lower[known], found.upper[known]
    text = [f"between {number(a, 7)} and {number(b, 7)}" for a, b in zip(low, high, strict=True)]
    hover = "limit %{x}<br>optimum %{text}<extra></extra>"
    steps = "hv" if found.model.signs[index] > 0 else "vh"
    prices = line(
        xs, rounded(found.prices[known]), "shadow price", 1, yaxis="y2", line={"shape": steps, "dash": "solid"}
    )
    data: list[dict[str, Any]] = [
        line(xs, rounded(low), "", line={"width": 0}, hoverinfo="skip", showlegend=False),
        line(
            xs, rounded(high), "certified band", line={"width": 0}, fill="tonexty",
            fillcolor="rgba(0,114,178,0.22)", hoverinfo="skip",
        ),
        line(xs, rounded(found.objectives[known]), "attained", 0, text=text, hovertemplate=hover),
        prices | {"hovertemplate": "limit %{x}<br>shadow price %{y}<extra></extra>", "showlegend": False},
    ]  # fmt: skip
    if answer is not None and np.isfinite(answer[1]):
        data.append(_point(answer, "this policy"))
    own = float(found.model.limits[index]) if answer is None else answer[0]
    shapes, notes, around = _edges(found, limits, own)
    top = _price_top(found.prices[known])
    if top is not None:
        most = {"text": f"clipped; up to {number(float(found.prices[known].max()), 3)}", "showarrow": False}
        place = {"xref": "paper", "x": 1, "xanchor": "right", "yref": "paper", "y": 0.26, "yanchor": "top"}
        notes.append(most | place | {"font": {"size": 11, "color": GREY}})
    unit = found.model.rows[index].unit
    name = objective_name(found.model)
    return {
        "data": data,
        "layout": layout(
            420,
            xaxis=axis(f"limit of {safe(found.name)}{unit}", anchor="y2", range=around),
            yaxis=axis(safe(name), domain=[0.36, 1.0]),
            yaxis2=axis(
                "shadow price",
                domain=[0.0, 0.26],
                **({"rangemode": "tozero"} if top is None else {"range": [0.0, top]}),
            ),
            shapes=shapes,
            annotations=notes,
        ),
    }


def _price_top(prices: Array) -> float | None:
    """Where an axis of prices ends if a few of them, near the tightest limit, would hide all others."""
    if prices.size < 4 or not np.isfinite(prices).all():
        return None
    usual = float(np.quantile(prices, 0.8))
    return 2.0 * usual if 0.0 < 10.0 * usual < prices.max() else None


def _point(at: tuple[float, float], name: str, style: int = 2) -> dict[str, Any]:
    marker = {"color": COLOURS[style], "size": 12, "symbol": "diamond", "line": {"color": "white", "width": 1.5}}
    hover = "limit %{x}<br>objective %{y}<extra></extra>"
    base = {"type": "scatter", "mode": "markers", "x": [at[0]], "y": [at[1]], "name": name, "marker": marker}
    return base | {"hovertemplate": hover}


def _edges(found: Frontier, limits: Array, own: float) -> tuple[list[Any], list[Any], list[float]]:
    """The limit itself, what is proved infeasible, and the range of the axis."""
    edge = float(found.least[0])
    ends = [*(limits[[0, -1]].tolist() if limits.size else []), own, *([edge] if np.isfinite(edge) else [])]
    low, high = min(ends), max(ends)
    room = 0.08 * max(high - low, 1e-3 * max(1.0, abs(low)))
    around = [low - room, high + room]
    vertical = {"type": "line", "x0": own, "x1": own, "y0": 0, "y1": 1, "yref": "paper"}
    shapes: list[Any] = [vertical | {"line": {"color": GREY, "width": 1.5, "dash": "dash"}}]
    notes: list[Any] = []
    if np.isfinite(edge):
        outside = around[0] if found.model.rows[found.model.names.index(found.name)].sign > 0 else around[1]
        x0, x1 = sorted((edge, outside))
        area = {"type": "rect", "x0": x0, "x1": x1, "y0": 0.36, "y1": 1, "yref": "paper", "line": {"width": 0}}
        shapes.append(area | {"fillcolor": "rgba(213,94,0,0.16)", "layer": "below"})
        words = {
            "text": "proved infeasible",
            "textangle": -90,
            "showarrow": False,
            "font": {"color": "#a34700", "size": 11},
        }
        notes.append(words | {"x": (x0 + x1) / 2, "y": 0.68, "yref": "paper"})
    return shapes, notes, around


# -- policies ---------------------------------------------------------------------------------------------------------


def policy_map(problem: Problem, choices: Choices, where: Map, stage: int = 0) -> Figure:
    """The most probable action at each place of a map; randomised states are marked."""
    places = where.states()
    flat = places.ravel()
    best = where.spread(choices.best[stage])
    words = np.array([safe(choices.words(stage, s)) if s >= 0 else "" for s in flat], dtype=object)
    used = sorted({int(a) for a in best[np.isfinite(best)]})
    names = [safe(label(problem.pairs.action_labels, a), 24) for a in used]
    rank = np.full(best.shape, np.nan)
    for k, a in enumerate(used):
        rank[best == a] = k
    first, second = where.ticks
    text = words.reshape(best.shape).tolist()
    hover = f"{safe(where.names[0])} %{{y}}, {safe(where.names[1])} %{{x}}<br>%{{customdata}}<extra></extra>"
    heat: dict[str, Any] = {"type": "heatmap", "x": second, "y": first, "z": rounded(rank), "customdata": text}
    heat |= {"hovertemplate": hover, "zmin": -0.5, "zmax": len(used) - 0.5, "xgap": 1, "ygap": 1}
    heat |= {"colorscale": discrete_scale(len(used)), "colorbar": _action_bar(names)}
    if best.size <= TEXT_CELLS and max(map(len, names), default=0) <= 4:
        written = [["" if not np.isfinite(k) else names[int(k)] for k in row] for row in rank]
        heat |= {"text": written, "texttemplate": "%{text}", "textfont": {"size": 11}}
    data = [heat]
    mixed = where.spread(choices.randomised[stage].astype(float), 0.0)
    rows, columns = np.nonzero(mixed > 0.5)
    data.append(
        {
            "type": "scatter", "mode": "markers", "name": "randomised", "hoverinfo": "skip",
            "x": [second[c] for c in columns], "y": [first[r] for r in rows],
            "marker": MIXED,
        }
    )  # fmt: skip
    return {"data": data, "layout": _map_layout(where, bool(rows.size))}


def visits_map(choices: Choices, where: Map, unit: str, stage: int = 0) -> Figure:
    """How often each place of a map is visited, on a logarithmic scale of colours."""
    assert choices.visits is not None
    visits = where.spread(choices.visits[stage])
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.where(visits > 0.0, np.log10(visits), np.nan)
    top = float(np.nanmax(powers)) if np.isfinite(powers).any() else 0.0
    floor = max(float(np.nanmin(powers)), top - 6.0) if np.isfinite(powers).any() else -1.0
    first, second = where.ticks
    shown = np.where(np.isfinite(powers), np.maximum(powers, floor), np.nan)
    ticks: list[float] = [*range(int(np.ceil(floor)), int(np.floor(top)) + 1)] or [top]
    heat = {"type": "heatmap", "x": second, "y": first, "z": rounded(shown, 4), "text": rounded(visits, 4)}
    hover = f"{safe(where.names[0])} %{{y}}, {safe(where.names[1])} %{{x}}<br>{unit} %{{text}}<extra></extra>"
    bar = {"title": {"text": unit, "side": "right"}, "tickvals": ticks, "ticktext": [f"{10.0**k:g}" for k in ticks]}
    heat |= {"hovertemplate": hover, "colorscale": "Cividis", "colorbar": bar | {"thickness": 14, "outlinewidth": 0}}
    heat |= {"xgap": 1, "ygap": 1}
    return {"data": [heat], "layout": _map_layout(where, False)}


def _map_layout(where: Map, legend: bool) -> dict[str, Any]:
    rows, columns = where.shape
    height = int(np.clip(110 + 26 * rows, 240, 560))
    down = where.names[0] in ("row", "Row")  # rows are read from the top
    lines = {"showgrid": False, "constrain": "domain"}
    (bottom, left), (top, right) = where.low - 0.5, where.low + np.array(where.shape) - 0.5
    x = axis(safe(where.names[1]), **lines, **_whole_ticks(columns, where.low[1]), range=[left, right])
    around = [top, bottom] if down else [bottom, top]
    y = axis(safe(where.names[0]), **lines, **_whole_ticks(rows, where.low[0]), range=around)
    if max(rows, columns) <= 4 * min(rows, columns):
        y |= {"scaleanchor": "x"}
    return layout(height, xaxis=x, yaxis=y, showlegend=legend, plot_bgcolor="#f3f4f6")


def _whole_ticks(count: int, low: int) -> dict[str, Any]:
    """Ticks at whole numbers, about ten of them."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000) if count <= 12 * step)
    return {"tick0": int(low), "dtick": every}


def discrete_scale(count: int) -> list[list[Any]]:
    """A colour scale of steps: one colour per action."""
    colours = COLOURS[:count] if count <= FEW else cividis(count)
    steps: list[list[Any]] = []
    for k, colour in enumerate(colours):
        steps += [[k / count, colour], [(k + 1) / count, colour]]
    return steps or [[0.0, GREY], [1.0, GREY]]


_CIVIDIS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")


def cividis(count: int) -> list[str]:
    """Colours from dark blue to yellow."""
    ends = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in _CIVIDIS], dtype=float)
    at = np.linspace(0.0, len(ends) - 1.0, count)
    parts = [np.interp(at, np.arange(len(ends)), ends[:, k]).round().astype(int) for k in range(3)]
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in zip(*parts, strict=True)]


def _action_bar(names: Sequence[str]) -> dict[str, Any]:
    every = max(1, len(names) // 16)
    bar = {"tickvals": list(range(0, len(names), every)), "ticktext": list(names)[::every], "thickness": 14}
    return bar | {"outlinewidth": 0, "title": {"text": "action", "side": "right"}, "ticks": ""}


def action_table(problem: Problem, choices: Choices) -> Figure:
    """The probability of every action in every state: states from left to right."""
    table = problem.pairs.table(choices.pi[0].reshape(problem.pairs.shape), 0.0).T
    states = [safe(label(problem.pairs.state_labels, s), 20) for s in range(problem.states)]
    actions = [safe(label(problem.pairs.action_labels, a), 20) for a in range(problem.actions)]
    heat = {"type": "heatmap", "z": rounded(table, 4), "x": states, "y": actions, "zmin": 0, "zmax": 1}
    heat |= {"colorscale": [[0, "#ffffff"], [0.001, "#d7e6f2"], [1, BLUE]], "xgap": 1, "ygap": 1}
    heat |= {"hovertemplate": "state %{x}<br>action %{y}<br>probability %{z}<extra></extra>"}
    heat |= {"colorbar": {"title": {"text": "probability", "side": "right"}, "thickness": 14, "outlinewidth": 0}}
    kind = {"type": "category", "showgrid": False}
    height = int(np.clip(120 + 22 * problem.actions, 220, 620))
    return {
        "data": [heat],
        "layout": layout(height, xaxis=axis("state", **kind), yaxis=axis("action", **kind), plot_bgcolor="#f3f4f6"),
    }


def stage_map(problem: Problem, choices: Choices) -> Figure:
    """The most probable action over stages (from left to right) and states."""
    best = choices.best.T  # (S, T)
    used = sorted(set(best.ravel().tolist()))
    names = [safe(label(problem.pairs.action_labels, a), 24) for a in used]
    rank = np.searchsorted(used, best).astype(float)
    words = [[safe(choices.words(t, s)) for t in range(best.shape[1])] for s in range(best.shape[0])]
    states = [safe(label(problem.pairs.state_labels, s), 20) for s in range(problem.states)]
    heat = {"type": "heatmap", "z": rounded(rank), "x": list(range(best.shape[1])), "y": states, "text": words}
    heat |= {"hovertemplate": "stage %{x}, state %{y}<br>%{text}<extra></extra>", "zmin": -0.5, "zmax": len(used) - 0.5}
    heat |= {"colorscale": discrete_scale(len(used)), "colorbar": _action_bar(names)}
    stages, states_at = np.nonzero(choices.randomised)
    marks: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": "randomised", "hoverinfo": "skip"}
    marks |= {"x": stages.tolist(), "y": [states[s] for s in states_at]}
    marks |= {"marker": MIXED}
    height = int(np.clip(120 + 12 * problem.states, 260, 560))
    kind = {"type": "category", "showgrid": False, "nticks": 20}
    figure_layout = layout(height, xaxis=axis("stage", showgrid=False), yaxis=axis("state", **kind))
    return {"data": [heat, marks], "layout": figure_layout | {"showlegend": bool(stages.size)}}


def visits_figure(problem: Problem, choices: Choices, unit: str, most: int = 30) -> Figure:
    """Bars: the most visited states."""
    assert choices.visits is not None
    total = choices.visits.sum(axis=0)
    order = [int(s) for s in np.argsort(-total, kind="stable")[:most] if total[s] > 0.0]
    names = [safe(label(problem.pairs.state_labels, s), 20) for s in order]
    bars = {"type": "bar", "x": names, "y": rounded(total[order], 5), "marker": {"color": BLUE}}
    bars |= {"hovertemplate": f"state %{{x}}<br>{unit} %{{y}}<extra></extra>"}
    kind = axis("state, the most visited first", type="category", showgrid=False)
    return {"data": [bars], "layout": layout(300, xaxis=kind, yaxis=axis(unit), showlegend=False)}


# -- runs -------------------------------------------------------------------------------------------------------------


def thinned(length: int, most: int = MOST_POINTS) -> Any:
    """Row numbers of a curve that is drawn with at most so many points, its ends included."""
    return np.arange(length) if length <= most else np.unique(np.linspace(0, length - 1, most).round().astype(int))


def convergence_figure(result: Any) -> Figure | None:
    """Objective and bound over the iterations, and below them the largest violation."""
    history, problem = result.history, result.model
    if len(history) < 2:
        return None
    rows = thinned(len(history))
    x = (rows + 1).tolist()
    mode = {"mode": "lines+markers"} if rows.size <= 60 else {}
    shown = (("objective", "policy", 0), ("average_objective", "average of all", 1), ("bound", "proved bound", 2))
    data = [
        line(x, rounded(history[column][rows]), name, style, **mode)
        for column, name, style in shown
        if column in history and np.isfinite(history[column][rows]).any()
    ]
    if "bound" not in history and np.isfinite(getattr(result.certificate, "bound", np.nan)):
        bound = float(result.certificate.bound)
        data.append(line([x[0], x[-1]], [bound, bound], "proved bound", 2))
    lower = [("violation", 0), ("average_violation", 1)]
    missed = [(history[column][rows], style) for column, style in lower if column in history]
    missed = [(values, style) for values, style in missed if (np.isfinite(values) & (values > 0.0)).any()]
    for values, style in missed:
        positive = np.where(np.isfinite(values) & (values > 0.0), values, np.nan)
        data.append(line(x, rounded(positive, 4), "", style, yaxis="y2", showlegend=False, **mode))
    drawn = layout(420 if missed else 320, xaxis=axis("iteration", anchor="y2" if missed else "y"))
    drawn["yaxis"] = axis(safe(objective_name(problem)), domain=[0.42, 1.0] if missed else [0.0, 1.0])
    if missed:
        drawn["yaxis2"] = axis("violation", domain=[0.0, 0.32], type="log", exponentformat="power", nticks=5)
    return {"data": data, "layout": drawn}
