"""Transitions as users give them, checked, with the pairs that they have: one matrix, or one for each stage."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import check_rows, check_transitions, longest_row, refreeze
from cmdpkit.model.labels import check_labels
from cmdpkit.model.pairs import Pairs, check_available
from cmdpkit.model.stages import StagedTransitions, is_by_stage


def check_pairs(transitions: Any, horizon: int | None, settings: tuple[Any, ...]) -> tuple[Any, Pairs]:
    """The transitions with one row per available pair (a tuple of matrices if given by stage), and those pairs.

    `settings` are what `CMDP` takes as available, state_labels, action_labels and action_axis.
    """
    if isinstance(transitions, StagedTransitions):
        return transitions, transitions.pairs
    if is_by_stage(transitions):
        return _check_stages(transitions, horizon, settings)
    return _check_matrix(transitions, *settings)


def _check_matrix(
    transitions: Any, available: Any, state_labels: Any, action_labels: Any, action_axis: Any
) -> tuple[Any, Pairs]:
    """The transitions with one row per available pair, and those pairs."""
    matrix, states, actions = check_transitions(transitions, available is not None, action_axis)
    pairs = check_available(available, states, actions) if available is not None else Pairs(states, actions or 0)
    names = (check_labels(state_labels, states, "state"), check_labels(action_labels, pairs.actions, "action"))
    rows, every = matrix.shape[0], pairs.states * pairs.actions
    if rows not in (pairs.count, every):
        raise ValueError(
            f"the transitions have {rows} rows, but {pairs.count} of the {every} pairs of state and action are "
            f"available; give a row for each of the {pairs.count}, ordered by state and then action, or for all {every}"
        )
    if rows != pairs.count:
        matrix = refreeze(matrix[pairs.state.astype(np.int64) * pairs.actions + pairs.action])
    return matrix, pairs.named(*names)


def _check_stages(transitions: Any, horizon: int | None, settings: tuple[Any, ...]) -> tuple[tuple[Any, ...], Pairs]:
    """The transitions of every stage, and the pairs, which are the same in all of them."""
    transitions = list(transitions)  # matrices are known by their ids
    if horizon is None:
        raise ValueError(
            f"the transitions have {len(transitions)} matrices, one for each stage; that needs "
            f"horizon={len(transitions)}"
        )
    if len(transitions) != horizon:
        raise ValueError(f"there are transitions for {len(transitions)} stages, but the horizon is {horizon}")
    known: dict[int, tuple[Any, Pairs]] = {}
    for t, given in enumerate(transitions):
        if id(given) in known:
            continue
        try:
            known[id(given)] = _check_matrix(given, *settings)
        except (ValueError, TypeError) as error:
            raise type(error)(f"at stage {t}, {error}") from None
        if not known[id(given)][1].same(known[id(transitions[0])][1]):
            raise ValueError(f"stage {t} has other states or actions than stage 0")
    return tuple(known[id(given)][0] for given in transitions), known[id(transitions[0])][1]


def check_row_sums(transitions: Any, discount: float, pairs: Pairs) -> tuple[float, float]:
    """The smallest and the largest sum of a row, after a check of all rows."""
    if isinstance(transitions, StagedTransitions):
        return transitions.row_sums
    if not isinstance(transitions, tuple):
        return check_rows(transitions, discount, pairs.pair_name, pairs.state_name)
    sums = []
    for t, matrix in enumerate(transitions):
        try:
            sums.append(check_rows(matrix, discount, pairs.pair_name, pairs.state_name))
        except ValueError as error:
            raise ValueError(f"at stage {t}, {error}") from None
    return min(low for low, _ in sums), max(high for _, high in sums)


def longest_row_of(transitions: Any) -> int:
    """The largest number of entries in a row, of all stages."""
    return max(map(longest_row, transitions if isinstance(transitions, tuple) else (transitions,)))
