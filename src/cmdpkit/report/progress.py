"""Progress bars and live displays on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmdpkit.run.budget import Callback, Snapshot


@contextlib.contextmanager
def progress_watcher(
    method: str, total: int | None, callback: Callback | None, time_left: bool = False
) -> Iterator[Callback]:
    """A callback that updates a progress bar on stderr and then calls the user's callback."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    console.width = max(console.width - 4, 20)  # room for the ^C that a terminal echoes: a wrapped bar is not erased
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(10 if time_left else 40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn() if time_left else TimeElapsedColumn(),
        TextColumn("left" if time_left else ""),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(method, total=total, news="")

        def watch(news: Snapshot) -> Any:
            bar.update(task, completed=news.iteration, news=str(news))
            return callback(news) if callback is not None else None

        yield watch


@contextlib.contextmanager
def training_display(
    limits: Any, steps_each: int, method: str, iterations: int, callback: Callback | None
) -> Iterator[Callback]:
    """A live display on stderr: progress, reward, costs against limits, multipliers, speed, time left."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    columns = (TextColumn(method), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    bar = Progress(*columns)
    task = bar.add_task(method, total=iterations)
    begun: list[tuple[float, int]] = []

    def picture(row: Snapshot) -> Any:
        if not begun:
            begun.append((row.time, row.iteration))
        seconds, done = row.time - begun[0][0], row.iteration - begun[0][1]
        costs: Any = row.constraint_values
        table = Table(box=None, pad_edge=False)
        for title in ("", "now", "limit", "multiplier"):
            table.add_column(title, justify="left" if not title else "right")
        table.add_row("reward", f"{row.objective:.2f}", "", "")
        for i, limit in enumerate(limits):
            colour = "yellow" if costs[i] > limit else "green"
            cost = f"[{colour}]{costs[i]:.2f}[/]"
            table.add_row(f"cost {i + 1}", cost, f"<= {limit:g}", f"{row.multipliers[i]:.4g}")
        speed = f"{done * steps_each / seconds:,.0f} steps per second" if seconds > 0 and done else ""
        return Group(bar, table, speed)

    with Live(bar, console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def watch(news: Snapshot) -> Any:
            bar.update(task, completed=news.iteration)
            live.update(picture(news))
            return callback(news) if callback is not None else None

        yield watch


@contextlib.contextmanager
def tracker() -> Iterator[Callable[[Sequence[Any], str], Iterable[Any]]]:
    """A function that shows the progress of a loop, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield lambda items, description: bar.track(items, total=len(items), description=description)
