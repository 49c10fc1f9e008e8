"""Steps for PMD-PD when the user names none: epochs of Algorithm 1, each with steps that fit the model.

Near a solution that randomises, one macro step moves V by −step · G (λ + η′V − λ*), where

    G_ij = Σ_s x(s) Cov_{a~π(·|s)}(Q_i, Q_j)      (x: discounted state visits)

is the Fisher metric of the policy seen through the constraints. The pair (policy, λ) then contracts by sqrt(1 − a),
with a = step · η′ · G: too small an η′ is slow, a > 4/3 diverges. So each epoch takes η′_i = 0.7 / (step · Σ_j |G_ij|).
Large steps remove bad actions faster but ask for better multipliers, so the step follows the progress: it doubles after
an epoch that at least halved the KKT residual, and halves after one that hardly moved it, while the epoch doubles.
Every epoch starts from the better of the last and the average iterate of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate, primal_dual
from cmdpkit.rules import PMDPD

EPOCH, LONGEST_EPOCH = 20, 320
FIRST_STEP, SMALLEST_STEP, LARGEST_STEP = 10.0, 0.1, 1e7  # in units of 1 / span(c_0)
CONTRACTION = 0.7
# Largest η′: with p = span(c_0)/span(c_i) the scale of a multiplier, 300 p over the largest value that V_i can have,
# and no more than moves the multiplier by 0.1 p at the present V_i.
DUAL_CAP = 300.0
DUAL_MOVE = 0.1


def balanced_primal_dual(learner: ExactLearner, multipliers: Array | None = None) -> Iterator[Iterate]:
    """PMD-PD in epochs with steps from the model. Yields iterates without end, like `primal_dual`."""
    unit = 1.0 / reference_span(learner.cmdp.spans)[0]
    learner.step = FIRST_STEP * unit
    prices = np.zeros(learner.cmdp.num_constraints) if multipliers is None else multipliers
    residual = kkt_residual(learner, prices)
    k, epoch = 0, EPOCH
    while True:
        rule = PMDPD(balanced_eta_dual(learner, prices))
        # A new η′ must not break the invariant λ + η′ V ≥ 0.
        lam = np.maximum(prices, rule.start(learner.constraint_values()))
        occupancy, mixed = np.zeros_like(learner.occupancy), np.zeros_like(lam)
        for iterate in islice(primal_dual(learner, rule, lam), epoch):
            # λ + η′ V is what the Lagrangian uses. For a slack limit it tends to 0, while λ tends to −η′ V: a stale
            # λ would take long to decay under the next, smaller η′, so epochs hand on λ + η′ V.
            prices = np.maximum(rule.weights(iterate.multipliers, iterate.v).constraints, 0.0)
            occupancy += learner.occupancy
            mixed += prices
            k += 1
            yield replace(iterate, k=k)
        before = residual
        prices, residual = _better_of(learner, prices, occupancy, mixed / epoch)
        if residual <= 0.5 * before:  # good: be bolder
            learner.step, epoch = min(2.0 * learner.step, LARGEST_STEP * unit), EPOCH
        elif residual > 0.9 * before:  # stalled: be more careful, and average for longer
            learner.step, epoch = max(0.5 * learner.step, SMALLEST_STEP * unit), min(2 * epoch, LONGEST_EPOCH)


def _better_of(learner: ExactLearner, prices: Array, occupancy: Array, mixed: Array) -> tuple[Array, float]:
    """Stay at the last iterate, or move to the epoch's average if that has the smaller residual."""
    last, residual = learner.policy, kkt_residual(learner, prices)
    average = TabularPolicy.from_occupancy(occupancy, last.probabilities).probabilities
    # Mirror descent needs positive probabilities; those of bad actions may have underflowed in the occupancy.
    learner.move_to(TabularPolicy.softmax(np.log(np.maximum(average, 1e-300))))
    at_average = kkt_residual(learner, mixed)
    if at_average < residual:
        return mixed, at_average
    learner.move_to(last)
    return prices, residual


def balanced_eta_dual(learner: ExactLearner, prices: Array) -> Array:
    """η′_i = 0.7 / (step · Σ_j |G_ij|) over the active limits j, capped by the scale of the problem."""
    cmdp = learner.cmdp
    spans = reference_span(cmdp.spans)
    price = spans[0] / spans[1:]  # the scale of a multiplier
    largest_value = spans[1:] / (1.0 - cmdp.gamma)
    now = np.maximum(np.abs(learner.constraint_values()), 1e-300)
    cap = price * np.minimum(DUAL_CAP / largest_value, DUAL_MOVE / now)
    advantages, pi = learner.constraint_advantages(), learner.policy.probabilities
    weighted = learner.state_visits[:, None] * pi
    fisher = np.einsum("sa,isa,jsa->ij", weighted, advantages, advantages)
    active = (prices > 0.0) | (learner.constraint_values() > 0.0)
    curvature = learner.step * np.maximum(np.abs(fisher[:, active]).sum(axis=1), np.diag(fisher))
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
