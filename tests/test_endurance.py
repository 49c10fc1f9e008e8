"""Runs that are killed and files that are damaged, a few of each: `make endurance` has more, and watches memory."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "endurance", Path(__file__).resolve().parent.parent / "benchmarks" / "endurance.py"
)
assert SPEC is not None
assert SPEC.loader is not None
endurance = importlib.util.module_from_spec(SPEC)
sys.modules["endurance"] = endurance
SPEC.loader.exec_module(endurance)

KINDS = ("model", "policy", "result", "mixture", "neural policy")
CHECKPOINTS = ("an exact", "a sampled", "a neural")


@pytest.fixture(scope="module")
def specimens(tmp_path_factory):
    return {specimen.name: specimen for specimen in endurance.specimens(tmp_path_factory.mktemp("files"))}


def findings(lines):
    return [line for line in lines if line.startswith("finding")]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in ("model", "result") else kind for kind in KINDS]
)
def test_files_cut_at_every_byte_are_refused(kind, specimens):
    lines = list(endurance.damage(specimens[kind], random.Random(1), flips=100))
    assert not findings(lines)
    assert f"{len(specimens[kind].content)} cuts refused" in lines[-1]


@pytest.mark.parametrize("run", CHECKPOINTS)
def test_damaged_checkpoints_are_refused(run, specimens):
    """Reading one means to resume its run, which takes longer: every 23rd byte."""
    lines = list(endurance.damage(specimens[f"checkpoint of {run} run"], random.Random(1), flips=30, every=23))
    assert not findings(lines)


def test_damage_that_is_not_noticed_is_a_finding(tmp_path):
    path = tmp_path / "text"
    path.write_text("abc")
    careless = endurance.Specimen("text", path, lambda path: path.read_text(errors="replace"))
    assert len(findings(endurance.damage(careless, random.Random(0), 5))) == 3 + 5
    assert path.read_text() == "abc"

    def crashing(path):
        return {"abc": 1}[path.read_text()]

    assert "KeyError" in endurance.Specimen("text", path, crashing).verdict(b"ab")

    def silent(path):
        if path.read_text() != "abc":
            raise ValueError("something is wrong")

    assert "does not name the file" in endurance.Specimen("text", path, silent).verdict(b"ab")


@pytest.mark.slow
def test_killed_runs_end_as_if_they_had_been_left_alone(monkeypatch):
    """Of the command line on a known model; tests/test_sampling.py and tests/test_training.py kill the others."""
    monkeypatch.setitem(endurance.RUNS, "exact", endurance.RUNS["exact"][-1:])
    lines = list(endurance.kills(3, ["exact"], seed=2))
    assert not findings(lines)
    assert "killed" in lines[-1]


def test_runs_that_differ_are_findings(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, number in ((one, 1.0), (other, 1.0 + 2e-16)):
        folder.mkdir()
        endurance.np.savez(folder / "a.npz", x=number, time=random.random())
        (folder / "b.json").write_text(f'{{"objective": {number}, "time": {random.random()}}}')
        (folder / "c.csv").write_text(f"reward,time\n{number},{random.random()}\n")
    (one / "d.json").write_text("{}")
    assert list(endurance.differences(one, one)) == []
    told = list(endurance.differences(one, other))
    assert told == [
        "only one run has written d.json",
        "x of a.npz differs",
        "objective of b.json differs",
        "reward of c.csv differs",
    ]


@pytest.mark.slow
def test_memory_that_grows_is_told(monkeypatch):
    """A clock that jumps, and a process that grows by a megabyte at every step of half a minute."""
    now, size = [0.0], [100.0]

    def work():
        now[0] += 30.0
        size[0] += 1.0

    monkeypatch.setattr(endurance, "_workload", lambda *_: [work] * 4)
    monkeypatch.setattr(endurance.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(endurance, "_resident_megabytes", lambda: size[0])
    *minutes, last = endurance.memory(60.0, seed=0)
    assert len(minutes) == 60
    assert "minute 1.0: 102.0 MB, 0 rounds" in minutes[0]
    # the first fifth is left out: twelve minutes
    assert last == "memory: 30 rounds, +120.0 MB an hour, from 124.0 to 220.0 MB"


def test_memory_is_measured():
    before = endurance._resident_megabytes()
    kept = endurance.np.ones(2**23)
    assert 60.0 < endurance._resident_megabytes() - before < 70.0
    del kept
