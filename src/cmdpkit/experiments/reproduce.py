"""`cmdpkit reproduce`: runs experiments, draws figures, and writes the page with the verdicts on the paper's claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from cmdpkit import __version__
from cmdpkit.cluster import check_cluster, distributed, in_order, using
from cmdpkit.experiments import (
    acrobot,
    adaptive,
    average,
    complexity,
    fig1,
    fig2,
    fig3,
    fig4,
    fig4_tuning,
    table1,
    tasks,
    theory,
    velocity,
    zero,
)
from cmdpkit.experiments.common import Claim, Section, Settings, Track, plain
from cmdpkit.files import write_json, write_whole
from cmdpkit.rules.registry import names as methods_of

EXPERIMENTS: dict[str, ModuleType] = {
    "fig1": fig1,
    "fig2": fig2,
    "table1": table1,
    "zero": zero,
    "theory": theory,
    "adaptive": adaptive,
    "average": average,
    "fig3": fig3,
    "complexity": complexity,
    "fig4": fig4,
    "fig4-tuning": fig4_tuning,
    "acrobot": acrobot,
    "tasks": tasks,
    "velocity": velocity,
}
DIVIDED = ("fig4", "fig4-tuning", "acrobot", "velocity")
"""Experiments whose runs are done side by side by the workers of a cluster."""

SLOW = tuple(name for name, module in EXPERIMENTS.items() if getattr(module, "SLOW", False))
"""Experiments that take hours: run by name only. `all` draws and evaluates their data if there are any."""


COMMANDS = "commands.json"
"""The command that an experiment's data come from, by its name: they may have been made one by one."""


def reproduce(
    names: Sequence[str],
    folder: Path,
    seeds: int,
    quick: bool,
    track: Track,
    formats: tuple[str, ...] = (),
    redraw: bool = False,
    cluster: str | None = None,
    methods: Sequence[str] = (),
    robots: Sequence[str] = (),
) -> list[Section]:
    """Run the experiments; write data and figures to `folder`, and a page with the verdicts to `folder`.md.

    With `redraw` nothing is run: figures and page are made from the data in `folder`. `formats` are those of the
    figures besides PNG. With `cluster` experiments are run side by side on its workers, and the runs of Figure 4 too;
    every node must see `folder` under the same name. `methods` are those of velocity, "pmd-pd" by default, and `robots`
    its robots, all by default: what is known of the others is kept.
    """
    unknown = [name for name in names if name not in (*EXPERIMENTS, "all")]
    if unknown:
        raise ValueError(f"unknown experiment {unknown[0]!r}; choose from {', '.join(EXPERIMENTS)} or all")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if find_spec("matplotlib") is None:
        raise ValueError("figures need matplotlib: pip install 'cmdpkit[plot]'")
    chosen = [name for name in EXPERIMENTS if name not in SLOW] if not names or "all" in names else []
    chosen += [name for name in dict.fromkeys(names) if name != "all" and name not in chosen]
    if redraw:
        chosen = [name for name in EXPERIMENTS if _has_data(name, folder)] if "all" in names else chosen
        missing = [name for name in chosen if not _has_data(name, folder)]
        if missing or not chosen:
            raise FileNotFoundError(f"{folder} has no data of {missing[0] if missing else 'an experiment'} to redraw")
    check_cluster(cluster)
    foreign = [name for name in methods if name not in methods_of("neural")]
    if foreign:
        raise ValueError(f"unknown method {foreign[0]!r}; choose from {', '.join(methods_of('neural'))}")
    strange = [name for name in robots if name not in velocity.SPEEDS]
    if strange:
        raise ValueError(f"unknown robot {strange[0]!r}; choose from {', '.join(velocity.SPEEDS)}")
    if (methods or robots) and "velocity" not in chosen:
        raise ValueError("methods and robots can be chosen for velocity only")
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(folder, seeds, quick, track, formats, tuple(dict.fromkeys(methods)) or ("pmd-pd",))
    settings = settings._replace(robots=tuple(dict.fromkeys(robots)))
    if not redraw:
        with using(cluster):
            _run(chosen, settings)
        flags = f" --seeds {seeds}" + (" --quick" if quick else "")
        write_json(folder / COMMANDS, _commands(folder) | {name: name + flags for name in chosen})
    shown = [name for name in EXPERIMENTS if name in chosen or _has_data(name, folder)]
    sections = []
    for name in shown:
        section = EXPERIMENTS[name].section(settings)
        if name in chosen or not all((folder / file).exists() for file, _ in section.figures):
            EXPERIMENTS[name].plot(settings)
        sections.append(replace(section, claims=[_unjudged(c) for c in section.claims]) if quick else section)
    page = "\n".join(_page(shown, sections, settings))
    write_whole(page_of(folder), lambda file: file.write(page.encode()))
    return [section for name, section in zip(shown, sections, strict=True) if name in chosen]


def _run(names: Sequence[str], settings: Settings) -> None:
    """Run the experiments; on a cluster whole ones are blocks of work, except for those that divide themselves."""
    divided = [name for name in names if name in DIVIDED or not distributed()]
    others = [name for name in names if name not in divided]
    shared = settings._replace(folder=settings.folder.resolve(), track=plain)
    for _ in settings.track(list(in_order(_run_one, others, shared=shared, name=_title)), "experiments"):
        pass
    for name in divided:
        EXPERIMENTS[name].run(settings)


def _run_one(_: None, settings: Settings, name: str) -> str:
    EXPERIMENTS[name].run(settings)
    return name


def _title(name: str) -> str:
    return f"the experiment {name}"


def _has_data(name: str, folder: Path) -> bool:
    return (folder / getattr(EXPERIMENTS[name], "DATA", f"{name}.csv")).exists()


def _commands(folder: Path) -> dict[str, str]:
    """By experiment; empty if they were not kept."""
    file = folder / COMMANDS
    return dict(json.loads(file.read_text())) if file.exists() else {}


def page_of(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.md"


def _unjudged(claim: Claim) -> Claim:
    """A quick run is too short for verdicts."""
    return claim._replace(verdict="quick run, not judged")


def _page(names: list[str], sections: list[Section], settings: Settings) -> Iterable[str]:
    made_by = _commands(settings.folder)
    yield "# The paper's tabular claims, measured"
    yield ""
    yield (
        f"Written by `cmdpkit reproduce` (cmdpkit {__version__}): every number, figure and verdict comes from the "
        f"command beside it; random instances have the seeds 0, 1, 2, ... Sections 3, 4 and 5 and Appendix E.1 of "
        "the paper are covered. Gaps and violations are those of its Section 4: optimum minus value, limit minus "
        "utility, so that a negative violation is inside the limit. CRPO has the tolerance 0."
    )
    for name, section in zip(names, sections, strict=True):
        commands = section.commands if section.commands and not settings.quick else (made_by.get(name, name),)
        yield from ("", f"## {section.title}", "", ", ".join(f"`cmdpkit reproduce {one}`" for one in commands), "")
        yield from ("| claim | measured | verdict |", "|---|---|---|")
        for claim in section.claims:
            statement, measured, verdict = (text.replace("|", "\\|") for text in claim)
            yield f"| {statement} | {measured} | **{verdict}** |"
        for file, caption in section.figures:
            yield from ("", f"![{caption}]({settings.folder.name}/{file})", "", f"*{caption}*")
        if section.remarks:
            yield from ("", section.remarks)
    yield ""


def table(sections: list[Section]) -> Any:
    """The verdicts as a table for the terminal."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 1, 0), header_style="bold")
    for title in ("claim", "measured", "verdict"):
        shown.add_column(title, ratio=1 if title == "verdict" else 2)
    for section in sections:
        for claim in section.claims:
            colour = "green" if claim.verdict.startswith(("holds", "PMD-PD is the best")) else "yellow"
            shown.add_row(claim.statement, claim.measured, f"[{colour}]{claim.verdict}[/]")
    return shown
