"""Command-line flags, derived from the declarations of rules and settings.

The rules are parsed, not imported: importing them would load NumPy and make `--help` slow. A test compares the result
with the registry.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click

from cmdpkit import options
from cmdpkit.options import Domain, Option, options_of

RULES = Path(__file__).resolve().parent.parent / "rules"
LEARNERS = ("exact", "sampled", "neural")


@dataclass(frozen=True)
class Entry:
    """A registered method, as its file declares it."""

    name: str
    steps: str | None
    learners: tuple[str, ...]
    options: dict[str, Option] = field(default_factory=dict)
    neural: dict[str, Any] = field(default_factory=dict)  # defaults with that learner


@cache
def catalogue() -> tuple[Entry, ...]:
    """Every method that a file in rules/ registers."""
    return tuple(entry for path in sorted(RULES.glob("*.py")) for entry in _entries(ast.parse(path.read_text("utf-8"))))


def method_names(*learners: str) -> list[str]:
    """The methods that run with one of the learners."""
    found = {e.name for e in catalogue() if set(learners) & set(e.learners)}
    return sorted(found, key=lambda name: (name != "pmd-pd", name))  # pmd-pd first


def _entries(module: ast.Module) -> Iterable[Entry]:
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        calls = [d for d in node.decorator_list if isinstance(d, ast.Call) and _is_named(d.func, "register")]
        declared = dict(_option(line) for line in node.body if _is_option(line))
        for call in reversed(calls):  # decorators are applied from below
            given = {
                k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in ("steps", "learners", "neural")
            }
            name = ast.literal_eval(call.args[0])
            yield Entry(
                name, given.get("steps"), tuple(given.get("learners", LEARNERS)), declared, given.get("neural", {})
            )


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_option(line: ast.stmt) -> bool:
    return isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call) and _is_named(line.value.func, "option")


def _option(line: Any) -> tuple[str, Option]:
    default, domain, text = line.value.args
    name = line.target.id
    learners = {k.arg: ast.literal_eval(k.value) for k in line.value.keywords}.get("learners")
    try:
        value = ast.literal_eval(default)
    except ValueError:
        value = None  # a constant of the file: the help text need not show it
    return name, Option(name, value, _domain(domain), ast.literal_eval(text), learners)


def _domain(node: Any) -> Domain:
    if isinstance(node, ast.Call):
        return options.choice(*(ast.literal_eval(argument) for argument in node.args))
    domain: Domain = getattr(options, node.id)
    return domain


# -- flags -----------------------------------------------------------------------------------------------------------


def method_flags(*learners: str) -> list[click.Option]:
    """One flag per option of a method; its help says which methods take it, and what it means to each of them."""
    declared: dict[str, Option] = {}
    takers: dict[str, dict[str, list[str]]] = {}  # of each option and meaning
    for entry in catalogue():
        if set(learners) & set(entry.learners):
            for name, each in ((n, o) for n, o in entry.options.items() if o.serves(*learners)):
                declared.setdefault(name, each)
                fixed = entry.neural.get(name) if learners == ("neural",) else None
                found = takers.setdefault(name, {}).setdefault(_meaning(each, fixed), [])
                found.append(entry.name)
                if entry.name == "pmd-pd" and "exact" in learners:
                    found.append("pmd-pd-zero")
    texts = {
        name: " ".join(f"{', '.join(dict.fromkeys(methods))}: {text}" for text, methods in meanings.items())
        for name, meanings in takers.items()
    }
    return [_flag(each, texts[name]) for name, each in declared.items() if each.domain.kind]


def settings_flags(settings: type, prefix: str = "", leave_out: Iterable[str] = ()) -> list[click.Option]:
    """One flag per option of a settings class."""
    declared = options_of(settings).values()
    return [flag(each, prefix) for each in declared if each.domain.kind and each.name not in leave_out]


def flag(declared: Option, prefix: str = "") -> click.Option:
    """A flag with the help of one declaration."""
    return _flag(declared, f"{prefix}: {_meaning(declared)}" if prefix else _meaning(declared))


def _meaning(declared: Option, fixed: Any = None) -> str:
    """The help with the default, or with the one that is fixed for a learner."""
    if fixed is not None:
        return f"{declared.help.partition('; the default')[0].rstrip('.')}.  [default: {fixed}]"
    default, text = declared.default, declared.help
    if default is None or default is False or "[default:" in text:
        return text
    return f"{text}  [default: {','.join(map(str, default)) if isinstance(default, tuple) else default}]"


def _flag(declared: Option, text: str) -> click.Option:
    """A flag whose value is None unless it is given; defaults are applied where they are declared."""
    default = declared.default
    name, domain = f"--{declared.name.replace('_', '-')}", declared.domain
    kinds: dict[str, Any] = {"number": float, "whole": int, "numbers": NUMBERS, "list": LIST}
    if domain.kind == "flag":
        if default is True:
            name = f"{name}/--no-{name.removeprefix('--')}"
        return click.Option([name], is_flag=True, default=None, help=text)
    if domain.kind == "choice":
        return click.Option([name], type=click.Choice(domain.choices), help=text)
    return click.Option([name], type=kinds[str(domain.kind)], help=text)


class Numbers(click.ParamType[Any]):
    """One number, or several separated by commas; `always_list` makes a list of one as well."""

    name = "numbers"

    def __init__(self, always_list: bool = False) -> None:
        self.always_list = always_list

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            numbers = [int(part) if part.strip().lstrip("+-").isdigit() else float(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a number, or several separated by commas", param, ctx)
        return numbers if self.always_list or "," in value else numbers[0]


NUMBERS, LIST = Numbers(), Numbers(always_list=True)


class Derived(click.Command):
    """A command whose derived flags are created when it is parsed or described, not when the program starts."""

    def __init__(self, *args: Any, derive: Callable[[], list[click.Option]] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._derive = derive

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self._derive is not None:
            known = {p.name for p in self.params}
            self.params = [*self.params, *(p for p in self._derive() if p.name not in known)]
            self._derive = None
        return super().get_params(ctx)
