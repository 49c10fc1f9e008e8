"""Writes docs/methods.md from the registry: `python -m cmdpkit.experiments.methods_page docs/methods.md`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cmdpkit import rules
from cmdpkit.files import PathLike, write_whole
from cmdpkit.options import Option, options_of
from cmdpkit.rules.registry import LEARNERS, Method, methods
from cmdpkit.settings import NeuralSettings, Sampling, TabularSettings, ZeroSettings

OPEN = "–"
"""Shown for a default that the method chooses itself."""

INTRODUCTION = f"""\
# Methods and options

Written by `python -m cmdpkit.experiments.methods_page docs/methods.md` from the declarations in `src/cmdpkit/rules/`
and `src/cmdpkit/settings.py`. The keyword arguments of `solve` and `train`, their validation and the command-line flags
(`eta_dual` is `--eta-dual`) come from the same declarations. A default of {OPEN} is set by the method, as the last
column says.

`solve` has three more methods, which run to the optimum and take no options: `"auto"` (the default), `"columns"` and
`"lp"`. The method `"pmd-pd-zero"` runs `"pmd-pd"` on tightened limits.

## Which method runs with which learner

The learner is "exact" in `solve(cmdp)`, "sampled" in `solve(simulator)` and `solve(cmdp, sampling=...)`, and "neural"
in `train(env)`. An instance of a rule, as in `solve(cmdp, cmdpkit.rules.CRPO(tolerance=0.1))`, runs with every learner
that can show it what it asks for, and so does an instance of a class of your own
([CONTRIBUTING.md](../CONTRIBUTING.md)).
"""


def page() -> str:
    """The text of docs/methods.md."""
    ours = [method for method in methods() if method.rule.__module__.startswith(rules.__name__)]
    found = sorted(ours, key=lambda method: (method.name != "pmd-pd", method.name, method.steps == "fixed"))
    parts = [INTRODUCTION, *_learner_table(found), *_rule_table(found), *_options(found), *_learners()]
    return "\n".join(parts).rstrip() + "\n"


def write(path: PathLike) -> None:
    write_whole(path, lambda file: file.write(page().encode()))


def _learner_table(found: list[Method]) -> Iterator[str]:
    marked = [
        (
            _title(method),
            *(_mark(learner in method.learners) for learner in LEARNERS),
            _mark(method.constrained),
            _mark(method.multipliers),
        )
        for method in found
    ]
    yield from _table(("method", *LEARNERS, "constraints", "`initial_multipliers`"), marked)


def _rule_table(found: list[Method]) -> Iterator[str]:
    yield "## Rules and references\n"
    rows = [
        (_title(method), f"`cmdpkit.rules.{method.rule.__name__}`", _file(method), _reference(method))
        for method in found
    ]
    yield from _table(("method", "rule", "file", "reference"), rows)


def _options(found: list[Method]) -> Iterator[str]:
    yield "## Options of the methods\n"
    for rule in dict.fromkeys(method.rule for method in found):
        yield from _section([method for method in found if method.rule is rule])
    yield "### `pmd-pd-zero`\n"
    yield "The options of `pmd-pd`, and:\n"
    yield from _settings(ZeroSettings)


def _section(found: list[Method]) -> Iterator[str]:
    """The methods that one rule is registered as."""
    first = found[0]
    yield f"### {', '.join(map(_title, found))}\n"
    yield f"{inspect.getdoc(first.rule)}\n"
    if first.options:
        header = ("option", *(f"default, {learner}" for learner in first.learners), "values", "meaning")
        yield from _table(header, (_option_row(first, option) for option in first.options.values()))
    else:
        yield "It has no options of its own.\n"
    if first.sets:
        yield f"It sets {' and '.join(f'`{name}`' for name in first.sets)} itself.\n"
    for method in found:
        for learner, preset in method.presets.items():
            own = {name: value for name, value in preset.items() if name not in method.options}
            if own:
                given = ", ".join(f"`{name}={value!r}`" for name, value in own.items())
                yield f"`{method.name}` sets up the {learner} learner with {given}.\n"


def _option_row(method: Method, option: Option) -> tuple[str, ...]:
    default, meaning = _default_and_meaning(option)
    shown = []
    for learner in method.learners:
        preset = method.presets.get(learner, {}).get(option.name)
        taken = option.name != "schedule" or learner == "exact"
        shown.append((default if preset is None else f"`{preset}`") if taken else "not taken")
    return (f"`{option.name}`", *shown, option.domain.words, meaning)


def _learners() -> Iterator[str]:
    yield "## Settings of the learners\n"
    yield "### Exact and sampled: keyword arguments of `solve`\n"
    yield from _settings(TabularSettings)
    yield "The growing steps of `pmd-pd` set `step` and `alpha` themselves.\n"
    yield "### Sampled: fields of `cmdpkit.Sampling`\n"
    yield from _settings(Sampling)
    yield "### Neural: keyword arguments of `train`\n"
    yield from _settings(NeuralSettings)


def _settings(settings: type) -> Iterator[str]:
    rows = []
    for option in options_of(settings).values():
        default, meaning = _default_and_meaning(option)
        rows.append((f"`{option.name}`", default, option.domain.words, meaning))
    yield from _table(("option", "default", "values", "meaning"), rows)


def _default_and_meaning(option: Option) -> tuple[str, str]:
    """The default, from the declaration or from the note at the end of the help line, and the rest of the line."""
    note = re.search(r"\s*\[default: (.*)\]$", option.help)
    if note:
        return f"`{note[1]}`", option.help[: note.start()]
    return OPEN if option.default is None else f"`{option.default!r}`", option.help


def _title(method: Method) -> str:
    selector = "dual" if method.learners == ("neural",) else "steps"
    return f"`{method.name}`" + (f", `{selector}={method.steps!r}`" if method.steps else "")


def _file(method: Method) -> str:
    name = method.rule.__module__.rsplit(".", 1)[1]
    return f"[{name}.py](../src/cmdpkit/rules/{name}.py)"


def _reference(method: Method) -> str:
    return str(inspect.getdoc(inspect.getmodule(method.rule))).splitlines()[0]


def _mark(yes: bool) -> str:
    return "yes" if yes else "no"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield _line(header)
    yield _line("---" for _ in header)
    yield from map(_line, rows)
    yield ""


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/methods.md"))
