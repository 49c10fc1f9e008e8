"""Steps for PMD-PD when the user names none: epochs of Algorithm 1, each with steps that fit the model.

Near a solution that randomises, one macro step moves V by −step · G (λ + η′V − λ*), where

    G_ij = Σ_s x(s) Cov_{a~π(·|s)}(Q_i, Q_j)      (x: discounted state visits)

is the Fisher metric of the policy seen through the constraints. The pair (policy, λ) then contracts by sqrt(1 − a),
with a = step · η′ · G: too small an η′ is slow, a > 4/3 diverges. So each epoch takes η′_i = 0.7 / (step · Σ_j |G_ij|).
Large steps remove bad actions faster but ask for better multipliers, so the step doubles after every epoch that
at least halved the KKT residual; any other epoch restarts from its average iterate if that has the smaller residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.columns import stationary
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules import PMDPD

EPOCH = 20
FIRST_STEP = 10.0  # in units of 1 / span(c_0)
LAST_STEP = 1e7
CONTRACTION = 0.7
DUAL_CAP = 30.0  # largest η′, in units of (1 − γ) span(c_0) / span(c_i)²


def balanced_primal_dual(learner: ExactLearner, multipliers: Array | None = None) -> Iterator[Iterate]:
    """PMD-PD in epochs with steps from the model. Yields iterates without end, like `primal_dual`."""
    unit = 1.0 / reference_span(learner.cmdp.spans)[0]
    learner.step = FIRST_STEP * unit
    rule = PMDPD(balanced_eta_dual(learner))
    lam = rule.start(learner.constraint_values()) if multipliers is None else multipliers
    residual = kkt_residual(learner, lam)
    k = 0
    while True:
        occupancy, mixed = np.zeros_like(learner.occupancy), np.zeros_like(lam)
        for iterate in islice(primal_dual(learner, rule, lam), EPOCH):
            occupancy += learner.occupancy
            mixed += iterate.multipliers + rule.eta_dual * iterate.v
            k += 1
            yield replace(iterate, k=k)
        lam = iterate.multipliers
        before, residual = residual, kkt_residual(learner, lam)
        if residual <= 0.5 * before:
            learner.step = min(2.0 * learner.step, LAST_STEP * unit)
        else:
            lam, residual = _restart(learner, lam, residual, occupancy, mixed / EPOCH)
        rule = PMDPD(balanced_eta_dual(learner))
        # A new η′ must not break the invariant λ + η′ V ≥ 0.
        lam = np.maximum(lam, rule.start(learner.constraint_values()))


def _restart(
    learner: ExactLearner, lam: Array, residual: float, occupancy: Array, average: Array
) -> tuple[Array, float]:
    """Move to the epoch's average iterate when its residual is smaller than the last one's."""
    last = learner.policy
    average_policy = stationary(occupancy, last.probabilities).probabilities
    # Mirror descent needs positive probabilities; those of bad actions may have underflowed in the occupancy.
    learner.move_to(TabularPolicy.from_log(np.log(np.maximum(average_policy, 1e-300))))
    at_average = kkt_residual(learner, average)
    if at_average < residual:
        return average, at_average
    learner.move_to(last)
    return lam, residual


def balanced_eta_dual(learner: ExactLearner) -> Array:
    """η′_i = 0.7 / (step · Σ_j |G_ij|), capped so that one dual step cannot exceed the scale of the problem."""
    cmdp = learner.cmdp
    spans = reference_span(cmdp.spans)
    cap = DUAL_CAP * (1.0 - cmdp.gamma) * spans[0] / spans[1:] ** 2
    advantages, pi = learner.constraint_advantages(), learner.policy.probabilities
    weighted = learner.state_visits[:, None] * pi
    fisher = np.einsum("sa,isa,jsa->ij", weighted, advantages, advantages)
    curvature = learner.step * np.abs(fisher).sum(axis=1)
    eta_dual: Array = CONTRACTION / np.maximum(curvature, CONTRACTION / cap)
    return eta_dual


def kkt_residual(learner: ExactLearner, lam: Array) -> float:
    """How far (π, λ) is from the optimality conditions, in units of the objective.

    Greedy improvement left in the Lagrangian, plus complementarity Σ λ_i |V_i|, plus violation.
    """
    cmdp, v = learner.cmdp, learner.constraint_values()
    value, q = learner.lagrangian_values(lam)
    improvement = float(learner.state_visits @ (value - q.min(axis=1)))
    spans = reference_span(cmdp.spans)
    return improvement + float(np.abs(lam * v).sum()) + float(spans[0] * (np.maximum(v, 0.0) / spans[1:]).sum())


def reference_span(spans: Array) -> Array:
    """Spans to measure steps with; a cost that is the same everywhere counts as one unit."""
    return np.where(spans > 0.0, spans, 1.0)
