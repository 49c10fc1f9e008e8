"""Exact evaluation of a policy, in the user's sense and units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from cmdpkit.checks import Array, PairTable
from cmdpkit.evaluation.backup import action_values, gain
from cmdpkit.evaluation.gains import exact_system, policy_system
from cmdpkit.evaluation.system import Plan
from cmdpkit.model import CMDP, Pairs, check_model
from cmdpkit.policy import MixturePolicy, as_policy, lowered_policy


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of a policy. Row 0 of the tables is the objective, rows 1..m are the constraints.

    Tables over all pairs are computed when they are first used.
    """

    objective: float
    constraint_values: Array  # (m,), to be compared with the limits
    state_values: Array  # (m + 1, S)
    pairs: Pairs
    _pair_values: Callable[[], Array] = field(repr=False)
    _pair_occupancy: Callable[[], PairTable] = field(repr=False)
    # Other criteria: expected visits instead, up to the end. For a finite horizon, tables have an axis more, the stage:
    # state_values (m + 1, T, S), action_values (m + 1, T, S, A), occupancy (T, S, A).

    @cached_property
    def pair_values(self) -> Array:
        """(m + 1, S, A) action values; (m + 1, N) where only N pairs are available."""
        return self._pair_values()

    @cached_property
    def pair_occupancy(self) -> PairTable:
        """The discounted visitation distribution d of the paper over the pairs that exist; it sums to one."""
        return self._pair_occupancy()

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
        mean = partial(_mean, policy.weights, parts)
        now = mean("objective"), mean("constraint_values"), mean("state_values")
        return Evaluation(*now, cmdp.pairs, partial(mean, "pair_values"), partial(mean, "pair_occupancy"))
    pi = as_policy(policy, cmdp.pairs).pi
    # Back to the user's sense: a reward is −c_0, an AtLeast quantity is −c_i.
    signs = np.concatenate([[cmdp.sense], cmdp.stated(cmdp.signs)])
    system = exact_system(cmdp, pi)
    # V = (I − γ P_π)⁻¹ c_π
    policy_costs = signs * cmdp.pairs.expect(pi, _stated_costs(cmdp))
    values, at_start = system.values_and_start(policy_costs)
    swept = system.plan.method == "sweeps" and cmdp.criterion != "average"
    visits = None if swept else system.state_occupancy()  # factors are not kept
    start = float(at_start[0]) + 0.0, at_start[1:]
    tables = partial(_action_values, cmdp, signs, values), partial(_pair_occupancy, cmdp, pi, system.plan, visits)
    return Evaluation(*start, np.array(values.T, order="C"), cmdp.pairs, *tables)


def _stated_costs(cmdp: CMDP) -> Array:
    """Costs (m + 1, N) of the objective and of the constraints as stated: of two rows, the first."""
    if cmdp.num_rows == cmdp.num_constraints:
        return cmdp.costs
    return np.asarray(cmdp.costs[np.append(0, 1 + cmdp.stated(np.arange(cmdp.num_rows)))])


def _action_values(cmdp: CMDP, signs: Array, values: Array) -> Array:
    # Q = c + γ P V. For a long-run average g: V = g + h and Q = c − g + P V
    tables = signs[:, None] * _stated_costs(cmdp)
    q = action_values(cmdp, tables, values)
    if cmdp.criterion == "average":
        q -= gain(cmdp, values)[:, None]
    return q.reshape(-1, *cmdp.pairs.shape)


def _pair_occupancy(cmdp: CMDP, pi: PairTable, plan: Plan, visits: Array | None) -> PairTable:
    if visits is None:
        visits = policy_system(cmdp, pi, plan=plan).state_occupancy()
    # d(s, a) = (1 − γ) x(s) π(a|s) with x = (I − γ P_π)⁻ᵀ ρ. For a long-run average d is the stationary distribution
    occupancy = cmdp.step_weight * cmdp.pairs.over(visits) * pi
    return np.asarray(occupancy)


def _mean(weights: Array, parts: list[Evaluation], name: str) -> Any:
    return sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True))


def _raised(cmdp: CMDP, found: Evaluation) -> Evaluation:
    """The evaluation of the discounted model with the same values, as one of the model itself."""
    assert cmdp.lowering is not None
    sizes = cmdp.lowering.sizes
    stages = () if cmdp.horizon is None else (cmdp.horizon,)
    states = (cmdp.horizon or 1) * cmdp.states
    # V = (w / W) V'
    values = (found.state_values * sizes + 0.0)[:, :states].reshape(-1, *stages, cmdp.states)
    rest = partial(_raised_values, cmdp, found), partial(_raised_occupancy, cmdp, found)
    return Evaluation(found.objective, found.constraint_values, values, cmdp.pairs, *rest)


def _raised_values(cmdp: CMDP, found: Evaluation) -> Array:
    assert cmdp.lowering is not None
    model, sizes = cmdp.lowering
    # Q = (w / W) Q'
    q = found.pair_values.reshape(-1, model.pairs.count) * sizes[model.pairs.state]
    stages = () if cmdp.horizon is None else (cmdp.horizon,)
    return np.asarray(q[:, : (cmdp.horizon or 1) * cmdp.pairs.count].reshape(-1, *stages, *cmdp.pairs.shape))


def _raised_occupancy(cmdp: CMDP, found: Evaluation) -> PairTable:
    assert cmdp.lowering is not None
    model, sizes = cmdp.lowering
    # x = x' W / w, and none after the end
    per_pair = sizes[model.pairs.state]
    visits = found.pair_occupancy.ravel() / (1.0 - model.gamma)
    visits = np.divide(visits, per_pair, out=np.zeros_like(visits), where=per_pair > 0.0)
    stages = () if cmdp.horizon is None else (cmdp.horizon,)
    return np.asarray(visits[: (cmdp.horizon or 1) * cmdp.pairs.count].reshape(*stages, *cmdp.pairs.shape))
