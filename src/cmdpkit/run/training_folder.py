"""The folder of a training run: its identity, checkpoint, log, policies and result, written and read back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.checks import check_flag
from cmdpkit.files import PathLike, load_tensors, save_tensors, write_csv, write_json
from cmdpkit.run.checkpoint import Checkpoint
from cmdpkit.run.history import OTHER_NAMES, History
from cmdpkit.run.result import TrainingResult, recent
from cmdpkit.run.status import Status

if TYPE_CHECKING:
    from cmdpkit.learners.neural.policy import NeuralPolicy

IDENTITY, CHECKPOINT, LOG, RESULT = "run.json", "checkpoint.safetensors", "log.csv", "result.json"
POLICY, BEST_POLICY = "policy.npz", "best_policy.npz"

NUMBERS = "numbers in the code of the environment"
"""An entry of the identity that runs of earlier versions do not have."""


def check_run_folder(out: PathLike | None, resume: bool | None, tensorboard: bool) -> Path | None:
    """The folder of a run, which holds one if it is to be resumed, and none if it must be new."""
    if resume is not None:
        check_flag(resume, "resume")
    if out is None:
        if resume is not None or tensorboard:
            raise ValueError(f"{'tensorboard' if tensorboard else 'resume'} needs out, the folder of the run")
        return None
    folder = Path(out)
    checkpoint = folder / CHECKPOINT
    if resume and not checkpoint.exists() and not (folder / IDENTITY).exists():
        raise FileNotFoundError(f"there is no run in {folder} to resume")
    if resume is False and checkpoint.exists():
        raise FileExistsError(f"{folder} already holds a run; resume it, or choose another folder")
    return folder


def checkpoint_in(folder: Path | None, identity: dict[str, Any]) -> Checkpoint:
    if folder is None:
        return Checkpoint(None, identity)
    folder.mkdir(parents=True, exist_ok=True)
    return Checkpoint(folder / CHECKPOINT, identity, save_tensors, load_tensors, (NUMBERS,))


def write_progress(folder: Path, history: History, policy: NeuralPolicy) -> None:
    _write_log(folder / LOG, history)
    policy.save(folder / POLICY)


def write_result(folder: Path, result: TrainingResult) -> None:
    write_progress(folder, result.history, result.policy)
    if result.best_policy is not None:
        result.best_policy.save(folder / BEST_POLICY)
    write_json(folder / RESULT, result.to_dict())


def load_run(folder: PathLike) -> TrainingResult:
    """The result of a run that was written to a folder by `train(..., out=folder)`."""
    place = Path(folder)
    if not (place / IDENTITY).exists():
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no {IDENTITY}")
    from cmdpkit.learners.neural.policy import NeuralPolicy

    try:
        about = json.loads((place / RESULT).read_text())
        history = _read_log(place / LOG)
        limits, reward, costs = np.array(about["limits"], dtype=float), *recent(history)
        return TrainingResult(
            status=Status(about["status"]),
            policy=NeuralPolicy.load(place / POLICY),
            best_policy=None if about.get("best") is None else NeuralPolicy.load(place / BEST_POLICY),
            best=about.get("best"),
            objective=reward,
            constraint_values=costs,
            violations=np.maximum(costs - limits, 0.0),
            multipliers=np.array(about["multipliers"], dtype=float),
            history=history,
            verdicts={str(name): int(count) for name, count in about["verdicts"].items()},
            limits=limits,
            measure=str(about["measure"]),
            method=str(about["method"]),
            message=str(about["message"]),
            iterations=len(history),
            samples=int(about["samples"]),
            time=float(about["time"]),
            folder=place,
        )
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{folder}: the run has not been finished or saved ({error.filename} is missing)"
        ) from None
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{folder} does not hold a readable run: {error}") from error


def _write_log(path: Path, history: History) -> None:
    """Write the history as CSV: one row per iteration, one column per number."""
    names = {new: old for old, new in OTHER_NAMES.items()}  # the log uses the names reward, costs and steps
    columns: dict[str, Any] = {"iteration": range(1, len(history) + 1)}
    for column in history.columns:
        table, name = history[column], names.get(column, column)
        columns |= {name: table} if table.ndim == 1 else {f"{name}_{i}": table[:, i] for i in range(table.shape[1])}
    write_csv(path, columns)


def _read_log(path: Path) -> History:
    """Read what `_write_log` wrote."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError("its log has no rows")
    columns: dict[str, Any] = {}
    for name in rows[0]:
        if name == "iteration":
            continue
        texts = [row[name] for row in rows]
        stem, _, place = name.rpartition("_")
        if place.isdecimal():
            columns.setdefault(OTHER_NAMES.get(stem, stem), []).append([float(x) for x in texts])
        else:
            columns[OTHER_NAMES.get(name, name)] = texts if name == "verdict" else [float(x) for x in texts]
    found: dict[str, Any] = {name: np.array(v).T if isinstance(v[0], list) else v for name, v in columns.items()}
    for name in ("constraint_values", "multipliers"):
        found.setdefault(name, np.zeros((len(rows), 0)))
    found["samples"] = np.array(found["samples"], dtype=int)
    return History(found)
