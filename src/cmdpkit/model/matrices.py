"""Models from one matrix per action, as pymdptoolbox has them, and from QuantEcon's `DiscreteDP`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, as_floats
from cmdpkit.model.limits import Limit

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP


def from_matrices(
    cls: type[CMDP], matrices: Any, *, reward: Any, cost: Any, constraints: Iterable[Any], **settings: Any
) -> CMDP:
    """See `CMDP.from_matrices`."""
    blocks = _blocks(matrices)
    actions, states = len(blocks), blocks[0].shape[0]
    tables: dict[str, Any] = {
        kind: _table(values, blocks, kind)
        for kind, values in (("reward", reward), ("cost", cost))
        if values is not None
    }
    limits = [
        replace(limit, values=_table(limit.values, blocks, f"constraint {limit.name!r}"))
        if isinstance(limit, Limit)
        else limit
        for limit in constraints
    ]
    if any(map(sp.issparse, blocks)):
        # Row a·S + s of the stacked matrices is row s·A + a of the model.
        order = np.arange(states * actions).reshape(actions, states).T.ravel()
        transitions: Any = sp.vstack([sp.csr_array(block) for block in blocks], format="csr")[order]
    else:
        transitions = np.stack(blocks, axis=1)
    return cls(transitions, constraints=limits, action_axis=1, **tables, **settings)


def _blocks(matrices: Any) -> list[Any]:
    """One (S, S) matrix per action."""
    if sp.issparse(matrices) or isinstance(matrices, str) or not isinstance(matrices, (Sequence, np.ndarray)):
        raise TypeError(
            f"the transitions must be an (A, S, S) array or a list of A matrices (S, S), not {type(matrices).__name__}"
        )
    if not len(matrices):
        raise ValueError("the list of matrices is empty; give one (S, S) matrix per action")
    blocks = [m if sp.issparse(m) else as_floats(m, f"the matrix of action {a}") for a, m in enumerate(matrices)]
    states = blocks[0].shape[-1] if blocks[0].ndim else 0
    for a, block in enumerate(blocks):
        if block.shape != (states, states) or not states:
            raise ValueError(
                f"the matrix of action {a} has shape {block.shape}; every action needs a square matrix of the same "
                "size, with a row per state and a column per next state. For an (S, A, S) array use CMDP(...)"
            )
    return blocks


def _table(values: Any, blocks: Sequence[Any], name: str) -> Array:
    """(S, A) from what pymdptoolbox takes: (S,), (S, A), (A, S, S), or one (S,) or (S, S) per action in a list."""
    actions, states = len(blocks), blocks[0].shape[0]
    if sp.issparse(values):
        values = values.toarray()
    per_action = isinstance(values, (list, tuple)) and any(map(sp.issparse, values))
    per_action |= isinstance(values, np.ndarray) and values.dtype == object
    if not per_action:
        table = as_floats(values, name)
        if table.shape in ((states,), (states, actions)):
            return np.broadcast_to(table.reshape(states, -1), (states, actions)).copy()
        if table.shape != (actions, states, states):
            raise ValueError(
                f"{name} has shape {table.shape}; with {actions} actions and {states} states it needs shape "
                f"({states},), ({states}, {actions}) or ({actions}, {states}, {states}), or a list of {actions} "
                "matrices"
            )
        values = list(table)
    if len(values) != actions:
        raise ValueError(f"{name} has {len(values)} matrices, but there are {actions} actions")
    pairs = enumerate(zip(values, blocks, strict=True))
    return np.stack([_expected(table, block, f"{name} of action {a}") for a, (table, block) in pairs], axis=1)


def _expected(values: Any, block: Any, name: str) -> Array:
    """Σ_s' P(s, s') values(s, s'); values of impossible transitions do not matter."""
    matrix = values if sp.issparse(values) else as_floats(values, name)
    if matrix.shape == block.shape[:1]:
        return np.asarray(matrix)
    if matrix.shape != block.shape:
        raise ValueError(f"{name} has shape {matrix.shape}; it needs shape {block.shape}")
    if sp.issparse(values) or sp.issparse(block):
        return np.asarray(sp.csr_array(block).multiply(matrix).sum(axis=1)).ravel()
    return np.asarray((block * np.where(block > 0.0, matrix, 0.0)).sum(axis=1))


def beta_of(ddp: Any) -> float:
    """The discount factor of a `DiscreteDP`."""
    missing = [name for name in ("R", "Q", "beta") if not hasattr(ddp, name)]
    if missing:
        raise TypeError(f"a quantecon.markov.DiscreteDP is needed; a {type(ddp).__name__} has no {missing[0]}")
    return float(ddp.beta)


def from_quantecon(cls: type[CMDP], ddp: Any, **settings: Any) -> CMDP:
    """See `CMDP.from_quantecon`."""
    beta_of(ddp)
    reward = np.asarray(ddp.R, dtype=float)
    if getattr(ddp, "s_indices", None) is None:
        feasible = reward > -np.inf
        mask = None if feasible.all() else feasible
        return cls(np.asarray(ddp.Q), reward=np.where(feasible, reward, 0.0), available=mask, action_axis=1, **settings)
    # Pairs of a state and an action, which DiscreteDP sorts; infeasible ones may be marked here as well.
    feasible = reward > -np.inf
    states, chosen = np.asarray(ddp.s_indices)[feasible], np.asarray(ddp.a_indices)[feasible]
    shape = (int(ddp.num_states), int(np.max(ddp.a_indices)) + 1)
    mask = sp.csr_array((np.ones(states.size, dtype=bool), (states, chosen)), shape=shape)
    settings["constraints"] = [_at(limit, feasible) for limit in settings["constraints"]]
    return cls(ddp.Q[np.flatnonzero(feasible)], reward=reward[feasible], available=mask, **settings)


def _at(limit: Any, feasible: Any) -> Any:
    """A limit whose values are one per pair of DiscreteDP, at the feasible pairs."""
    values = np.asarray(limit.values) if isinstance(limit, Limit) else np.empty(())
    return replace(limit, values=values[feasible]) if values.shape == feasible.shape else limit
