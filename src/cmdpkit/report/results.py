"""What is known about a policy: results, certificates and comparisons."""

from __future__ import annotations

import io
from math import isfinite
from typing import TYPE_CHECKING, Any

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.rollouts import more_text

if TYPE_CHECKING:
    from rich.console import Group

    from cmdpkit.model import Problem
    from cmdpkit.run.result import Result


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
    lines = [
        f"{name}: {average:.6g} per step in the long run; the limit counts early steps more"
        for name, average in long_run_differences(result)
    ]
    return [*lines, "(a model with average=True limits the long-run average itself)"] if lines else []


def long_run_differences(result: Result) -> list[tuple[str, float]]:
    """(name, long-run average) where that differs from what a limit per step bounds, which weighs early steps more."""
    from cmdpkit.evaluation.average import long_run_averages
    from cmdpkit.model import CMDP

    cmdp, proof = result.model, result.certificate
    if not isinstance(cmdp, CMDP) or cmdp.criterion == "average" or cmdp.states > LONG_RUN_STATES:
        return []
    if proof.infeasibility is not None or not any(c.per_step for c in cmdp.constraints):
        return []
    averages = long_run_averages(cmdp, result.policy)[1]
    rows = zip(cmdp.constraints, proof.constraint_values, averages, strict=True)
    return [
        (str(c.name), float(average))
        for c, value, average in rows
        if c.per_step and abs(average - value) > 1e-6 * max(1.0, abs(value))
    ]


def simulation_report(result: Result) -> Group:
    """Intervals and verdicts from fresh rollouts, for the policy and for the mixture of iterates."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    sense = "maximised" if result.model.maximise else "minimised"
    about = f"{sense}, {_unit(result.model)}"
    facts.add_row(_objective_name(result.model), f"{result.objective:.6g}", about)
    parts: list[Any] = [facts]
    shown = [("table", result.certificate), ("mixture", result.average_certificate)]
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
                verdict += f", {more_text(more)}"
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
            f"[red]{slack:.3g} (violated)[/red]" if missed else f"{clean(slack):.3g}",
            f"{prices[i]:.6g}",
        )
    return table


def clean(slack: float) -> float:
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
            slack = f"{clean(constraint.slack(value)):.0e}"
            name = escape(f"{constraint.name} {constraint}")
            table.add_row(*head, name, f"{value:.4f}", slack, f"{result.multipliers[i]:.5f}", *tail)
            head, tail = ["", ""], ["", "", ""]
    return table
