"""Exact evaluation of a policy, in the user's sense and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import action_values, gain
from cmdpkit.evaluation.gains import policy_system
from cmdpkit.model import CMDP, Pairs, check_model
from cmdpkit.policy import MixturePolicy, as_policy, lowered_policy


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of a policy. Row 0 of the tables is the objective, rows 1..m are the constraints."""

    objective: float
    constraint_values: Array  # (m,), to be compared with the limits
    state_values: Array  # (m + 1, S)
    pair_values: Array  # (m + 1, S, A) action values; (m + 1, N) where only N pairs are available
    pair_occupancy: PairTable  # the discounted visitation distribution d of the paper; it sums to one
    pairs: Pairs
    # Other criteria: expected visits instead, up to the end. For a finite horizon, tables have an axis more, the stage:
    # state_values (m + 1, T, S), action_values (m + 1, T, S, A), occupancy (T, S, A).

    @property
    def action_values(self) -> Array:
        """(m + 1, S, A), not a number where an action is not available."""
        return self._tables(self.pair_values, np.nan)

    @property
    def occupancy(self) -> Array:
        """(S, A) the discounted visitation distribution d of the paper, which sums to one."""
        return self._tables(self.pair_occupancy, 0.0)

    def _tables(self, values: Array, missing: float) -> Array:
        flat = values.reshape(-1, *self.pairs.shape)
        tables = np.stack([self.pairs.table(table, missing) for table in flat])
        return tables.reshape(*values.shape[: values.ndim - len(self.pairs.shape)], *tables.shape[1:])


def evaluate(cmdp: CMDP, policy: Any) -> Evaluation:
    """Evaluate a policy exactly: all m + 1 costs from one factorisation.

    Args:
        cmdp: the model.
        policy: a `TabularPolicy`, an (S, A) array of probabilities, or a `MixturePolicy`, whose values are averages;
            for a finite horizon also a `StagedPolicy`.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.paper()
        >>> uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
        >>> round(ck.evaluate(cmdp, uniform).objective, 4)
        2.4182
    """
    check_model(cmdp)
    if cmdp.lowering is not None:
        return _raised(cmdp, evaluate(cmdp.lowering.model, lowered_policy(cmdp, policy)))
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
    q = action_values(cmdp, tables, values)
    if cmdp.criterion == "average":
        q -= gain(cmdp, values)[:, None]
    q = q.reshape(-1, *pi.shape)
    occupancy = cmdp.step_weight * cmdp.pairs.over(system.state_occupancy()) * pi
    at_start = cmdp.initial @ values
    start = float(at_start[0]) + 0.0, at_start[1:]
    return Evaluation(*start, np.ascontiguousarray(values.T), q, occupancy, cmdp.pairs)


def _raised(cmdp: CMDP, found: Evaluation) -> Evaluation:
    """The evaluation of the discounted model with the same values, as one of the model itself."""
    assert cmdp.lowering is not None
    model, sizes = cmdp.lowering
    stages = () if cmdp.horizon is None else (cmdp.horizon,)
    states, count = (cmdp.horizon or 1) * cmdp.states, (cmdp.horizon or 1) * cmdp.pairs.count
    # V = (w / W) V',  Q = (w / W) Q',  x = x' W / w, and none after the end
    per_pair = sizes[model.pairs.state]
    visits = found.pair_occupancy.ravel() / (1.0 - model.gamma)
    visits = np.divide(visits, per_pair, out=np.zeros_like(visits), where=per_pair > 0.0)
    q = found.pair_values.reshape(-1, model.pairs.count) * per_pair
    return Evaluation(
        found.objective,
        found.constraint_values,
        (found.state_values * sizes + 0.0)[:, :states].reshape(-1, *stages, cmdp.states),
        q[:, :count].reshape(-1, *stages, *cmdp.pairs.shape),
        visits[:count].reshape(*stages, *cmdp.pairs.shape),
        cmdp.pairs,
    )
