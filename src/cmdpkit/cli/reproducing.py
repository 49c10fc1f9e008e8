"""`cmdpkit reproduce`."""

from __future__ import annotations

from pathlib import Path

import click

from cmdpkit.cli.common import show


@click.command(short_help="Reproduce the paper's experiments.")
@click.argument("names", nargs=-1)
@click.option(
    "--out",
    default="out/results",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Folder of data and figures.",
)
@click.option("--seeds", default=30, show_default=True, help="Number of random instances.")
@click.option("--quick", is_flag=True, help="Run for a minute, only to check that everything works.")
def reproduce(names: tuple[str, ...], out: str, seeds: int, quick: bool) -> None:
    """Reproduce the paper's experiments: fig1, fig2, table1, zero, theory, fig3, complexity, or all of these.

    fig4, fig4-tuning (Acrobot with neural policies) and tasks (CartPole, Pendulum) take long, and run only by name.
    """
    from cmdpkit.experiments.reproduce import page_of, table
    from cmdpkit.experiments.reproduce import reproduce as run
    from cmdpkit.report import tracker

    with tracker() as track:
        sections = run(names, Path(out), seeds, quick, track)
    show(table(sections))
    click.echo(f"data and figures are in {out}, the page with all verdicts is {page_of(Path(out))}")
