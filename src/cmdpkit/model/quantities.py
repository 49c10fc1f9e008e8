"""Rewards, costs and limited quantities as users give them, as one number per pair (and per stage of a horizon)."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, PairTable, as_floats, freeze, such_entries
from cmdpkit.model.pairs import Pairs


def check_table(values: Any, pairs: Pairs, transitions: Any, name: str, horizon: int | None = None) -> PairTable:
    """A finite number for every pair, from an array of shape (S, A), (S,), (S, A, S) or (N,).

    With a horizon, also one such table for each stage: (T, S, A), (T, S, A, S), or a list of T arrays. The result has
    the stage as its first axis then, as it has where the transitions differ between stages and the table depends on
    the next state.
    """
    if sp.issparse(values):
        raise TypeError(f"{name} must be a dense array of shape {(pairs.states, pairs.actions)}; call .toarray() on it")
    tables = _by_stage(values, pairs, name, horizon)
    if tables is None and isinstance(transitions, tuple) and _is_by_next(np.shape(values), pairs):
        tables = [values] * len(transitions)
    if tables is None:
        matrix = transitions[0] if isinstance(transitions, tuple) else transitions
        return freeze(_check_one(values, pairs, matrix, name))
    matrices = transitions if isinstance(transitions, tuple) else (transitions,) * len(tables)
    stages = [
        _check_one(part, pairs, matrix, f"{name} at stage {t}")
        for t, (part, matrix) in enumerate(zip(tables, matrices, strict=True))
    ]
    return freeze(np.stack(stages))


def compact(table: PairTable) -> PairTable:
    """The same numbers, stored once per state where they do not depend on the action, or once per action."""
    for once in (table[:, :1], table[:1]) if table.ndim == 2 else ():
        if np.array_equal(np.broadcast_to(once, table.shape), table):
            return np.broadcast_to(freeze(once.copy()), table.shape)
    return table


def _is_by_next(shape: tuple[int, ...], pairs: Pairs) -> bool:
    return shape == (pairs.states, pairs.actions, pairs.states)


def _by_stage(values: Any, pairs: Pairs, name: str, horizon: int | None) -> Any:
    """The tables of single stages, if that is what was given."""
    single = {(pairs.states, pairs.actions), (pairs.states, pairs.actions, pairs.states)}
    if isinstance(values, (list, tuple)) and values and all(isinstance(part, np.ndarray) for part in values):
        known = all(part.shape in single | {(pairs.count,)} for part in values)
        if not known or (len(values) != horizon and (len(values), *values[0].shape) in single):
            return None
        stages: Any = values
    else:
        try:
            stages = np.asarray(values)
        except (ValueError, RuntimeError):  # rows of different lengths, or a tensor that requires gradients
            return None
        if stages.shape[1:] not in single or stages.shape == (1, 1, 1):
            return None
        if _is_by_next(stages.shape, pairs):  # (S, A, S), as always, unless it is (T, S, A) as well
            if horizon != len(stages):
                return None
            raise ValueError(
                f"{name} has shape {stages.shape}, which may count states, actions and next states, or stages, states "
                "and actions; give a list of arrays, one for each stage, or the expected values as an array of shape "
                f"{(pairs.states, pairs.actions)}"
            )
    if horizon is None:
        raise ValueError(f"{name} has {len(stages)} tables, one for each stage; that needs horizon={len(stages)}")
    if len(stages) != horizon:
        raise ValueError(f"{name} has tables for {len(stages)} stages, but the horizon is {horizon}")
    return stages


def _check_one(values: Any, pairs: Pairs, transitions: Any, name: str) -> PairTable:
    """The table of one stage, or of all."""
    states, actions = pairs.states, pairs.actions
    table = as_floats(values, name)
    if _is_by_next(table.shape, pairs):
        table = _expected(table.reshape(-1, states), pairs, transitions)
    elif table.shape == (states, actions):
        table = pairs.taken(table)
    elif table.shape == (states,):
        table = table[pairs.state]
    elif table.shape != (pairs.count,):
        also = "" if pairs.is_full else f", or ({pairs.count},) for the available pairs only"
        raise ValueError(
            f"{name} has shape {table.shape}, but the transitions have {states} states and {actions} actions, "
            f"so it must have shape {(states, actions)} (also ({states},) or ({states}, {actions}, {states}){also})"
        )
    table = np.ascontiguousarray(pairs.like(table.reshape(pairs.count)))
    bad = ~np.isfinite(table)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{name} of {pairs.pair_name(row)} is {table.flat[row]} ({such_entries(bad)}); every entry must be finite"
        )
    return table


def _expected(table: Array, pairs: Pairs, transitions: Any) -> Array:
    """Σ_s' P(s'|s, a) c(s, a, s'), from c as (S·A, S)."""
    rows = table if pairs.is_full else table[pairs.state.astype(np.int64) * pairs.actions + pairs.action]
    if sp.issparse(transitions):
        # Only what stands at possible transitions counts
        at = rows[np.repeat(np.arange(pairs.count), np.diff(transitions.indptr)), transitions.indices]
        return np.add.reduceat(transitions.data * at, transitions.indptr[:-1])
    return np.asarray(np.einsum("rs,rs->r", transitions, np.where(transitions > 0.0, rows, 0.0)))
