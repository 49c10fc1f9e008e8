"""The command line: parses, calls, shows. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cmdpkit import __version__

if TYPE_CHECKING:
    from cmdpkit.model import CMDP
    from cmdpkit.result import Status

Command = TypeVar("Command", bound=Callable[..., Any])

DONE, LIMIT_REACHED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 3
METHODS = (
    *("auto", "pmd-pd", "pmd-pd-zero", "npg-pd", "crpo", "columns", "lp"),
    *("npg", "pg", "npg-entropy", "pg-entropy"),
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of tables.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cmdpkit")
def cli() -> None:
    """Constrained Markov decision processes, solved with a proof.

    Exit codes: 0 optimal or done, 1 a limit was reached (or the run was stopped), 2 bad input, 3 infeasible.
    """


@cli.command()
@click.argument("model")
@click.option("--method", default="auto", show_default=True, type=click.Choice(METHODS), help="How to solve it.")
@click.option("--tol", default=1e-6, show_default=True, help="Relative gap and violation to prove.")
@click.option("--max-iterations", type=int, help="Macro steps, or oracle calls of auto and columns.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Stop after this long, with the best policy so far.")
@click.option("--step", type=float, help="First-order methods: the policy is multiplied by exp(-step * Q).")
@click.option("--eta-dual", type=float, help="pmd-pd, npg-pd: the dual step.")
@click.option("--inner-steps", type=int, help="Policy steps for each dual update.")
@click.option("--alpha", type=float, help="Weight of the KL divergence to the anchor policy.")
@click.option("--dual-cap", type=float, help="npg-pd: largest multiplier.")
@click.option("--tolerance", type=float, help="crpo: safety margin below which a limit counts as violated.")
@click.option("--schedule", type=click.Choice(["theory"]), help="pmd-pd, pmd-pd-zero: the parameters of the theorems.")
@click.option("--xi", type=float, help="pmd-pd-zero: the Slater margin, computed when it is not given.")
@click.option(
    "--out", type=click.Path(dir_okay=False), help="Save the policy here (.npz), the result beside it (.json)."
)
@JSON
def solve(model: str, method: str, tol: float, out: str | None, as_json: bool, **settings: Any) -> None:
    """Solve MODEL: a file written by CMDP.save, or the name of a built-in problem."""
    from cmdpkit.report import result_report
    from cmdpkit.solver import solve as run

    settings = {name: value for name, value in settings.items() if value is not None}
    if out is not None:
        _check_folder(out)
    result = run(_model(model), method, tol, progress=sys.stderr.isatty(), **settings)
    if out is not None:
        result.policy.save(out)
        result.save(_beside(out))
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _print(result_report(result))
        if out is not None:
            click.echo(f"policy saved to {out}, result to {_beside(out)}")
    sys.exit(_exit_code(result.status))


@cli.command()
@click.argument("model")
@click.argument("policy", type=click.Path(dir_okay=False))
@click.option("--tol", default=1e-6, show_default=True, help="What counts as optimal and feasible (exit code 0).")
@JSON
def certify(model: str, policy: str, tol: float, as_json: bool) -> None:
    """Prove how good and how safe POLICY (a file written by policy.save) is for MODEL."""
    from cmdpkit.certificate import certify as prove
    from cmdpkit.policy import TabularPolicy
    from cmdpkit.report import certificate_report

    if not tol >= 0.0:
        raise ValueError(f"tol must not be negative, got {tol}")
    cmdp = _model(model)
    certificate = prove(cmdp, TabularPolicy.load(policy))
    optimal = certificate.optimal(tol)
    if as_json:
        click.echo(
            json.dumps({**certificate.to_dict(), "feasible": certificate.feasible(tol), "optimal": optimal}, indent=2)
        )
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
        _print(certificate_report(certificate, cmdp))
    sys.exit(INFEASIBLE if certificate.infeasibility is not None else DONE if optimal else LIMIT_REACHED)


@cli.command()
@click.argument("name", required=False)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the model to this file (.npz).")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter of the problem, e.g. gamma=0.9."
)
@JSON
def problems(name: str | None, out: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """List the built-in problems; or describe one, or write it to a file."""
    from cmdpkit.problems import CATALOGUE

    if name is None:
        if out is not None or settings:
            raise ValueError("say which problem to write: cmdpkit problems NAME --out FILE")
        _list_problems(as_json)
        return
    cmdp = _built_in(name, dict(_setting(text) for text in settings))
    if out is not None:
        _check_folder(out)
        cmdp.save(out)
    if as_json:
        click.echo(json.dumps({"name": name, "model": repr(cmdp), "file": out}))
    elif out is not None:
        click.echo(f"{cmdp!r} saved to {out}")
    else:
        from inspect import getdoc, signature

        click.echo(f"{name}{str(signature(CATALOGUE[name])).split(' -> ')[0]}\n\n{getdoc(CATALOGUE[name])}\n\n{cmdp!r}")


def _list_problems(as_json: bool) -> None:
    from cmdpkit.problems import CATALOGUE

    lines = {name: (make.__doc__ or "").strip().splitlines()[0] for name, make in CATALOGUE.items()}
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    width = max(map(len, lines))
    for name, line in lines.items():
        click.echo(f"{name:<{width}}  {line}")
    click.echo("\nsolve one with `cmdpkit solve NAME`, read about it with `cmdpkit problems NAME`")


def _model(name: str) -> CMDP:
    """A model file, or a built-in problem by name."""
    from cmdpkit.model import CMDP
    from cmdpkit.problems import CATALOGUE

    if name in CATALOGUE and not Path(name).exists():
        return _built_in(name, {})
    if not Path(name).exists():
        raise FileNotFoundError(f"no such file: {name}; it is not a built-in problem either ({', '.join(CATALOGUE)})")
    return CMDP.load(name)


def _built_in(name: str, settings: dict[str, Any]) -> CMDP:
    from inspect import signature

    from cmdpkit.problems import CATALOGUE

    if name not in CATALOGUE:
        raise ValueError(f"unknown problem {name!r}; choose one of {', '.join(CATALOGUE)}")
    known = signature(CATALOGUE[name]).parameters
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ValueError(f"problem {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return CATALOGUE[name](**settings)


def _setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE with a Python literal as the value."""
    from ast import literal_eval

    key, _, value = text.partition("=")
    try:
        return key, literal_eval(value)
    except (ValueError, SyntaxError):
        raise ValueError(f"--set {text!r} must be KEY=VALUE with a number, a tuple or a quoted text") from None


def _beside(out: str) -> Path:
    return Path(out).with_suffix(".json")


def _check_folder(out: str) -> None:
    """Before any work: a long run must not end with nowhere to write."""
    folder = Path(out).resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {out}: the folder {folder} does not exist")


def _exit_code(status: Status) -> int:
    from cmdpkit.result import Status

    codes = {Status.OPTIMAL: DONE, Status.INFEASIBLE: INFEASIBLE, Status.NO_SLATER_POINT: INFEASIBLE}
    return codes.get(status, LIMIT_REACHED)


def _print(report: Any) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(report)


def main() -> None:
    """Run the command line; what the user did wrong ends in one line on stderr, never in a traceback."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(LIMIT_REACHED)
    except (ValueError, TypeError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
