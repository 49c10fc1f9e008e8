"""What training found, and what fresh episodes say about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cmdpkit.certificates.rollouts import more_text
from cmdpkit.report.results import plain

if TYPE_CHECKING:
    from rich.console import Group

    from cmdpkit.certificates.rollouts import SimulationCertificate
    from cmdpkit.run.result import TrainingResult


def training_report(result: TrainingResult) -> Group:
    """Reward and costs against their limits, averaged over the last iterations."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    count = min(20, result.iterations)
    facts = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", f"mean of the last {count} iterations", "limit", "multiplier"):
        facts.add_column(title, justify="left" if not title else "right")
    reward, costs = result.recent() if result.iterations else (float("nan"), [float("nan")] * len(result.limits))
    facts.add_row("reward", f"{reward:.5g}", "", "")
    for i, limit in enumerate(result.limits):
        shown = f"{costs[i]:.5g}"
        over = f"[yellow]{shown} (over)[/]" if costs[i] > limit else shown
        facts.add_row(f"cost {i + 1}", over, f"<= {limit:.6g}", f"{result.multipliers[i]:.4g}")
    refused = {name: n for name, n in result.verdicts.items() if name != "accepted" and n}
    trouble = "; ".join(f"{name}: {n}" for name, n in refused.items()) or "none rejected"
    size = f"{result.iterations} iterations, {result.steps:,} steps of the environment, {result.time:.3g} s"
    speed = f" ({result.steps / result.time:,.0f} steps per second)" if result.time > 0 else ""
    notes = [f"method {result.method}, {size}{speed}", f"policy steps: {trouble}"]
    if result.best is not None:
        best = result.best
        costs_shown = ", ".join(
            f"{c:.4g} ± {e:.2g}" for c, e in zip(best["constraint_values"], best["errors"], strict=True)
        )
        earned = f"reward {best['objective']:.5g} ± {best['objective_error']:.2g}, costs {costs_shown}"
        notes.append(
            f"best policy within the limits: that of iteration {best['iteration']}, {earned} (standard errors)"
        )
    if result.folder is not None:
        notes.append(f"the run is in {result.folder}; {_certified_by(result.folder)} certifies its policy")
    return Group(facts, "", *(Text(note, style="dim") for note in notes))


def _certified_by(folder: Path) -> str:
    """The call that certifies the policy of a run: a program that has the environment, or the command line."""
    try:
        env = str(json.loads((folder / "run.json").read_text())["env"])
    except (OSError, ValueError, KeyError):
        env = ""
    if env.startswith("python: "):
        return f"cmdpkit.certify_on_episodes({env.rpartition('.')[2]}, result.policy, result.limits)"
    return f"cmdpkit evaluate {folder}"


def training_text(result: TrainingResult) -> str:
    """`training_report` as plain text."""
    return plain(training_report(result))


def episodes_report(certificate: SimulationCertificate, limits: Sequence[float]) -> Group:
    """Intervals and verdicts from fresh episodes."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "mean", f"{100.0 * certificate.confidence:g} % interval", "limit", "verdict"):
        table.add_column(title, justify="left" if title in ("", "verdict") else "right")
    low, high = certificate.objective_interval
    table.add_row("reward", f"{certificate.objective:.5g}", f"{low:.5g} to {high:.5g}", "", "")
    for i, limit in enumerate(limits):
        low, high = certificate.intervals[i]
        verdict, more = certificate.verdicts[i], certificate.more_rollouts[i]
        colour = {"satisfied": "green", "violated": "red"}.get(verdict, "yellow")
        if verdict == "undecided":
            verdict += f", {more_text(more, 'episodes')}"
        value = f"{certificate.constraint_values[i]:.5g}"
        table.add_row(f"cost {i + 1}", value, f"{low:.5g} to {high:.5g}", f"<= {limit:.6g}", f"[{colour}]{verdict}[/]")
    note = f"{certificate.rollouts:,} fresh episodes of at most {certificate.horizon} steps"
    note += f", with {'the most likely actions' if certificate.deterministic else 'actions drawn from the policy'}"
    if certificate.assumption:
        note += f"; assuming that {certificate.assumption}"
    return Group(table, "", Text(note, style="dim"))
