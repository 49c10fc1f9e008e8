"""The report of training runs: curves of all runs together, limits, multipliers, and verdicts on fresh episodes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.insight.figures import COLOURS, GREY, Figure, axis, layout, line, rounded, safe, thinned
from cmdpkit.insight.report.page import Page, badge, cards, paragraphs, table
from cmdpkit.insight.words import counted, number
from cmdpkit.run.result import RECENT, TrainingResult

MEASURES = {
    "episode": "sum over an episode",
    "discounted": "discounted sum of an episode",
    "step": "average per step",
}


def trained_page(
    results: Sequence[TrainingResult], proofs: Sequence[Any], title: str, subtitle: str, reproduce: Sequence[str]
) -> Page:
    """The page of one run or more; runs of the same method are seeds of one experiment."""
    _check_alike(results)
    page = Page(title, subtitle)
    first = results[0]
    measure = MEASURES.get(first.measure, first.measure)
    page.banner = f'<p class="verdict">{_verdict(proofs)} <span>{escape(_headline(results, proofs))}</span></p>'
    page.add("summary", "Summary", cards(_key_numbers(results)), paragraphs([_meaning(first, measure)]))
    page.add("runs", "Runs", _runs(results, proofs))
    if any(proof is not None for proof in proofs):
        page.add("verdicts", "Fresh episodes", *_verdicts(results, proofs))
    groups = _groups(results)
    many = len(results) > len(groups)
    about = f"thin lines are runs (means of {RECENT} iterations)" + (
        ", thick ones the mean of all seeds." if many else "."
    )
    curves = [page.figure(_curves(groups, "objective", None, "reward"), f"Reward; {about}")]
    for i, limit in enumerate(first.limits):
        figure = _curves(groups, "constraint_values", i, f"cost {i + 1}", float(limit))
        curves.append(page.figure(figure, f"Cost {i + 1}, whose limit is {number(float(limit))}; {about}"))
    page.add("curves", "Reward and costs", f'<div class="pair">{"".join(curves)}</div>')
    if len(first.limits) and any(np.any(r.history["multipliers"]) for r in results if len(r.history)):
        found = [
            page.figure(
                _curves(groups, "multipliers", i, f"multiplier {i + 1}", window=1), f"Multiplier of cost {i + 1}."
            )
            for i in range(len(first.limits))
        ]
        page.add("multipliers", "Multipliers", f'<div class="pair">{"".join(found)}</div>')
    page.add("reproduce", "Reproduce", *reproduce)
    return page


def _check_alike(results: Sequence[TrainingResult]) -> None:
    first = results[0]
    for result in results:
        if not isinstance(result, TrainingResult):
            raise ValueError("a report is about results of solve or of train, not of both")
        if result.measure != first.measure or not np.array_equal(result.limits, first.limits):
            raise ValueError(
                f"runs with different limits cannot be drawn together: {first.limits.tolist()} ({first.measure}) and "
                f"{result.limits.tolist()} ({result.measure})"
            )
        if not len(result.history):
            raise ValueError("a run without a single iteration has nothing to report")


def _groups(results: Sequence[TrainingResult]) -> dict[str, list[TrainingResult]]:
    groups: dict[str, list[TrainingResult]] = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    return groups


# -- words and tables -------------------------------------------------------------------------------------------------


def _meaning(first: TrainingResult, measure: str) -> str:
    limits = ", ".join(f"cost {i + 1} at most {number(float(limit))}" for i, limit in enumerate(first.limits))
    told = f"Reward is maximised: its expected {measure}. "
    return told + (f"Limits on the expected {measure}: {limits}." if limits else "Nothing is limited.")


def _verdict(proofs: Sequence[Any]) -> str:
    known = [verdict for proof in proofs if proof is not None for verdict in proof.verdicts]
    if any(proof is None for proof in proofs):
        return badge("not certified", "open")
    if all(verdict == "satisfied" for verdict in known):
        return badge("limits kept", "good")
    return badge("limit violated", "bad") if "violated" in known else badge("undecided", "open")


def _headline(results: Sequence[TrainingResult], proofs: Sequence[Any]) -> str:
    runs = counted(len(results), "run")
    if any(proof is None for proof in proofs):
        return f"{runs}; averages over training prove nothing: certify_on_episodes gives a verdict on fresh episodes."
    kept = sum(proof.satisfied for proof in proofs)
    return f"{kept} of {runs} keep every limit, with {100.0 * proofs[0].confidence:g} % confidence each."


def _key_numbers(results: Sequence[TrainingResult]) -> list[tuple[str, str, str]]:
    reward = [result.objective for result in results]
    costs = np.array([result.constraint_values for result in results])
    over = f"mean of the last {min(RECENT, results[0].iterations)} iterations"
    spread = over if len(results) == 1 else f"{number(min(reward), 4)} to {number(max(reward), 4)}; {over}"
    found = [("reward", number(float(np.mean(reward)), 5), spread)]
    for i, limit in enumerate(results[0].limits):
        found.append((f"cost {i + 1}", number(float(costs[:, i].mean()), 5), f"limit {number(float(limit))}; {over}"))
    steps = sum(result.steps for result in results)
    found.append(("environment steps", f"{steps:,}", f"{number(sum(result.time for result in results), 3)} s in all"))
    return found


def _runs(results: Sequence[TrainingResult], proofs: Sequence[Any]) -> str:
    titles = [
        "run",
        "method",
        "iterations",
        "steps",
        "reward",
        *(f"cost {i + 1}" for i in range(len(results[0].limits))),
    ]
    titles += ["steps rejected", "fresh episodes"]
    rows, missed = [], []
    for k, (result, proof) in enumerate(zip(results, proofs, strict=True)):
        refused = sum(n for name, n in result.verdicts.items() if name != "accepted")
        verdict = "not certified" if proof is None else ", ".join(proof.verdicts) or "no limits"
        costs = [number(float(value), 5) for value in result.constraint_values]
        name = f"{k + 1}" if result.folder is None else f"{k + 1}: {result.folder.name}"
        size = [f"{result.iterations:,}", f"{result.steps:,}", number(result.objective, 5)]
        rows.append([name, result.method, *size, *costs, f"{refused}", verdict])
        if proof is not None and "violated" in proof.verdicts:
            missed.append(k)
    return table(titles, rows, (0, 1, len(titles) - 1), missed)


def _verdicts(results: Sequence[TrainingResult], proofs: Sequence[Any]) -> list[str]:
    rows, missed = [], []
    for k, (result, proof) in enumerate(zip(results, proofs, strict=True)):
        if proof is None:
            continue
        low, high = proof.objective_interval
        around = f"{number(low, 5)} to {number(high, 5)}"
        rows.append([f"{k + 1}", result.method, "reward", number(proof.objective, 5), around, "", ""])
        for i, limit in enumerate(result.limits):
            low, high = proof.intervals[i]
            if proof.verdicts[i] == "violated":
                missed.append(len(rows))
            around = f"{number(float(low), 5)} to {number(float(high), 5)}"
            value = number(float(proof.constraint_values[i]), 5)
            rows.append(["", "", f"cost {i + 1}", value, around, f"<= {number(float(limit))}", proof.verdicts[i]])
    known = next(proof for proof in proofs if proof is not None)
    titles = ["run", "method", "", "mean", f"{100.0 * known.confidence:g} % interval", "limit", "verdict"]
    note = (
        f"{known.rollouts:,} fresh episodes of at most {known.horizon:,} steps per run, apart from those of training, "
        f"with {'the most likely actions' if known.deterministic else 'actions drawn from the policy'}."
    )
    note += f" The intervals of a run hold together, assuming that {known.assumption}." if known.assumption else ""
    return [table(titles, rows, (0, 1, 2, 6), missed), paragraphs([note], "note")]


# -- curves -----------------------------------------------------------------------------------------------------------


def smooth(values: Array, window: int = RECENT) -> Array:
    """The mean of the last `window` rows at each row, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def _curves(
    groups: dict[str, list[TrainingResult]],
    column: str,
    index: int | None,
    title: str,
    limit: float | None = None,
    window: int = RECENT,
) -> Figure:
    data: list[dict[str, Any]] = []
    for style, (method, results) in enumerate(groups.items()):
        curves = []
        for k, result in enumerate(results):
            values = result.history[column] if index is None else result.history[column][:, index]
            curves.append((np.asarray(result.history["samples"], dtype=float), smooth(np.asarray(values), window)))
            rows = thinned(values.size)
            alone = len(results) == 1
            name = safe(method) if alone else f"{safe(method)}, run {k + 1}"
            hover = f"{name}<br>%{{x:,}} steps<br>{title} %{{y:.5g}}<extra></extra>"
            width = {
                "width": 2 if alone else 1,
                "dash": "solid" if not alone else line([], [], "", style)["line"]["dash"],
            }
            thin = line(
                rounded(curves[-1][0][rows], 9), rounded(curves[-1][1][rows], 5), name, style, line=width,
                opacity=1.0 if alone else 0.5, showlegend=alone and len(groups) > 1, legendgroup=safe(method),
            )  # fmt: skip
            data.append(thin | {"hovertemplate": hover})
        if len(results) > 1:
            data.append(_mean_curve(curves, method, style, title))
    shapes: list[Any] = []
    notes: list[Any] = []
    if limit is not None:
        shapes.append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
             "line": {"color": "#222222", "width": 1.5, "dash": "dash"}}
        )  # fmt: skip
        text = {"text": f"limit {number(limit)}", "showarrow": False, "yshift": 9, "font": {"size": 11, "color": GREY}}
        notes.append(text | {"xref": "paper", "x": 1, "xanchor": "right", "y": limit})
    ticks = {"rangemode": "tozero"} if limit is not None else {}
    drawn = layout(320, xaxis=axis("environment steps"), yaxis=axis(title, **ticks), shapes=shapes, annotations=notes)
    return {"data": data, "layout": drawn | {"showlegend": len(groups) > 1}}


def _mean_curve(curves: Sequence[tuple[Array, Array]], method: str, style: int, title: str) -> dict[str, Any]:
    """The mean of all seeds, as far as all of them went."""
    last = min(x[-1] for x, _ in curves)
    first = max(x[0] for x, _ in curves)
    grid = np.linspace(first, last, min(400, min(x.size for x, _ in curves)))
    mean = np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)
    hover = f"{safe(method)}, mean of {len(curves)}<br>%{{x:,}} steps<br>{title} %{{y:.5g}}<extra></extra>"
    bold = {"width": 3, "color": COLOURS[style % len(COLOURS)]}
    curve = line(rounded(grid, 9), rounded(mean, 5), safe(method), style, line=bold, legendgroup=safe(method))
    return curve | {"hovertemplate": hover}
