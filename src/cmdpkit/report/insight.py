"""Frontiers and diagnoses, by their attributes: the room that makes them is above this one."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from cmdpkit.exact.conflict import rounded_outwards

if TYPE_CHECKING:
    from rich.console import Group


def frontier_report(found: Any) -> Group:
    """The table of a frontier or a surface, and what is proved about its range."""
    from rich.console import Group
    from rich.text import Text

    over = hasattr(found, "names")
    searches = f"{found.solves} search{'' if found.solves == 1 else 'es'}, {found.time:.3g} s"
    if not found.feasible.size:
        return Group(Text(_why_empty(found)), Text(searches, style="dim"))
    table = surface_table(found) if over else frontier_table(found)
    notes = [_proved(found), *([] if over else _range_notes(found)), searches]
    return Group(table, "", *(Text(note, style="dim") for note in notes))


def _why_empty(found: Any) -> str:
    if not found.complete:
        return "no value of the limit was found that can be met: the time is up, or rounding hides it"
    name = getattr(found, "name", "")
    return f"no value of {name!r} can be met, because the other limits cannot; diagnose(model) says why"


def _proved(found: Any) -> str:
    if not found.feasible.any():
        return (
            "none of these limits can be met" if found.complete else "no policy is known that meets one of these limits"
        )
    proved = f"the optimum is within the bounds, {found.gap:.1e} apart (relative) at most"
    if not found.complete:
        proved += f"; {found.tol:g} was not reached"
    if found.violation:
        proved += f"; limits without room are met to {found.violation:.1e}"
    return proved


def _range_notes(found: Any) -> list[str]:
    c = found.model.rows[found.model.names.index(found.name)]
    if not isfinite(found.least[1]):
        return []
    beyond = "more" if c.sign < 0 else "less"
    proved, attained = (_without_noise(x, _sizes(found)["limit"]) for x in found.least)
    return [f"{attained:.6g} can be met, and it is proved that {beyond} than {proved:.9g} cannot"]


NOISE = 1e-9
"""Numbers below this part of their column's size are shown as zero."""


def _without_noise(x: float, size: float) -> float:
    return 0.0 if abs(x) <= NOISE * size else x


def _sizes(found: Any) -> dict[str, float]:
    """The sizes of the columns of a curve: the largest entry, or what `tol` is relative to."""
    fine = (found.model if found.model.lowering is None else found.model.lowering.model).fine_scales
    limit = max(float(abs(found.limits).max(initial=0.0)), float(fine[1 + found.model.names.index(found.name)]))
    values = abs(found.objectives[found.feasible])
    objective = max(float(values.max(initial=0.0)), float(fine[0]))
    price = float(abs(found.prices[found.feasible]).max(initial=0.0))
    return {"limit": limit, "objective": objective, "price": max(price, objective / limit if limit else 0.0)}


def frontier_table(found: Any) -> Any:
    """One row per limit: objective, bounds, shadow price and where it is valid."""
    titles = (f"limit of\n{found.name}", "objective", "lower", "upper", "shadow\nprice", "valid\nfrom", "to")
    table, sizes = _right_table(*titles), _sizes(found)
    kinds = dict.fromkeys(("objective", "lower", "upper"), "objective") | {"price": "price"}
    for row in found.rows():
        shown = {
            name: f"{_without_noise(x, sizes[kinds.get(name, 'limit')]):.6g}"
            for name, x in row.items()
            if isinstance(x, float)
        }
        if row["feasible"]:
            table.add_row(*(shown[name] for name in ("limit", "objective", "lower", "upper", "price", "from", "to")))
        else:
            known = row["lower"] is None and row["upper"] is None
            table.add_row(shown["limit"], "[red]infeasible[/]" if known else "[yellow]undecided[/]")
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

    low = _without_noise(found.margin[0], 1e-3)  # of one unit: margins are in units that the user chose
    if found.feasible:
        head = Text.assemble(
            ("FEASIBLE", "bold green"), f"  all limits can be met with a margin of {max(low, 0.0):.6g}"
        )
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
    model = found.model if found.model.lowering is None else found.model.lowering.model
    sizes = [float(x) for x in model.fine_scales[1:]]
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("limit", "value of policy", "misses by", "proof weight", "relax it alone to")
    for title in ("constraint", *(titles if infeasible else ("limit", "value", "slack", "shadow price"))):
        table.add_column(title, justify="left" if title == "constraint" else "right", overflow="fold")
    for i, c in enumerate(found.model.constraints):
        head = (escape(f"{c.name}{c.unit}"), str(c))
        if infeasible:
            miss = _without_noise(found.misses[i], sizes[i])
            missed = f"[red]{miss:.6g}[/]" if miss > 0.0 else "0"
            table.add_row(
                *head,
                f"{_without_noise(found.values[i], sizes[i]):.6g}",
                missed,
                f"{found.weights[i]:.6g}",
                _relaxed(found, c),
            )
        else:
            value = found.result.constraint_values[i]
            slack, price = _without_noise(c.slack(value), sizes[i]), found.result.multipliers[i]
            table.add_row(*head, f"{_without_noise(value, sizes[i]):.6g}", f"{slack:.3g}", f"{price:.6g}")
    return table


def _relaxed(found: Any, constraint: Any) -> str:
    if constraint.name not in found.relaxations:
        return "not known"
    value = found.relaxations[constraint.name]
    if value is None:
        return "does not help alone"
    if not isfinite(value.attained):  # so much is proved, but no value was found that does
        return f"{value.proved:.6g} or {'more' if constraint.sign > 0.0 else 'less'}"
    return f"{constraint.symbol} {rounded_outwards(value, constraint.sign)}"


def _right_table(*titles: str) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(escape(title), justify="right", overflow="fold")  # a narrow terminal must not cut digits off
    return table
