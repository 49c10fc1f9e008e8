"""PMD-PD for policies that move within a trust region, without a dual step to choose: the default of `train`.

A step of fixed length turns towards the reward or towards the limits, as the weights say; V_i follows. To first order
the outcome is known (`Prediction`): with the response H, the metric M and weights w = (1, u) in units of the
advantages' deviations σ, all of them averages over the last iterations,

    V_i changes by −κ_i (H w)_i,        κ_i = length · σ_i · √(2 radius / wᵀMw)

The dual step is implicit (implicit_dual.py): u⁺ maximises, over u ≥ 0, the dual function of this local model with a
proximal term around the last u,

    Ψ(u) = Σ u_i a_i/κ_i − Σ u_i H_i0 − ½ uᵀHu − ½ memory · Σ H_ii (u_i − u_i before)²,        a = pull · V + b,

so that every step is asked to change V by −a, as far as the proximal term allows, and to lower the objective as much
as that leaves. The place of the dual step η′ is taken by H, which has no units, and neither have `pull` and `memory`.
The sum b of the violations so far removes what predictions miss:

    b⁺ = b + (1 − √(1 − pull))² V(π⁺),

with which V⁺ = V − a returns to 0 as fast as it can without oscillating: the recursion has the double root √(1 − pull).
Violations beyond reach do not add up in b: it is at most what a step can do, R_i = length · σ_i √(2 radius/M_ii) H_ii.

Late in training the estimates of H are mostly noise, whose size their scatter shows; M, which is estimated on the same
samples as the steps, is not. H is therefore a weighted mean of its average and of r M, r = tr H / tr M, with the weight

    ω = S / (S + variance of the average),        S = (¼ r²) Σ M_ij²,

as if H were known to be within about half of r M before anything is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, CostArray
from cmdpkit.options import PART, POSITIVE, option
from cmdpkit.rules.base import Prediction, View, Weights
from cmdpkit.rules.implicit_dual import maximum_of_quadratic
from cmdpkit.rules.registry import register

SMOOTHING = 0.1
"""Weight of the newest estimates in H, M and σ. One estimate of H is mostly noise (measured: docs/decisions.md); and σ
of the reward is ten times its usual size in an iteration in which a robot falls."""

SMALLEST = 0.003
"""Eigenvalues of H are at least this, about its error: responses that are not known may exist."""

LEAST = 0.05
"""The response is taken to be at least this part of the metric, however noisy its estimates are."""

FARTHEST = 2.0
"""A step is asked to remove at most so many times what it can, and to use up at most what it can."""

LARGEST = 5.0
"""Largest u: the step is on the cost then, and a larger price would only take longer to return."""


class State(NamedTuple):
    """λ_k, the same in units of the deviations, and what has been learned about the response."""

    multipliers: ConstraintArray
    prices: ConstraintArray  # u
    rest: ConstraintArray  # b
    reach: ConstraintArray  # R
    sizes: CostArray  # log σ
    metric: Array  # M
    response: Array  # the average of the estimates of H
    scatter: float  # Σ_ij of the squared distance of an estimate from it, averaged
    known: CostArray  # how many estimates of each cost these hold


@register("pmd-pd", steps="implicit", learners=("neural",), neural={"inner_steps": 1})
@dataclass(frozen=True)
class TrustRegionPMDPD:
    """PMD-PD with an implicit dual step within a trust region: the default of `train`, without anything to tune."""

    pull: float = option(0.3, PART, "Part of a violation that one step is asked to remove.")
    memory: float = option(2.0, POSITIVE, "Weight of the proximal term that keeps multipliers near their last values.")

    def start(self, view: View) -> State:
        m = view.values.size
        zero, table = np.zeros(m), np.zeros((m + 1, m + 1))
        return State(zero, zero, zero, zero, np.zeros(m + 1), table, table, 0.0, np.zeros(m + 1))

    def propose(self, state: State, view: View) -> tuple[Weights, State]:
        if not view.values.size:
            return Weights(1.0, state.multipliers), state
        step = view.prediction
        state = _learned(state, step)
        known, sizes = state.known > 0.0, np.exp(state.sizes)
        response, metric = _positive(_weighed(state)), _positive(state.metric)
        # R_i = length · σ_i √(2 radius/M_ii) H_ii
        far = step.length * sizes[1:] * np.sqrt(2.0 * step.radius)
        reach = far * np.diag(response)[1:] / np.sqrt(np.diag(metric)[1:])
        # a/κ, with a = pull · V + b
        asked = np.clip(self.pull * view.values + state.rest, -reach, FARTHEST * reach)
        before = np.append(1.0, state.prices)
        asked = asked / far * np.sqrt(before @ metric @ before)
        # ∇Ψ at the last u, and −∇²Ψ
        slope = asked - (response @ before)[1:]
        hessian = response[1:, 1:] + self.memory * np.diag(np.diag(response)[1:])
        prices = np.minimum(maximum_of_quadratic(state.prices, slope, hessian), LARGEST) * known[1:]
        # λ_i = u_i σ_0/σ_i
        lam = prices * sizes[0] / sizes[1:]
        return Weights(float(known[0]), lam), state._replace(multipliers=lam, prices=prices, reach=reach)

    def observe(self, state: State, view: View) -> State:
        # b⁺ = b + (1 − √(1 − pull))² V, with V clipped to ±reach/pull, what a step can be asked to remove a part of
        most = state.reach / self.pull
        rest = state.rest + (1.0 - np.sqrt(1.0 - self.pull)) ** 2 * np.clip(view.values, -most, most)
        lowest = np.where(state.prices > 0.0, -state.reach, 0.0)  # a limit that costs nothing has nothing to give back
        return state._replace(rest=np.clip(rest, lowest, state.reach))


def _learned(state: State, step: Prediction) -> State:
    """The averages with the newest estimates, of the costs that vary."""
    varies = step.deviations > 0.0
    known = state.known + varies
    rate = varies * np.maximum(1.0 / np.maximum(known, 1.0), SMOOTHING)
    both = np.outer(varies, varies) * np.maximum.outer(rate, rate)
    # |g_iᵀF⁻¹g_j| is at most the product of the lengths of g_i and g_j, which the metric knows
    lengths = np.sqrt(np.maximum(np.diag(step.metric), 0.0))
    response = np.clip(step.response, -np.outer(lengths, lengths), np.outer(lengths, lengths))
    away = float(((response - state.response)[np.ix_(varies, varies)] ** 2).sum())
    return state._replace(
        sizes=state.sizes + rate * (np.log(np.where(varies, step.deviations, 1.0)) - state.sizes),
        metric=state.metric + both * (step.metric - state.metric),
        response=state.response + both * (response - state.response),
        scatter=state.scatter + float(rate.max()) * (away - state.scatter),
        known=known,
    )


def _weighed(state: State) -> Array:
    """H: its average, as far as the estimates agree, and otherwise a part of the metric."""
    metric = state.metric
    part = float(np.clip(np.trace(state.response) / max(np.trace(metric), SMALLEST), LEAST, 1.0))
    # S, and the variance of an average whose newest estimate has this weight
    surely, rate = 0.25 * part**2 * float((metric**2).sum()), max(1.0 / max(state.known.min(), 1.0), SMOOTHING)
    weight = surely / max(surely + rate / (2.0 - rate) * state.scatter, 1e-30)
    return np.asarray(weight * state.response + (1.0 - weight) * part * metric)


def _positive(table: Array) -> Array:
    """The nearest matrix whose eigenvalues are at least SMALLEST."""
    values, vectors = np.linalg.eigh(table)
    return np.asarray((vectors * np.maximum(values, SMALLEST)) @ vectors.T)
