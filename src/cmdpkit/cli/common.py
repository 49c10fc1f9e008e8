"""Helpers of the commands: exit codes, models by name or file, printing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cmdpkit.model import CMDP

DONE, LIMIT_REACHED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 3

SET = click.option(
    "--set", "parameters", multiple=True, metavar="KEY=VALUE", help="Parameter of a built-in problem, e.g. gamma=0.9."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
WITH_POLICY = click.option("--with-policy", is_flag=True, help="With --json: include the policy.")


def find_model(name: str, parameters: tuple[str, ...] = ()) -> CMDP:
    """A model file, or a built-in problem by name, with parameters."""
    from cmdpkit.model import CMDP
    from cmdpkit.problems import CATALOGUE

    if name in CATALOGUE and not Path(name).is_file():
        return built_in(name, parameters)
    if not Path(name).exists():
        raise FileNotFoundError(f"no such file: {name}; it is not a built-in problem either ({', '.join(CATALOGUE)})")
    if parameters:
        raise ValueError(f"--set is for built-in problems; {name} is a model file")
    return CMDP.load(name)


def built_in(name: str, parameters: tuple[str, ...]) -> CMDP:
    from inspect import signature

    from cmdpkit.problems import CATALOGUE

    if name not in CATALOGUE:
        raise ValueError(f"unknown problem {name!r}; choose one of {', '.join(CATALOGUE)}")
    settings = dict(setting(text) for text in parameters)
    known = signature(CATALOGUE[name]).parameters
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ValueError(f"problem {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return CATALOGUE[name](**settings)


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE with a Python literal as the value."""
    from ast import literal_eval

    key, _, value = text.partition("=")
    try:
        return key, literal_eval(value)
    except (ValueError, SyntaxError, TypeError):
        raise ValueError(f"--set {text!r} must be KEY=VALUE with a number, a tuple or a quoted text") from None


def need(*packages: str) -> None:
    """Raise an error if optional packages are missing, and say how to install them."""
    from importlib.util import find_spec

    from cmdpkit.training import NEURAL

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ValueError(f"this needs {' and '.join(missing)}: {NEURAL}")


def show(report: Any) -> None:
    """Print a report to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    # On a narrow terminal lines may wrap, but no digit may be cut off.
    Console(highlight=False, width=max(console.width, 80)).print(report)
