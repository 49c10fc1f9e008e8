"""Rigorous bounds from one Bellman backup, valid for any guess of the values."""

from __future__ import annotations

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import Backup, bellman
from cmdpkit.model import CMDP


def macqueen_bound(cmdp: CMDP, weights: Array, value: Array) -> float:
    """A lower bound on min_π L_w(π), from any guess `value` of the optimal values (MacQueen 1966).

    With TV the Bellman backup of V and D = TV − V, the optimal values are at least TV + γ/(1 − γ) min D. Two
    refinements make that rigorous in floating point: rows that sum to 1 ± 1e-8 change γ by that factor, and every
    backup may be wrong by its rounding error, which is taken off D.
    """
    backup = bellman(cmdp, weights @ cmdp.costs, value, np.zeros(cmdp.states, dtype=np.int32))
    return bound_from_backup(cmdp, weights, value, backup)


def bound_from_backup(cmdp: CMDP, weights: Array, value: Array, backup: Backup) -> float:
    """`macqueen_bound` from a backup that has been made already."""
    magnitude = float(np.abs(weights) @ cmdp.cost_sizes + np.abs(value).max())
    terms = cmdp.longest_row + weights.size + 4
    rounding = terms * np.finfo(float).eps * magnitude
    lowest = backup.lowest - rounding
    tail = min(g / (1.0 - g) * lowest for g in (cmdp.gamma * s for s in cmdp.row_sums))
    # Σ w_i (V_i − offset_i): the limits enter here
    offset = float(weights[1:] @ cmdp.offsets)
    slack = (
        (cmdp.states + terms) * np.finfo(float).eps * (magnitude + float(np.abs(weights[1:]) @ np.abs(cmdp.offsets)))
    )
    return float(cmdp.initial @ backup.values) + tail * float(cmdp.initial.sum()) - rounding - offset - slack
