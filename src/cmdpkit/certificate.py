"""Certificates: what is proved about a policy, recomputed from the model alone, trusting no solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array, check_multipliers, longest_row
from cmdpkit.columns import ColumnSearch
from cmdpkit.evaluation.evaluate import stationary_policy
from cmdpkit.evaluation.system import PolicySystem
from cmdpkit.mdp import minimise
from cmdpkit.model import CMDP, check_model
from cmdpkit.policy import MixturePolicy, TabularPolicy, as_policy


@dataclass(frozen=True, eq=False)
class Certificate:
    """A proof about one policy, in the user's sense and units.

    `bound`, `gap` and `violation` are rigorous: the bound is no better than the true optimum, and gap and violation
    include the largest rounding error that the evaluation of the policy can have made (`accuracy`).
    """

    objective: float  # of the policy
    bound: float  # no feasible policy does better than this
    gap: float  # |objective − bound| / max(1, |objective|)
    violation: float  # largest of violations_i / max(1, |limit_i|)
    constraint_values: Array  # (m,)
    violations: Array  # (m,) ≥ 0, in the units of the limits
    multipliers: Array  # (m,) ≥ 0, with which the bound was made: bound = min over policies of the Lagrangian
    accuracy: float  # numerical error of objective and constraint values is at most this, relative to max(1, |·|)
    infeasibility: Array | None = None  # y ≥ 0 with Σ y_i V_i > 0 for every policy: the limits cannot be met
    infeasibility_margin: float | None = None  # by how much: Σ y_i V_i is at least this for every policy

    def feasible(self, tol: float = 0.0) -> bool:
        """Every limit is met to tol · max(1, |limit|), rounding included."""
        return self.violation <= tol

    def optimal(self, tol: float) -> bool:
        """The policy is feasible to `tol` and its objective within a relative `tol` of every feasible policy's."""
        return self.feasible(tol) and self.gap <= tol

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for JSON; a bound that does not exist is None."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else finite(value) for name, value in columns.items()
        }

    def __str__(self) -> str:
        if self.infeasibility is not None:
            y = np.array2string(self.infeasibility, precision=6)
            return f"infeasible: with y = {y} every policy has sum(y * V) >= {self.infeasibility_margin:.3g} > 0"
        proved = f"gap {self.gap:.2e}, violation {self.violation:.2e}"
        return f"objective {self.objective:.9g}, bound {self.bound:.9g}, {proved}"


def finite(value: float | None) -> float | None:
    """JSON has no infinity: a bound that does not exist is null."""
    return None if value is None or not np.isfinite(value) else float(value)


def certify(cmdp: CMDP, policy: Any, multipliers: Any = None) -> Certificate:
    """Prove how good and how safe a policy is.

    Args:
        cmdp: the model.
        policy: a `TabularPolicy`, an (S, A) array of probabilities, or a `MixturePolicy`.
        multipliers: (m,) multipliers ≥ 0 for the bound; any are valid, good ones are tight. By default the best ones
            are found by solving the dual problem, which also finds the proof when the limits cannot be met.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.paper()
        >>> uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
        >>> certificate = ck.certify(cmdp, uniform)
        >>> round(certificate.bound, 6), certificate.optimal(1e-6)
        (4.462444, False)
    """
    check_model(cmdp)
    if isinstance(policy, MixturePolicy):
        policy = stationary_policy(cmdp, policy)
    policy = as_policy(policy, cmdp.states, cmdp.actions)
    if multipliers is not None:
        lam = check_multipliers(multipliers, cmdp.num_constraints, "multipliers")
        bound = minimise(cmdp, np.append(1.0, lam)).bound
        return build(cmdp, policy, lam, bound)
    search = best_bound(cmdp)
    if search.farkas is not None:
        return build_infeasible(cmdp, policy, search.farkas, search.farkas_margin)
    return build(cmdp, policy, search.multipliers, search.bound)


def best_bound(cmdp: CMDP, accuracy: float = 1e-10) -> ColumnSearch:
    """Solve the dual problem: multipliers with the largest G(λ), or a Farkas proof."""
    search = ColumnSearch(cmdp)
    for _ in search.steps():
        if search.upper - search.bound <= accuracy * max(1.0, abs(search.bound)):
            break
    return search


def build(cmdp: CMDP, policy: TabularPolicy, multipliers: Array, bound: float) -> Certificate:
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


def build_infeasible(cmdp: CMDP, policy: TabularPolicy, farkas: Array, margin: float) -> Certificate:
    """The certificate of any policy on a model whose limits cannot be met."""
    plain = build(cmdp, policy, np.zeros(cmdp.num_constraints), np.inf)
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
