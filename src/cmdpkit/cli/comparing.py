"""`cmdpkit compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from cmdpkit.cli.common import (
    CLUSTER,
    DONE,
    FORMAT,
    JSON,
    LIMIT_REACHED,
    SET,
    find_model,
    need,
    once,
    setting,
    show,
    show_table,
)

BY = ("iterations", "evaluations", "seconds", "samples")


@click.command(short_help="Several methods on the same models: a league table and a figure.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--methods",
    default="pmd-pd,npg-pd,crpo",
    show_default=True,
    metavar="A,B,...",
    help='Names, with options in brackets ("pmd-pd(step=1, eta_dual=1)"), or a rule of your own: FILE.py:CLASS.',
)
@click.option(
    "--by", default="iterations", show_default=True, type=click.Choice(BY), help="What the runs are measured in."
)
@click.option("--seeds", default=1, show_default=True, help="Number of runs of each method, or of random instances.")
@click.option("--tol", default=1e-6, show_default=True, help="Accuracy that runs on a model are to reach.")
@click.option("--max-iterations", type=int, metavar="N", help="Of each run.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Of each run.")
@click.option("--average", is_flag=True, help="Errors of the average iterate, not of the last.")
@click.option("--confidence", default=0.95, show_default=True, help="Of Student's intervals over the seeds.")
@click.option("--sample", is_flag=True, help="Learn from samples of the model.")
@click.option("--limit", "limits", type=float, multiple=True, help="Limit on a cost of an environment; repeat it.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of every run.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for league, curves (CSV) and figure.")
@CLUSTER
@FORMAT
@SET
@JSON
def compare(
    models: tuple[str, ...],
    methods: str,
    by: str,
    seeds: int,
    limits: tuple[float, ...],
    options: tuple[str, ...],
    out: str | None,
    formats: str | None,
    parameters: tuple[str, ...],
    as_json: bool,
    **settings: Any,
) -> None:
    """Rank methods on every MODEL: a model file, a built-in problem, or a Gymnasium environment with costs.

    Errors on a model are measured against its certified optimum. With --seeds N, a built-in problem that has a
    parameter `seed` is N random instances.

    Exit codes: 0 done, 1 interrupted, 2 bad input.
    """
    from cmdpkit.drawing import parsed_formats
    from cmdpkit.insight.compare import compare as run
    from cmdpkit.settings import Sampling

    wanted = parsed_formats(formats)
    if wanted and out is None:
        raise ValueError("--format needs --out, the folder of the figure")
    subjects = {name: _subject(name, parameters, seeds, limits) for name in models}
    environments = [name for name, subject in subjects.items() if isinstance(subject, str)]
    given = once((setting(text, "--option") for text in options), "--option")
    average, sample = settings.pop("average"), settings.pop("sample")
    found = run(
        subjects,
        dict(_entrant(text) for text in split(methods)),
        by=by,
        seeds=seeds,
        limits=list(limits) if environments or limits else None,
        iterate="average" if average else "last",
        sampling=Sampling() if sample else None,
        progress=sys.stderr.isatty(),
        **settings,
        **given,
    )
    if out is not None:
        _write(found, Path(out), wanted)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        show_table(found.table())
        show("\n" + "\n".join(found.notes))
        if out is not None:
            click.echo(f"league.csv, curves.csv and compare.png are in {out}")
    sys.exit(DONE if found.complete else LIMIT_REACHED)


def _subject(name: str, parameters: tuple[str, ...], seeds: int, limits: tuple[float, ...]) -> Any:
    """A model, a family of random instances, or the name of an environment."""
    from inspect import signature

    from cmdpkit.problems import CATALOGUE

    if Path(name).exists() or name in CATALOGUE:
        drawn = name in CATALOGUE and not Path(name).is_file() and "seed" in signature(CATALOGUE[name]).parameters
        if seeds > 1 and drawn and not any(text.startswith("seed=") for text in parameters):
            return lambda seed: find_model(name, (*parameters, f"seed={seed}"))
        return find_model(name, parameters)
    if not limits:
        known = f"no such file: {name}; it is not a built-in problem either ({', '.join(CATALOGUE)})"
        raise FileNotFoundError(f"{known}, and an environment needs --limit")
    need("torch", "gymnasium", "safetensors")
    import cmdpkit.envs  # noqa: F401 - registers the environments

    return name


def split(text: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _entrant(text: str) -> tuple[str, Any]:
    """The label and the method of `name`, `name(key=value, ...)` or `FILE.py:CLASS(...)`."""
    name, bracket, inside = text.partition("(")
    if bracket and not inside.endswith(")"):
        raise ValueError(f"--methods: {text!r} has a bracket that is not closed")
    options = dict(setting(part, "--methods") for part in split(inside[:-1]))
    if ".py:" not in name:
        return text, (name, options)
    label = f"{name.rpartition(':')[2]}{bracket}{inside}"
    return label, own_rule(name)(**options)


def own_rule(text: str) -> Any:
    """The class of a rule in a Python file, which is run for it."""
    from runpy import run_path

    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    found = run_path(path).get(name)
    if not isinstance(found, type):
        raise ValueError(f"{path} has no class {name}")
    return found


def _write(found: Any, folder: Path, formats: tuple[str, ...]) -> None:
    from cmdpkit.files import write_json

    folder.mkdir(parents=True, exist_ok=True)
    found.table().to_csv(folder / "league.csv")
    found.to_csv(folder / "curves.csv")
    write_json(folder / "compare.json", found.to_dict())
    found.plot(folder / "compare.png", formats)
