"""Documents must not drift: quoted code exists, the README's example prints what it shows."""

import contextlib
import io
import re
from pathlib import Path

import pytest

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


def test_readme_example_prints_what_it_shows():
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    shown = re.search(r"```text\n(.*?)```", readme, re.DOTALL).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})

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


def test_every_file_is_in_the_design():
    design = (ROOT / "docs/design.md").read_text()
    for path in (ROOT / "src/cmdpkit").glob("*.py"):
        if path.name != "__init__.py":
            assert f"`{path.name}`" in design, path.name
