"""The program: its commands and error handling. Heavy imports are deferred until a command needs them."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import click

from cmdpkit import __version__
from cmdpkit.cli import comparing, insight, looking, reproducing, showing, solving, sweeping, training
from cmdpkit.cli.common import BAD_INPUT, LIMIT_REACHED, HelpContext


def show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The version, and those of Python and of the packages that results may depend on."""
    if not wanted or context.resilient_parsing:
        return
    click.echo(f"cmdpkit, version {__version__}")
    names = ("numpy", "scipy", "numba", "rich", "click", "highspy", "pandas", "gymnasium", "torch")
    found = [f"Python {platform.python_version()}", *(text for name in names if (text := _version_of(name)))]
    click.echo(f"with {', '.join(found)}")
    context.exit()


def _version_of(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return ""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show versions and exit.",
)
def cli() -> None:
    """Constrained Markov decision processes, solved with a proof.

    Exit codes: 0 optimal or done, 1 a limit was reached or the run was stopped, 2 bad input, 3 infeasible.
    """


for _command in (
    solving.solve,
    solving.certify,
    solving.problems,
    showing.show_file,
    insight.frontier,
    insight.diagnose,
    comparing.compare,
    sweeping.sweep,
    looking.report,
    looking.explore,
    reproducing.reproduce,
    training.train,
    training.evaluate,
):
    _command.context_class = HelpContext
    cli.add_command(_command)
cli.context_class = HelpContext


def main() -> None:
    """Run the command line; invalid input gives a one-line message on stderr, not a traceback."""
    try:
        cli(prog_name="cmdpkit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(LIMIT_REACHED)
    except MemoryError as error:
        click.echo(f"Error: not enough memory for this model ({error})", err=True)
        sys.exit(BAD_INPUT)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, ArithmeticError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(BAD_INPUT)
