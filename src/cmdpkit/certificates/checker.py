"""The checker: recomputes what is proved about a policy from the model alone. It imports no solver."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.checks import Array, longest_row
from cmdpkit.evaluation.bounds import EPS, TINY, largest_error, values_error
from cmdpkit.evaluation.gain_bounds import averages_with_errors
from cmdpkit.evaluation.rational import RationalModel, Table, above, below
from cmdpkit.evaluation.rational_averages import RationalAverages
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.model import CMDP, Problem, parts
from cmdpkit.policy import MixturePolicy, TabularPolicy

AnyPolicy = TabularPolicy | MixturePolicy


ENOUGH = 2.0
"""Where no error exceeds the accuracy that was asked so many times, wherever the start leads, visits are not needed."""

VISITS = 1e-3
"""Visits weigh the errors of values: where these are found to an accuracy, visits are as good as exact to this part."""


class Guess(NamedTuple):
    """What is thought to be the values (S, m + 1) and the visits (S,) of a policy. It is checked like a solution.

    Without visits the values are those of a similar policy, to start from.
    """

    values: Array
    visits: Array | None = None


def certificate_of(
    cmdp: CMDP,
    policy: AnyPolicy,
    multipliers: Array,
    bound: float,
    plan: Plan | None = None,
    accuracy: Array | float = 0.0,
    guess: Guess | None = None,
) -> Certificate:
    """The certificate of `policy`, given a proved lower bound on V_0 over the feasible policies, and its row prices.

    `plan` is the method that has suited the chains of the model, if that is known. Values are found to about `accuracy`
    (rows + 1,), by default to rounding; what their errors are is part of the proof, and found from the values alone,
    whatever the `guess` is that they started from.
    """
    return certificate_of_values(cmdp, *values_with_errors(cmdp, policy, plan, accuracy, guess), multipliers, bound)


def certificate_of_values(cmdp: Problem, values: Array, errors: Array, multipliers: Array, bound: float) -> Certificate:
    """The same from the values (m + 1,) of a policy, limits not subtracted, and bounds on their errors."""
    v_0, v = float(values[0]), values[1:] - cmdp.offsets
    # |V_0 − bound| at the end of the error interval that is farther away
    gap = (abs(v_0 - bound) + errors[0]) / max(1.0, abs(v_0))
    excess = np.maximum(v + errors[1:] + EPS * np.abs(v), 0.0)  # the subtraction of the limit is rounded too
    return Certificate(
        objective=cmdp.user_objective(v_0),
        bound=cmdp.user_objective(float(bound)),
        gap=float(gap),
        violation=float((excess / cmdp.tolerance_scales).max(initial=0.0)),
        constraint_values=cmdp.stated(cmdp.signs * values[1:]) + 0.0,
        violations=cmdp.violations(v),
        multipliers=np.array(cmdp.stated_prices(multipliers), dtype=float),  # a copy: what is proved must not change
        accuracy=float((errors / np.append(max(1.0, abs(v_0)), cmdp.tolerance_scales)).max()),
    )


def exact_certificate(model: RationalModel, policy: TabularPolicy, multipliers: Array, bound: Fraction) -> Certificate:
    """The certificate of `policy` on a small model, in exact arithmetic: only what is reported is rounded."""
    cmdp = model.cmdp
    known = model.averages(policy.pi) if isinstance(model, RationalAverages) else _exact_values(model, policy)
    if known is None:
        return certificate_of(cmdp, policy, multipliers, below(bound))
    v, errors = known
    reported = np.array([below(x + o) for x, o in zip(v, model.offsets, strict=True)])
    objective, lower = Fraction(reported[0]), Fraction(below(bound))
    scales = [max(Fraction(1), abs(objective)), *(Fraction(s) for s in cmdp.tolerance_scales.tolist())]
    gap = (abs(v[0] - lower) + errors[0]) / scales[0]
    excess = [max(x + e, Fraction(0)) for x, e in zip(v[1:], errors[1:], strict=True)]
    exact = zip(reported.tolist(), v, model.offsets, errors, scales, strict=True)
    accuracy = max((abs(Fraction(claim) - x - o) + e) / s for claim, x, o, e, s in exact)
    return Certificate(
        objective=cmdp.user_objective(float(objective)),
        bound=cmdp.user_objective(float(lower)),
        gap=above(gap),
        violation=above(max((x / s for x, s in zip(excess, scales[1:], strict=True)), default=Fraction(0))),
        constraint_values=cmdp.stated(cmdp.signs * reported[1:]) + 0.0,
        violations=cmdp.violations(np.array([above(x) for x in v[1:]])),
        multipliers=np.array(cmdp.stated_prices(multipliers), dtype=float),
        accuracy=above(accuracy),
    )


def _exact_values(model: RationalModel, policy: TabularPolicy) -> tuple[list[Fraction], list[Fraction]]:
    played = Table.of(policy.pi.ravel())
    return model.values(played, model.visits(played))


def refutation(cmdp: CMDP, policy: AnyPolicy, farkas: Array, margin: float, plan: Plan | None = None) -> Certificate:
    """The certificate of any policy on a model whose limits cannot be met."""
    return refuted(cmdp, certificate_of(cmdp, policy, np.zeros(cmdp.num_rows), np.inf, plan), farkas, margin)


def refuted(cmdp: Problem, plain: Certificate, farkas: Array, margin: float) -> Certificate:
    """A certificate with a proof that the limits cannot be met."""
    y = np.array(cmdp.stated_prices(farkas), dtype=float)
    return replace(plain, infeasibility=y, infeasibility_margin=margin)


def values_with_errors(
    cmdp: CMDP,
    policy: AnyPolicy,
    plan: Plan | None = None,
    accuracy: Array | float = 0.0,
    guess: Guess | None = None,
) -> tuple[Array, Array]:
    """(m + 1,) values of all costs from the start, limits not subtracted, and a bound on the error of each."""
    # A copy: proofs do not change the run
    plan = Plan() if plan is None else plan.copy()
    if not isinstance(policy, MixturePolicy):
        return _of_stationary(cmdp, policy, plan, accuracy, guess)
    near = None if guess is None else guess._replace(visits=None)
    parts = [_of_stationary(cmdp, part, plan, accuracy, near) for part in policy.policies]
    values, errors = (np.array(column) for column in zip(*parts, strict=True))
    return mixed_values(policy.weights, values, errors)


def mixed_values(weights: Array, values: Array, errors: Array) -> tuple[Array, Array]:
    """The values of a mixture with their errors, from those of its parts, both (parts, m + 1)."""
    # Σ_j w_j V(π_j), with weights that sum to one up to rounding
    rounding = (len(weights) + 8) * EPS * (weights @ np.abs(values))
    return weights @ values, weights @ errors * (1.0 + 1e-9) + rounding


def _of_stationary(
    cmdp: CMDP, policy: TabularPolicy, plan: Plan, accuracy: Array | float, guess: Guess | None
) -> tuple[Array, Array]:
    pi, pairs = policy.pi, cmdp.pairs
    if cmdp.criterion == "average":
        return averages_with_errors(cmdp, pi, plan)
    exact = plan.is_direct  # then a guess from the same run is as exact as another solution
    system = PolicySystem(cmdp, pi, plan=plan)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing, and says so
        policy_cost = pairs.expect(pi, cmdp.costs)
        known, visits = guess or (None, None)
        same = exact and visits is not None
        value = known if known is not None and same else system.state_values(policy_cost, known, accuracy)
        # r = c_π + γ P_π V − V, and its rounding error
        residual = policy_cost  # in place: tables of large models are not kept together
        residual += cmdp.gamma * (system.chain @ value)
        residual -= value
        # A sum over the successors in a row of P_π, each of them and the cost a sum over actions
        terms = longest_row(system.chain) + 2 * pairs.largest + 12 + cmdp.entry_error
        # The policy is played with probabilities that sum to one; what is stored may be off by rounding
        slack = np.abs(pairs.sum(pi) - 1.0) + (pairs.largest + 2) * EPS
        local = np.abs(residual, out=residual)
        local += (terms * EPS + slack)[:, None] * _sizes(cmdp, system, pi, value) + terms * TINY
        errors = largest_error(cmdp, local, float(slack.max()))
        if not (errors <= ENOUGH * np.asarray(accuracy)).all():
            if visits is None or not exact:
                visits = system.state_occupancy(visits, VISITS if np.any(accuracy) else 0.0)
            errors = values_error(cmdp, system.chain, np.maximum(visits, 0.0), local, float(slack.max()))
        errors += (cmdp.states + 4 + cmdp.entry_error) * EPS * (cmdp.initial @ np.abs(value)) + cmdp.states * TINY
        return cmdp.initial @ value, np.where(np.isfinite(errors), errors, np.inf)


def _sizes(cmdp: CMDP, system: PolicySystem, pi: Array, value: Array) -> Array:
    """(S, m + 1) how large the terms are that are summed for c_π + γ P_π V − V in every state."""
    size = np.abs(value)
    size += cmdp.gamma * (system.chain @ size)
    for part in parts(cmdp.pairs):
        size[part.states] += part.pairs.expect(part.of(pi), np.abs(cmdp.costs[:, part.rows]))
    return size
