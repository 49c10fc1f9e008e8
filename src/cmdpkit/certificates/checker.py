"""The checker: recomputes what is proved about a policy from the model alone. It imports no solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.checks import Array, longest_row
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.model import CMDP
from cmdpkit.policy import TabularPolicy


def certificate_of(cmdp: CMDP, policy: TabularPolicy, multipliers: Array, bound: float) -> Certificate:
    """The certificate of `policy`, given a proved lower bound on V_0 over the feasible policies."""
    values, errors = values_with_errors(cmdp, policy)
    v_0, v = float(values[0]), values[1:]
    # |V_0 − bound| at the end of the error interval that is farther away
    gap = (abs(v_0 - bound) + errors[0]) / max(1.0, abs(v_0))
    excess = np.maximum(v + errors[1:], 0.0)
    return Certificate(
        objective=cmdp.user_objective(v_0),
        bound=cmdp.user_objective(float(bound)),
        gap=float(gap),
        violation=float((excess / cmdp.tolerance_scales).max(initial=0.0)),
        constraint_values=cmdp.user_constraint_values(v),
        violations=cmdp.violations(v),
        multipliers=multipliers,
        accuracy=float((errors / np.append(max(1.0, abs(v_0)), cmdp.tolerance_scales)).max()),
    )


def refutation(cmdp: CMDP, policy: TabularPolicy, farkas: Array, margin: float) -> Certificate:
    """The certificate of any policy on a model whose limits cannot be met."""
    plain = certificate_of(cmdp, policy, np.zeros(cmdp.num_constraints), np.inf)
    return replace(plain, infeasibility=farkas, infeasibility_margin=margin)


def values_with_errors(cmdp: CMDP, policy: TabularPolicy) -> tuple[Array, Array]:
    """V_0..V_m of the policy, and a bound on the numerical error of each, from the residual of the linear system."""
    pi = policy.probabilities
    tables = cmdp.costs.reshape(-1, cmdp.states, cmdp.actions)
    system = PolicySystem(cmdp, pi)
    policy_cost = np.einsum("isa,sa->si", tables, pi)
    value = system.state_values(policy_cost)
    # r = c_π + γ P_π V − V, so that |V − V^π| ≤ max|r| / (1 − γ), with the rounding of r itself on top
    residual = np.abs(policy_cost + cmdp.gamma * (system.chain @ value) - value).max(axis=0)
    eps = np.finfo(float).eps
    # A sum over the successors in a row of P_π, each of them and the cost a sum over actions
    terms = longest_row(system.chain) + 2 * cmdp.actions + 6
    rounding = terms * eps * (cmdp.cost_sizes + np.abs(value).max(axis=0))
    errors = (residual + rounding) / (1.0 - cmdp.gamma * cmdp.row_sums[1])
    errors += (cmdp.states + 4) * eps * np.abs(value).max(axis=0)
    values = cmdp.initial @ value
    values[1:] -= cmdp.offsets
    return values, errors
