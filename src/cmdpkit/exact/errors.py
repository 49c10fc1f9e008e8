"""Errors of the values of a policy, at the price of one look ahead: coarser than the checker's, and as rigorous."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array, PairTable, longest_row
from cmdpkit.evaluation.backup import gain
from cmdpkit.evaluation.bounds import EPS, TINY, horizon_bound, row_slack
from cmdpkit.evaluation.chain import chosen_chain, mixed_chain
from cmdpkit.model import CMDP


def sum_errors(
    cmdp: CMDP,
    state_values: Array,
    choice: Any = None,
    pi: PairTable | None = None,
    chain: Any = None,
    cost: Array | None = None,
    table: Array | None = None,
) -> Array:
    """(m + 1,) bounds on |ρ · (V − V^π)| for values V (S, m + 1) of a policy: (S,) choices, or probabilities of pairs.

    `chain` is P_π and `cost` (S, m + 1) is c_π, if they are known already. Neither is needed for probabilities with the
    `table` (N, m + 1) of `advantages`, c + γ P V − V for all pairs.

    |V − V^π| ≤ max_s |c_π + γ P_π V − V| · Σ_k (γP_π)ᵏ1, and the largest rounding error of computing that. A long-run
    average lies between the least and the largest of c_π + P_π V − V.
    """
    pairs = cmdp.pairs
    with np.errstate(over="ignore", invalid="ignore"):
        if pi is not None and table is not None:
            change, slack, terms = pairs.expect(pi, table.T), policy_slack(cmdp, pi), _mixed_terms(cmdp)
        else:
            if pi is None:
                chain = chosen_chain(cmdp, choice) if chain is None else chain
                cost = cmdp.costs[:, pairs.rows(choice)].T if cost is None else cost
                slack, terms = 0.0, cmdp.longest_row + 12 + cmdp.entry_error
            else:
                chain = mixed_chain(cmdp, pi) if chain is None else chain
                cost = pairs.expect(pi, cmdp.costs) if cost is None else cost
                slack = policy_slack(cmdp, pi)
                terms = longest_row(chain) + 2 * pairs.largest + 12 + cmdp.entry_error
            change = cost + cmdp.gamma * (chain @ state_values) - state_values
            change -= gain(cmdp, state_values)
        if cmdp.criterion == "average":  # between the least and the largest change
            slack += row_slack(cmdp)
        largest = np.abs(state_values).max(axis=0)
        local = np.abs(change).max(axis=0) + _rounding(cmdp, largest, terms, slack)
        horizon = 1.0 if cmdp.criterion == "average" else horizon_bound(cmdp, slack)
        errors = 1.01 * local * horizon + _summing(cmdp, largest)
    return np.where(np.isfinite(errors), errors, np.inf)


def sums_beside(
    cmdp: CMDP, state_values: Array, change: Array, visits: Array, entered: Array, slack: float
) -> tuple[Array, Array]:
    """(m + 1,) ρ · V^π of discounted sums, and bounds on its errors, from the values V (S, m + 1) of another policy.

    With the visits x of π, for any V:

        ρ · V^π = ρ · V + Σ_s x(s) δ(s),  δ(s) = Σ_a π(a|s) [c + γ P V − V](s, a).

    Visits x̂ that are off by e in the 1-norm add e · max |δ|, a product of two small numbers, and
    e ≤ ‖ρ + γ P_πᵀ x̂ − x̂‖₁ · Σ_k (γP_π)ᵏ1.

    Args:
        cmdp: the model.
        state_values, change: V, and δ (S, m + 1).
        visits, entered: x̂, and P_πᵀ x̂.
        slack: `policy_slack` of π.
    """
    mass, terms = float(np.abs(visits).sum()), cmdp.pairs.count + 10 + cmdp.entry_error
    with np.errstate(over="ignore", invalid="ignore"):
        largest, size = np.abs(state_values).max(axis=0), np.abs(change)
        rounding = _rounding(cmdp, largest, _mixed_terms(cmdp), slack)
        rest = float(np.abs(cmdp.initial + cmdp.gamma * entered - visits).sum())
        rest += terms * EPS * (1.0 + 3.0 * mass) + slack * mass
        off = 1.01 * rest * horizon_bound(cmdp, slack)
        errors = 1.01 * (off * (size.max(axis=0) + rounding) + mass * rounding)
        errors += _summing(cmdp, largest + np.abs(visits) @ size)
        sums = cmdp.initial @ state_values + visits @ change
    return sums, np.where(np.isfinite(errors), errors, np.inf)


def policy_slack(cmdp: CMDP, pi: PairTable) -> float:
    """A policy is played with probabilities that sum to one; by how much what is stored may be off by rounding."""
    return float(np.abs(cmdp.pairs.sum(pi) - 1.0).max()) + (cmdp.pairs.largest + 2) * EPS


def _mixed_terms(cmdp: CMDP) -> int:
    """Operations behind Σ_a π(a|s) [c + γ P V − V](s, a)."""
    return cmdp.longest_row + 2 * cmdp.pairs.largest + 12 + cmdp.entry_error


def _rounding(cmdp: CMDP, largest: Array, terms: int, slack: float) -> Array:
    """(m + 1,) error of computing c_π + γ P_π V − V in a state, where no |V| exceeds `largest`."""
    return (terms * EPS + slack) * (cmdp.cost_sizes + 3.0 * largest) + terms * TINY


def _summing(cmdp: CMDP, size: Array) -> Array:
    """(m + 1,) error of adding up over the states what has this size, and of limits: subtracted, and added again."""
    errors = (cmdp.states + 4 + cmdp.entry_error) * EPS * size + cmdp.states * TINY
    return np.asarray(errors + 4.0 * EPS * np.append(0.0, np.abs(cmdp.offsets)))
