"""The mutants of benchmarks/mutants.py still apply to the source: each names a text that occurs once, and its tests."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_every_mutant_applies_and_is_a_program(mutants):
    for mutant in mutants.MUTANTS:
        changed = mutants.find(mutant)  # refuses a text that does not occur exactly once
        ast.parse(changed)
        assert changed != (mutants.PACKAGE / mutant.file).read_text("utf-8")
        assert mutant.wrong


def test_no_mutant_is_listed_twice(mutants):
    keys = [(mutant.file, mutant.old, mutant.new) for mutant in mutants.MUTANTS]
    assert len(set(keys)) == len(keys)


def test_every_test_that_should_catch_a_mutant_exists(mutants):
    for path in {path for mutant in mutants.MUTANTS for path in mutant.tests}:
        file, _, name = path.partition("::")
        text = (ROOT / file).read_text("utf-8")
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), path


def test_every_room_has_mutants(mutants):
    """All of the package but what only shows or builds: reports, experiments and built-in problems."""
    rooms = {path.relative_to(mutants.PACKAGE).parts[0].removesuffix(".py") for path in mutants.PACKAGE.rglob("*.py")}
    rooms -= {"__init__", "__main__", "experiments", "problems", "report", "settings"}
    found = {mutant.room.split("/")[0] for mutant in mutants.MUTANTS}
    assert found == rooms
    assert len([mutant for mutant in mutants.MUTANTS if not mutant.equivalent]) >= 110


def test_a_text_that_is_gone_or_ambiguous_is_refused(mutants):
    for old, count in (("no such text anywhere", 0), ("import", None)):
        with pytest.raises(ValueError, match=f"occurs {'' if count is None else count}"):
            mutants.find(mutants.Mutant("checks.py", old, "", (), "nothing"))
