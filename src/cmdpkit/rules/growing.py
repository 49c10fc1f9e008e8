"""PMD-PD without tuning: both steps grow geometrically, the dual step is implicit, and two tests guard every step.

A macro step from π_k, λ_k proposes a candidate: the implicit dual step (implicit_dual.py, kept by bounded_dual.py below
what is known of earlier policies) gives λ⁺, and the mirror step with the weights λ⁺ gives π⁺. The step holds the visits
fixed, and predicts values with them. Two numbers say what that may have cost; both are known once π⁺ is evaluated
(docs/theory.md has the theorems):

    (T1)  max_s ℓ(s)/(1 − γ) − Σ_s x⁺(s) ℓ(s) ≤ e + ½ (D(x⁺, x_k) + ½ ‖λ⁺ − λ_k‖²_*)
    (T2)  step · ‖V(π⁺) − v⁺‖_M ≤ e/100

with ℓ the logarithm of the mirror step's normaliser, D the discounted KL divergence, v⁺ the values that the dual step
counts on (λ⁺ = max(0, λ_k + η′ v⁺)), M = η′/step, ‖v‖²_M = Σ M_i v_i² and ‖λ‖²_* = Σ λ_i²/M_i.

A candidate that passes both is accepted, and both steps grow: fivefold, or up to a hundredfold where the tests left
much room. Otherwise another is made from the same anchor π_k, with the values of the rejected one: this is Algorithm
1's inner loop, with new weights in each of its steps. Where (T1) fails, the policy lags behind in states that it hardly
visits; there news travels from state to state, one policy after the other, and backups of the values let it travel
without evaluations. From then on all candidates are made after backups, until (T1) passes easily. When several
candidates have failed, the run returns to π_k and takes smaller steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.options import ABOVE_ONE, option
from cmdpkit.rules.base import View, Weights
from cmdpkit.rules.bounded_dual import BoundedDual, re_anchored, with_policy
from cmdpkit.rules.registry import register

FIRST = 10.0
"""The first step, in units of 1 / span(c_0) (measured: docs/decisions.md)."""

GROWTH, FASTEST = 5.0, 100.0
"""Least and largest factor by which both steps grow at every macro step (measured: docs/decisions.md)."""

LARGEST_STEP = 1e10
"""In units of (1 − γ) / span(c_0): beyond, rounding in the advantages would move probabilities."""

LARGEST_DUAL_STEP = 1e16
"""In units of `View.dual_step(1)`. A limit that is nearly met with a price far too high needs larger dual steps."""

ARRIVED = 1e-10
"""At this distance from the optimum, relative to the largest value, steps need not grow any more."""

INEXACT, ROUGHEST = 1e-2, 1e-3
"""Evaluations may have this part of the distance from optimality as their error, and no more than the second."""

ALLOWED = 100.0
"""e of the two tests, in units of 1/(1 − γ), the sum of all visits (measured: docs/decisions.md)."""

MISS = 0.01
"""(T2) allows this part of e: values that were not predicted are worse than visits that were held."""

HELD = 20.0
"""What held visits may cost a further candidate from the same anchor after backups, in units of 1/(1 − γ)."""

HELD_AT_ONCE = 0.5
"""The same for the first candidate from an anchor, in units of e."""

CAUGHT_UP = 0.01
"""Candidates are made after backups until (T1) needs no more than this part of e."""

LEFT = 1e-3
"""The dual step ends at this part of how far the values are from complementarity; (T2) counts what it leaves."""

CANDIDATES, REDUCTION = 8, 9.0
"""When this many candidates from one anchor have failed, both steps are divided by the second (docs/decisions.md)."""


class State(NamedTuple):
    """λ_k, both steps, the accuracy that evaluations need, the distance from optimality, and what the tests need."""

    multipliers: Array  # of the policy at hand: the weights that led to it
    step: float
    eta_dual: Array
    anchored: Array  # λ_k of the anchor π_k
    known: Array  # policies evaluated so far (bounded_dual.py)
    average: Array  # λ̄ = Σ step λ / Σ step over the accepted steps
    total: float = 0.0  # Σ step
    size: float = 0.0  # ‖λ_0‖_*
    rejected: int = 0  # candidates from this anchor
    lagging: int = 0  # whether (T1) has failed, and has not passed easily since
    reductions: int = 0  # of the steps, so far
    accuracy: float = 0.0
    distance: float = np.inf  # in units of V_0


@register("pmd-pd", steps="growing", learners=("exact",), exact={"floor": -700.0, "accuracy": ROUGHEST})
@dataclass(frozen=True)
class GrowingPMDPD:
    """PMD-PD with growing steps and an implicit dual: the default, without anything to tune."""

    growth: float | None = option(
        None, ABOVE_ONE, "Factor by which both steps grow at every macro step; by default 5 to 100, as the tests allow."
    )

    def start(self, view: View) -> State:
        # A dual step of factor 1 moves λ_i by its unit, span(c_0)/span(c_i), where V_i is as large as possible
        zero = np.zeros(view.values.size)
        step, eta_dual = FIRST / view.known_scales[0], view.dual_step(FIRST)
        known = with_policy(np.zeros((0, 2 + zero.size)), view, 0.0)
        return State(zero, step, eta_dual, zero, known, zero, accuracy=ROUGHEST)

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        if state.rejected == CANDIDATES:
            return Weights(1.0, state.anchored, 0, anchor="return"), state._replace(multipliers=state.anchored)
        weights = Weights(1.0, state.multipliers, step=state.step, accuracy=state.accuracy)
        if not state.multipliers.size:
            return weights, state
        keep = state.rejected > 0
        before = state.anchored if keep else state.multipliers
        if state.total == 0.0:
            state = state._replace(size=_dual_norm(state, before))
        lam = BoundedDual(state.known, view, state.step, before, state.eta_dual, keep).maximise(LEFT)
        weights = weights._replace(constraints=lam, anchor="keep" if keep else None)
        if state.lagging:
            most = HELD / (1.0 - view.gamma) if keep else HELD_AT_ONCE * allowed_error(state, view.gamma)
            weights = weights._replace(visit_error=most)
        return weights, state._replace(multipliers=lam, anchored=before)

    def observe(self, state: State, view: View) -> State:
        unit = 1.0 / view.known_scales[0]
        distance = kkt_residual(view, state.multipliers)
        accuracy = min(ROUGHEST, INEXACT * distance * (1.0 - view.gamma) * unit)
        state = state._replace(distance=distance, accuracy=accuracy)
        if state.rejected == CANDIDATES:
            known, reductions = with_policy(state.known, view, 0.0), state.reductions + 1
            return _scaled(state, 1.0 / REDUCTION)._replace(rejected=0, known=known, reductions=reductions)
        growth, held, allowed = GROWTH if self.growth is None else self.growth, 0.0, 1.0
        if state.multipliers.size:
            allowed, (held, missed) = allowed_error(state, view.gamma), errors(state, view)
            used = max(held, missed / MISS) / allowed
            if used > 1.0:
                lagging = int(state.lagging > 0 or held > allowed)
                known = with_policy(state.known, view, view.divergence)
                return state._replace(rejected=state.rejected + 1, lagging=lagging, known=known)
            if self.growth is None and not state.rejected:
                # β = 1/√used within its limits: errors are of second order in the step
                growth = min(max(GROWTH, used**-0.5 if used > 0.0 else np.inf), FASTEST)
            state = state._replace(known=re_anchored(state.known, view, state.multipliers, state.step))
        total = state.total + state.step
        average = state.average + state.step / total * (state.multipliers - state.average)
        lagging = int(state.lagging > 0 and (state.rejected > 0 or held > CAUGHT_UP * allowed))
        state = state._replace(rejected=0, lagging=lagging, total=total, average=average)
        if distance <= ARRIVED * view.known_scales[0] / (1.0 - view.gamma):
            return state
        largest = unit * max(1.0, LARGEST_STEP * (1.0 - view.gamma))
        if state.step < largest:
            return _scaled(state, min(growth, largest / state.step))
        room = (LARGEST_DUAL_STEP * view.dual_step(1.0) / state.eta_dual).min(initial=np.inf)
        return state._replace(eta_dual=max(1.0, min(growth, float(room))) * state.eta_dual)


def errors(state: State, view: View) -> tuple[float, float]:
    """What (T1) and (T2) need e to be, for the step that has led to the policy in view."""
    # visit error − ½ (D(x⁺, x_k) + ½ ‖λ⁺ − λ_k‖²_*)
    length = view.divergence + 0.5 * _dual_norm(state, state.multipliers - state.anchored) ** 2
    # step ‖V(π⁺) − v⁺‖_M with M = η′/step, and v⁺ nearest to V(π⁺) of those with λ⁺ = max(0, λ_k + η′ v⁺)
    off = view.values - (state.multipliers - state.anchored) / state.eta_dual
    off = np.where(state.multipliers > 0.0, off, np.maximum(off, 0.0))
    missed = np.sqrt(state.step * (state.eta_dual * off**2).sum())
    return view.visit_error - 0.5 * length, float(missed)


def allowed_error(state: State, gamma: float) -> float:
    # e = (100/(1 − γ) + ‖λ_0‖_*) / (1 + n)^1.1 after n reductions of the steps: summable, and its root is not
    return float((ALLOWED / (1.0 - gamma) + state.size) / (1 + state.reductions) ** 1.1)


def _dual_norm(state: State, lam: Array) -> float:
    # ‖λ‖²_* = Σ λ_i²/M_i with M = η′/step
    return float(np.sqrt(state.step * (lam**2 / state.eta_dual).sum()))


def _scaled(state: State, factor: float) -> State:
    return state._replace(step=factor * state.step, eta_dual=factor * state.eta_dual)


def kkt_residual(view: View, lam: Array) -> float:
    """How far (π, λ) is from the optimality conditions, in units of the objective.

    Greedy improvement left in the Lagrangian, plus complementarity Σ λ_i |V_i|, plus violation.
    """
    scales, v = view.known_scales, view.values
    violation = float(scales[0] * (np.maximum(v, 0.0) / scales[1:]).sum())
    return view.greedy_gain(lam) + float(np.abs(lam * v).sum()) + violation
