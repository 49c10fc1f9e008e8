"""Exact evaluation of a policy, in the user's sense and units."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import look_ahead
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.model import CMDP, check_model
from cmdpkit.policy import MixturePolicy, as_policy


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of a policy. Row 0 of the tables is the objective, rows 1..m are the constraints."""

    objective: float
    constraint_values: Array  # (m,), to be compared with the limits
    state_values: Array  # (m + 1, S)
    action_values: Array  # (m + 1, S, A)
    occupancy: Array  # (S, A), the discounted visitation distribution d of the paper; it sums to one


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
        columns = zip(*([getattr(part, field.name) for field in fields(Evaluation)] for part in parts), strict=True)
        return Evaluation(*(sum(w * x for w, x in zip(policy.weights, column, strict=True)) for column in columns))
    pi = as_policy(policy, cmdp.states, cmdp.actions).probabilities
    # Back to the user's sense: a reward is −c_0, an AtLeast quantity is −c_i.
    signs = np.concatenate([[cmdp.sense], cmdp.signs])[:, None]
    tables = (signs * cmdp.costs).reshape(-1, cmdp.states, cmdp.actions)
    system = PolicySystem(cmdp, pi)
    # V = (I − γ P_π)⁻¹ c_π,   Q = c + γ P V,   d(s, a) = (1 − γ) x(s) π(a|s) with x = (I − γ P_π)⁻ᵀ ρ
    values = system.state_values(np.einsum("isa,sa->si", tables, pi))
    q = tables + look_ahead(cmdp, values).T.reshape(tables.shape)
    occupancy = (1.0 - cmdp.gamma) * system.state_occupancy()[:, None] * pi
    at_start = cmdp.initial @ values
    return Evaluation(float(at_start[0]) + 0.0, at_start[1:], np.ascontiguousarray(values.T), q, occupancy)
