"""`cmdpkit sweep`: methods, settings and seeds from a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from cmdpkit.cli.common import CLUSTER, DONE, JSON, LIMIT_REACHED, SET, find_model, need, show, show_table

PLAIN = ("seeds", "iterations", "limits", "halving", "slack")
TABLES = ("grid", "options", "sampling")
KEYS = ("subject", "methods", "out", *PLAIN, *TABLES)


@click.command(short_help="Methods, settings and seeds from a file, as runs that continue.")
@click.argument("spec", type=click.Path(dir_okay=False))
@click.option("--out", type=click.Path(file_okay=False), help="Folder of the runs.  [default: that of the file]")
@CLUSTER
@SET
@JSON
def sweep(spec: str, out: str | None, cluster: str | None, parameters: tuple[str, ...], as_json: bool) -> None:
    """Run what SPEC describes, a TOML or JSON file; the same command continues a sweep that was stopped.

    \b
    subject = "cmdpkit/ConstrainedAcrobot-v0"
    limits = [50, 50]
    seeds = 10
    iterations = 400
    out = "out/tuning"
    [methods.pmd-pd]
    inner_steps = 2
    [methods.other]
    method = "npg-pd"
    [grid]
    eta_dual = [1e-3, 1e-2]

    The subject may also be a built-in problem or a model file, which have limits of their own. Methods have names, or
    labels with `method`, and their options; all combinations of the grid are run.

    Also: halving, slack, [options] of every run, [sampling] to learn from samples of a model.

    Exit codes: 0 done, 1 interrupted, or a run has failed, 2 bad input.
    """
    from cmdpkit.insight.sweep import FAILED
    from cmdpkit.insight.sweep import sweep as run

    content = _read(spec)
    folder = out or content.get("out")
    if folder is None:
        raise ValueError(f"{spec} has no entry 'out'; give the folder of the runs there, or by --out")
    subject = _subject(content["subject"], parameters, spec)
    given: dict[str, Any] = {name: content[name] for name in PLAIN if name in content}
    found = run(
        subject,
        _methods(content["methods"], spec),
        out=folder,
        grid=content.get("grid"),
        sampling=_sampling(content.get("sampling")),
        cluster=cluster,
        progress=sys.stderr.isatty(),
        **given,
        **content.get("options", {}),
    )
    best = found.best
    if as_json:
        rows = found.table().columns
        runs = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        chosen = {"method": best.method, "settings": dict(best.settings)}
        click.echo(json.dumps({"complete": found.complete, "best": chosen, "runs": _finite(runs)}, indent=2))
    else:
        show_table(found.table())
        show(f"\nbest: {best.method} {best.choice}".rstrip())
        click.echo(f"sweep.csv, sweep.png and the runs are in {found.folder}")
        if not found.complete:
            click.echo("stopped early; the same command continues")
    failed = any(run.status.startswith(FAILED) for run in found.runs)
    sys.exit(DONE if found.complete and not failed else LIMIT_REACHED)


def _read(spec: str) -> dict[str, Any]:
    """The content of the file, with known keys."""
    import tomllib

    path = Path(spec)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {spec}")
    kind, parse = ("JSON", json.loads) if path.suffix.lower() == ".json" else ("TOML", tomllib.loads)
    try:
        content = parse(path.read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{spec} is not readable as {kind}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{spec} must hold a table of {', '.join(KEYS)}")
    unknown = [name for name in content if name not in KEYS]
    if unknown:
        raise ValueError(f"{spec}: unknown entry {unknown[0]!r}; it may have {', '.join(KEYS)}")
    missing = [name for name in ("subject", "methods") if name not in content]
    if missing:
        raise ValueError(f"{spec} has no entry {missing[0]!r}")
    wrong = [name for name in TABLES if not isinstance(content.get(name, {}), dict)]
    if wrong:
        raise ValueError(f"{spec}: {wrong[0]} must be a table, [{wrong[0]}]")
    return content


def _subject(name: Any, parameters: tuple[str, ...], spec: str) -> Any:
    from cmdpkit.problems import CATALOGUE

    if not isinstance(name, str):
        raise ValueError(f"{spec}: subject must be a text, not {name!r}")
    if Path(name).exists() or name in CATALOGUE:
        return find_model(name, parameters)
    if parameters:
        raise ValueError(f"--set is for a model, and there is none called {name!r}; environments take [options]")
    need("torch", "gymnasium", "safetensors")
    import cmdpkit.envs  # noqa: F401 - registers the environments

    return name


def _methods(given: Any, spec: str) -> Any:
    """Names, or labels with options."""
    if isinstance(given, list):
        return given
    if not isinstance(given, dict) or not all(isinstance(entry, dict) for entry in given.values()):
        raise ValueError(f"{spec}: methods must be a list of names, or tables [methods.NAME] of options")
    return {
        label: (entry.get("method", label), {k: v for k, v in entry.items() if k != "method"})
        for label, entry in given.items()
    }


def _sampling(given: dict[str, Any] | None) -> Any:
    from cmdpkit.settings import Sampling

    return None if given is None else Sampling(**given)


def _finite(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """NaN and infinity are not JSON."""
    from math import isfinite

    return [{k: None if isinstance(v, float) and not isfinite(v) else v for k, v in row.items()} for row in rows]
