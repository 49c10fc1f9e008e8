"""The program: its commands and error handling. Heavy imports are deferred until a command needs them."""

from __future__ import annotations

import sys

import click

from cmdpkit import __version__
from cmdpkit.cli import comparing, insight, looking, reproducing, showing, solving, training
from cmdpkit.cli.common import BAD_INPUT, LIMIT_REACHED, HelpContext


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cmdpkit")
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
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(BAD_INPUT)
