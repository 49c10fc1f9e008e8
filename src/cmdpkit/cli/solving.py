"""`cmdpkit solve`, `certify` and `problems`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cmdpkit.cli.common import (
    AVERAGE,
    CLUSTER,
    DONE,
    INFEASIBLE,
    INITIAL,
    JSON,
    LIMIT,
    LIMIT_REACHED,
    SET,
    WITH_POLICY,
    built_in,
    check_target,
    find_model,
    listing,
    show,
)
from cmdpkit.cli.flags import Derived, method_flags, method_names, settings_flags
from cmdpkit.options import options_of
from cmdpkit.settings import Sampling, TabularSettings, ZeroSettings

if TYPE_CHECKING:
    from cmdpkit.model import CMDP
    from cmdpkit.run.status import Status

METHODS = ("auto", "columns", "lp", *method_names("exact"), "pmd-pd-zero")


ROWS = 60
"""Rows of a policy that --labels shows; --json has all of them."""


def solve_flags() -> list[click.Option]:
    """Flags of the methods and of their learners."""
    growing = click.Option(
        ["--steps"],
        type=click.Choice(["growing", "fixed"]),
        help="pmd-pd, pmd-pd-zero: growing steps, or Algorithm 1 with fixed steps.",
    )
    return [
        *settings_flags(TabularSettings, "First-order methods"),
        growing,
        *method_flags("exact", "sampled"),
        *settings_flags(ZeroSettings, "pmd-pd-zero"),
        *settings_flags(Sampling, "--sample", leave_out=("schedule",)),
    ]


@click.command(cls=Derived, derive=solve_flags, short_help="Solve a model and certify the result.")
@click.argument("model")
@click.option(
    "--method",
    default="auto",
    show_default=True,
    type=click.Choice(METHODS),
    metavar="METHOD",
    help=f"One of {', '.join(METHODS)}.",
)
@click.option("--tol", default=1e-6, show_default=True, help="Relative gap and violation to prove.")
@click.option("--max-iterations", type=int, help="Macro steps, or oracle calls of auto and columns.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this time with the best policy so far.")
@SET
@LIMIT
@INITIAL
@AVERAGE
@click.option(
    "--deterministic", is_flag=True, default=None, help="Find the best policy without randomising; small models only."
)
@click.option(
    "--sample", is_flag=True, help=f"Learn from samples of the model only: {', '.join(method_names('sampled'))}."
)
@click.option("--budget", type=int, metavar="TRANSITIONS", help="--sample: maximum number of transitions drawn.")
@click.option(
    "--checkpoint",
    type=click.Path(),
    help="First-order methods: write the state of the run to this file, and continue from it. A model in blocks: a "
    "folder, with any method.",
)
@CLUSTER
@click.option("--seed", type=int, help="--sample: seed of the random numbers.  [default: 0]")
@click.option(
    "--out",
    type=click.Path(),
    help="Save the policy to this file (.npz), a summary next to it (.json). A model in blocks: a folder.",
)
@JSON
@WITH_POLICY
@click.option("--labels", is_flag=True, help="Show the policy too: states and actions by their labels.")
def solve(
    model: str,
    method: str,
    tol: float,
    out: str | None,
    parameters: tuple[str, ...],
    limits: tuple[str, ...],
    initial: str | None,
    average: bool,
    as_json: bool,
    with_policy: bool,
    labels: bool,
    sample: bool,
    **settings: Any,
) -> None:
    """Solve MODEL: a file written by CMDP.save, a table (CSV), the name of a built-in problem, or a folder written by
    ShardedCMDP.save.

    A table is read by CMDP.from_table, with its arguments given by --set:

    cmdpkit solve machine.csv --set gamma=0.9 --set reward=profit --limit 'wear<=4' --initial good
    """
    from cmdpkit.report import result_report
    from cmdpkit.solver import solve as run

    settings = {name: value for name, value in settings.items() if value is not None}
    if _in_blocks(model):
        others = {"set": parameters, "limit": limits, "initial": initial, "average": average, "sample": sample}
        _check_blocks(model, others | {"with-policy": with_policy, "labels": labels})
        _solve_blocks(model, method, tol, out, as_json, settings)
    for name, value in (("out", out), ("checkpoint", settings.get("checkpoint"))):
        if value is not None and Path(value).is_dir():
            raise ValueError(f"--{name} {value} is a directory; give the name of a file")
    if with_policy and not as_json:
        raise ValueError("--with-policy needs --json; --out FILE saves the policy")
    settings = _with_sampling(settings, sample)
    if out is not None:
        _check_out(out, model)
    cmdp = find_model(model, parameters, limits, initial, average)
    result = run(cmdp, method, tol, progress=sys.stderr.isatty(), **settings)
    if out is not None:
        result.policy.save(out)
        result.save(_beside(out))
        if sample:
            result.average_policy.save(Path(out).with_suffix(".mixture.npz"))
    if as_json:
        summary = result.to_dict(policy=with_policy and not labels)
        table = result.policy.table()
        rows = [dict(zip(table.columns, row, strict=True)) for row in table] if labels else []
        click.echo(json.dumps(summary | ({"policy": rows} if labels else {}), indent=2))
    else:
        show(result_report(result))
        if labels:
            click.echo(f"\n{result.policy.table(ROWS)}")
        if out is not None:
            click.echo(f"policy saved to {out}, result to {_beside(out)}")
    sys.exit(_exit_code(result.status, sample))


def _in_blocks(model: str) -> bool:
    """Whether MODEL is a folder; one that has only the name of a built-in problem is not meant."""
    from cmdpkit.model.sharded import MODEL_FILE
    from cmdpkit.problems import CATALOGUE

    return bool(model) and Path(model).is_dir() and (model not in CATALOGUE or Path(model, MODEL_FILE).exists())


def _check_blocks(model: str, flags: dict[str, Any]) -> None:
    for name, value in flags.items():
        if value:
            raise ValueError(f"--{name} does not apply to {model}, a model in blocks")


def _solve_blocks(
    model: str, method: str, tol: float, out: str | None, as_json: bool, settings: dict[str, Any]
) -> NoReturn:
    """Solve a model in blocks, whose result is a folder too."""
    from cmdpkit.model.sharded import ShardedCMDP
    from cmdpkit.report import result_report
    from cmdpkit.run.storage import check_result_folder
    from cmdpkit.solver import solve as run

    if out is not None:
        check_result_folder(Path(out))
    result = run(ShardedCMDP.load(model), method, tol, progress=sys.stderr.isatty(), **settings)
    if out is not None:
        result.save(out)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        show(result_report(result))
        if out is not None:
            click.echo(f"result saved to {out}")
    sys.exit(_exit_code(result.status, False))


def _with_sampling(settings: dict[str, Any], sample: bool) -> dict[str, Any]:
    """The settings, with those of the estimator combined in a `Sampling`."""
    draws = {name: settings[name] for name in options_of(Sampling) if name in settings and name != "schedule"}
    alone = [*draws, *(name for name in ("budget", "seed") if name in settings)]
    if alone and not sample:
        raise ValueError(f"--{alone[0].replace('_', '-')} is for learning from samples; add --sample")
    if not sample:
        return settings
    if "schedule" in settings:
        draws["schedule"] = settings["schedule"]
    rest = {name: value for name, value in settings.items() if name not in draws}
    return rest | {"sampling": Sampling(**draws)}


def _check_out(out: str, model: str) -> None:
    if Path(out).suffix == ".json":
        raise ValueError(f"--out {out} is the file of the policy (.npz); the summary is written next to it as .json")
    for target in (out, str(_beside(out))):
        check_target("--out", target, model)


def _beside(out: str) -> Path:
    return Path(out).with_suffix(".json")


def _exit_code(status: Status, sample: bool) -> int:
    from cmdpkit.run.status import Status

    if sample and status is Status.ITERATION_LIMIT:
        return DONE  # learning has no other end
    return {Status.OPTIMAL: DONE, Status.INFEASIBLE: INFEASIBLE}.get(status, LIMIT_REACHED)


@click.command(short_help="Certify a policy: optimality gap and violations.")
@click.argument("model")
@click.argument("policy", type=click.Path(dir_okay=False))
@click.option("--tol", default=1e-6, show_default=True, help="Tolerance for optimal and feasible (exit code 0).")
@SET
@LIMIT
@AVERAGE
@JSON
def certify(
    model: str,
    policy: str,
    tol: float,
    parameters: tuple[str, ...],
    limits: tuple[str, ...],
    average: bool,
    as_json: bool,
) -> None:
    """Certify POLICY, a file written by policy.save, for MODEL: bound its optimality gap and its violations."""
    from cmdpkit.certificates.prover import certify as prove
    from cmdpkit.checks import check_nonnegative
    from cmdpkit.policy import load_policy
    from cmdpkit.report import certificate_report
    from cmdpkit.run.result import describe_constraints

    check_nonnegative(tol, "tol")
    cmdp = find_model(model, parameters, limits, average=average)
    certificate = prove(cmdp, load_policy(policy))
    optimal = certificate.optimal(tol)
    if as_json:
        summary = certificate.to_dict() | {
            "constraints": describe_constraints(
                cmdp, certificate.constraint_values, certificate.violations, certificate.multipliers
            )
        }
        summary |= {"feasible": certificate.feasible(tol), "optimal": optimal}
        click.echo(json.dumps(summary, indent=2))
    else:
        verdict = (
            "optimal"
            if optimal
            else "within the limits, not optimal"
            if certificate.feasible(tol)
            else "violates a limit"
        )
        if certificate.infeasibility is not None:
            verdict = "the limits cannot be met by any policy"
        click.echo(f"{verdict} (tolerance {tol:g})\n")
        show(certificate_report(certificate, cmdp))
    sys.exit(INFEASIBLE if certificate.infeasibility is not None else DONE if optimal else LIMIT_REACHED)


@click.command(short_help="List the built-in problems, or write one to a file.")
@click.argument("name", required=False)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the model to this file (.npz).")
@SET
@JSON
def problems(name: str | None, out: str | None, parameters: tuple[str, ...], as_json: bool) -> None:
    """List the built-in problems, describe one, or write one to a file."""

    if name is None:
        if out is not None or parameters:
            raise ValueError("name the problem to write: cmdpkit problems NAME --out FILE")
        _list_problems(as_json)
        return
    cmdp = built_in(name, parameters)
    if out is not None:
        from cmdpkit.files import check_folder

        check_folder(out)
        cmdp.save(out)
    if as_json:
        click.echo(json.dumps({"name": name, "model": repr(cmdp), "file": out}))
    elif out is not None:
        click.echo(f"{cmdp!r} saved to {out}")
    else:
        _describe(name, cmdp)


def _list_problems(as_json: bool) -> None:
    from cmdpkit.problems import CATALOGUE

    lines = {name: (make.__doc__ or "").strip().splitlines()[0] for name, make in CATALOGUE.items()}
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    click.echo(listing(lines))
    click.echo("\nsolve one with `cmdpkit solve NAME`, read about it with `cmdpkit problems NAME`")


def _describe(name: str, cmdp: CMDP) -> None:
    from inspect import getdoc, signature
    from textwrap import fill

    from cmdpkit.problems import CATALOGUE

    make = CATALOGUE[name]
    settings = ", ".join(f"{p.name}={p.default!r}" for p in signature(make).parameters.values())
    click.echo(fill(f"{name}({settings})", width=79, subsequent_indent="    ") + "\n")
    for paragraph in (getdoc(make) or "").split("\n\n"):
        if paragraph.startswith("Example"):
            break
        indented = paragraph.splitlines()[-1].startswith(" ")
        click.echo((paragraph if indented else fill(paragraph, width=79)) + "\n")
    click.echo(repr(cmdp))
