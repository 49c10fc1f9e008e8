"""Exact evaluation of a policy, in the user's sense and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import gain, look_ahead
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.model import CMDP, Pairs, check_model
from cmdpkit.policy import MixturePolicy, as_policy


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of a policy. Row 0 of the tables is the objective, rows 1..m are the constraints."""

    objective: float
    constraint_values: Array  # (m,), to be compared with the limits
    state_values: Array  # (m + 1, S)
    pair_values: Array  # (m + 1, S, A) action values; (m + 1, N) where only N pairs are available
    pair_occupancy: PairTable  # the discounted visitation distribution d of the paper; it sums to one
    pairs: Pairs

    @property
    def action_values(self) -> Array:
        """(m + 1, S, A), not a number where an action is not available."""
        return np.stack([self.pairs.table(values, np.nan) for values in self.pair_values])

    @property
    def occupancy(self) -> Array:
        """(S, A) the discounted visitation distribution d of the paper, which sums to one."""
        return self.pairs.table(self.pair_occupancy, 0.0)


def evaluate(cmdp: CMDP, policy: Any) -> Evaluation:
    """Evaluate a policy exactly: all m + 1 costs from one factorisation.

    Args:
        cmdp: the model.
        policy: a `TabularPolicy`, an (S, A) array of probabilities, or a `MixturePolicy`, whose values are averages.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.paper()
        >>> uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
        >>> round(ck.evaluate(cmdp, uniform).objective, 4)
        2.4182
    """
    check_model(cmdp)
    if isinstance(policy, MixturePolicy):
        parts = [evaluate(cmdp, part) for part in policy.policies]
        names = ("objective", "constraint_values", "state_values", "pair_values", "pair_occupancy")
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        means = {n: sum(w * x for w, x in zip(policy.weights, c, strict=True)) for n, c in columns.items()}
        return Evaluation(**means, pairs=cmdp.pairs)
    pi = as_policy(policy, cmdp.pairs).pi
    # Back to the user's sense: a reward is −c_0, an AtLeast quantity is −c_i.
    signs = np.concatenate([[cmdp.sense], cmdp.stated(cmdp.signs)])[:, None]
    tables = signs * cmdp.costs[np.append(0, 1 + cmdp.stated(np.arange(cmdp.num_rows)))]
    system = policy_system(cmdp, pi)
    # V = (I − γ P_π)⁻¹ c_π,   Q = c + γ P V,   d(s, a) = (1 − γ) x(s) π(a|s) with x = (I − γ P_π)⁻ᵀ ρ
    values = system.state_values(cmdp.pairs.expect(pi, tables))
    # For a long-run average g: V = g + h, Q = c − g + P V, and d is the stationary distribution
    ahead = look_ahead(cmdp, values) - gain(cmdp, values)
    q = (tables + ahead.T).reshape(-1, *pi.shape)
    occupancy = cmdp.step_weight * cmdp.pairs.over(system.state_occupancy()) * pi
    at_start = cmdp.initial @ values
    start = float(at_start[0]) + 0.0, at_start[1:]
    return Evaluation(*start, np.ascontiguousarray(values.T), q, occupancy, cmdp.pairs)
