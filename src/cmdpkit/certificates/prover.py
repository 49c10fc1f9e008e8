"""The prover: finds multipliers for the best bound, and has the result checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.certificates.certificate import Certificate
from cmdpkit.certificates.checker import Guess, certificate_of, refutation
from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import bellman
from cmdpkit.evaluation.bounds import backup_rounding, bound_from_backup
from cmdpkit.evaluation.system import Plan, PolicySystem
from cmdpkit.evaluation.threads import OneBlasThread
from cmdpkit.exact.balance import Balance
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.least_squares import nonnegative_least_squares
from cmdpkit.exact.local import Blend, LocalDual, Viewpoint, as_blend, summit
from cmdpkit.exact.master import row_scales
from cmdpkit.exact.mdp import Oracle, Stop, minimise, never
from cmdpkit.exact.nearby import begin_at
from cmdpkit.exact.pivots import Vertex, is_pivotable, optimal_vertex
from cmdpkit.exact.search import steps
from cmdpkit.model import CMDP, StagedTransitions, check_model
from cmdpkit.policy import MixturePolicy, TabularPolicy, as_any_policy, lowered_policy

PARTS = 20
"""A policy that randomises in more states than this is not the best one, or not at a vertex."""

MISSED = 1e-9
"""A policy that misses a limit by more than this, relative to the limit and to its costs, is not the best one."""

ROOM = 1e-5
"""A limit that is met with more room than this, relative to the limit and to its costs, has no price."""

EXACT = 1e-10
"""Multipliers are the best if their bound is so close to the optimum, relative to it."""

NEARLY, SHARE = 1e-6, 0.01
"""Where a policy is proved to be so close to the optimum, they are the best if others could gain no more than this part
of what is left, under the local model of the policy."""

VISITS = 1e-6
"""Visits of the policy for its local model, relative."""

NOBODY = Blend([], np.zeros(0))
"""The policy of a viewpoint from which no blend is made."""


def certify(cmdp: CMDP, policy: Any, multipliers: Any = None) -> Certificate:
    """Prove how good and how safe a policy is.

    Args:
        cmdp: the model.
        policy: a `TabularPolicy`, an (S, A) array of probabilities, or a `MixturePolicy`; for a finite horizon also a
            `StagedPolicy`.
        multipliers: (m,) multipliers for the bound, ≥ 0 except for `Equal` and `Between`; any are valid, good ones are
            tight. By default the best ones are found by solving the dual problem, which also finds the proof when the
            limits cannot be met.

    Example:
        >>> import cmdpkit as ck
        >>> cmdp = ck.problems.paper()
        >>> uniform = ck.TabularPolicy.uniform(cmdp.states, cmdp.actions)
        >>> certificate = ck.certify(cmdp, uniform)
        >>> round(certificate.bound, 6), certificate.optimal(1e-6)
        (4.462444, False)
    """
    check_model(cmdp)
    if cmdp.lowering is not None:
        return certify(cmdp.lowering.model, lowered_policy(cmdp, policy), multipliers)
    policy = as_any_policy(policy, cmdp.pairs)
    if multipliers is not None:
        lam = cmdp.check_prices(multipliers, "multipliers")
        bound = minimise(cmdp, np.append(1.0, lam)).bound
        return certificate_of(cmdp, policy, lam, bound)
    if cmdp.is_extreme:
        with np.errstate(all="ignore"):
            return _in_even_units(cmdp, policy)
    with OneBlasThread(cmdp):
        return _best_certificate(cmdp, policy)


def _best_certificate(cmdp: CMDP, policy: TabularPolicy | MixturePolicy) -> Certificate:
    """With the multipliers that prove the most."""
    if (known := _supported(cmdp, policy)) is not None:
        return certificate_of(cmdp, policy, known.multipliers, known.bound, known.plan, guess=known.guess)
    if cmdp.num_rows and is_pivotable(cmdp) and (vertex := optimal_vertex(cmdp, never)) is not None:
        best, bound = vertex_proof(cmdp, vertex)
        if best.optimal(EXACT):
            return certificate_of(cmdp, policy, cmdp.row_prices(best.multipliers), bound)
    search = best_bound(cmdp, policy=policy)
    if search.farkas is not None:
        return refutation(cmdp, policy, search.farkas, search.farkas_margin)
    return certificate_of(cmdp, policy, search.multipliers, search.bound)


class _Proof(NamedTuple):
    """Multipliers, the bound that they prove, the method for the policy's chain, and what is known of the policy."""

    multipliers: Array
    bound: float
    plan: Plan
    guess: Guess


def _supported(cmdp: CMDP, policy: TabularPolicy | MixturePolicy) -> _Proof | None:
    """The multipliers that follow from a policy that is optimal, or nearly so.

    None if they do not prove that it is, or if it randomises in many states.
    """
    sums = cmdp.criterion == "discounted" and not isinstance(cmdp.transitions, StagedTransitions)
    if not (sums and isinstance(policy, TabularPolicy)):
        return None
    mixed = np.flatnonzero((policy.pi > 0.0) & (policy.pi < 1.0))
    if mixed.size > 2 * PARTS:
        return None
    plan = Plan()
    system = PolicySystem(cmdp, policy.pi, plan=plan)
    values = system.state_values(cmdp.pairs.expect(policy.pi, cmdp.costs))
    v = cmdp.initial @ values - np.append(0.0, cmdp.offsets)
    scales = cmdp.fine_scales[1:]
    missed = float((v[1:] / scales).max(initial=0.0))
    if missed > NEARLY:
        return None
    prices = _supporting_prices(cmdp, mixed, values, v[1:] > -ROOM * scales)
    oracle, choice = Oracle(cmdp), cmdp.pairs.argmin(-policy.pi).astype(np.int32)
    oracle.choice, oracle.state_values, oracle.plan = choice, values, plan
    upper, allowed = _upper_end(cmdp, v, prices, values)
    bound = _dual(oracle, np.append(1.0, prices), allowed, upper - allowed)
    if upper - bound <= allowed and missed <= MISSED:  # the best policy meets the limits
        return _Proof(prices, bound, plan, Guess(values, system.state_occupancy() if plan.is_direct else None))
    visits = system.state_occupancy(accuracy=VISITS)
    oracle.choice, oracle.state_values = choice, values
    return _nearly_supported(oracle, Viewpoint(NOBODY, values, visits, v), prices)


def _upper_end(cmdp: CMDP, v: Array, prices: Array, values: Array) -> tuple[float, float]:
    """What no bound exceeds, because of a policy with V_0..V_m, and how far below that the best bound may be."""
    # G(λ) ≤ V_0 + λ · V; twice these prices leave room for better ones
    upper, weights = float(v[0] + 2.0 * prices @ np.maximum(v[1:], 0.0)), np.append(1.0, prices)
    rounding = 4.0 * backup_rounding(cmdp, weights, float(np.abs(values @ weights).max())) / cmdp.step_weight
    return upper, EXACT * cmdp.proof_scale(upper) + rounding


def _dual(oracle: Oracle, weights: Array, gap: float, hopeless: float) -> float:
    """A bound on min_π w·V(π) to within `gap`, or one that shows it to be below `hopeless`, from the oracle's policy.

    In states that it does not visit, the best policy may do anything: the oracle improves it there.
    """
    if oracle.backs_up and oracle.state_values is not None:
        bound, choice = oracle.back_up(weights, oracle.state_values @ weights, gap, hopeless)
        if choice is not None:
            return bound
    return oracle.minimise(weights, gap, hopeless=hopeless).bound


def _nearly_supported(oracle: Oracle, view: Viewpoint, prices: Array) -> _Proof | None:
    """The best multipliers as the local model of a policy sees them, if they prove that it is nearly the best policy.

    The local model errs by the square of what the policy lacks. So it says how much other multipliers could gain:
    where that is a small part of the gap that is proved, these are as good as the best.
    """
    cmdp, scales = oracle.cmdp, row_scales(oracle.cmdp)
    local, units, unit = LocalDual(cmdp, view, scales), scales[0] / scales[1:], float(scales[0])
    size, own, start = cmdp.proof_scale(float(view.values[0])), local.values[0], prices / units
    near, cap = NEARLY * size / unit, 2.0 * max(1.0, float(start.max(initial=0.0)))
    for exactly in (0.1 * near, 0.1 * EXACT * size / unit):
        best = summit(local, np.array(local.values), start, own[0] - near, own[0], cap, exactly, 0.0)
        start = best.prices
        if own @ np.append(1.0, start) - best.value > near:  # it is not nearly the best one
            return None
    prices, expected = cmdp.netted(best.prices * units), best.value * unit
    upper, allowed = _upper_end(cmdp, view.values, prices, view.state_values)
    gap = max(allowed, 0.1 * SHARE * (upper - expected))
    bound = _dual(oracle, np.append(1.0, prices), gap, upper - NEARLY * size)
    if upper - bound > NEARLY * size or expected - bound > max(allowed, SHARE * (upper - bound)):
        return None
    if start.max(initial=0.0) > 0.5 * cap:  # perhaps the limits cannot be met, which is to be proved then
        return None
    return _Proof(prices, bound, oracle.plan, Guess(view.state_values))


def _supporting_prices(cmdp: CMDP, mixed: Any, values: Array, tight: Any) -> Array:
    """λ ≥ 0 for which the pairs `mixed`, taken at random, are equally good: A_0(s, a) + Σ λ_i A_i(s, a) = 0.

    `values` are V_0..V_m of the policy in every state. Limits that are not `tight` have no price.
    """
    prices = np.zeros(cmdp.num_rows)
    if mixed.size and tight.any():
        ahead = cmdp.gamma * (cmdp.transitions[mixed] @ values)
        advantage = cmdp.costs[:, mixed].T + ahead - values[cmdp.pairs.state[mixed]]
        prices[tight] = nonnegative_least_squares(advantage[:, 1:][:, tight], -advantage[:, 0])
    return np.asarray(cmdp.netted(prices))


def vertex_proof(cmdp: CMDP, vertex: Vertex) -> tuple[Certificate, float]:
    """The certificate of a vertex of a small model, and the bound that its dual values prove."""
    prices = cmdp.netted(vertex.multipliers)
    weights = np.append(1.0, prices)
    backup = bellman(cmdp, weights @ cmdp.costs, vertex.values, vertex.choice)
    bound = bound_from_backup(cmdp, weights, vertex.values, backup)
    return certificate_of(cmdp, vertex.policy, prices, bound, Plan("dense")), bound


def _in_even_units(cmdp: CMDP, policy: Any) -> Certificate:
    """The same where quotients of the costs would overflow."""
    balance = Balance(cmdp)
    search = best_bound(balance.even)
    proof = None if search.farkas is None else balance.farkas(search.farkas, search.farkas_margin)
    if proof is not None:
        return refutation(cmdp, policy, *proof)
    return certificate_of(cmdp, policy, *balance.dual(search.multipliers, search.bound))


def best_bound(
    cmdp: CMDP, accuracy: float = EXACT, stop: Stop = never, policy: TabularPolicy | MixturePolicy | None = None
) -> ColumnSearch:
    """Solve the dual problem: multipliers with the largest G(λ), or a Farkas proof.

    If `policy` randomises in few states, as the best one does, the search begins there: where it is the best, the
    multipliers that support it are found without any question.
    """
    search, start = ColumnSearch(cmdp, stop=stop), None
    plain = cmdp.criterion == "discounted" and not isinstance(cmdp.transitions, StagedTransitions)
    if plain and cmdp.num_rows and isinstance(policy, TabularPolicy):
        blend = as_blend(cmdp.pairs, policy.pi, PARTS)
        start = None if blend is None else begin_at(search, blend)
    for _ in steps(search, start):
        upper = search.upper
        if start is not None:
            # No bound exceeds V_0 + λ · V of a policy: where it misses limits by rounding, that is an upper end as well
            upper = min(upper, search.values[0][0] + 2.0 * search.multipliers @ np.maximum(search.values[0][1:], 0.0))
        if upper - search.bound <= accuracy * max(1.0, abs(search.bound)) or stop():
            break
    return search
