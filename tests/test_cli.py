"""The command line: on a real terminal, in pipes, in files; its exit codes, its refusals and its JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit import cli
from cmdpkit.tables import Table
from models import two_state

DEADLINE = 60.0  # seconds that a program may take before a test gives up on it
ENDLESS = ("two_queues", "--method", "crpo", "--max-iterations", "100000000", "--tol", "0")
BAR, ESCAPE = "━", "\x1b"
STRAY = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONWARNINGS")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in STRAY} | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}


# -- running it ------------------------------------------------------------------------------------------------------


class Run:
    """What one call of the command line left behind."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        """stdout as one JSON document; NaN and Infinity are not JSON."""

        def refuse(token):
            raise AssertionError(f"{token} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def cmdpkit(monkeypatch, capsys):
    """The command line in this process: cmdpkit("solve", "paper") is a Run; no exception may leave main()."""
    for name in STRAY:
        monkeypatch.delenv(name, raising=False)
    # Click names the program after the main module where that is in a package, as under `python -m pytest`.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cmdpkit", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return Run(code, *capsys.readouterr())

    return call


def program(*arguments, **changes):
    """The command line as a program of its own, with pipes instead of a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "cmdpkit.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        **{"timeout": DEADLINE, "env": ENVIRONMENT} | changes,
    )
    return Run(done.returncode, done.stdout, done.stderr)


class Screen:
    """A terminal without scrolling that knows just enough to tell what is left to read at the end."""

    TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|(.)", re.DOTALL)

    def __init__(self, columns):
        self.columns, self.lines, self.x, self.y, self.cursor = columns, [""], 0, 0, True

    def show(self, text):
        for parameters, command, character in self.TOKEN.findall(text):
            if command:
                self._obey(parameters, command)
            elif character == "\r":
                self.x = 0
            elif character == "\n":
                self.y += 1
            else:
                assert character.isprintable(), f"what does {character!r} do?"
                if self.x == self.columns:  # a full line wraps when the next character comes, not before
                    self.x, self.y = 0, self.y + 1
                self._put(self._line()[: self.x].ljust(self.x) + character + self._line()[self.x + 1 :])
                self.x += 1
        return self

    def _line(self):
        self.lines += [""] * (self.y + 1 - len(self.lines))
        return self.lines[self.y]

    def _put(self, line):
        self.lines[self.y] = line

    def _obey(self, parameters, command):
        if command == "A":
            self.y = max(0, self.y - int(parameters or 1))
        elif command == "K" and parameters == "2":
            self._line()
            self._put("")
        elif (parameters, command) in (("?25", "h"), ("?25", "l")):
            self.cursor = command == "h"
        else:
            assert command == "m", f"what does ESC [{parameters}{command} do?"

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


class Terminal:
    """The command line on a pseudo-terminal that is its controlling one, so that Ctrl-C is a key like any other."""

    LAUNCH = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.executable, [sys.executable, '-m', 'cmdpkit.cli', *sys.argv[1:]])"
    )

    def __init__(self, *arguments, columns=80, stdout=None):
        self.columns, self.shown, self.deadline = columns, b"", time.monotonic() + DEADLINE
        self.keyboard, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.LAUNCH, *map(str, arguments)],
                stdin=screen,
                stdout=screen if stdout is None else stdout,
                stderr=screen,
                start_new_session=True,
                env=ENVIRONMENT,
            )
        finally:
            os.close(screen)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.keyboard)

    @property
    def text(self):
        return self.shown.decode(errors="replace")

    def _read(self):
        """Wait for more; False when the program has closed the terminal."""
        left = self.deadline - time.monotonic()
        ready, _, _ = select.select([self.keyboard], [], [], max(0.0, left))
        assert ready, f"nothing more within {DEADLINE:g} s after:\n{self.text}"
        try:
            more = os.read(self.keyboard, 65536)
        except OSError:  # Linux says EIO when the last program has closed the terminal
            more = b""
        self.shown += more
        return bool(more)

    def wait_for(self, pattern):
        while not re.search(pattern, self.text):
            assert self._read(), f"it ended without {pattern!r}:\n{self.text}"

    def press(self, keys):
        os.write(self.keyboard, keys)

    def finish(self):
        """Its exit code, and the screen as it is left."""
        while self._read():
            pass
        return self.process.wait(timeout=DEADLINE), Screen(self.columns).show(self.text)


def on_screen(*arguments, **settings):
    with Terminal(*arguments, **settings) as terminal:
        return *terminal.finish(), terminal.text


@pytest.fixture
def files(tmp_path):
    """Some models and policies to name on the command line."""
    good = two_state()
    good.save(tmp_path / "good.npz")
    two_state(limit=-1.0).save(tmp_path / "impossible.npz")
    ck.CMDP(good.transitions.reshape(2, 2, 2), reward=good.objective, gamma=0.9, initial=0).save(tmp_path / "free.npz")
    ck.TabularPolicy.uniform(2, 2).save(tmp_path / "uniform.npz")
    ck.TabularPolicy.uniform(3, 2).save(tmp_path / "large.npz")
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.npz").write_bytes(b"not a zip archive, not an array\n" * 20)
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "array.npy", np.eye(3))
    return tmp_path


# -- on a terminal ---------------------------------------------------------------------------------------------------


def test_a_terminal_shows_the_verdict_the_proof_and_the_constraint():
    code, screen, text = on_screen("solve", "paper")
    assert code == 0
    assert re.search(r"^OPTIMAL  ", screen.text)
    assert re.search(r"^objective +4\.46244364  maximised", screen.text, re.MULTILINE)
    assert re.search(r"^bound +4\.46244364  ", screen.text, re.MULTILINE)
    assert re.search(r"^utility +3 +>= 3 +0 +0\.24267$", screen.text, re.MULTILINE)
    assert re.search(r"^method auto, \d+ iterations?, ", screen.text, re.MULTILINE)
    assert "\x1b[1;32mOPTIMAL" in text  # in colour
    assert screen.cursor


@pytest.mark.parametrize("line", ["solve paper", "solve impossible.npz", "solve paper --max-iterations 0"])
def test_no_word_of_a_report_is_cut_at_80_columns(files, line):
    _, _, text = on_screen(*(files / word if word.endswith(".npz") else word for word in line.split()))
    report = re.sub(r"\x1b\[[0-9;]*m", "", text[re.search("OPTIMAL|INFEASIBLE|ITERATION LIMIT", text).start() :])
    assert "objective" in report
    assert not [part for part in report.splitlines() if len(part.rstrip()) > 80]


def test_the_list_of_problems_fits_80_columns():
    code, _, text = on_screen("problems")
    assert code == 0
    assert "inventory" in text
    assert not [line for line in text.splitlines() if len(line) > 80]


def test_a_long_run_shows_a_bar_that_moves_and_goes_away():
    code, screen, text = on_screen("solve", "two_queues", "--method", "crpo", "--max-iterations", 700)
    assert code == 1
    steps = [int(k) for k in re.findall(r"(\d+)/700", text)]
    assert len(set(steps)) >= 3
    assert steps == sorted(steps)
    assert BAR in text
    assert re.search(r"objective \d", text[: text.index("ITERATION LIMIT")])
    assert screen.text.startswith("ITERATION LIMIT")  # where the bar was
    assert BAR not in screen.text
    assert "/700" not in screen.text
    assert screen.cursor


def test_the_bar_is_on_stderr_and_leaves_stdout_to_the_json(tmp_path):
    with open(tmp_path / "out", "wb") as stdout:
        code, screen, text = on_screen(
            "solve", "two_queues", "--method", "crpo", "--max-iterations", 300, "--json", stdout=stdout
        )
    assert code == 1
    assert BAR in text
    assert screen.text == ""
    assert Run(code, (tmp_path / "out").read_text(), "").json["status"] == "iteration limit"


def test_without_a_terminal_there_is_no_bar_and_no_colour():
    run = program("solve", "two_queues", "--method", "crpo", "--max-iterations", 300)
    assert run.code == 1
    assert run.out.startswith("ITERATION LIMIT")
    assert ESCAPE not in run.out
    assert BAR not in run.out
    assert run.err == ""


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_ctrl_c_leaves_a_valid_partial_result(tmp_path, columns):
    policy = tmp_path / "policy.npz"
    with Terminal("solve", *ENDLESS, "--out", policy, columns=columns) as terminal:
        terminal.wait_for("objective [0-9]")
        terminal.press(b"\x03")
        code, screen = terminal.finish()
    assert code == 1
    assert "INTERRUPTED" in screen.text
    assert "Traceback" not in screen.text
    assert screen.cursor
    saved = json.loads((tmp_path / "policy.json").read_text())
    assert saved["status"] == "interrupted"
    assert saved["iterations"] >= 1
    certificate = ck.certify(ck.problems.two_queues(), ck.TabularPolicy.load(policy))
    assert certificate.objective == pytest.approx(saved["objective"], rel=1e-9)
    values = [constraint["value"] for constraint in saved["constraints"]]
    np.testing.assert_allclose(certificate.constraint_values, values, rtol=1e-9)
    assert certificate.bound >= saved["bound"] - 1e-6 * abs(saved["bound"])  # a cost: the best bound is the largest


@pytest.mark.parametrize("columns", [80, 200])
def test_ctrl_c_leaves_nothing_of_the_bar(columns):
    with Terminal("solve", *ENDLESS, columns=columns) as terminal:
        terminal.wait_for("objective [0-9]")
        terminal.press(b"\x03")
        _, screen = terminal.finish()
    assert BAR in terminal.text
    assert BAR not in screen.text
    assert "INTERRUPTED" in screen.text


def test_ctrl_c_leaves_a_whole_json_document(tmp_path):
    with open(tmp_path / "out", "wb") as stdout, Terminal("solve", *ENDLESS, "--json", stdout=stdout) as terminal:
        terminal.wait_for("objective [0-9]")
        terminal.press(b"\x03")
        code, _ = terminal.finish()
    assert code == 1
    assert Run(code, (tmp_path / "out").read_text(), "").json["status"] == "interrupted"


@pytest.mark.parametrize("columns", [20, 40, 300])
def test_narrow_and_wide_terminals(columns):
    code, screen, text = on_screen("solve", "paper", columns=columns)
    assert code == 0
    assert "OPTIMAL" in screen.text
    assert "Traceback" not in text
    if columns >= 40:
        assert "4.46244364" in text
        assert "0.24267" in text
    if columns == 300:
        assert re.search(r"^utility +3 +>= 3 +0 +0\.24267$", screen.text, re.MULTILINE)


def test_no_number_is_cut_on_a_narrow_terminal(tmp_path):
    """The terminal may break lines where it must, but every digit has to reach it."""
    ck.TabularPolicy.uniform(20, 10).save(tmp_path / "uniform.npz")
    code, _, text = on_screen("certify", "paper", tmp_path / "uniform.npz", columns=40)
    assert code == 1
    for number in ("2.41817365", "4.46244364", "2.47793", "-0.522", "0.24267"):
        assert number in text
    assert "…" not in text


# -- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "lp", "columns", "pmd-pd"])
def test_optimal_exits_0(cmdpkit, method):
    run = cmdpkit("solve", "paper", "--method", method)
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith("OPTIMAL  ")
    assert f"method {method}, " in run.out


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (("--max-iterations", 0), "ITERATION LIMIT"),
        (("--method", "columns", "--max-iterations", 1), "ITERATION LIMIT"),
        (("--method", "pmd-pd", "--max-iterations", 3), "ITERATION LIMIT"),
        (("--time-limit", 0), "TIME LIMIT"),
        (("--method", "crpo", "--tol", 0, "--max-iterations", 20_000, "--time-limit", 0.2), "TIME LIMIT"),
    ],
)
def test_a_budget_that_runs_out_exits_1(cmdpkit, arguments, verdict):
    run = cmdpkit("solve", "paper", *arguments)
    assert (run.code, run.err) == (1, "")
    assert run.out.startswith(f"{verdict}  ")


@pytest.mark.parametrize("method", ["auto", "lp", "columns", "pmd-pd", "crpo"])
def test_infeasible_exits_3(cmdpkit, files, method):
    run = cmdpkit("solve", files / "impossible.npz", "--method", method)
    assert (run.code, run.err) == (3, "")
    assert run.out.startswith("INFEASIBLE  ")
    assert "proof weight" in run.out
    assert "(violated)" in run.out


BAD_INPUT = {
    # what the user wrote -> what the message must name
    "solve missing.npz": "missing.npz",
    "solve half.npz": "half.npz",
    "solve noise.npz": "noise.npz",
    "solve empty.npz": "empty.npz",
    "solve array.npy": "array.npy",
    "solve .": "holds no model",
    "solve uniform.npz": "cmdpkit policy",
    "solve good.npz --method simplex": "'simplex' is not one of 'auto'",
    "solve good.npz --verbose": "--verbose",
    "solve good.npz --tol -1": "tol must not be negative",
    "solve good.npz --tol nan": "tol must be finite",
    "solve good.npz --tol inf": "tol must be finite",
    "solve good.npz --tol small": "'small' is not a valid float",
    "solve good.npz --max-iterations -1": "max_iterations must be at least 0",
    "solve good.npz --max-iterations 1.5": "'1.5' is not a valid integer",
    "solve good.npz --time-limit -1": "time_limit must not be negative",
    "solve good.npz --time-limit nan": "time_limit must be finite",
    "solve good.npz --step 1": "'step' for method 'auto'",
    "solve good.npz --method lp --alpha 1": "'alpha' for method 'lp'",
    "solve good.npz --method pmd-pd --dual-cap 3": "'dual_cap' for method 'pmd-pd'",
    "solve good.npz --method npg-pd --tolerance 0.1": "'tolerance' for method 'npg-pd'",
    "solve good.npz --method crpo --eta-dual 1": "'eta_dual' for method 'crpo'",
    "solve good.npz --method npg": "constraints",
    "solve good.npz --method pmd-pd --step 0": "step must be positive",
    "solve good.npz --method pmd-pd --step nan": "step must be finite",
    "solve good.npz --method pmd-pd --eta-dual -1": "eta_dual must be positive",
    "solve good.npz --method pmd-pd --inner-steps 0": "inner_steps must be at least 1",
    "solve good.npz --method pmd-pd --steps fixed --alpha -1": "alpha must not be negative",
    "solve good.npz --method npg-pd --dual-cap nan": "dual_cap",
    "solve good.npz --out nowhere/policy.npz": "nowhere",
    "solve good.npz --out good.npz/policy.npz": "good.npz",
    "solve good.npz --out .": "directory",
    "solve": "MODEL",
    "solve good.npz good.npz": "unexpected extra argument",
    "certify good.npz": "POLICY",
    "certify missing.npz uniform.npz": "missing.npz",
    "certify good.npz missing.npz": "missing.npz",
    "certify good.npz half.npz": "half.npz",
    "certify good.npz good.npz": "cmdpkit model",
    "certify uniform.npz uniform.npz": "cmdpkit policy",
    "certify good.npz large.npz": "3 states",
    "certify good.npz uniform.npz --tol -1": "tol must not be negative",
    "certify good.npz uniform.npz --tol nan": "tol",
    "certify good.npz uniform.npz --tol inf": "tol",
    "problems chess": "'chess'",
    "problems --out model.npz": "NAME",
    "problems --set gamma=0.5": "NAME",
    "problems garnet --set gamma": "KEY=VALUE",
    "problems garnet --set gamma=": "KEY=VALUE",
    "problems garnet --set gamma=high": "KEY=VALUE",
    "problems garnet --set states=[1,2": "KEY=VALUE",
    "problems garnet --set =3": "garnet",
    "problems garnet --set color=3": "'color'",
    "problems garnet --set gamma=1": "gamma must be in [0, 1)",
    "problems garnet --set states='few'": "states",
    "problems garnet --set states=1000000000000000": "memory",
    "problems two_queues --set arrivals=5": "arrivals",
    "problems paper --set gamma=0.9": "'gamma'",
    "problems garnet --out nowhere/model.npz": "nowhere",
    "problems garnet --out .": "directory",
    "train": "'env'",
    "learn": "'learn'",
}


@pytest.mark.parametrize("line", BAD_INPUT)
def test_bad_input_exits_2_with_one_line(cmdpkit, files, monkeypatch, line):
    monkeypatch.chdir(files)
    before = sorted(path.name for path in files.iterdir())
    run = cmdpkit(*line.split())
    assert run.code == 2
    assert run.out == ""
    *hint, error = run.err.splitlines()  # a wrong call is preceded by how to call it
    assert error.startswith("Error: ")
    assert BAD_INPUT[line].lower() in error.lower()
    assert not hint or [part.split()[0] for part in hint if part] == ["Usage:", "Try"]
    assert sorted(path.name for path in files.iterdir()) == before


def test_a_message_of_the_program_itself_is_no_traceback(files):
    run = program("solve", "half.npz", cwd=files)
    assert (run.code, run.out) == (2, "")
    assert re.fullmatch(r"Error: half\.npz .+\n", run.err)


def test_a_missing_folder_is_refused_before_solving(tmp_path):
    run = program("solve", *ENDLESS, "--out", tmp_path / "nowhere" / "policy.npz", timeout=5.0)
    assert run.code == 2
    assert re.fullmatch(r"Error: .*nowhere.*\n", run.err)


def test_a_folder_that_cannot_be_written_is_refused_before_solving(cmdpkit, monkeypatch, tmp_path):
    def locked(*_, **__):
        raise PermissionError(13, "Permission denied")

    def too_late(*_, **__):
        raise AssertionError("solved before the folder was looked at")

    monkeypatch.setattr(tempfile, "TemporaryFile", locked)
    monkeypatch.setattr("cmdpkit.solver.solve", too_late)
    run = cmdpkit("solve", "paper", "--out", tmp_path / "policy.npz")
    assert run.code == 2
    assert re.fullmatch(r"Error: cannot write .*policy\.npz.*Permission denied.*\n", run.err)


def test_no_command_shows_the_help_and_exits_2(cmdpkit):
    run = cmdpkit()
    assert run.code == 2
    assert "Usage: cmdpkit" in run.err
    assert all(command in run.err for command in cli.cli.commands)


# -- JSON and files --------------------------------------------------------------------------------------------------


def test_json_of_an_optimum(cmdpkit):
    run = cmdpkit("solve", "two_queues", "--json")
    assert (run.code, run.err) == (0, "")
    answer, truth = run.json, ck.solve(ck.problems.two_queues())
    assert answer["status"] == "optimal"
    assert answer["method"] == "auto"
    assert answer["objective"] == truth.objective
    assert answer["bound"] == truth.certificate.bound
    assert answer["gap"] == truth.certificate.gap <= 1e-6
    assert answer["violation"] == truth.certificate.violation <= 1e-6
    assert answer["iterations"] == truth.iterations
    assert answer["infeasibility"] is None
    assert [c["name"] for c in answer["constraints"]] == ["power", "length 2"]
    assert [c["limit"] for c in answer["constraints"]] == [1.0, 1.0]
    assert [c["sense"] for c in answer["constraints"]] == ["<=", "<="]
    assert [c["per_step"] for c in answer["constraints"]] == [True, True]
    assert [c["value"] for c in answer["constraints"]] == truth.constraint_values.tolist()
    assert [c["multiplier"] for c in answer["constraints"]] == truth.multipliers.tolist()


def test_json_of_an_infeasible_model(cmdpkit, files):
    run = cmdpkit("solve", files / "impossible.npz", "--json")
    assert (run.code, run.err) == (3, "")
    answer = run.json
    assert answer["status"] == "infeasible"
    assert answer["bound"] is None
    assert answer["gap"] is None
    assert answer["infeasibility"] == [1.0]
    assert answer["infeasibility_margin"] == pytest.approx(1.0)  # no risk at all is still 1 above the limit of -1
    (risk,) = answer["constraints"]
    assert (risk["name"], risk["limit"]) == ("risk", -1.0)
    assert risk["value"] >= 0.0
    assert risk["multiplier"] >= 0.0


@pytest.mark.parametrize("budget", [("--time-limit", 0), ("--max-iterations", 0)])
@pytest.mark.parametrize("method", ["auto", "columns", "pmd-pd", "npg-pd", "crpo"])
def test_json_when_nothing_is_proved_yet(cmdpkit, method, budget):
    run = cmdpkit("solve", "paper", "--method", method, *budget, "--json")
    assert (run.code, run.err) == (1, "")
    assert run.json["status"] == {"--time-limit": "time limit", "--max-iterations": "iteration limit"}[budget[0]]
    assert run.json["objective"] == pytest.approx(2.418173653850672)  # of the uniform policy
    assert set(run.json) >= {"bound", "gap", "constraints"}


def test_json_without_constraints(cmdpkit, files):
    run = cmdpkit("solve", files / "free.npz", "--json")
    assert run.code == 0
    assert run.json["constraints"] == []
    assert run.json["objective"] == pytest.approx(10.526315789473685)  # 2 / (1 - 0.81)


def test_json_of_the_program_itself():
    run = program("solve", "paper", "--json")
    assert (run.code, run.err) == (0, "")
    assert run.json["objective"] == pytest.approx(4.462443636256558, abs=1e-9)


@pytest.mark.parametrize("name", ["policy.npz", "policy", "my.policy.npz"])
def test_out_saves_the_policy_and_the_result_beside_it(cmdpkit, tmp_path, name):
    out = tmp_path / name
    run = cmdpkit("solve", "paper", "--out", out, "--json")
    assert run.code == 0
    beside = out.with_suffix(".json")
    assert sorted(tmp_path.iterdir()) == sorted([out, beside])
    assert json.loads(beside.read_text()) == run.json
    policy = ck.TabularPolicy.load(out)
    assert ck.certify(ck.problems.paper(), policy).optimal(1e-6)
    certified = cmdpkit("certify", "paper", out)
    assert (certified.code, certified.err) == (0, "")
    assert certified.out.startswith("optimal")


def test_out_says_where_the_files_are(cmdpkit, files):
    run = cmdpkit("solve", files / "good.npz", "--out", files / "policy.npz")
    assert run.code == 0
    assert str(files / "policy.npz") in run.out
    assert str(files / "policy.json") in run.out


def test_out_saves_what_was_found_when_the_budget_ran_out(cmdpkit, tmp_path):
    run = cmdpkit("solve", "paper", "--method", "pmd-pd", "--max-iterations", 3, "--out", tmp_path / "p.npz")
    assert run.code == 1
    saved = json.loads((tmp_path / "p.json").read_text())
    assert saved["status"] == "iteration limit"
    truth = ck.evaluate(ck.problems.paper(), ck.TabularPolicy.load(tmp_path / "p.npz"))
    assert truth.objective == pytest.approx(saved["objective"], rel=1e-9)


def test_out_named_json_does_not_lose_the_policy(cmdpkit, tmp_path):
    """The result is written as .json beside the policy; under the same name it would be written over it."""
    run = cmdpkit("solve", "paper", "--out", tmp_path / "answer.json")
    assert run.code == 2
    assert re.fullmatch(r"Error: .*answer\.json is the file of the policy \(\.npz\).*\n", run.err)
    assert not list(tmp_path.iterdir())


def test_out_never_overwrites_the_model(cmdpkit, files):
    model = files / "good.npz"
    before = model.read_bytes()
    run = cmdpkit("solve", model, "--out", model)
    assert model.read_bytes() == before
    assert run.code == 2
    assert run.err.startswith("Error: ")


def test_a_folder_named_like_a_problem_is_not_taken_for_a_model(cmdpkit, tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    monkeypatch.chdir(tmp_path)
    run = cmdpkit("solve", "paper")
    assert (run.code, run.err) == (0, "")
    assert "4.46244364" in run.out


def test_a_file_named_like_a_problem_is_read(cmdpkit, files, monkeypatch):
    (files / "good.npz").rename(files / "paper")
    monkeypatch.chdir(files)
    run = cmdpkit("solve", "paper", "--json")
    assert [c["name"] for c in run.json["constraints"]] == ["risk"]


@pytest.mark.parametrize("name", ["[bold]cost[/bold]", "load [kW]", "[/]", "[/red]", "a [link=x]b"])
def test_constraint_names_are_shown_as_they_are(cmdpkit, tmp_path, name):
    good = two_state()
    limits = [ck.AtMost(good.constraints[0].values, 2.0, name=name)]
    cmdp = ck.CMDP(good.transitions.reshape(2, 2, 2), reward=good.objective, constraints=limits, gamma=0.9, initial=0)
    cmdp.save(tmp_path / "model.npz")
    run = cmdpkit("solve", tmp_path / "model.npz")
    assert (run.code, run.err) == (0, "")
    assert re.search(rf"^{re.escape(name)} +2 +<= 2 +0 +0\.1\d*$", run.out, re.MULTILINE)


# -- certify ---------------------------------------------------------------------------------------------------------


def test_certify_a_policy_that_breaks_a_limit(cmdpkit, files):
    run = cmdpkit("certify", files / "good.npz", files / "uniform.npz")
    assert (run.code, run.err) == (1, "")
    assert run.out.startswith("violates a limit")
    assert re.search(r"^risk .*\(violated\)", run.out, re.MULTILINE)


def test_certify_a_safe_policy_that_is_not_optimal(cmdpkit, files):
    ck.TabularPolicy([[1.0, 0.0], [1.0, 0.0]]).save(files / "safe.npz")
    run = cmdpkit("certify", files / "good.npz", files / "safe.npz")
    assert (run.code, run.err) == (1, "")
    assert run.out.startswith("within the limits, not optimal")
    assert re.search(r"^objective +10  ", run.out, re.MULTILINE)
    assert re.search(r"^bound +10\.2  ", run.out, re.MULTILINE)
    assert cmdpkit("certify", files / "good.npz", files / "safe.npz", "--tol", 0.03).code == 0  # the gap is 0.02


def test_certify_on_an_infeasible_model(cmdpkit, files):
    run = cmdpkit("certify", files / "impossible.npz", files / "uniform.npz")
    assert (run.code, run.err) == (3, "")
    assert run.out.startswith("the limits cannot be met by any policy")
    machine = cmdpkit("certify", files / "impossible.npz", files / "uniform.npz", "--json")
    assert machine.code == 3
    assert machine.json["infeasibility"] == [1.0]
    assert machine.json["infeasibility_margin"] == pytest.approx(1.0)
    assert (machine.json["bound"], machine.json["gap"]) == (None, None)
    assert machine.json["feasible"] is machine.json["optimal"] is False


def test_certify_json(cmdpkit, files):
    cmdpkit("solve", files / "good.npz", "--out", files / "policy.npz")
    best = cmdpkit("certify", files / "good.npz", files / "policy.npz", "--json")
    assert (best.code, best.err) == (0, "")
    assert best.json["feasible"] is best.json["optimal"] is True
    assert best.json["objective"] == pytest.approx(10.2, abs=1e-5)
    assert best.json["multipliers"] == pytest.approx([0.1], abs=1e-6)
    uniform = cmdpkit("certify", files / "good.npz", files / "uniform.npz", "--json")
    assert uniform.code == 1
    truth = ck.certify(two_state(), ck.TabularPolicy.uniform(2, 2))
    assert uniform.json["objective"] == truth.objective
    assert uniform.json["bound"] == truth.bound
    assert uniform.json["gap"] == truth.gap
    assert uniform.json["violations"] == truth.violations.tolist()
    assert uniform.json["constraint_values"] == truth.constraint_values.tolist()
    assert uniform.json["feasible"] is uniform.json["optimal"] is False


# -- problems --------------------------------------------------------------------------------------------------------


def test_problems_lists_the_catalogue(cmdpkit):
    run = cmdpkit("problems")
    assert (run.code, run.err) == (0, "")
    lines = {line.split()[0]: line for line in run.out.splitlines() if line}
    for name, make in ck.problems.CATALOGUE.items():
        assert make.__doc__.strip().splitlines()[0][:40] in lines[name]
    assert list(cmdpkit("problems", "--json").json) == list(ck.problems.CATALOGUE)


@pytest.mark.parametrize("name", list(ck.problems.CATALOGUE))
def test_problems_describes_one(cmdpkit, name):
    run = cmdpkit("problems", name)
    make = ck.problems.CATALOGUE[name]
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith(name)
    assert make.__doc__.strip().splitlines()[0] in " ".join(run.out.split())
    assert repr(make()) in run.out
    assert cmdpkit("problems", name, "--json").json["name"] == name


def test_problems_writes_a_model(cmdpkit, tmp_path):
    file = tmp_path / "model.npz"
    settings = ("--set", "gamma=0.9", "--set", "capacity=3", "--set", "speeds=(0.0, 1.0)")
    run = cmdpkit("problems", "two_queues", *settings, "--out", file)
    assert (run.code, run.err) == (0, "")
    assert str(file) in run.out
    cmdp = ck.CMDP.load(file)
    assert (cmdp.gamma, cmdp.states, cmdp.actions) == (0.9, 16, 4)
    truth = ck.problems.two_queues(capacity=3, speeds=(0.0, 1.0), gamma=0.9)
    np.testing.assert_array_equal(cmdp.costs, truth.costs)
    solved = cmdpkit("solve", file, "--json")
    assert solved.json["objective"] == ck.solve(truth).objective
    assert cmdpkit("problems", "two_queues", "--out", file, "--json").json["file"] == str(file)


def test_set_changes_what_is_described(cmdpkit):
    assert "gamma=0.5)" in cmdpkit("problems", "garnet", "--set", "gamma=0.5").out.splitlines()[-1]


# -- help, versions, imports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", [None, *cli.cli.commands])
def test_help(cmdpkit, command, flag):
    run = cmdpkit(*([command] if command else []), flag)
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith(f"Usage: cmdpkit {command or '[OPTIONS]'}")
    flags = [] if command is None else [p.opts[0] for p in cli.cli.commands[command].params]
    expected = list(cli.cli.commands) if command is None else [flag for flag in flags if flag.startswith("-")]
    assert expected
    assert set(expected) <= set(run.out.split())
    assert not [line for line in run.out.splitlines() if len(line) > 80]


def test_the_help_says_what_the_exit_codes_mean(cmdpkit):
    text = " ".join(cmdpkit("--help").out.split())
    assert re.search(r"Exit codes: 0 optimal.* 1 .*limit.* 2 bad input.* 3 infeasible", text)


def test_no_summary_in_the_list_of_commands_is_cut(cmdpkit):
    run = cmdpkit("--help")
    commands = run.out[run.out.index("Commands:") :]
    assert all(name in commands for name in cli.cli.commands)
    assert "..." not in commands


def test_version(cmdpkit):
    run = cmdpkit("--version")
    first, second = run.out.splitlines()
    assert (run.code, first) == (0, f"cmdpkit, version {ck.__version__}")
    assert f"numpy {version('numpy')}, scipy {version('scipy')}" in second
    assert ck.__version__ == version("cmdpkit")


def test_the_script_is_installed():
    script = Path(sys.executable).with_name("cmdpkit")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=DEADLINE, env=ENVIRONMENT)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"cmdpkit, version {ck.__version__}")


def imported(code, *arguments):
    """Every module that is there after running some code in a new Python."""
    report = "import atexit, sys; atexit.register(lambda: print('modules:', *sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{report}; {code}", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=ENVIRONMENT,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].removeprefix("modules:").split())


@pytest.mark.parametrize("arguments", [("--help",), ("solve", "--help"), ("--version",)])
def test_help_imports_nothing_heavy(arguments):
    modules = imported("from cmdpkit.cli import main; main()", *arguments)
    assert "click" in modules
    assert not modules & {"numpy", "scipy", "rich", "torch", "matplotlib", "numba"}


def test_import_cmdpkit_imports_nothing_heavy():
    modules = imported("import cmdpkit")
    assert "cmdpkit" in modules
    assert not modules & {"torch", "matplotlib", "numba", "rich", "scipy.optimize"}


def test_the_model_and_the_solver_need_neither_plots_nor_tables():
    modules = imported("import cmdpkit; cmdpkit.CMDP, cmdpkit.solve, cmdpkit.certify")
    assert "cmdpkit.solver" in modules
    assert not modules & {"torch", "matplotlib", "rich", "click"}


# -- tables ----------------------------------------------------------------------------------------------------------

MACHINE = """\
state,action,next_state,probability,profit,wear
good,run,good,0.9,1,1
good,run,bad,0.1,1,1
good,rest,good,1,0,0
bad,repair,good,1,-2,0
"""


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "machine.csv"
    path.write_text(MACHINE)
    return path


@pytest.mark.parametrize(
    ("flags", "limit", "settings"),
    [
        (("gamma=0.9", "--limit", "wear<=4"), ck.AtMost("wear", 4.0), {"gamma": 0.9, "reward": "profit"}),
        (("horizon=6", "--limit", "wear >= 3.5"), ck.AtLeast("wear", 3.5), {"horizon": 6, "cost": "profit"}),
        (("average=True", "--limit", "wear==0.5"), ck.Equal("wear", 0.5), {"average": True, "reward": "profit"}),
        (("gamma=0.9", "--limit", "wear=1,2"), ck.Between("wear", 1.0, 2.0), {"gamma": 0.9, "reward": "profit"}),
    ],
)
def test_a_table_is_solved_as_from_table_reads_it(cmdpkit, machine, flags, limit, settings):
    objective = "reward=profit" if "reward" in settings else "cost=profit"
    run = cmdpkit("solve", machine, "--set", objective, "--initial", "good", "--json", "--set", *flags)
    by_hand = ck.CMDP.from_table(machine, initial="good", constraints=[limit], **settings)
    expected = ck.solve(by_hand)
    found = json.loads(run.out)
    assert run.code == 0
    assert found["objective"] == pytest.approx(expected.objective, abs=1e-6)
    assert expected.multipliers[0] != 0.0, "the limit binds"
    assert found["constraints"][0]["value"] == pytest.approx(expected.constraint_values[0], abs=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--set", "reward=profit"), "is a table, which does not say over which time to count: add --set gamma=0.9"),
        (("--set", "gamma=0.9"), "no column reward or cost; say which column is the objective"),
        (("--set", "gamma=0.9", "--set", "reward=profits"), "no column 'profits'; did you mean 'profit'"),
        (("--set", "gamma=0.9", "--set", "reword=profit"), "has no argument 'reword'; did you mean 'reward'"),
        (("--set", "gamma=0.9", "--limit", "wear=4"), "does not say on which side a limit is; write 'wear<=4'"),
        (("--set", "gamma=0.9", "--limit", "wear<=much"), "--limit 'wear<=much' must end in a number"),
        (("--set", "gamma=0.9", "--set", "reward=profit", "--limit", "ware<=4"), "did you mean 'wear'"),
    ],
)
def test_a_table_without_what_it_needs_is_refused(cmdpkit, machine, flags, message):
    run = cmdpkit("solve", machine, *flags)
    assert run.code == 2
    assert message in " ".join(run.err.split())


def test_a_table_where_a_file_of_the_package_is_needed_names_the_way_in(cmdpkit, machine):
    assert "read by CMDP.from_table" in cmdpkit("show", machine).err
    with pytest.raises(ValueError, match=r"read by CMDP\.from_table"):
        ck.CMDP.load(machine)


def test_a_table_is_certified_and_diagnosed(cmdpkit, machine, tmp_path):
    table = (machine, "--set", "gamma=0.9", "--set", "reward=profit", "--set", "initial=good")
    assert cmdpkit("solve", *table, "--limit", "wear<=4", "--out", tmp_path / "policy.npz").code == 0
    assert cmdpkit("certify", machine, tmp_path / "policy.npz", *table[1:], "--limit", "wear<=4").code == 0
    assert "'wear' cannot be met by any policy" in cmdpkit("diagnose", *table, "--limit", "wear<=-1").out


def test_the_frontier_of_a_table(cmdpkit, machine):
    table = (machine, "--set", "gamma=0.9", "--set", "reward=profit", "--set", "initial=good")
    run = cmdpkit("frontier", *table, "--limit", "wear<=4", "--limits", "2,4", "--json")
    by_hand = ck.CMDP.from_table(
        machine, reward="profit", initial="good", constraints=[ck.AtMost("wear", 4.0)], gamma=0.9
    )
    expected = ck.frontier(by_hand, "wear", [2.0, 4.0])
    assert run.code == 0
    found = [row["objective"] for row in json.loads(run.out)["points"]]
    assert found == pytest.approx(expected.objectives.tolist(), rel=1e-3)


def test_solve_is_logged_but_silent(capfd, caplog):
    ck.solve(ck.problems.paper())
    assert capfd.readouterr() == ("", "")
    with caplog.at_level("INFO", logger="cmdpkit"):
        ck.solve(ck.problems.paper())
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("solving CMDP(states=20")
    assert last.startswith("optimal after")
    assert "objective 4.4624" in last


# -- options ---------------------------------------------------------------------------------------------------------


def test_the_command_line_knows_every_method_and_option():
    """What the command line reads from the files is what the registry has, option by option."""
    from cmdpkit.cli.flags import catalogue
    from cmdpkit.rules.registry import methods

    read = {(e.name, e.steps): (e.learners, e.options) for e in catalogue()}
    registered = {(m.name, m.steps): (m.learners, m.options) for m in methods()}
    assert read.keys() == registered.keys()
    for key, (learners, options) in registered.items():
        assert read[key][0] == learners
        assert {n: (o.help, o.domain.words) for n, o in read[key][1].items()} == {
            n: (o.help, o.domain.words) for n, o in options.items()
        }
    for command, learner in (("solve", "exact"), ("train", "neural")):
        parsed = cli.cli.commands[command]
        flags: dict[Any, Any] = {parameter.name: parameter for parameter in parsed.get_params(click.Context(parsed))}
        known = [m for m in methods() if learner in m.learners]
        assert {m.name for m in known} <= set(flags["method"].type.choices)
        assert {name for m in known for name, o in m.options.items() if o.serves(learner)} <= flags.keys()


STEPS = {"step": 1.0, "eta_dual": 1.0}


@pytest.mark.parametrize(
    ("method", "options", "under_test"),
    [
        ("pmd-pd", STEPS, "step"),
        ("pmd-pd", STEPS, "eta_dual"),
        ("pmd-pd", STEPS | {"inner_steps": 3}, "inner_steps"),
        ("pmd-pd", STEPS | {"inner_steps": 3, "alpha": 0.7}, "alpha"),
        ("pmd-pd", {"schedule": "theory"}, "schedule"),
        ("pmd-pd-zero", STEPS | {"xi": 0.01}, "xi"),
        ("npg-pd", STEPS, "eta_dual"),
        ("npg-pd", STEPS | {"dual_cap": 0.1}, "dual_cap"),
        ("crpo", {"step": 1.0}, "step"),
        ("crpo", {"step": 1.0, "tolerance": 0.1}, "tolerance"),
        ("npg", {"step": 0.1}, "step"),
    ],
)
def test_every_option_reaches_the_solver(cmdpkit, tmp_path, method, options, under_test):
    cmdp = ck.problems.garnet(states=20, constraints=0 if method == "npg" else 1, gamma=0.8, seed=3)
    cmdp.save(tmp_path / "model.npz")
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    budget = {"tol": 0.0, "max_iterations": 60}
    run = cmdpkit(
        "solve", tmp_path / "model.npz", "--method", method, "--tol", 0, "--max-iterations", 60, *flags, "--json"
    )
    assert (run.code, run.err) == (1, "")
    truth = ck.solve(cmdp, method, **budget, **options)
    without = ck.solve(cmdp, method, **budget, **{name: v for name, v in options.items() if name != under_test})
    assert truth.objective != without.objective  # or the flag could be ignored unseen
    assert run.json["iterations"] == 60
    assert run.json["objective"] == truth.objective
    assert [c["value"] for c in run.json["constraints"]] == truth.constraint_values.tolist()
    assert [c["multiplier"] for c in run.json["constraints"]] == truth.multipliers.tolist()


def test_one_number_serves_all_constraints_and_several_are_one_each(cmdpkit):
    """A model with two constraints: 0.5 is the same as 0.5,0.5, and three numbers are too many."""
    assert ck.problems.garnet().num_constraints == 2
    line = ("solve", "garnet", "--method", "npg-pd", "--max-iterations", 2, "--tol", 0, "--json", "--eta-dual")
    one, two, other, three = (cmdpkit(*line, text) for text in ("0.5", "0.5,0.5", "0.5,9.0", "0.5,0.5,0.5"))
    assert one.code == two.code == other.code == 1
    assert one.json["constraints"] == two.json["constraints"] != other.json["constraints"]
    assert three.code == 2
    assert "each of the 2 constraints" in three.err


def test_the_run_of_the_paper(cmdpkit):
    flags = ("--step", 1, "--eta-dual", 1, "--max-iterations", 300, "--tol", 0)
    run = cmdpkit("solve", "paper", "--method", "pmd-pd", *flags, "--json")
    truth = ck.solve(ck.problems.paper(), "pmd-pd", tol=0.0, max_iterations=300, step=1.0, eta_dual=1.0)
    assert run.code == 1
    assert run.json["iterations"] == 300
    assert run.json["objective"] == truth.objective
    assert run.json["bound"] == truth.certificate.bound


def test_tol_reaches_the_solver(cmdpkit):
    loose = cmdpkit("solve", "paper", "--method", "pmd-pd", "--tol", "1e-2", "--json")
    tight = cmdpkit("solve", "paper", "--method", "pmd-pd", "--tol", "1e-6", "--json")
    assert (loose.code, tight.code) == (0, 0)
    assert loose.json["iterations"] < tight.json["iterations"]
    assert tight.json["gap"] <= 1e-6 < loose.json["gap"] <= 1e-2


def test_parameters_of_a_problem_reach_solve(cmdpkit, tmp_path):
    run = cmdpkit("solve", "garnet", "--set", "states=12", "--set", "constraints=1", "--json")
    assert run.code == 0
    assert run.json["objective"] == pytest.approx(ck.solve(ck.problems.garnet(states=12, constraints=1)).objective)
    two_state().save(tmp_path / "good.npz")
    refused = cmdpkit("solve", tmp_path / "good.npz", "--set", "states=12")
    assert refused.code == 2
    assert "--set is for built-in problems" in refused.err


def test_certify_names_its_constraints_in_json(cmdpkit, tmp_path):
    ck.TabularPolicy.uniform(20, 10).save(tmp_path / "uniform.npz")
    run = cmdpkit("certify", "paper", tmp_path / "uniform.npz", "--json")
    assert [(c["name"], c["limit"]) for c in run.json["constraints"]] == [("utility", 3.0)]


# -- limits, labels and starts ---------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path):
    """Two states with labels: working pays 1 and wears by 1; resting repairs. A limit of each kind."""
    P = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    wear = np.array([[0.0, 1.0], [0.0, 2.0]])
    limits = [
        ck.AtMost(wear, 2.0, name="wear"),
        ck.Equal(wear, 1.5, name="a=b"),
        ck.Between(wear, 1.0, 3.0, name="use"),
    ]
    cmdp = ck.CMDP(
        P,
        reward=[[0.0, 1.0], [-0.5, 1.0]],
        constraints=limits,
        gamma=0.8,
        initial="new",
        state_labels=["new", ("worn", 1)],
        action_labels=["rest", "work"],
        objective_name="profit",
    )
    cmdp.save(tmp_path / "shop.npz")
    return tmp_path / "shop.npz", cmdp


def test_limits_are_replaced_by_name(cmdpkit, shop):
    path, cmdp = shop
    found = cmdpkit("solve", path, "--limit", "a=b=1.2", "--limit", "use=0.5,1.3", "--json").json
    assert [c["limit"] for c in found["constraints"]] == [2.0, 1.2, [0.5, 1.3]]
    moved = [cmdp.constraints[0], cmdp.constraints[1].moved(1.2), cmdp.constraints[2].moved((0.5, 1.3))]
    assert found["objective"] == pytest.approx(ck.solve(cmdp._derived(moved)).objective, abs=1e-9)
    assert cmdpkit("solve", path, "--limit", "use=2,2.5").code == 3  # against the equality
    loose = cmdpkit("solve", "paper", "--limit", "utility=2.5", "--json").json
    assert loose["objective"] == pytest.approx(4.515866, abs=1e-6)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("power=1", "there is no constraint 'power'; the model has 'wear', 'a=b', 'use'"),
        ("wear", "--limit 'wear' must be NAME=VALUE"),
        ("wear=little", "--limit 'wear=little' must be NAME=VALUE"),
        ("wear=1,2", "the limit of constraint 'wear' is one number, not (1.0, 2.0)"),
        ("use=1", "the limit of constraint 'use' is (low, high), not 1.0"),
        ("use=2,1", "low of constraint 'use' is 2, above high"),
        ("wear=nan", "must be finite"),
        ("wear<=1", "--limit 'wear<=1': the model says on which side 'wear' is limited; write 'wear=1'"),
    ],
)
def test_wrong_limits_exit_2(cmdpkit, shop, limit, words):
    run = cmdpkit("solve", shop[0], "--limit", limit)
    assert run.code == 2
    assert words in run.err
    assert run.err.count("\n") == 1


def test_help_says_what_an_option_means_to_each_method(cmdpkit):
    trained, solved = (" ".join(cmdpkit(command, "--help").out.split()) for command in ("train", "solve"))
    assert "augmented-lagrangian, npg-pd, pmd-pd, rcpo: Dual step. [default: 0.0005]" in trained
    assert "focops: Dual step, per unit of violation. [default: 0.01]" in trained
    assert "pid-lagrangian: Integral gain. [default: 0.0005]" in trained
    assert "rcpo: Largest multiplier. [default: 1000000.0]" in trained
    assert "pid-lagrangian: Integral gain; the default follows the model's scale." in solved


def test_tables_break_neither_numbers_nor_words(cmdpkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    columns = {f"quantity {i}": [123.456 + i] for i in range(9)} | {"status": ["failed: " + 40 * "x"]}
    monkeypatch.setattr("cmdpkit.insight.league.Comparison.table", lambda _: Table(columns))
    shown = cmdpkit("compare", "paper", "--methods", "auto").out.split()
    assert {f"{123.456 + i:.6g}" for i in range(9)} <= set(shown)
    assert shown.count("quantity") == 9
    assert "".join(word for word in shown if set(word) == {"x"}) == 40 * "x"  # what is long is folded, not cut


def test_what_is_given_twice_is_refused(cmdpkit, shop, machine):
    for flags, words in (
        (("--limit", "wear=1", "--limit", "wear=2"), "--limit wear=... was given twice"),
        (("--unit", "wear=1", "--unit", "wear=2"), "--unit wear=... was given twice"),
    ):
        run = cmdpkit("diagnose", shop[0], *flags)
        assert (run.code, words in run.err) == (2, True)
    table = ("solve", machine, "--set", "reward=profit", "--set", "gamma=0.9")
    assert "--set gamma=... was given twice" in cmdpkit(*table, "--set", "gamma=0.8").err
    assert "the initial state was given twice" in cmdpkit(*table, "--set", "initial=good", "--initial", "bad").err
    assert (
        "--set states=... was given twice"
        in cmdpkit("problems", "garnet", "--set", "states=3", "--set", "states=4").err
    )
    averages = ("solve", machine, "--set", "reward=profit", "--average", "--json")
    twice = cmdpkit(*averages, "--set", "average=True").json  # says the same
    assert twice["objective"] == cmdpkit(*averages).json["objective"]


def test_nothing_is_written_over_the_model_or_over_each_other(cmdpkit, machine, tmp_path):
    table = (machine, "--set", "reward=profit", "--set", "gamma=0.9", "--limit", "wear<=4")
    for run in (
        cmdpkit("frontier", *table, "--csv", machine),
        cmdpkit("report", *table, "--out", machine),
    ):
        assert run.code == 2
        assert "would overwrite the model" in run.err
    both = tmp_path / "both.png"
    assert "--csv and --plot name the same file" in cmdpkit("frontier", *table, "--csv", both, "--plot", both).err
    assert machine.read_text() == MACHINE


def test_a_report_of_a_saved_result_takes_no_flags_of_a_model(cmdpkit, tmp_path):
    saved, out = tmp_path / "run.npz", tmp_path / "report.html"
    ck.solve(ck.problems.paper()).save(saved)
    for flag, value in (("--limit", "utility=2"), ("--set", "gamma=0.5"), ("--initial", "3"), ("--tol", "1e-3")):
        run = cmdpkit("report", saved, "--out", out, flag, value)
        assert run.code == 2
        assert f"is a saved result, which is reported as it is: leave out {flag}" in run.err
    assert not out.exists()


def test_certify_takes_parameters_and_limits(cmdpkit, shop, tmp_path):
    path, out = shop[0], tmp_path / "policy.npz"
    assert cmdpkit("solve", path, "--limit", "a=b=1.2", "--out", out).code == 0
    assert cmdpkit("certify", path, out, "--limit", "a=b=1.2").code == 0
    assert cmdpkit("certify", path, out).code == 1
    assert cmdpkit("solve", "wireless", "--set", "gamma=0.5", "--out", out).code == 0
    assert cmdpkit("certify", "wireless", out, "--set", "gamma=0.5").code == 0
    assert cmdpkit("certify", "wireless", out).code != 0


def test_labels_show_the_policy(cmdpkit, shop):
    path, cmdp = shop
    policy = ck.solve(cmdp).policy.probabilities
    text = cmdpkit("solve", path, "--labels").out
    table = text[text.index("state") :].splitlines()
    assert table[0].split() == ["state", "action", "probability"]
    assert {line.split()[0] for line in table[1:]} == {"new", "('worn',"}
    assert "profit" in text
    rows = cmdpkit("solve", path, "--json", "--labels").json["policy"]
    for row in rows:
        s, a = ["new", ["worn", 1]].index(row["state"]), ["rest", "work"].index(row["action"])
        assert row["probability"] == pytest.approx(policy[s, a], abs=1e-9)
    assert sum(row["probability"] for row in rows) == pytest.approx(2.0)
    numbers = cmdpkit("solve", "paper", "--json", "--labels").json["policy"]
    assert {row["state"] for row in numbers} == set(range(20))


def test_a_long_policy_is_not_shown_whole(cmdpkit):
    run = cmdpkit("solve", "garnet", "--set", "states=100", "--labels")
    assert run.code == 0
    assert re.search(r"\.\.\. \d+ more rows? of \d+", run.out)


def test_the_start_by_label_or_number(cmdpkit, shop):
    path, cmdp = shop
    limits = ["--limit", "a=b=2.0"]
    worn = cmdpkit("solve", path, *limits, "--initial", "('worn', 1)", "--json").json
    moved = [cmdp.constraints[0], cmdp.constraints[1].moved(2.0), cmdp.constraints[2]]
    wanted = ck.solve(cmdp._derived(moved).started_in(1)).objective
    assert worn["objective"] == pytest.approx(wanted, abs=1e-9)
    assert wanted != pytest.approx(ck.solve(cmdp._derived(moved)).objective, abs=1e-3)
    assert "there is no state 'old'; the states are 'new'" in cmdpkit("solve", path, "--initial", "old").err
    assert cmdpkit("solve", "paper", "--initial", "3").code == 0
    assert "state 20 is not one of 0 to 19" in cmdpkit("solve", "paper", "--initial", "20").err


# -- what ends well exits 0 --------------------------------------------------------------------------------------------


def test_learning_that_is_completed_exits_0(cmdpkit):
    learning = ("solve", "paper", "--sample", "--rollouts", "2", "--value-rollouts", "10")
    assert cmdpkit(*learning, "--max-iterations", "2").code == 0
    assert cmdpkit(*learning, "--max-iterations", "2", "--budget", "50").code == 1
    assert cmdpkit(*learning, "--time-limit", "0").code == 1
    assert cmdpkit("solve", "paper", "--method", "npg-pd", "--max-iterations", "2").code == 1


def test_reproduce_without_names_lists_the_experiments(cmdpkit, tmp_path, monkeypatch):
    from cmdpkit.experiments.reproduce import EXPERIMENTS, SLOW

    monkeypatch.chdir(tmp_path)
    run = cmdpkit("reproduce")
    assert run.code == 0
    assert [line.split()[0] for line in run.out.splitlines() if line[:1].strip()][:-2] == list(EXPERIMENTS)
    assert all(name in run.out.splitlines()[-1] for name in SLOW)
    assert max(map(len, run.out.splitlines())) <= 80
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["", *cli.cli.commands])
def test_no_word_of_a_help_text_is_broken(cmdpkit, monkeypatch, command, columns):
    """Lines fit, names with hyphens and defaults stay whole, and every word is one that was written."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = cmdpkit(*command.split(), "--help").out
    assert max(map(len, text.splitlines())) <= columns
    assert not [line for line in text.splitlines() if line.endswith("-")]
    assert columns < 80 or text.count("[default: ") == text.count("[default:")
    monkeypatch.setenv("COLUMNS", "1000")
    wide = cmdpkit(*command.split(), "--help").out
    assert set(text.split()) == set(wide.split())


def test_frontier_on_the_command_line(cmdpkit, tmp_path):
    csv = tmp_path / "curve.csv"
    answer = cmdpkit("frontier", "paper", "--limit", "utility", "--limits", "2.5,3,6", "--csv", str(csv), "--json")
    assert answer.code == 0
    points = answer.json["points"]
    assert [point["feasible"] for point in points] == [True, True, False]
    assert points[1]["lower"] <= 4.462444 <= points[1]["upper"] + 1e-6
    assert len(csv.read_text().splitlines()) == 4
    assert f"written to {csv}" in answer.err
    plot = tmp_path / "curve.png"
    assert f"written to {plot}" in cmdpkit("frontier", "paper", "--limit", "utility", "--plot", str(plot)).err
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "infeasible" in cmdpkit("frontier", "paper", "--limit", "utility", "--limits", "6").out
    assert cmdpkit("frontier", "paper", "--limit", "power").code == 2
    assert "its values are given by --limits 3" in cmdpkit("frontier", "paper", "--limit", "utility=3").err


def test_diagnose_on_the_command_line(cmdpkit, files):
    assert cmdpkit("diagnose", "paper").code == 0
    answer = cmdpkit("diagnose", "paper", "--json")
    assert answer.json["binding"] == pytest.approx({"utility": 0.24267}, abs=1e-5)
