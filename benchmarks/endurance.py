"""Endurance: `python benchmarks/endurance.py` kills runs, damages files and watches memory; one line per finding.

- **Kills.** Runs of `cmdpkit solve --checkpoint` (exact and from samples) and of `cmdpkit train` are killed at moments
  spread over the whole run and while a file is being written, and are started again until they end. All their files
  must equal those of a run that was left alone, bit for bit, except for times.
- **Files.** Each kind of file is cut at every byte, and bytes of it are flipped. A reader must answer with a ValueError
  that names the file, or return what was saved.
- **Memory.** All solvers run over and over in one process. Its memory is recorded once a minute (on Linux).

Options: --kills 100 --kinds exact sampled neural --flips 2000 --minutes 60 --seed 0; a part with 0 is left out.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cmdpkit as ck
from cmdpkit.files import load_tensors
from cmdpkit.model import Pairs
from cmdpkit.policy import load_policy

KINDS = ("exact", "sampled", "neural")
ACROBOT = "cmdpkit/ConstrainedAcrobot-v0"
TRAINING = "--limit 5 --limit 5 --seed 3 --hidden 16,16 --steps 40 --num-envs 4 --normalise --iterations 24"
RUNS = {
    "exact": [
        "solve paper --method npg-pd --tol 0 --max-iterations 1500",
        "solve two_queues --set capacity=70 --set gamma=0.999 --method pmd-pd",
        "solve garnet --set states=3000 --set gamma=0.99 --method crpo --max-iterations 80",
        "solve paper --method pmd-pd --step 1 --tol 1e-7 --inner-steps 2 --max-iterations 600",
    ],
    "sampled": [
        f"solve paper --sample --estimator {estimator} --max-iterations 150 --seed 7"
        for estimator in ("truncated", "geometric", "pooled")
    ],
    "neural": [f"train {ACROBOT} {TRAINING} --method {method}" for method in ("pmd-pd", "crpo")],
}
"""Command lines of the runs to kill."""

SAVING_ALWAYS = "import cmdpkit.run.checkpoint as c; c.SECONDS = 0.0; from cmdpkit.cli import main; main()"
"""The command line, with checkpoints as often as a twentieth of the time allows."""

STARTING = 0.2
"""Part of the kills that come before the first checkpoint; the others are spread over the rest of the run."""

ENDED = "ended before the kill"

TIMES = {"time", "row_time", "history_time", "folder"}
"""Entries of files that two equal runs do not share."""


# -- kills -------------------------------------------------------------------------------------------------------------


def kills(count: int, kinds: list[str], seed: int) -> Iterator[str]:
    """Kill runs `count` times, and compare what is left when they end with a run that was left alone."""
    rng = random.Random(seed)
    tally: Counter[str] = Counter()
    for i, kind in enumerate(kinds):
        share = count // len(kinds) + (i < count % len(kinds))
        moments = [(j + rng.random()) / share for j in range(share)]  # spread evenly, in parts of the run
        rng.shuffle(moments)
        with tempfile.TemporaryDirectory() as folder:
            yield from _kill_runs(kind, moments, Path(folder), rng, tally)
    yield "kills: " + ", ".join(f"{number} {what}" for what, number in sorted(tally.items()))


def _kill_runs(kind: str, moments: list[float], folder: Path, rng: random.Random, tally: Counter[str]) -> Iterator[str]:
    duration: dict[int, tuple[float, float]] = {}  # seconds until the first checkpoint, and until the end
    while moments:
        which = rng.randrange(len(RUNS[kind])) if len(duration) == len(RUNS[kind]) else len(duration)
        whole, killed = folder / f"whole {which}", folder / "killed"
        if which not in duration:
            start, process = time.perf_counter(), _launch(kind, which, whole)
            while process.poll() is None and not _has_checkpoint(whole):
                time.sleep(0.002)
            saved = time.perf_counter() - start
            code, errors = _finish(process)
            duration[which] = saved, time.perf_counter() - start
            if code > 1:
                yield f"finding: {RUNS[kind][which]} ended with code {code}: {errors[-300:]}"
                return
        shutil.rmtree(killed, ignore_errors=True)
        for _ in range(min(len(moments), rng.choice([1, 1, 2, 3]))):
            moment = moments.pop()
            wait = float(np.interp(moment, [0.0, STARTING, 1.0], [0.0, *duration[which]]))
            phase = _kill(_launch(kind, which, killed), killed, wait, rng.random() < 0.3)
            tally[f"{kind} {phase}"] += 1
            if phase == ENDED:  # not a kill: try an earlier moment
                moments.append(0.8 * moment)
                break
        code, errors = _finish(_launch(kind, which, killed))
        tally[f"{kind} resumed to the end"] += 1
        if code > 1:
            yield f"finding: {RUNS[kind][which]} could not be resumed, code {code}: {errors[-300:]}"
        else:
            for what in differences(whole, killed):
                yield f"finding: {RUNS[kind][which]}, killed last at {moment:.3f}: {what}"


def _launch(kind: str, which: int, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    places = ["--out", str(folder / "run")]
    if kind != "neural":
        places = ["--out", str(folder / "policy.npz"), "--checkpoint", str(folder / "checkpoint.npz")]
    line = [sys.executable, "-c", SAVING_ALWAYS, *RUNS[kind][which].split(), *places]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors


def _kill(process: subprocess.Popen[str], folder: Path, wait: float, in_writing: bool) -> str:
    """Kill after `wait` seconds, or while a file is written after that; tell in which phase the run was."""
    before = _unfinished(folder)
    due, latest = time.perf_counter() + wait, time.perf_counter() + wait + 10.0
    while process.poll() is None and (time.perf_counter() < due or in_writing):
        if time.perf_counter() >= due and (_unfinished(folder) - before or time.perf_counter() > latest):
            break
        time.sleep(0.0002 if in_writing else 0.002)
    over = process.poll() is not None
    process.kill()
    _finish(process)
    if over:
        return ENDED
    if _unfinished(folder) - before:
        return "killed while writing a file"
    return "killed after a checkpoint" if _has_checkpoint(folder) else "killed before the first checkpoint"


def _has_checkpoint(folder: Path) -> bool:
    return any(path.name.startswith("checkpoint.") for path in folder.rglob("*"))


def _unfinished(folder: Path) -> set[Path]:
    return set(folder.rglob(".*.tmp"))


def differences(one: Path, other: Path) -> Iterator[str]:
    """What the files of two runs do not share, times apart."""
    names = [
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"}
        for folder in (one, other)
    ]
    for name in sorted(names[0] ^ names[1]):
        yield f"only one run has written {name}"
    for name in sorted(names[0] & names[1]):
        mine, theirs = content(one / name), content(other / name)
        for entry in sorted((mine.keys() | theirs.keys()) - TIMES):
            if not _same(mine.get(entry), theirs.get(entry)):
                yield f"{entry} of {name} differs"


def content(path: Path) -> dict[str, Any]:
    """The entries of a file of a run."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        return load_tensors(path, "cmdpkit checkpoint")
    if path.suffix == ".csv":
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
        return {name: column for name, *column in zip(*rows, strict=True)}
    return dict(json.loads(path.read_text()))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)


# -- files -------------------------------------------------------------------------------------------------------------


class Specimen:
    """A file, the function that reads it, and what it should read."""

    def __init__(self, name: str, path: Path, read: Callable[[Path], Any]) -> None:
        self.name, self.path, self.read = name, path, read
        self.content = path.read_bytes()
        self.saved = fingerprint(read(path))

    def verdict(self, damaged: bytes) -> str:
        """What the reader does with other bytes: "refused", "same", or a finding."""
        self.path.write_bytes(damaged)
        try:
            found = self.read(self.path)
        except ValueError as error:
            return "refused" if str(self.path) in str(error) else f"the error does not name the file: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.path.write_bytes(self.content)
        return "same" if fingerprint(found) == self.saved else "other data were accepted"


def fingerprint(value: Any) -> Any:
    """A value that is equal for equal objects of the package."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "toarray"):
        return fingerprint(value.toarray())
    if isinstance(value, dict):
        return {key: fingerprint(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [fingerprint(item) for item in value]
    if isinstance(value, Pairs):
        return fingerprint([value.first, value.action, value.state_labels, value.action_labels])
    if hasattr(value, "__dict__"):  # names with an underscore are caches
        public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        return type(value).__name__, fingerprint(public)
    return repr(value)


def specimens(folder: Path) -> Iterator[Specimen]:
    """Small files of every kind."""
    cmdp = ck.problems.garnet(states=4, actions=2, constraints=1, gamma=0.8, successors=2, seed=1)
    cmdp.save(folder / "model.npz")
    yield Specimen("model", folder / "model.npz", ck.CMDP.load)
    result = ck.solve(cmdp)
    result.policy.save(folder / "policy.npz")
    yield Specimen("policy", folder / "policy.npz", load_policy)
    result.save(folder / "result.npz")
    yield Specimen("result", folder / "result.npz", ck.Result.load)

    settings: dict[str, Any] = {"max_iterations": 3, "tol": 0.0}

    def exact(path: Path) -> Any:
        return _lasting(ck.solve(cmdp, "pmd-pd", checkpoint=path, **settings))

    exact(folder / "exact.npz")
    yield Specimen("checkpoint of an exact run", folder / "exact.npz", exact)

    draws = ck.Sampling(rollouts=2, value_rollouts=2, horizon=5)

    def sampled(path: Path) -> Any:
        return _lasting(ck.solve(cmdp, "npg-pd", sampling=draws, checkpoint=path, max_iterations=2))

    learned = sampled(folder / "sampled.npz")
    yield Specimen("checkpoint of a sampled run", folder / "sampled.npz", sampled)
    learned["average_policy"].save(folder / "mixture.npz")
    yield Specimen("mixture", folder / "mixture.npz", load_policy)

    def neural(path: Path) -> Any:
        small: dict[str, Any] = {"hidden": [2], "steps": 5, "num_envs": 1, "iterations": 2}
        return _lasting(ck.train(ACROBOT, limits=[5, 5], out=path.parent, **small))

    neural(folder / "run" / "checkpoint.safetensors")
    yield Specimen("neural policy", folder / "run" / "policy.npz", ck.NeuralPolicy.load)
    yield Specimen("checkpoint of a neural run", folder / "run" / "checkpoint.safetensors", neural)


def _lasting(result: Any) -> dict[str, Any]:
    """What a resumed run must return again."""
    entries = {name: value for name, value in vars(result).items() if name not in TIMES and name != "model"}
    entries["history"] = {name: result.history[name] for name in result.history.columns if name != "time"}
    return entries


def files(flips: int, seed: int) -> Iterator[str]:
    """Cut every kind of file at every byte, and flip bytes of it."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for specimen in specimens(Path(folder)):
            yield from damage(specimen, rng, flips)


def damage(specimen: Specimen, rng: random.Random, flips: int, every: int = 1) -> Iterator[str]:
    """Cut the file at every byte, or at every few, and flip random bytes of it."""
    whole = specimen.content
    tally: Counter[str] = Counter()
    for length in range(0, len(whole), every):
        verdict = specimen.verdict(whole[:length])
        tally[f"cuts {verdict}"] += 1
        if verdict != "refused":
            yield f"finding: {specimen.name} cut to {length} of {len(whole)} bytes: {verdict}"
    for _ in range(flips):
        place, mask = rng.randrange(len(whole)), rng.randrange(1, 256)
        verdict = specimen.verdict(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
        tally[f"flips {verdict}" if verdict in ("refused", "same") else "flips with a finding"] += 1
        if verdict not in ("refused", "same"):
            yield f"finding: {specimen.name}, byte {place} of {len(whole)} xor {mask}: {verdict}"
    yield f"files: {specimen.name}: " + ", ".join(f"{number} {what}" for what, number in sorted(tally.items()))


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(minutes: float, seed: int, every: float = 60.0) -> Iterator[str]:
    """Solve models of all kinds for so many minutes, and report how memory grows after the first fifth of them."""
    start, rounds, records = time.perf_counter(), 0, []
    due = start + every
    with tempfile.TemporaryDirectory() as folder:
        while time.perf_counter() < start + 60.0 * minutes:
            for work in _workload(Path(folder), seed + rounds):
                work()
                now = time.perf_counter()
                if now >= due:
                    gc.collect()
                    due += every
                    records.append(((now - start) / 3600.0, _resident_megabytes()))
                    handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
                    yield (
                        f"memory: minute {(now - start) / 60.0:.1f}: {records[-1][1]:.1f} MB, {rounds} rounds, "
                        f"{handles} open files, {threads} threads"
                    )
            rounds += 1
    warm = np.array([record for record in records if record[0] >= minutes / 60.0 / 5.0])
    if len(warm) >= 3:
        slope = np.polyfit(warm[:, 0], warm[:, 1], 1)[0]
        first, last = warm[0, 1], warm[-1, 1]
        yield f"memory: {rounds} rounds, {slope:+.1f} MB an hour, from {first:.1f} to {last:.1f} MB"


def _workload(folder: Path, seed: int) -> Iterator[Callable[[], object]]:
    """One round: every learner, proofs, and files, on models that differ from round to round."""
    rng = np.random.default_rng(seed)
    models = [
        ck.problems.garnet(states=int(rng.integers(20, 60)), actions=3, constraints=2, gamma=0.9, seed=seed),
        ck.problems.garnet(states=int(rng.integers(300, 900)), actions=4, constraints=2, gamma=0.95, seed=seed),
        ck.problems.two_queues(capacity=int(rng.integers(10, 30)), gamma=0.99),
        ck.problems.paper(),
    ]
    models.append(models[0].tightened(1e3))  # infeasible
    for cmdp in models:
        for method in ("auto", "columns", "pmd-pd", "npg-pd", "crpo"):
            yield lambda cmdp=cmdp, method=method: ck.solve(cmdp, method, max_iterations=40, time_limit=20.0)
        yield lambda cmdp=cmdp: ck.certify(cmdp, ck.TabularPolicy.uniform(cmdp.states, cmdp.actions))
        yield lambda cmdp=cmdp: ck.slater_margin(cmdp)
        yield lambda cmdp=cmdp: ck.solve(
            cmdp, "pmd-pd", sampling=ck.Sampling(rollouts=1, value_rollouts=4, horizon=10), max_iterations=5, seed=seed
        )
        yield lambda cmdp=cmdp: _to_a_file_and_back(cmdp, folder)
    for cmdp in (models[0], models[1], models[3]):
        yield lambda cmdp=cmdp: ck.solve(cmdp, "lp", time_limit=20.0)
    yield lambda: ck.train(
        ACROBOT, limits=[5, 5], iterations=3, hidden=[16], steps=50, num_envs=4, seed=seed, out=folder / f"run {seed}"
    )
    yield lambda: shutil.rmtree(folder / f"run {seed}")


def _to_a_file_and_back(cmdp: ck.CMDP, folder: Path) -> None:
    cmdp.save(folder / "model.npz")
    model = ck.CMDP.load(folder / "model.npz")
    result = ck.solve(model, "crpo", max_iterations=5, checkpoint=folder / "checkpoint.npz")
    (folder / "checkpoint.npz").unlink()
    result.save(folder / "result.npz")
    ck.Result.load(folder / "result.npz")
    (folder / "model.npz").write_bytes((folder / "model.npz").read_bytes()[:-30])
    try:
        ck.CMDP.load(folder / "model.npz")
    except ValueError:
        return
    raise AssertionError("a file that was cut has been read")


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="number of kills")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="runs to kill")
    parser.add_argument("--flips", type=int, default=2_000, help="flipped bytes per kind of file; also cuts, unless 0")
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run that watches memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    parts: list[Iterator[str]] = []
    if options.kills:
        parts.append(kills(options.kills, options.kinds, options.seed))
    if options.flips:
        parts.append(files(options.flips, options.seed))
    if options.minutes:
        parts.append(memory(options.minutes, options.seed))
    findings = 0
    for part in parts:
        for line in part:
            print(line, flush=True)
            findings += line.startswith("finding")
    print(f"{findings} findings")
    sys.exit(findings > 0)


if __name__ == "__main__":
    main()
