"""`cmdpkit report` and `explore`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from cmdpkit.cli.common import DONE, INFEASIBLE, INITIAL, LIMIT, LIMIT_REACHED, SET, check_target, find_model, setting


@click.command(short_help="Write a report of a model or of training runs to one HTML file.")
@click.argument("sources", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--out", default="report.html", show_default=True, type=click.Path(dir_okay=False), help="The file to write."
)
@click.option("--method", default="auto", show_default=True, help="Method with which a model is solved.")
@click.option("--tol", default=1e-6, show_default=True, help="Tolerance with which a model is solved.")
@click.option("--title", help="Heading of the report.")
@click.option("--frontiers/--no-frontiers", default=True, help="Draw the optimum as a function of each limit.")
@click.option(
    "--time-limit", default=30.0, show_default=True, metavar="SECONDS", help="Time for the curves, all together."
)
@click.option(
    "--episodes",
    default=1_000,
    show_default=True,
    type=click.IntRange(0),
    help="Runs: fresh episodes that certify a policy; 0: none.",
)
@SET
@LIMIT
@INITIAL
def report(
    sources: tuple[str, ...],
    out: str,
    method: str,
    tol: float,
    title: str | None,
    frontiers: bool,
    time_limit: float,
    episodes: int,
    parameters: tuple[str, ...],
    limits: tuple[str, ...],
    initial: str | None,
) -> None:
    """Solve MODEL and write a report: one HTML file that works offline.

    MODEL is a model file, a table (CSV, as for cmdpkit solve), the name of a built-in problem, or a saved result. For
    training runs, give the folder of a run, or of several runs that are to be drawn together.

    Exit codes: 0 optimal or done, 1 a limit was reached, 2 bad input, 3 infeasible.
    """
    from cmdpkit.insight.report import write_report
    from cmdpkit.run.status import Status
    from cmdpkit.solver import solve

    for source in sources:
        check_target("--out", out, source)
    told: dict[str, Any] = {"time_limit": time_limit, "frontiers": frontiers, "title": title}
    flags = _flags(method, tol, parameters, limits, initial)
    if all(Path(source).is_dir() for source in sources):
        _refuse(flags, f"{sources[0]} is the folder of a run")
        _report_runs(sources, out, title, episodes)
        sys.exit(DONE)
    if len(sources) > 1:
        raise ValueError("a report is about one model, or about folders of training runs; give one MODEL")
    source = sources[0]
    loaded = _saved(source)
    if loaded is not None:
        _refuse(flags, f"{source} is a saved result")
        loaded.report(out, **told | {"title": title or Path(source).stem})
        click.echo(f"report written to {out}")
        sys.exit(DONE)
    cmdp = find_model(source, parameters, limits, initial)
    result = solve(cmdp, method, tol, progress=sys.stderr.isatty())
    command = shlex.join(["cmdpkit", "report", source, *flags])
    heading, subtitle, axes = about_model(source, parameters)
    write_report(result, out, **told | {"title": title or heading}, subtitle=subtitle, axes=axes, command=command)
    click.echo(f"{result.status.value}: report written to {out}")
    sys.exit({Status.OPTIMAL: DONE, Status.INFEASIBLE: INFEASIBLE}.get(result.status, LIMIT_REACHED))


def _refuse(flags: list[str], known: str) -> None:
    if flags:
        raise ValueError(
            f"{known}, which is reported as it is: leave out {flags[0]}, or give the model to solve it again"
        )


def _flags(
    method: str, tol: float, parameters: tuple[str, ...], limits: tuple[str, ...], initial: str | None
) -> list[str]:
    flags = [] if method == "auto" else ["--method", method]
    flags += [] if tol == 1e-6 else ["--tol", f"{tol:g}"]
    for flag, values in (("--set", parameters), ("--limit", limits)):
        flags += [part for value in values for part in (flag, value)]
    return flags + ([] if initial is None else ["--initial", initial])


def about_model(source: str, parameters: tuple[str, ...]) -> tuple[str, str, Any]:
    """Heading, subtitle and map of a model, by its name."""
    from cmdpkit.problems import CATALOGUE
    from cmdpkit.problems.places import places_of

    if source not in CATALOGUE or Path(source).is_file():
        return Path(source).stem, "", None
    line = (CATALOGUE[source].__doc__ or "").strip().splitlines()[0]
    return source, line, places_of(source, dict(setting(text) for text in parameters))


def _saved(source: str) -> Any:
    """The result in a file, or None if it is a model."""
    from cmdpkit.files import kind_of
    from cmdpkit.run.storage import class_of

    table = Path(source).suffix.lower() == ".csv"
    if table or not Path(source).is_file() or kind_of(source) != "cmdpkit result":
        return None
    return class_of(source).load(source)


def _report_runs(folders: tuple[str, ...], out: str, title: str | None, episodes: int) -> None:
    from cmdpkit.cli.training import is_python, judged, run_config
    from cmdpkit.insight.report import write_report
    from cmdpkit.run.training_folder import load_run

    configs = [run_config(folder) for folder in folders]
    results = [load_run(folder) for folder in folders]
    proofs = [
        None if is_python(config["env"]) or not episodes else judged(folder, episodes, 0.95, 0)[0]
        for folder, config in zip(folders, configs, strict=True)
    ]
    names = sorted({config["env"] for config in configs})
    seeds = ", ".join(str(config["seed"]) for config in configs)
    command = shlex.join(["cmdpkit", "report", *folders, *([] if episodes == 1_000 else ["--episodes", f"{episodes}"])])
    command += f"\n# runs with the seeds {seeds}; run.json in each folder has all options"
    known = None if all(proof is None for proof in proofs) else proofs
    write_report(results, out, title=title or ", ".join(names), certificates=known, command=command)
    click.echo(f"{len(results)} runs: report written to {out}")


@click.command(short_help="Move the limits of a model on a local page.")
@click.argument("model")
@click.option(
    "--port", default=8050, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--time-limit", default=10.0, show_default=True, metavar="SECONDS", help="Time that an answer may take.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@SET
@LIMIT
@INITIAL
def explore(
    model: str,
    port: int,
    time_limit: float,
    open_page: bool,
    parameters: tuple[str, ...],
    limits: tuple[str, ...],
    initial: str | None,
) -> None:
    """Serve a page with a slider for every limit of MODEL, and for the parameters of a built-in problem.

    Moving one solves again. The page is served to this machine only, until Ctrl-C.
    """
    from cmdpkit.checks import check_nonnegative
    from cmdpkit.insight.explorer import explore as serve
    from cmdpkit.problems import CATALOGUE

    check_nonnegative(time_limit, "--time-limit")
    cmdp = find_model(model, parameters, limits, initial)
    heading, subtitle, _ = about_model(model, parameters)
    built_in = model in CATALOGUE and not Path(model).is_file() and initial is None

    def ready(address: str) -> None:
        click.echo(f"{heading}: open {address} in a browser; Ctrl-C ends it")
        if open_page:
            click.launch(address)

    source = [model]
    told: dict[str, Any] = {"title": heading, "subtitle": subtitle, "ready": ready}
    if built_in:
        told |= {"name": model, "parameters": dict(setting(text) for text in parameters)}
    else:
        source += _flags("auto", 1e-6, parameters, (), initial)
    serve(cmdp, source=source, port=port, time_limit=time_limit, **told)
    click.echo("stopped")
