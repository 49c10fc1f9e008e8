"""PMD-PD without tuning: both steps grow geometrically, and the dual step is taken implicitly.

Algorithm 1 mixes the costs with λ + η′V, where V is known of the policy before the step. A large η′ needs to know
more: how V will answer. To first order that is known, because a policy π′ near π has

    V_i(π′) ≈ V_i(π) + Σ_s x(s) Σ_a π′(a|s) A_i(s, a)          (x: discounted state visits, A_i: advantages of π)

and the mirror step for the weights w is π_w ∝ π exp(−step · (A_0 + Σ w_i A_i)). So the dual update, in which the dual
sees the new policy, λ⁺ = max(0, λ + η′ V(π⁺)), can be solved for λ⁺ before the new policy is evaluated, and λ⁺ itself
is the weights of its step. (The paper's max(−η′V, ·) keeps its weights λ + η′V non-negative; these are so anyway.) The
solution is the maximum over w ≥ 0 of a concave function of m numbers,

    Ψ(w) = Σ w_i V_i − (1/step) Σ_s x(s) log Σ_a π(a|s) exp(−step (A_0 + Σ w_i A_i)(s, a)) − Σ (w_i − λ_i)² / (2 η′_i),

found by Newton's method without any evaluation. Its Hessian is −(step · G + 1/η′), with the Fisher metric of the
policy seen through the constraints, G_ij = Σ_s x(s) Cov_{a~π_w}(A_i, A_j): Newton's steps are dual steps whose size is
the matrix (step · G + 1/η′)⁻¹. However large the steps, this is stable, so both triple at every macro step. For a
given w, π_w improves on π with any step; what is left of the error is of second order in the change of the visits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.master import nonnegative_least_squares
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import Iterate
from cmdpkit.rules import Weights

GROWTH = 3.0
"""By which both steps grow at every macro step (measured: docs/design.md)."""

LARGEST_STEP = 1e10
"""In units of (1 − γ) / span(c_0): beyond, rounding in the advantages would move probabilities."""

ARRIVED = 1e-10
"""At this distance from the optimum, relative to the largest value, steps need not grow any more."""

INEXACT, ROUGHEST = 1e-2, 1e-3
"""Evaluations may have this part of the distance from optimality as their error, and no more than the second."""

ROUNDING = 1e-12
"""Added to the Hessian, relative to its diagonal: in the limit it has no more rank than randomised states."""

BURIED = -700.0
"""Smallest log-probability: smaller ones are zero in floating point, and would take long to rise again."""

NEWTON_STEPS = 100
"""At most; four to ten are usual, more with many constraints that cannot be met together."""


def adaptive_primal_dual(learner: ExactLearner, multipliers: Array | None = None) -> Iterator[Iterate]:
    """PMD-PD with steps from the model. Yields iterates without end, like `primal_dual`."""
    cmdp = learner.cmdp
    spans = reference_span(cmdp.spans)
    unit = 1.0 / spans[0]
    step, largest = unit, unit * max(1.0, LARGEST_STEP * (1.0 - cmdp.gamma))
    # Units of a multiplier are p = span(c_0)/span(c_i); the first step moves λ_i by p where V_i is the largest possible
    eta_dual = (1.0 - cmdp.gamma) * (spans[0] / spans[1:]) / spans[1:]
    lam = np.zeros(cmdp.num_constraints) if multipliers is None else multipliers
    advantages = learner.advantages()
    k = 0
    while True:
        learner.policy = _unburied(learner.policy)
        if lam.size:
            lam = ImplicitDual(learner, advantages, step, lam, eta_dual).maximise()
        weights = Weights(1.0, lam, step=step)
        inner_steps = learner.improve(weights)
        advantages = learner.advantages()
        distance = kkt_residual(learner, advantages, lam)
        k += 1
        v = learner.constraint_values()
        yield Iterate(k, learner.objective_value(), v, lam, weights, inner_steps, distance)
        learner.accuracy = min(ROUGHEST, INEXACT * distance * (1.0 - cmdp.gamma) * unit)
        if step < largest and distance > ARRIVED * spans[0] / (1.0 - cmdp.gamma):
            step, eta_dual = GROWTH * step, GROWTH * eta_dual


def _unburied(policy: TabularPolicy) -> TabularPolicy:
    """The same policy to rounding, with no action so improbable that it could not come back in a step."""
    log_pi = policy.log_probabilities
    return policy if log_pi.min() >= BURIED else TabularPolicy.softmax(np.maximum(log_pi, BURIED))


def kkt_residual(learner: ExactLearner, advantages: Array, lam: Array) -> float:
    """How far (π, λ) is from the optimality conditions, in units of the objective.

    Greedy improvement left in the Lagrangian, plus complementarity Σ λ_i |V_i|, plus violation.
    """
    spans, v = reference_span(learner.cmdp.spans), learner.constraint_values()
    lagrangian = (advantages @ np.append(1.0, lam)).reshape(learner.policy.log_probabilities.shape)
    improvement = -float(learner.state_visits @ lagrangian.min(axis=1))
    return improvement + float(np.abs(lam * v).sum()) + float(spans[0] * (np.maximum(v, 0.0) / spans[1:]).sum())


class ImplicitDual:
    """Ψ(w), and w ≥ 0 that maximises it. Prices u = w / p and values are scaled to the objective's units."""

    def __init__(self, learner: ExactLearner, table: Array, step: float, lam: Array, eta_dual: Array) -> None:
        spans = reference_span(learner.cmdp.spans)
        self.units = spans[0] / spans[1:]
        self.step, self.visits = step, learner.state_visits
        self.values = self.units * learner.constraint_values()
        self.start = lam / self.units
        self.stiffness = self.units**2 / eta_dual  # 1/η′, scaled
        self.shape = learner.policy.log_probabilities.shape
        self.logits = learner.policy.log_probabilities - step * table[:, 0].reshape(self.shape)
        self.advantages = table[:, 1:] * self.units

    def maximise(self) -> Array:
        """Newton's method, safeguarded as by Levenberg and Marquardt, with w ≥ 0 kept by a small quadratic program."""
        u, damping = self.start, 0.0
        value, pi = self._value(u)
        slope, hessian = self._slopes(u, pi)
        negligible = 1e-12 * np.abs(self.values).max()
        for _ in range(NEWTON_STEPS):
            if np.where(u > 0.0, np.abs(slope), slope).max() <= negligible:
                break
            new = _maximum_of_quadratic(u, slope, hessian + (damping + ROUNDING) * np.diag(np.diag(hessian)))
            move = new - u
            promised = slope @ move - 0.5 * move @ hessian @ move
            new_value, new_pi = self._value(new)
            if new_value - value >= 1e-4 * promised - 1e-14 * abs(value):
                if new_value - value >= 0.5 * promised:
                    damping = 0.1 * damping if damping > 1e-6 else 0.0
                u, value = new, new_value
                slope, hessian = self._slopes(u, new_pi)
                if np.abs(move).max() <= 1e-14 * max(1.0, u.max()):
                    break
            else:
                damping = max(10.0 * damping, 1e-3)
        return np.asarray(u * self.units)

    def _value(self, u: Array) -> tuple[float, Array]:
        """Ψ up to a constant, and π_w as (S, A)."""
        logits = self.logits - self.step * (self.advantages @ u).reshape(self.shape)
        top = logits.max(axis=1, keepdims=True)
        pi = np.exp(logits - top)
        total = pi.sum(axis=1, keepdims=True)
        pi /= total
        soft_minimum = -self.visits @ (top + np.log(total))[:, 0] / self.step
        return float(u @ self.values + soft_minimum - 0.5 * self.stiffness @ (u - self.start) ** 2), pi

    def _slopes(self, u: Array, pi: Array) -> tuple[Array, Array]:
        """∇Ψ = V(π_w) − (w − λ)/η′, with V as predicted, and −∇²Ψ = step · G + 1/η′."""
        m = u.size
        table = self.advantages.reshape(*self.shape, m)
        mean = np.einsum("sa,sai->si", pi, table)
        slope = self.values + self.visits @ mean - self.stiffness * (u - self.start)
        centred = (table - mean[:, None, :]).reshape(-1, m)
        occupancy = (self.visits[:, None] * pi).reshape(-1, 1)
        fisher = centred.T @ (occupancy * centred)
        return slope, self.step * fisher + np.diag(self.stiffness)


def _maximum_of_quadratic(u: Array, slope: Array, hessian: Array) -> Array:
    """argmax over u⁺ ≥ 0 of slope·(u⁺ − u) − ½ (u⁺ − u)ᵀ hessian (u⁺ − u), as non-negative least squares."""
    free = u + np.linalg.solve(hessian, slope)
    if free.min() >= 0.0:
        return np.asarray(free)
    sizes = np.sqrt(np.diag(hessian))
    root = np.asarray(np.linalg.cholesky(hessian / np.outer(sizes, sizes)).T, dtype=float)
    target = np.linalg.solve(root.T, (hessian @ u + slope) / sizes)
    return nonnegative_least_squares(root, np.asarray(target, dtype=float)) / sizes


def reference_span(spans: Array) -> Array:
    """Spans to measure steps with; a cost that is the same everywhere counts as one unit."""
    return np.where(spans > 0.0, spans, 1.0)
