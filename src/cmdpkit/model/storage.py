"""Files of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cmdpkit.files import PathLike, load_arrays, save_arrays
from cmdpkit.model.limits import AtLeast, AtMost, Between, Equal, Limit
from cmdpkit.model.pairs import Pairs
from cmdpkit.model.stages import like_shapes, restored_transitions, stored_transitions

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP


def save_model(cmdp: CMDP, path: PathLike) -> None:
    """See `CMDP.save`."""
    named, more = cmdp.pairs.arrays(), _extras(cmdp)
    tables = like_shapes([cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints)])
    arrays: dict[str, Any] = {
        "version": np.array(4 if cmdp.changes_with_time else 3 if more else 2 if named else 1),
        "gamma": np.array(cmdp.gamma),
        "initial": cmdp.initial,
        "maximise": np.array(cmdp.maximise),
        "objective": tables[0],
        "values": np.array(tables[1:]).reshape(-1, *tables[0].shape),
        "limits": cmdp.stated(cmdp.limits),
        "at_least": cmdp.stated(cmdp.signs) < 0,
        "per_step": np.array([c.per_step for c in cmdp.constraints], dtype=bool),
        "names": np.array(cmdp.names, dtype=str),
        **named,
        **more,
        **stored_transitions(cmdp.transitions),
    }
    save_arrays(path, "cmdpkit model", arrays)


def _extras(cmdp: CMDP) -> dict[str, Any]:
    """For files: what models had not at first."""
    extras: dict[str, Any] = {"average": np.array(True)} if cmdp.criterion == "average" else {}
    if cmdp.horizon is not None:
        extras["horizon"] = np.array(cmdp.horizon)
        extras["stages"] = np.array([-1 if c.stage is None else c.stage for c in cmdp.constraints], dtype=int)
    if cmdp.objective_name is not None:
        extras["objective_name"] = np.array(cmdp.objective_name)
    if cmdp.objective_per_step:
        extras["objective_per_step"] = np.array(True)
    if cmdp.num_rows > cmdp.num_constraints:
        # The least value allowed where it is not what `at_least` says; `limits` are then the largest ones.
        lows = [c.ends[0] if isinstance(c, (Equal, Between)) else np.nan for c in cmdp.constraints]
        extras["lows"] = np.array(lows)
    return extras


def load_model(cls: type[CMDP], path: PathLike) -> CMDP:
    """See `CMDP.load`."""
    arrays = load_arrays(path, "cmdpkit model")
    try:
        return _from_arrays(cls, arrays)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: the entry {error} is missing") from error
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{path} does not hold a valid model: {error}") from error


def _from_arrays(cls: type[CMDP], arrays: dict[str, Any]) -> CMDP:
    if int(arrays["version"]) not in (1, 2, 3, 4):
        raise ValueError(f"its format version is {arrays['version']}, this cmdpkit reads versions 1 to 4")
    objective, values = arrays["objective"], arrays["values"]
    by_stage = objective.ndim > 2 - ("pair_first" in arrays)
    states = arrays["pair_first"].size - 1 if "pair_first" in arrays else objective.shape[-2]
    pairs = Pairs.from_arrays(arrays, states, objective.shape[-1])
    if objective.shape[by_stage:] != pairs.shape:
        raise ValueError(f"its objective has shape {objective.shape}, not {pairs.shape}")
    if by_stage:  # as lists, which leave no doubt
        objective, values = list(objective), [list(table) for table in values]
    transitions = restored_transitions(arrays, pairs)
    columns = [values, *(arrays[name] for name in ("limits", "names", "at_least", "per_step"))]
    lows = arrays.get("lows", np.full(len(arrays["limits"]), np.nan))
    constraints = [_limit_from(*row) for row in zip(lows, *columns, strict=True)]
    if "stages" in arrays:
        stages = [None if t < 0 else int(t) for t in arrays["stages"]]
        constraints = [c.in_stage(t) for c, t in zip(constraints, stages, strict=True)]
    kind = "reward" if arrays["maximise"] else "cost"
    return cls(
        transitions,
        constraints=constraints,
        **_stored_criterion(arrays),
        initial=arrays["initial"],
        available=None if pairs.is_full else pairs.sparse_mask,
        state_labels=pairs.state_labels,
        action_labels=pairs.action_labels,
        objective_name=str(arrays["objective_name"]) if "objective_name" in arrays else None,
        objective_per_step=bool(arrays.get("objective_per_step", False)),
        action_axis=1,
        **{kind: objective},
    )


def _limit_from(low: Any, values: Any, limit: Any, name: Any, at_least: Any, per_step: Any) -> Limit:
    """A limit as `CMDP.save` writes it."""
    rest: dict[str, Any] = {"name": str(name), "per_step": bool(per_step)}
    if np.isnan(low):
        return (AtLeast if at_least else AtMost)(values, float(limit), **rest)
    return Equal(values, float(limit), **rest) if low == limit else Between(values, float(low), float(limit), **rest)


def _stored_criterion(arrays: dict[str, Any]) -> dict[str, Any]:
    if "average" in arrays:
        return {"average": True}
    return {"gamma": float(arrays["gamma"]), "horizon": int(arrays["horizon"]) if "horizon" in arrays else None}
