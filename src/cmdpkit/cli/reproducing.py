"""`cmdpkit reproduce`."""

from __future__ import annotations

from pathlib import Path

import click

from cmdpkit.cli.common import CLUSTER, FORMAT, listing, show


@click.command(short_help="Reproduce the paper's experiments.")
@click.argument("names", nargs=-1)
@click.option(
    "--out",
    default="out/results",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Folder of data and figures.",
)
@click.option(
    "--seeds",
    default=30,
    show_default=True,
    help="Number of random instances; acrobot and velocity: of seeds, at most 5.",
)
@click.option("--quick", is_flag=True, help="Run for a minute, only to check that everything works.")
@click.option("--redraw", is_flag=True, help="Run nothing: draw the figures again from the data in the folder.")
@click.option("--method", "methods", multiple=True, help="velocity: a method, or several.  [default: pmd-pd]")
@click.option("--robot", "robots", multiple=True, help="velocity: a robot, or several.  [default: all six]")
@CLUSTER
@FORMAT
def reproduce(
    names: tuple[str, ...],
    out: str,
    seeds: int,
    quick: bool,
    redraw: bool,
    methods: tuple[str, ...],
    robots: tuple[str, ...],
    cluster: str | None,
    formats: str | None,
) -> None:
    """Reproduce the paper's experiments, by name; without names, list them.

    `all` runs those that take minutes. fig4, fig4-tuning and acrobot (Acrobot with neural policies), tasks
    (CartPole, Pendulum) and velocity (MuJoCo's robots) take hours, and run only by name.
    """
    from cmdpkit.drawing import parsed_formats
    from cmdpkit.experiments.reproduce import EXPERIMENTS, SLOW, page_of, table
    from cmdpkit.experiments.reproduce import reproduce as run
    from cmdpkit.report import tracker

    if not names:
        click.echo(listing({name: module.__doc__ or "" for name, module in EXPERIMENTS.items()}))
        click.echo(
            f"\nrun them with `cmdpkit reproduce NAME ...`\n`all` leaves out {', '.join(SLOW)}, which take hours"
        )
        return
    with tracker() as track:
        sections = run(names, Path(out), seeds, quick, track, parsed_formats(formats), redraw, cluster, methods, robots)
    show(table(sections))
    click.echo(f"data and figures are in {out}, the page with all verdicts is {page_of(Path(out))}")
