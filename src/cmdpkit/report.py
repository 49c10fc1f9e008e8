"""Tables and progress bars for the terminal (Rich, imported only when something is shown)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.exact.conflict import rounded_outwards

if TYPE_CHECKING:
    from rich.console import Group

    from cmdpkit.certificates.rollouts import SimulationCertificate
    from cmdpkit.model import Problem
    from cmdpkit.run.budget import Callback, Snapshot
    from cmdpkit.run.result import Result, TrainingResult


def result_report(result: Result) -> Group:
    """Status, objective with its bound, and every constraint with limit, slack and shadow price."""
    from rich.console import Group
    from rich.text import Text

    colour = {"optimal": "green", "infeasible": "red"}.get(result.status.value, "yellow")
    head = Text.assemble((result.status.value.upper(), f"bold {colour}"), f"  {result.message}")
    plural = "" if result.iterations == 1 else "s"
    drawn = "" if result.samples is None else f" {result.samples:,} transitions,"
    cost = f"method {result.method}, {result.iterations} iteration{plural},{drawn} {result.time:.3g} s"
    if isinstance(result.certificate, Certificate):
        body = certificate_report(result.certificate, result.model)
        if averages := _long_run(result):
            body = Group(body, "", Text("\n".join(averages)))
        if result.samples is not None:
            cost += "\nlearned from samples alone; bound and certificate are the model's"
    else:
        body = simulation_report(result)
    return Group(head, "", body, "", Text(cost, style="dim"))


LONG_RUN_STATES = 2_000
"""Up to this many states the report also tells long-run averages, which take a linear solve."""


def _long_run(result: Result) -> list[str]:
    """What the policy does in the long run, where that differs from a limit per step, which weighs early steps more."""
    from cmdpkit.evaluation.average import long_run_averages
    from cmdpkit.model import CMDP

    cmdp, proof = result.model, result.certificate
    if not isinstance(cmdp, CMDP) or cmdp.criterion == "average" or cmdp.states > LONG_RUN_STATES:
        return []
    if proof.infeasibility is not None or not any(c.per_step for c in cmdp.constraints):
        return []
    averages = long_run_averages(cmdp, result.policy)[1]
    rows = zip(cmdp.constraints, proof.constraint_values, averages, strict=True)
    lines = [
        f"{c.name}: {average:.6g} per step in the long run; the limit counts early steps more"
        for c, value, average in rows
        if c.per_step and abs(average - value) > 1e-6 * max(1.0, abs(value))
    ]
    return [*lines, "(a model with average=True limits the long-run average itself)"] if lines else []


def simulation_report(result: Result) -> Group:
    """Intervals and verdicts from fresh rollouts, for the last iterate and for the mixture of all iterates."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    sense = "maximised" if result.model.maximise else "minimised"
    about = f"{sense}, {_unit(result.model)}, of the last iterate"
    facts.add_row(_objective_name(result.model), f"{result.objective:.6g}", about)
    parts: list[Any] = [facts]
    shown = [("last iterate", result.certificate), ("mixture", result.average_certificate)]
    if result.certificate is None or not result.model.num_constraints:
        return Group(*parts)
    level = f"{100.0 * result.certificate.confidence:g} %"
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("constraint", "limit", "policy", "value", f"{level} interval", "verdict"):
        table.add_column(title, justify="left" if title in ("constraint", "policy", "verdict") else "right")
    for i, constraint in enumerate(result.model.constraints):
        name = escape(f"{constraint.name}{constraint.unit}")
        limit = str(constraint)
        for policy, proof in shown:
            low, high = proof.intervals[i]
            verdict, more = proof.verdicts[i], proof.more_rollouts[i]
            colour = {"satisfied": "green", "violated": "red"}.get(verdict, "yellow")
            if verdict == "undecided":
                verdict += f", {more:.2g} more rollouts decide" if more < 1e9 else ", too close to the limit"
            value, interval = f"{proof.constraint_values[i]:.4g}", f"{low:.4g} to {high:.4g}"
            table.add_row(name, limit, policy, value, interval, f"[{colour}]{verdict}[/]")
            name = limit = ""
    return Group(*parts, "", table)


def certificate_report(certificate: Certificate, cmdp: Problem) -> Group:
    """What is proved about a policy."""
    from rich.console import Group
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    sense = "maximised" if cmdp.maximise else "minimised"
    facts.add_row(_objective_name(cmdp), f"{certificate.objective:.9g}", f"{sense}, {_unit(cmdp)}")
    if certificate.infeasibility is None:
        better = "more" if cmdp.maximise else "less"
        if isfinite(certificate.bound):
            facts.add_row("bound", f"{certificate.bound:.9g}", f"proved: no policy within the limits attains {better}")
            facts.add_row("gap", f"{certificate.gap:.1e}", "relative distance between the two")
        else:
            facts.add_row("bound", "none yet", "nothing has been proved about the optimum")
        facts.add_row("violation", f"{certificate.violation:.1e}", "largest, relative to max(1, |limit|)")
    else:
        least = f"{certificate.infeasibility_margin:.3g}"
        facts.add_row("proof", least, "least sum of weight x excess over the limits, of all policies")
    parts: list[Any] = [facts]
    if cmdp.num_constraints:
        parts += ["", _constraint_table(certificate, cmdp)]
    return Group(*parts)


def _objective_name(problem: Problem) -> str:
    from rich.markup import escape

    return escape(problem.objective_name or "objective")


def _unit(problem: Problem) -> str:
    """What the objective measures."""
    average = problem.objective_per_step and problem.criterion == "discounted"
    return "expected discounted average per step" if average else problem.value_name


def _constraint_table(certificate: Certificate, cmdp: Problem) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    price = "shadow price" if certificate.infeasibility is None else "proof weight"
    for title in ("constraint", "value", "limit", "slack", price):
        table.add_column(title, justify="left" if title == "constraint" else "right")
    prices = certificate.multipliers if certificate.infeasibility is None else certificate.infeasibility
    for i, constraint in enumerate(cmdp.constraints):
        value = certificate.constraint_values[i]
        slack = constraint.slack(value)
        unit = constraint.unit
        nearer = min(constraint.ends, key=lambda end: abs(end - value))
        missed = slack < -1e-6 * max(1.0, abs(nearer))
        table.add_row(
            escape(f"{constraint.name}{unit}"),
            f"{value:.6g}",
            str(constraint),
            f"[red]{slack:.3g} (violated)[/red]" if missed else f"{_clean(slack):.3g}",
            f"{prices[i]:.6g}",
        )
    return table


def _clean(slack: float) -> float:
    """A slack within rounding error is shown as zero."""
    return 0.0 if abs(slack) < 1e-12 else slack


def result_text(result: Result) -> str:
    """`result_report` as plain text."""
    return plain(result_report(result))


def plain(report: Any) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(report)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def comparison_table(results: list[Result]) -> Any:
    """Methods compared on one model: one row per method and constraint."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    titles = ("method", "objective", "constraint", "value", "slack", "shadow\nprice", "proved\ngap", "steps", "time")
    for title in titles:
        table.add_column(title, justify="left" if title in ("method", "constraint") else "right", no_wrap=True)
    for result in results:
        proved = result.status.value == "optimal"
        gap = f"[{'green' if proved else 'yellow'}]{result.certificate.gap:.0e}[/]"
        head = [result.method, f"{result.objective:.6f}"]
        tail = [gap, f"{result.iterations}", f"{1e3 * result.time:.0f} ms"]
        for i, constraint in enumerate(result.model.constraints):
            value = result.constraint_values[i]
            slack = f"{_clean(constraint.slack(value)):.0e}"
            name = escape(f"{constraint.name} {constraint}")
            table.add_row(*head, name, f"{value:.4f}", slack, f"{result.multipliers[i]:.5f}", *tail)
            head, tail = ["", ""], ["", "", ""]
    return table


# -- frontiers and diagnoses (by their attributes: the room that makes them is above this one) ----------------------


def frontier_report(found: Any) -> Group:
    """The table of a frontier or a surface, and what is proved about its range."""
    from rich.console import Group
    from rich.text import Text

    over = hasattr(found, "names")
    proved = f"the optimum is within the bounds, {found.gap:.1e} apart (relative) at most"
    if not found.complete:
        proved += f"; {found.tol:g} was not reached"
    if found.violation:
        proved += f"; limits without room are met to {found.violation:.1e}"
    notes = [proved, *([] if over else _range_notes(found)), f"{found.solves} searches, {found.time:.3g} s"]
    table = surface_table(found) if over else frontier_table(found)
    return Group(table, "", *(Text(note, style="dim") for note in notes))


def _range_notes(found: Any) -> list[str]:
    index = found.model.names.index(found.name)
    c = found.model.rows[index]
    if not found.limits.size:
        return [f"no value of {found.name!r} can be met, because the other limits cannot; diagnose(model) says why"]
    if not isfinite(found.least[1]):
        return []
    beyond = "more" if c.sign < 0 else "less"
    return [f"{found.least[1]:.6g} can be met, and it is proved that {beyond} than {found.least[0]:.9g} cannot"]


def frontier_table(found: Any) -> Any:
    """One row per limit: objective, bounds, shadow price and where it is valid."""
    table = _right_table(f"limit of {found.name}", "objective", "lower", "upper", "shadow price", "valid from", "to")
    for row in found.rows():
        if row["feasible"]:
            numbers = [f"{row[name]:.6g}" for name in ("limit", "objective", "lower", "upper", "price", "from", "to")]
            table.add_row(*numbers)
        else:
            known = row["lower"] is None and row["upper"] is None
            table.add_row(f"{row['limit']:.6g}", "[red]infeasible[/]" if known else "[yellow]undecided[/]")
    return table


def surface_table(found: Any) -> Any:
    """Objectives on the grid; rows are the first limit, columns the second."""
    first, second = found.names
    table = _right_table(f"{first} \\ {second}", *(f"{x:.4g}" for x in found.limits[1]))
    for j, x in enumerate(found.limits[0]):
        entries = [
            f"{found.objectives[j, k]:.6g}" if found.feasible[j, k] else "-" for k in range(found.limits[1].size)
        ]
        table.add_row(f"{x:.4g}", *entries)
    return table


def diagnosis_report(found: Any) -> Group:
    """Whether the limits can be met, which of them conflict, and how far each would have to be relaxed."""
    from rich.console import Group
    from rich.text import Text

    low = found.margin[0]
    if found.feasible:
        head = Text.assemble(("FEASIBLE", "bold green"), f"  all limits can be met with a margin of {low:.6g}")
        names = ", ".join(found.binding) or "none"
        notes = [f"binding limits: {names}"]
    elif found.feasible is None:
        head = Text.assemble(("UNDECIDED", "bold yellow"), f"  {found.result.message}")
        notes = []
    else:
        names = " and ".join(map(repr, found.conflict))
        alone = len(found.conflict) == 1
        what = "cannot be met by any policy" if alone else "cannot be met together"
        head = Text.assemble(("INFEASIBLE", "bold red"), f"  {names} {what}")
        smallest = "" if alone or not found.irreducible else "Without any one of them the others can be met. "
        helps = [name for name, value in found.relaxations.items() if value is not None]
        more = "" if helps or not found.relaxations else "No single limit helps: more than one has to be relaxed. "
        notes = [f"{smallest}{more}".strip(), f"the policy that misses least misses by {-low:.6g} at most"]
    return Group(head, "", diagnosis_table(found), "", *(Text(note, style="dim") for note in notes if note))


def diagnosis_table(found: Any) -> Any:
    """One row per limit."""
    from rich.markup import escape
    from rich.table import Table

    infeasible = found.feasible is False
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("limit", "value of policy", "misses by", "proof weight", "relax it alone to")
    for title in ("constraint", *(titles if infeasible else ("limit", "value", "slack", "shadow price"))):
        table.add_column(title, justify="left" if title == "constraint" else "right")
    for i, c in enumerate(found.model.constraints):
        head = (escape(f"{c.name}{c.unit}"), str(c))
        if infeasible:
            missed = f"[red]{found.misses[i]:.6g}[/]" if found.misses[i] > 0.0 else "0"
            table.add_row(*head, f"{found.values[i]:.6g}", missed, f"{found.weights[i]:.6g}", _relaxed(found, c))
        else:
            value = found.result.constraint_values[i]
            slack, price = _clean(c.slack(value)), found.result.multipliers[i]
            table.add_row(*head, f"{value:.6g}", f"{slack:.3g}", f"{price:.6g}")
    return table


def _relaxed(found: Any, constraint: Any) -> str:
    if constraint.name not in found.relaxations:
        return "not known"
    value = found.relaxations[constraint.name]
    if value is None:
        return "does not help alone"
    return f"{constraint.symbol} {rounded_outwards(value, constraint.sign)}"


def _right_table(*titles: str) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(escape(title), justify="right")
    return table


@contextlib.contextmanager
def progress_watcher(
    method: str, total: int | None, callback: Callback | None, time_left: bool = False
) -> Iterator[Callback]:
    """A callback that updates a progress bar on stderr and then calls the user's callback."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    console.width = max(console.width - 4, 20)  # room for the ^C that a terminal echoes: a wrapped bar is not erased
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(10 if time_left else 40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn() if time_left else TimeElapsedColumn(),
        TextColumn("left" if time_left else ""),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(method, total=total, news="")

        def watch(news: Snapshot) -> Any:
            bar.update(task, completed=news.iteration, news=str(news))
            return callback(news) if callback is not None else None

        yield watch


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
    if result.folder is not None:
        notes.append(f"the run is in {result.folder}; cmdpkit evaluate {result.folder} certifies its policy")
    return Group(facts, "", *(Text(note, style="dim") for note in notes))


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
            verdict += f", {more:.2g} more episodes decide" if more < 1e9 else ", too close to the limit"
        value = f"{certificate.constraint_values[i]:.5g}"
        table.add_row(f"cost {i + 1}", value, f"{low:.5g} to {high:.5g}", f"<= {limit:.6g}", f"[{colour}]{verdict}[/]")
    note = f"{certificate.rollouts:,} fresh episodes of at most {certificate.horizon} steps"
    if certificate.assumption:
        note += f"; assuming that {certificate.assumption}"
    return Group(table, "", Text(note, style="dim"))


@contextlib.contextmanager
def training_display(
    limits: Any, steps_each: int, method: str, iterations: int, callback: Callback | None
) -> Iterator[Callback]:
    """A live display on stderr: progress, reward, costs against limits, multipliers, speed, time left."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    columns = (TextColumn(method), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    bar = Progress(*columns)
    task = bar.add_task(method, total=iterations)
    begun: list[tuple[float, int]] = []

    def picture(row: Snapshot) -> Any:
        if not begun:
            begun.append((row.time, row.iteration))
        seconds, done = row.time - begun[0][0], row.iteration - begun[0][1]
        costs: Any = row.constraint_values
        table = Table(box=None, pad_edge=False)
        for title in ("", "now", "limit", "multiplier"):
            table.add_column(title, justify="left" if not title else "right")
        table.add_row("reward", f"{row.objective:.2f}", "", "")
        for i, limit in enumerate(limits):
            colour = "yellow" if costs[i] > limit else "green"
            cost = f"[{colour}]{costs[i]:.2f}[/]"
            table.add_row(f"cost {i + 1}", cost, f"<= {limit:g}", f"{row.multipliers[i]:.4g}")
        speed = f"{done * steps_each / seconds:,.0f} steps per second" if seconds > 0 and done else ""
        return Group(bar, table, speed)

    with Live(bar, console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def watch(news: Snapshot) -> Any:
            bar.update(task, completed=news.iteration)
            live.update(picture(news))
            return callback(news) if callback is not None else None

        yield watch


@contextlib.contextmanager
def tracker() -> Iterator[Callable[[Sequence[Any], str], Iterable[Any]]]:
    """A function that shows the progress of a loop, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield lambda items, description: bar.track(items, total=len(items), description=description)
