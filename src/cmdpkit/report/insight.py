"""Frontiers and diagnoses, by their attributes: the room that makes them is above this one."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from cmdpkit.exact.conflict import rounded_outwards
from cmdpkit.report.results import clean

if TYPE_CHECKING:
    from rich.console import Group


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
            slack, price = clean(c.slack(value)), found.result.multipliers[i]
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
