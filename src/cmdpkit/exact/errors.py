"""Errors of the values of a policy, at the price of one look ahead: coarser than the checker's, and as rigorous."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array, PairTable, longest_row
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
) -> Array:
    """(m + 1,) bounds on |ρ · (V − V^π)| for values V (S, m + 1) of a policy: (S,) choices, or probabilities of pairs.

    `chain` is P_π and `cost` (S, m + 1) is c_π, if they are known already.

    |V − V^π| ≤ max_s |c_π + γ P_π V − V| · Σ_k (γP_π)ᵏ1, and the largest rounding error of computing that. A long-run
    average lies between the least and the largest of c_π + P_π V − V.
    """
    pairs = cmdp.pairs
    if pi is None:
        chain = chosen_chain(cmdp, choice) if chain is None else chain
        cost = cmdp.costs[:, pairs.rows(choice)].T if cost is None else cost
        slack, terms = 0.0, cmdp.longest_row + 12 + cmdp.entry_error
    else:
        chain = mixed_chain(cmdp, pi) if chain is None else chain
        cost = pairs.expect(pi, cmdp.costs) if cost is None else cost
        # The policy is played with probabilities that sum to one; what is stored may be off by rounding
        slack = float(np.abs(pairs.sum(pi) - 1.0).max()) + (pairs.largest + 2) * EPS
        terms = longest_row(chain) + 2 * pairs.largest + 12 + cmdp.entry_error
    with np.errstate(over="ignore", invalid="ignore"):
        change = cost + cmdp.gamma * (chain @ state_values) - state_values
        largest = np.abs(state_values).max(axis=0)
        if cmdp.criterion == "average":  # between the least and the largest change
            change -= cmdp.initial @ state_values
            slack += row_slack(cmdp)
        residual = np.abs(change).max(axis=0)
        local = residual + (terms * EPS + slack) * (cmdp.cost_sizes + 3.0 * largest) + terms * TINY
        horizon = 1.0 if cmdp.criterion == "average" else horizon_bound(cmdp, slack)
        terms = cmdp.states + 4 + cmdp.entry_error
        errors = 1.01 * local * horizon + terms * EPS * largest + cmdp.states * TINY
        # Limits are subtracted and added again
        errors += 4.0 * EPS * np.append(0.0, np.abs(cmdp.offsets))
    return np.where(np.isfinite(errors), errors, np.inf)
