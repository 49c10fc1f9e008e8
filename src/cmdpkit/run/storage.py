"""Result files: everything that a run returned, in one `.npz` without pickle; for a policy in blocks, a folder."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.rollouts import SimulationCertificate
from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.learners.neural.policy import NeuralPolicy
from cmdpkit.model import AtLeast, AtMost, Between, Equal, Limit, Problem
from cmdpkit.model.sharded import MODEL_FILE
from cmdpkit.policy import MixturePolicy, ShardedPolicy, StagedPolicy, TabularPolicy
from cmdpkit.run.history import History
from cmdpkit.run.result import Result, RunResult, TrainingResult
from cmdpkit.run.status import Status

AnyResult = TypeVar("AnyResult", bound=RunResult)

KIND, VERSIONS = "cmdpkit result", (1, 2)
MODEL_LATER = ("lows", "objective_name", "objective_per_step")  # what descriptions of models had not at first
POLICIES = ("policy", "last_policy", "average_policy", "best_policy")
LATER = ("deterministic_bound", "best")  # not in the files of older versions
NOT_SAVED = "memory"  # it belongs to the model, which is not saved either
HEAD, BLOCKS = "result.npz", "policy-{}"
"""A result whose policy is in blocks is a folder: this file in it names the folder of the policy."""

CERTIFICATES: dict[str, type] = {"Certificate": Certificate, "SimulationCertificate": SimulationCertificate}


def save_result(result: RunResult, path: PathLike) -> None:
    """Write a result. Only sizes and limits of the model are included; use `CMDP.save` for the model itself."""
    if isinstance(result.policy, ShardedPolicy):
        _save_in_blocks(result, Path(path))
    else:
        _save(result, path)


def _save(result: RunResult, path: PathLike, blocks: str = "") -> None:
    arrays: dict[str, Any] = {f"history_{name}": result.history[name] for name in result.history.columns}
    plain: dict[str, Any] = {"version": 1, "class": type(result).__name__}
    for entry in fields(result):
        value = getattr(result, entry.name)
        if entry.name in ("history", NOT_SAVED):
            continue
        if entry.name in POLICIES:
            arrays |= _policy_arrays(entry.name, value, blocks)
        elif entry.name == "model":
            plain["model"] = _describe(value)
            plain["version"] = 2 if any(key in plain["model"] for key in (*MODEL_LATER, "criterion")) else 1
        else:
            plain[entry.name] = _encode(value)
    save_arrays(path, KIND, arrays | {"plain": np.array(json.dumps(plain))})


def check_result_folder(folder: Path) -> None:
    """Raise an error if a result in blocks cannot be saved there."""
    if folder.suffix == ".npz" or folder.is_file():
        raise ValueError(f"the result of a sharded model is a folder; give {folder} a name without .npz, of no file")
    if (folder / MODEL_FILE).exists():
        raise ValueError(f"{folder} holds a sharded model; save the result to another folder")


def _save_in_blocks(result: RunResult, folder: Path) -> None:
    """The policy first, in a folder of its own, then the file that names it: until then an earlier result stays."""
    check_result_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    policy: ShardedPolicy = result.policy
    name = policy.folder.name
    if policy.folder.resolve().parent != folder.resolve():
        name = BLOCKS.format(secrets.token_hex(8))
        try:
            policy.save(folder / name)
        except BaseException:
            shutil.rmtree(folder / name, ignore_errors=True)
            raise
    _save(result, folder / HEAD, name)
    for other in folder.iterdir():  # of earlier results
        if re.fullmatch(BLOCKS.format("[0-9a-f]{16}"), other.name) and other.name != name:
            with contextlib.suppress(OSError):
                shutil.rmtree(other)


def file_of(path: PathLike) -> Path:
    """The `.npz` of a result, which may be in a folder."""
    return Path(path) / HEAD if Path(path).is_dir() else Path(path)


def load_result(kind: type[AnyResult], path: PathLike) -> AnyResult:
    """Read what `save_result` wrote."""
    if Path(path).suffix == ".json":
        raise ValueError(f"{path} is a summary; load the .npz file written by result.save")
    path = file_of(path)
    arrays = load_arrays(path, KIND)
    try:
        plain = json.loads(str(arrays["plain"]))
        if plain["version"] not in VERSIONS:
            raise ValueError(f"its format version is {plain['version']}, this cmdpkit reads versions 1 and 2")
        if plain["class"] != kind.__name__:
            raise ValueError(f"it holds a {plain['class']}; use cmdpkit.{plain['class']}.load")
        columns = {n.removeprefix("history_"): table for n, table in arrays.items() if n.startswith("history_")}
        values: dict[str, Any] = {"history": History(columns)}
        for entry in fields(kind):
            if entry.name in POLICIES:
                values[entry.name] = _policy(entry.name, arrays, path.parent)
            elif entry.name == "model":
                values["model"] = _problem(plain["model"])
            elif entry.name not in ("history", NOT_SAVED) and (entry.name in plain or entry.name not in LATER):
                values[entry.name] = _decode(plain[entry.name])
        return kind(**values)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} does not hold a valid result: {error}") from error


def class_of(path: PathLike) -> type[RunResult]:
    """Which result a file holds: a `Result` or a `TrainingResult`."""
    try:
        name = json.loads(str(load_arrays(file_of(path), KIND)["plain"]))["class"]
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} does not hold a valid result: {error}") from error
    return TrainingResult if name == TrainingResult.__name__ else Result


def _encode(value: Any) -> Any:
    """A value as JSON that `_decode` turns back into the same."""
    if isinstance(value, Status):
        return {"status": value.name}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype), "shape": value.shape}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, Path):
        return {"path": str(value)}
    if type(value).__name__ in CERTIFICATES:
        return {type(value).__name__: {f.name: _encode(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, np.generic):
        return value.item()
    return {"dict": value} if isinstance(value, dict) else value


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "status" in value:
        return Status[value["status"]]
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"]).reshape(value["shape"])
    if "tuple" in value:
        return tuple(_decode(item) for item in value["tuple"])
    if "path" in value:
        return Path(value["path"])
    if "dict" in value:
        return value["dict"]
    name, content = next(iter(value.items()))
    return CERTIFICATES[name](**{key: _decode(item) for key, item in content.items()})


def _policy_arrays(name: str, policy: Any, blocks: str) -> dict[str, Any]:
    if isinstance(policy, ShardedPolicy):
        return {f"{name}_blocks": np.array(blocks)}
    if isinstance(policy, TabularPolicy):
        return {f"{name}_tabular": policy.log_pi, **_pair_arrays(name, policy)}
    if isinstance(policy, MixturePolicy):
        tables = np.stack([one.log_pi for one in policy.policies])
        named = _pair_arrays(name, policy.policies[0])
        return {f"{name}_mixture": tables, f"{name}_weights": policy.weights, **named}
    if isinstance(policy, StagedPolicy):
        return {f"{name}_staged": policy.log_pi, **_pair_arrays(name, policy)}
    if isinstance(policy, NeuralPolicy):
        return {f"{name}_neural_{key}": table for key, table in policy.arrays().items()}
    return {}


def _pair_arrays(name: str, policy: TabularPolicy | StagedPolicy) -> dict[str, Any]:
    return {f"{name}_{key}": table for key, table in policy.pairs.arrays().items()}


def _tabular(name: str, arrays: dict[str, Any], log_pi: Any) -> TabularPolicy:
    own = {key.removeprefix(f"{name}_"): table for key, table in arrays.items() if key.startswith(f"{name}_")}
    return TabularPolicy.from_arrays(own | {"log_probabilities": log_pi})


def _policy(name: str, arrays: dict[str, Any], folder: Path) -> Any:
    if f"{name}_blocks" in arrays:
        blocks = str(arrays[f"{name}_blocks"])
        if Path(blocks).name != blocks:
            raise ValueError(f"the policy must be in a folder beside the file, not {blocks!r}")
        return ShardedPolicy.load(folder / blocks)
    if f"{name}_tabular" in arrays:
        return _tabular(name, arrays, arrays[f"{name}_tabular"])
    if f"{name}_mixture" in arrays:
        tables = [_tabular(name, arrays, table) for table in arrays[f"{name}_mixture"]]
        return MixturePolicy(tables, arrays[f"{name}_weights"])
    if f"{name}_staged" in arrays:
        return StagedPolicy([_tabular(name, arrays, table) for table in arrays[f"{name}_staged"]])
    prefix = f"{name}_neural_"
    parts = {key.removeprefix(prefix): table for key, table in arrays.items() if key.startswith(prefix)}
    return NeuralPolicy.from_arrays(parts) if parts else None


def _describe(problem: Problem) -> dict[str, Any]:
    columns = (problem.stated(problem.signs).tolist(), problem.stated(problem.limits).tolist())
    limits = [[c.name, sign, limit, c.per_step] for c, sign, limit in zip(problem.constraints, *columns, strict=True)]
    described = {name: getattr(problem, name) for name in ("states", "actions", "gamma", "maximise")}
    if problem.criterion != "discounted":
        described |= {"criterion": problem.criterion, "horizon": problem.horizon}
        described |= {"stages": [c.stage for c in problem.constraints]}
    described |= {name: value for name in MODEL_LATER[1:] if (value := getattr(problem, name))}
    if problem.num_rows > problem.num_constraints:
        described["lows"] = [c.ends[0] if len(c.sides()) == 2 else None for c in problem.constraints]
    return described | {"limits": limits}


def _problem(described: dict[str, Any]) -> Problem:
    limits = described["limits"]
    lows = described.get("lows", [None] * len(limits))
    stages = described.get("stages", [None] * len(limits))
    rows = zip(lows, stages, limits, strict=True)
    constraints = tuple(_limit(low, *row).in_stage(stage) for low, stage, row in rows)
    names = ("states", "actions", "gamma", "maximise", "criterion", "horizon", *MODEL_LATER[1:])
    return Problem.described(**{n: described[n] for n in names if n in described}, constraints=constraints)


def _limit(low: float | None, name: str, sign: float, limit: float, per_step: bool) -> Limit:
    if low is None:
        return (AtMost if sign > 0 else AtLeast)(None, limit, name=name, per_step=per_step)
    return Equal(None, limit, name, per_step) if low == limit else Between(None, low, limit, name, per_step)
