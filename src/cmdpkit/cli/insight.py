"""`cmdpkit frontier` and `diagnose`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from cmdpkit.cli.common import (
    AVERAGE,
    CLUSTER,
    DONE,
    FORMAT,
    INFEASIBLE,
    JSON,
    LIMIT,
    LIMIT_REACHED,
    SET,
    check_target,
    find_model,
    is_table,
    once,
    show,
)


@click.command(short_help="The optimum as a function of one limit or two.")
@click.argument("model")
@click.option(
    "--limit",
    "names",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Limit to vary; twice: a surface. A table: 'wear<=4'.",
)
@click.option(
    "--limits", "values", multiple=True, metavar="A,B,...", help="Its values; repeat it per limit.  [default: found]"
)
@click.option("--tol", default=1e-4, show_default=True, help="Largest relative distance of the bounds.")
@click.option("--points", default=11, show_default=True, help="Points per axis of a surface.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this time with what is proved so far.")
@click.option("--csv", type=click.Path(dir_okay=False), help="Write the points to this file.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw them to this file (.png, .pdf, .svg).")
@CLUSTER
@FORMAT
@SET
@AVERAGE
@JSON
def frontier(
    model: str,
    names: tuple[str, ...],
    values: tuple[str, ...],
    tol: float,
    points: int,
    time_limit: float | None,
    cluster: str | None,
    csv: str | None,
    plot: str | None,
    formats: str | None,
    parameters: tuple[str, ...],
    average: bool,
    as_json: bool,
) -> None:
    """The optimum of MODEL as a function of one limit or two, certified everywhere.

    Exit codes: 0 complete, 1 the tolerance was not reached, 2 bad input, 3 the other limits cannot be met.
    """
    from cmdpkit.drawing import check_paths, parsed_formats
    from cmdpkit.insight.frontier import frontier as find
    from cmdpkit.report import frontier_report

    for flag, path in (("--csv", csv), ("--plot", plot)):
        if path is not None:
            check_target(flag, path, model)
    if csv is not None and plot is not None and Path(csv).resolve() == Path(plot).resolve():
        raise ValueError(f"--csv and --plot name the same file, {csv}; give two")
    if formats is not None and plot is None:
        raise ValueError("--format needs --plot, the file of the figure")
    wanted = parsed_formats(formats)
    if plot is not None:
        check_paths(plot, wanted)
    if values and len(values) != len(names):
        raise ValueError(f"--limits was given {len(values)} times for {len(names)} --limit; give it once per --limit")
    lists = [[_number(text, "--limits") for text in part.split(",")] for part in values]
    limits = None if not lists else lists[0] if len(lists) == 1 else lists
    cmdp = find_model(model, parameters, names if is_table(model) else (), average=average, varied=names)
    for name, given, value in (text.partition("=") for text in names):
        if given and name in cmdp.names and not is_table(model):
            raise ValueError(f"--limit takes a name alone: --limit {name!r}; its values are given by --limits {value}")
    names = tuple(cmdp.names) if is_table(model) else names  # the limits on columns have their sense in them
    settings: dict[str, Any] = {"tol": tol, "points": points, "time_limit": time_limit, "cluster": cluster}
    found = find(cmdp, names[0] if len(names) == 1 else names, limits, **settings)
    if csv is not None:
        found.to_csv(csv)
    if plot is not None:
        found.plot(plot, wanted)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        show(frontier_report(found))
    for path in (csv, plot):
        if path is not None:
            click.echo(f"written to {path}", err=True)
    if not found.feasible.any() and found.complete:
        sys.exit(INFEASIBLE)
    sys.exit(DONE if found.complete else LIMIT_REACHED)


@click.command(short_help="Which limits conflict, and how far to relax them.")
@click.argument("model")
@click.option("--unit", "units", multiple=True, metavar="NAME=SIZE", help="Unit in which misses of a limit count.")
@click.option("--relative", is_flag=True, help="Misses count relative to max(1, |limit|).")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this time with what is proved so far.")
@SET
@LIMIT
@AVERAGE
@JSON
def diagnose(
    model: str,
    units: tuple[str, ...],
    relative: bool,
    time_limit: float | None,
    parameters: tuple[str, ...],
    limits: tuple[str, ...],
    average: bool,
    as_json: bool,
) -> None:
    """Say whether the limits of MODEL can be met; if not, which of them conflict and how far to relax them.

    Exit codes: 0 feasible, 1 undecided, 2 bad input, 3 infeasible.
    """
    from cmdpkit.insight.diagnose import RELATIVE
    from cmdpkit.insight.diagnose import diagnose as find
    from cmdpkit.report import diagnosis_report

    if relative and units:
        raise ValueError("give either --relative or --unit")
    parts = (text.rpartition("=") for text in units)
    sizes = once(((name, _number(size, "--unit")) for name, _, size in parts), "--unit")
    cmdp = find_model(model, parameters, limits, average=average)
    found = find(cmdp, RELATIVE if relative else sizes or None, time_limit=time_limit)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        show(diagnosis_report(found))
    sys.exit({True: DONE, False: INFEASIBLE, None: LIMIT_REACHED}[found.feasible])


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag} needs numbers, not {text!r}") from None
