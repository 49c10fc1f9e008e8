"""Documents must not drift: quoted code exists, the README's example prints what it shows."""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.cli.main import cli
from cmdpkit.experiments.methods_page import page

ROOT = Path(__file__).parent.parent


def quoted_lines():
    text = (ROOT / "docs/theory.md").read_text()
    for path, code in re.findall(r"`(src/[\w/]+\.py)`\n```python\n(.*?)```", text, re.DOTALL):
        for line in code.strip().splitlines():
            yield path, line


@pytest.mark.parametrize(("path", "line"), list(quoted_lines()))
def test_theory_quotes_real_code(path, line):
    assert line.strip() in {code.strip() for code in (ROOT / path).read_text().splitlines()}


def test_theory_quotes_something():
    assert len(list(quoted_lines())) >= 15


def test_readme_example_prints_what_it_shows(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text()
    code, more = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[:2]
    shown = re.search(r"```text\n(.*?)```", readme, re.DOTALL).group(1)
    printed, names = io.StringIO(), {}
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    exec(compile(more, "README.md", "exec"), names)

    def steady(text):
        """Times, and digits of quantities that are pure rounding, differ between machines."""
        text = re.sub(r"[\d.e-]+ s$", "TIME s", text, flags=re.MULTILINE)
        return re.sub(r"\d\.\de-1\d", "ROUNDING", text).split()

    assert steady(printed.getvalue()) == steady(shown)


def test_readme_simulator_is_learned():
    readme = (ROOT / "README.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "ck.Simulator" in c)
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(compile(code.replace(", progress=True", ""), "README.md", "exec"), names)
    assert "lost sales per step" in printed.getvalue()
    assert names["learned"].objective > 95.0  # ordering two pieces a day, which sells less, earns about 90


def blocks_of(path, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text("utf-8"), re.DOTALL)


QUOTES = ("theory.md", "design.md", "decisions.md", "benchmarks.md", "results.md", "methods.md")
"""Pages whose code is quoted from the package, or that have none."""
PAGES = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if blocks_of(path) and path.name not in QUOTES]


def test_every_page_with_code_is_run():
    assert {
        "start.md",
        "concepts.md",
        "comparing.md",
        "neural.md",
        "modelling.md",
        "cookbook.md",
        "criteria.md",
        "look.md",
    } <= {*PAGES}
    for name in QUOTES[1:]:
        assert not blocks_of(ROOT / "docs" / name)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    """All blocks of the page, one after the other, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks_of(ROOT / "docs" / page):
        exec(compile(block, page, "exec"), names)


def test_the_other_examples_of_the_readme_run(tmp_path, monkeypatch):
    """With a short training run."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = blocks_of(ROOT / "README.md")
    training = next(block for block in blocks if "ck.train" in block)
    for block in (blocks[0], training, *blocks[blocks.index(training) + 1 :]):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.replace("iterations=400", "iterations=2"), "README.md", "exec"), names)
    assert names["trained"].iterations == 2
    assert names["run"].iterations == 300


def commands():
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        lines = [line for block in blocks_of(path, "sh") for line in block.splitlines()]
        lines += re.findall(r"`(cmdpkit [^`]* [^`]*)`", path.read_text("utf-8")) if path.name == "README.md" else []
        yield from ((path.name, line.partition("#")[0].strip()) for line in lines if line.startswith("cmdpkit "))


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_commands_of_the_documents_can_be_parsed(page, line, tmp_path, monkeypatch):
    """Every command and flag exists, and takes what it is given."""
    monkeypatch.chdir(tmp_path)
    _, name, *arguments = shlex.split(line)
    with cli.commands[name].make_context(name, arguments) as context:
        assert context.command.name == name


def contributing():
    return re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)


def test_contributing_quotes_the_pid_rule():
    """Between the rule of one's own and its test, every line is one of the file that is explained."""
    source = (ROOT / "src/cmdpkit/rules/pid_lagrangian.py").read_text()
    lines = [line for code in contributing()[1:-1] for line in code.splitlines()]
    assert len(lines) >= 15
    assert set(lines) <= set(source.splitlines())


def test_contributing_examples_run():
    names: dict[str, Any] = {}
    exec(compile(contributing()[0], "CONTRIBUTING.md", "exec"), names)
    assert names["result"].method == names["trained"].method == "DualAscent"
    assert names["result"].certificate.gap < 0.05
    assert names["trained"].iterations == 4
    names["PIDLagrangian"] = ck.rules.PIDLagrangian
    exec(compile(contributing()[-1], "CONTRIBUTING.md", "exec"), names)
    names["test_pid_lagrangian_first_step"]()


def test_methods_page_is_what_the_registry_says():
    """If it fails: python -m cmdpkit.experiments.methods_page docs/methods.md."""
    written = (ROOT / "docs/methods.md").read_text()
    assert written == page()
    for path in (ROOT / "src/cmdpkit/rules").glob("*.py"):
        assert (f"(../src/cmdpkit/rules/{path.name})" in written) == ("\n@register(" in path.read_text())
    assert "| `npg` | yes | no | no | no | no |" in written
    assert "| `growth` | `3.0` | a number greater than 1 | Factor" in written
    assert "| `eta_dual` | – | – | `0.0005` | a positive number, or one per constraint | Dual step" in written


def test_every_file_is_in_the_design():
    """Each room has a row, and every file but the problems and experiments is named in it."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    for path in (ROOT / "src/cmdpkit").rglob("*.py"):
        parts = path.relative_to(ROOT / "src/cmdpkit").parts
        if path.name == "__init__.py" or parts[0] in ("problems", "experiments"):
            continue
        name = f"`{parts[0]}/`" if len(parts) > 1 else f"`{parts[0]}`"
        room = [room + text for room, text in rows if name in room]
        assert room, name
        new_rule = parts[0] == "rules"  # a rule needs no entry anywhere
        assert len(parts) == 1 or new_rule or f"`{path.name}`" in room[0] or path.name == "__main__.py", path


def walk(call):
    """Files of the package in the order in which a call first enters them."""
    source, entered = str(ROOT / "src/cmdpkit"), []

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(source) and frame.f_code.co_name not in ("<module>", "__init__"):
            name = path[len(source) + 1 :]
            if name not in entered:
                entered.append(name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def shop():
    def step(stock, order, rng):
        return np.minimum(stock, 2), np.stack([order * 1.0, stock * 0.1])

    return ck.Simulator(
        step, lambda n, rng: np.zeros(n, dtype=int), states=3, actions=2, gamma=0.5,
        constraints=[ck.AtMost(None, 1.0)], bounds=[(0.0, 1.0), (0.0, 1.0)],
    )  # fmt: skip


SHOP = shop()
WALKS = {
    "solve(cmdp)": lambda: ck.solve(ck.problems.garnet(states=250, constraints=2)),
    'solve(cmdp, "pmd-pd")': lambda: ck.solve(ck.problems.paper(), "pmd-pd"),
    "solve(simulator)": lambda: ck.solve(SHOP, max_iterations=1),
    "train(env)": lambda: ck.train(
        "cmdpkit/ConstrainedAcrobot-v0", limits=[5, 5], iterations=2, hidden=[8], steps=20, num_envs=2
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_walks_are_what_happens(name):
    """The files of a walk, as docs/design.md lists them: each is entered, in that order, and none is listed twice."""
    listed = re.search(rf"^- `{re.escape(name)}`: (.*)$", (ROOT / "docs/design.md").read_text(), re.MULTILINE).group(1)
    files = re.findall(r"`([\w/]+\.py)`", listed)
    WALKS[name]()  # imports happen here
    entered = walk(WALKS[name])
    assert len(set(files)) == len(files)
    assert [path for path in entered if path in files] == files
