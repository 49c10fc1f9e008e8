"""Helpers of the commands: exit codes, models by name or file, printing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click import Context, HelpFormatter

if TYPE_CHECKING:
    from cmdpkit.model import CMDP

DONE, LIMIT_REACHED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 3

SET = click.option(
    "--set",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="Parameter of a built-in problem or of a table, e.g. gamma=0.9.",
)
LIMIT = click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another limit for a constraint, by name, e.g. power=1.2 (a Between: use=1,3); repeat it per constraint. "
    "A limit on a column of a table: 'wear<=4'.",
)
INITIAL = click.option("--initial", metavar="STATE", help="Start in this state, given by its label or its number.")
AVERAGE = click.option(
    "--average", is_flag=True, help="Long-run averages instead of the model's own criterion; limits per step stay."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
FORMAT = click.option(
    "--format", "formats", metavar="pdf,svg", help="Further formats of the figure: png, pdf, svg, separated by commas."
)
CLUSTER = click.option(
    "--cluster",
    metavar="WHERE",
    help="Use a Ray cluster: local (a private one on this machine), auto (the one that runs), or its address.",
)
WITH_POLICY = click.option("--with-policy", is_flag=True, help="With --json: include the policy.")


class Formatter(HelpFormatter):
    """Help texts whose lines end neither inside a name with hyphens nor inside a default in brackets."""

    KEPT: ClassVar = {"-": "\N{NON-BREAKING HYPHEN}", " ": "\N{NO-BREAK SPACE}"}

    def write_text(self, text: str) -> None:
        super().write_text(self._kept(text))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(term, self._kept(text)) for term, text in rows], col_max, col_spacing)

    def _kept(self, text: str) -> str:
        def whole(found: re.Match[str]) -> str:
            fits = len(found[0]) <= self.width - 36  # what the column of the flags leaves at least
            return found[0].replace(" ", self.KEPT[" "]) if fits else found[0]

        return re.sub(r"\[default: [^\]]*\]", whole, text).replace("-", self.KEPT["-"])

    def getvalue(self) -> str:
        return super().getvalue().translate({ord(kept): plain for plain, kept in self.KEPT.items()})


class HelpContext(Context):
    """The context of all commands."""

    formatter_class = Formatter


def find_model(
    name: str,
    parameters: tuple[str, ...] = (),
    limits: tuple[str, ...] = (),
    initial: str | None = None,
    average: bool = False,
    varied: tuple[str, ...] = (),
) -> CMDP:
    """A model file, a table, or a built-in problem by name with parameters; with other limits, start and criterion.

    Names of limits that will be varied are in `varied`.
    """
    if initial is not None and any(text.partition("=")[0].strip() == "initial" for text in parameters):
        raise ValueError("the initial state was given twice: by --initial, and by --set initial=...")
    if is_table(name):
        stated = any(text.replace(" ", "").lower() == "average=true" for text in parameters)
        cmdp = _from_table(name, (*parameters, "average=True") if average and not stated else parameters, limits)
    else:
        cmdp = _find_model(name, parameters)
        if average:
            cmdp = _averaged(cmdp, {*varied, *(text.rpartition("=")[0] for text in limits)})
        cmdp = _with_limits(cmdp, limits) if limits else cmdp
    return cmdp if initial is None else cmdp.started_in(_state(cmdp, initial))


def is_table(name: str) -> bool:
    return Path(name).suffix.lower() == ".csv" and Path(name).is_file()


def _averaged(cmdp: CMDP, given: set[str]) -> CMDP:
    """The model under long-run averages. A limit on a sum means nothing there and must be among those given anew."""
    sums = [c.name for c in cmdp.constraints if not c.per_step and c.name not in given]
    if cmdp.criterion != "average" and sums:
        raise ValueError(
            f"--average: the limit of {sums[0]!r} bounds the {cmdp.value_name}; give one for the average per step, "
            f"--limit '{sums[0]}=VALUE'"
        )
    return cmdp.with_criterion(average=True)


def _state(cmdp: CMDP, text: str) -> int:
    """The number of a state, given as text: its label, or its number where there are no labels."""
    labels = cmdp.state_labels
    if labels is None:
        return cmdp.pairs.state_index(int(text) if text.isdecimal() else text)
    found = [i for i, label in enumerate(labels) if str(label) == text]
    return found[0] if len(found) == 1 else cmdp.pairs.state_index(text)


def _with_limits(cmdp: CMDP, limits: tuple[str, ...]) -> CMDP:
    """The model with other limits, each given as NAME=VALUE or NAME=LOW,HIGH."""
    return cmdp.with_limits(once((_new_limit(text, cmdp.names) for text in limits), "--limit"))


def _new_limit(text: str, known: list[str]) -> tuple[str, float | tuple[float, ...]]:
    name, equals, value = text.rpartition("=")
    try:
        ends = tuple(float(part) for part in value.split(","))
    except ValueError:
        ends = ()
    if not equals or not ends:
        raise ValueError(f"--limit {text!r} must be NAME=VALUE with a number, or NAME=LOW,HIGH")
    stated = name.rstrip("<>= ")
    if name not in known and stated in known:
        raise ValueError(
            f"--limit {text!r}: the model says on which side {stated!r} is limited; write '{stated}={value}'"
        )
    return name, ends[0] if len(ends) == 1 else ends


def once(given: Iterable[tuple[str, Any]], flag: str) -> dict[str, Any]:
    """Values by their names; a name that was given twice is refused."""
    found: dict[str, Any] = {}
    for name, value in given:
        if name in found:
            raise ValueError(f"{flag} {name}=... was given twice; give it once")
        found[name] = value
    return found


def _from_table(path: str, parameters: tuple[str, ...], limits: tuple[str, ...]) -> CMDP:
    """The model of a CSV file. The parameters are arguments of `CMDP.from_table`; limits have their sense in them."""
    from cmdpkit.model import CMDP

    for text in parameters:
        if "=" not in text:
            raise ValueError(f"--set {text!r} must be KEY=VALUE")
    parts = (text.partition("=") for text in parameters)
    settings = once(((key.strip(), _literal(value)) for key, _, value in parts), "--set")
    if not any(key in settings for key in ("gamma", "horizon", "average")):
        raise ValueError(
            f"{path} is a table, which does not say over which time to count: add --set gamma=0.9 (a discount factor), "
            "--set horizon=10 or --set average=True"
        )
    return CMDP.from_table(path, constraints=[_column_limit(text) for text in limits], **settings)


def _literal(text: str) -> Any:
    """A Python literal, or the text as it stands: the name of a column or a state."""
    from ast import literal_eval

    try:
        return literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (ValueError, SyntaxError, TypeError):
        return text


def _column_limit(text: str) -> Any:
    """A limit on a column, as in "wear<=4", "output>=2", "use==3" or "use=1,3"."""
    from cmdpkit.model import AtLeast, AtMost, Between, Equal

    found = re.fullmatch(r"\s*(.+?)\s*(<=|>=|==|=)\s*([^<>=]+)", text)
    try:
        ends = [float(part) for part in found[3].split(",")] if found else []
    except ValueError:
        raise ValueError(f"--limit {text!r} must end in a number, or in two with a comma between them") from None
    if found and len(ends) == 2 and found[2] == "=":
        return Between(found[1], ends[0], ends[1])
    kinds = {"<=": AtMost, ">=": AtLeast, "==": Equal}
    if not found or len(ends) != 1 or found[2] not in kinds:
        name = found[1] if found else "wear"
        raise ValueError(
            f"--limit {text!r}: a table does not say on which side a limit is; write '{name}<=4', '{name}>=4', "
            f"'{name}==4' or '{name}=1,3', in quotes"
        )
    return kinds[found[2]](found[1], ends[0])


def _find_model(name: str, parameters: tuple[str, ...]) -> CMDP:
    from cmdpkit.model import CMDP
    from cmdpkit.problems import CATALOGUE

    if name in CATALOGUE and not Path(name).is_file():
        return built_in(name, parameters)
    if not name or not Path(name).exists():
        known = ", ".join(CATALOGUE)
        raise FileNotFoundError(f"no such file: {name or '(no name)'}; it is not a built-in problem either ({known})")
    if Path(name).is_dir():
        raise ValueError(f"{name} is a folder; models in blocks can only be solved, by 'cmdpkit solve {name}'")
    if parameters:
        raise ValueError(f"--set is for built-in problems; {name} is a model file")
    return CMDP.load(name)


def built_in(name: str, parameters: tuple[str, ...]) -> CMDP:
    from inspect import signature

    from cmdpkit.problems import CATALOGUE

    if name not in CATALOGUE:
        raise ValueError(f"unknown problem {name!r}; choose one of {', '.join(CATALOGUE)}")
    settings = once(map(setting, parameters), "--set")
    known = signature(CATALOGUE[name]).parameters
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ValueError(f"problem {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return CATALOGUE[name](**settings)


def setting(text: str, flag: str = "--set") -> tuple[str, Any]:
    """KEY=VALUE with a Python literal as the value; after `--set` nothing else, otherwise also a word."""
    from ast import literal_eval

    key, _, value = text.partition("=")
    try:
        value = value.strip()
        return key.strip(), literal_eval(value.capitalize() if value in ("true", "false") else value)
    except (ValueError, SyntaxError, TypeError):
        if flag != "--set" and value.replace("-", "_").isidentifier():
            return key.strip(), value
        known = "a number, true, false, a tuple or a quoted text"
        raise ValueError(f"{flag} {text!r} must be KEY=VALUE with {known}") from None


def check_target(flag: str, path: str, model: str) -> None:
    """Refuse a file that cannot be written, and the model's own."""
    from cmdpkit.files import check_folder

    check_folder(path)
    if Path(path).exists() and Path(model).exists() and Path(path).samefile(model):
        raise ValueError(f"{flag} {path} would overwrite the model {model}; choose another name")


def need(*packages: str) -> None:
    """Raise an error if optional packages are missing, and say how to install them."""
    from importlib.util import find_spec

    from cmdpkit.training import NEURAL

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ValueError(f"this needs {' and '.join(missing)}: {NEURAL}")


def listing(texts: dict[str, str]) -> str:
    """Names with the first line of what is said about each, at most 79 columns wide."""
    from textwrap import fill

    width = max(map(len, texts)) + 2
    lines = {name: text.strip().splitlines()[0] for name, text in texts.items()}
    return "\n".join(fill(f"{n:<{width}}{line}", width=79, subsequent_indent=" " * width) for n, line in lines.items())


def show(report: Any, least: int = 80) -> None:
    """Print a report to stdout, at least so many columns wide."""
    from rich.console import Console

    console = Console(highlight=False)
    # On a narrow terminal lines may wrap, but no digit may be cut off.
    Console(highlight=False, width=max(console.width, least)).print(report)


SHORT = 24
"""Cells of a table that are no wider, such as numbers, are never broken."""


def show_table(table: Any) -> None:
    """Print a `cmdpkit.tables.Table` to stdout; long cells wrap inside their column."""
    from rich.table import Table

    from cmdpkit.tables import show as cell

    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows = [[cell(value) for value in row] for row in table]
    widths = [max(map(len, column)) for column in zip(table.columns, *rows, strict=True)]
    for name, width in zip(table.columns, widths, strict=True):
        shown.add_column(name, overflow="fold", no_wrap=width <= SHORT)
    for row in rows:
        shown.add_row(*row)
    show(shown, max(80, sum(min(width, SHORT) + 2 for width in widths)))
