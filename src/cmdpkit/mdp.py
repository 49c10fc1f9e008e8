"""Unconstrained MDPs: the oracle of every dual bound, solved by policy iteration with rigorous error bounds.

For weights w ≥ 0 the Lagrangian  L_w(π) = w_0 V_0(π) + Σ w_i V_i(π)  is the value of an ordinary MDP. Its minimum
bounds the constrained problem from below (w = (1, λ)), or proves that there is no feasible policy (w = (0, y)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.system import PolicySystem, look_ahead
from cmdpkit.model import CMDP

MAX_SWEEPS = 1_000
"""Policy iteration ends long before this; the bound is valid wherever it stops."""


Stop = Callable[[], bool]
"""Asked after every evaluation whether to give up."""


def never() -> bool:
    return False


class Minimum(NamedTuple):
    """An (almost) minimal deterministic policy of L_w, and how small L_w can be at most and at least."""

    choice: Any  # (S,) action taken in each state
    values: Array  # (m + 1,) V_0..V_m of that policy, in the convention
    bound: float  # min over all policies of L_w is at least this, rounding included
    evaluations: int


def minimise(cmdp: CMDP, weights: Array, start: Any = None, stop: Stop = never) -> Minimum:
    """Minimise w_0 V_0 + Σ w_i V_i by Howard's policy iteration, starting from the choice `start`.

    The bound is valid wherever the iteration ends, so that `stop` may end it at any time.
    """
    cost = weights @ cmdp.costs
    states = np.arange(cmdp.states)
    choice = cost.reshape(cmdp.states, cmdp.actions).argmin(axis=1) if start is None else start
    previous = np.inf
    evaluations = 0
    while evaluations < MAX_SWEEPS:
        evaluations += 1
        system = PolicySystem(cmdp, choice=choice)
        value = system.state_values(cost[states * cmdp.actions + choice])
        q = (cost + look_ahead(cmdp, value)).reshape(cmdp.states, cmdp.actions)
        best = q.argmin(axis=1)
        # Keep the action where the gain is rounding: ties must not make the iteration wander.
        noise = 1e-14 * (np.abs(value).max() + np.abs(cost).max())
        better = q[states, best] < q[states, choice] - noise
        total = value.sum()
        if not better.any() or total >= previous or stop():
            break
        previous = total
        choice = np.where(better, best, choice)
    visits = system.state_occupancy()
    values = cmdp.costs[:, states * cmdp.actions + choice] @ visits
    values[1:] -= cmdp.offsets
    return Minimum(choice, values, macqueen_bound(cmdp, weights, value, q), evaluations)


def macqueen_bound(cmdp: CMDP, weights: Array, value: Array, q: Array | None = None) -> float:
    """A lower bound on min_π L_w(π), from any guess `value` of the optimal values (MacQueen 1966).

    With TV the Bellman backup of V and D = TV − V, the optimal values are at least TV + γ/(1 − γ) min D. Two
    refinements make that rigorous in floating point: rows that sum to 1 ± 1e-8 change γ by that factor, and every
    backup may be wrong by its rounding error, which is taken off D.
    """
    if q is None:
        q = (weights @ cmdp.costs + look_ahead(cmdp, value)).reshape(cmdp.states, cmdp.actions)
    backup = q.min(axis=1)
    magnitude = float((np.abs(weights) @ np.abs(cmdp.costs)).max() + np.abs(value).max())
    terms = longest_row(cmdp) + weights.size + 4
    rounding = terms * np.finfo(float).eps * magnitude
    lowest = float((backup - value).min()) - rounding
    tail = min(g / (1.0 - g) * lowest for g in (cmdp.gamma * s for s in cmdp.row_sums))
    # Σ w_i (V_i − offset_i): the limits enter here
    limits = float(weights[1:] @ cmdp.offsets)
    slack = (
        (cmdp.states + terms) * np.finfo(float).eps * (magnitude + float(np.abs(weights[1:]) @ np.abs(cmdp.offsets)))
    )
    return float(cmdp.initial @ backup) + tail * float(cmdp.initial.sum()) - rounding - limits - slack


def longest_row(cmdp: CMDP) -> int:
    return int(np.diff(cmdp.transitions.indptr).max()) if sp.issparse(cmdp.transitions) else cmdp.states
