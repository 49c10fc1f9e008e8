"""The command line on a cluster: the same output as without one; sweeps from files."""

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import cmdpkit as ck
from cmdpkit.cli.main import cli

pytest.importorskip("ray")
import psutil

CLOCKS = ("time", "seconds")
SMALL = ("--iterations", "1", "--num-envs", "4", "--steps", "20", "--hidden", "8,8")
ACROBOT = ("cmdpkit/ConstrainedAcrobot-v0", "--limit", "50", "--limit", "50")


@pytest.fixture(scope="module")
def workers():
    with ck.cluster.connect("local", workers=2, object_store=200 * 2**20):
        yield


def run(*arguments):
    found = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert not isinstance(found.exception, Exception), found.exception
    return found


def timeless(value):
    """Without what a clock says, and where files are."""
    if isinstance(value, dict):
        return {key: timeless(entry) for key, entry in value.items() if key not in (*CLOCKS, "folder")}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "command",
    [
        ("solve", "paper", "--sample", "--max-iterations", "2"),
        ("frontier", "paper", "--limit", "utility", "--tol", "0.05"),
        ("compare", "paper", "--methods", "pmd-pd,crpo", "--max-iterations", "5"),
    ],
)
def test_a_command_prints_the_same_on_a_cluster(workers, command):
    here, there = (run(*command, "--json", *more) for more in ((), ("--cluster", "local")))
    assert here.exit_code == there.exit_code
    assert timeless(json.loads(there.output)) == timeless(json.loads(here.output))


@pytest.mark.slow
def test_training_and_its_evaluation_on_a_cluster(workers, tmp_path):
    found = []
    for place, more in (("here", ()), ("there", ("--cluster", "local"))):
        folder = tmp_path / place
        trained = run("train", *ACROBOT, *SMALL, "--out", folder, "--json", *more)
        judged = run("evaluate", folder, "--episodes", "8", "--json", *more)
        found.append([timeless(json.loads(output.output)) for output in (trained, judged)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_figure_on_a_cluster(workers, tmp_path):
    for place, more in (("here", ()), ("there", ("--cluster", "local"))):
        assert run("reproduce", "fig1", "--quick", "--seeds", "1", "--out", tmp_path / place, *more).exit_code == 0
    data = [{file.name: file.read_bytes() for file in (tmp_path / p).glob("*.csv")} for p in ("here", "there")]
    assert data[0] == data[1] != {}


SPEC = """
subject = "paper"
seeds = 2
iterations = 4
[methods.pmd-pd]
[methods.slow]
method = "npg-pd"
[grid]
eta_dual = [0.1, 1.0]
[options]
step = 1.0
[sampling]
rollouts = 2
"""


@pytest.fixture
def spec(tmp_path):
    def write(text=SPEC, name="spec.toml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_sweep_from_a_file(workers, spec, tmp_path):
    here = run("sweep", spec(), "--out", tmp_path / "here", "--json")
    there = run("sweep", spec(), "--out", tmp_path / "there", "--json", "--cluster", "local")
    assert here.exit_code == there.exit_code == 0
    assert timeless(json.loads(there.output)) == timeless(json.loads(here.output))
    methods = {"pmd-pd": "pmd-pd", "slow": "npg-pd"}
    given = {"grid": {"eta_dual": [0.1, 1.0]}, "seeds": 2, "iterations": 4, "step": 1.0}
    direct = ck.sweep(ck.problems.paper(), methods, out=tmp_path / "direct", sampling=ck.Sampling(rollouts=2), **given)
    rows = json.loads(here.output)["runs"]
    assert [row["objective"] for row in rows] == [run.objective for run in direct.runs]
    assert json.loads(here.output)["best"] == {"method": direct.best.method, "settings": direct.best.settings}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("iterations", "iteration"), "unknown entry 'iteration'"),
        (('subject = "paper"', ""), "has no entry 'subject'"),
        (('subject = "paper"', "subject = 3"), "subject must be a text"),
        (("seeds = 2", "seeds = "), "not readable as TOML"),
        (("seeds = 2", "grid = 3"), "not readable as TOML"),
        (('[methods.pmd-pd]\n[methods.slow]\nmethod = "npg-pd"', ""), "has no entry 'methods'"),
    ],
)
def test_specs_that_are_wrong_are_refused(spec, tmp_path, change, message):
    file = spec(SPEC.replace(*change))
    found = CliRunner().invoke(cli, ["sweep", str(file), "--out", str(tmp_path / "out")])
    assert isinstance(found.exception, ValueError)
    assert message in str(found.exception)
    assert not (tmp_path / "out").exists()


def test_a_spec_may_be_json_and_needs_a_folder(spec):
    file = spec(json.dumps({"subject": "paper", "methods": ["npg-pd"]}), "spec.json")
    found = CliRunner().invoke(cli, ["sweep", str(file)])
    assert "has no entry 'out'" in str(found.exception)


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_cluster(tmp_path):
    """A process of its own, which starts a private cluster: nothing of it is left."""
    command = ["solve", "paper", "--sample", "--max-iterations", "100000", "--cluster", "local", "--json"]
    free = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cmdpkit", *command, "--checkpoint", str(tmp_path / "run.npz")],
        stdout=subprocess.PIPE,
        text=True,
        env=free | {"TMPDIR": str(tmp_path)},
    )
    for _ in range(1_200):
        if (tmp_path / "run.npz").exists() or process.poll() is not None:
            break
        psutil.wait_procs([psutil.Process(process.pid)], timeout=0.1)
    others = psutil.Process(process.pid).children(recursive=True)
    assert len(others) >= 4
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=90)[0]
    assert process.returncode == 1
    assert json.loads(output)["status"] == "interrupted"
    _, alive = psutil.wait_procs(others, timeout=20)
    assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not list(tmp_path.glob("cmdpkit-*"))
