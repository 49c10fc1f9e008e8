"""Theorems A and B (docs/theory.md) along runs of the default: measured errors beside the bounds that are proved.

The bounds are a posteriori: e_k is what the two tests measured, and S_k is computed from the known optimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation import evaluate
from cmdpkit.exact.mdp import minimise
from cmdpkit.learners.exact import ExactLearner
from cmdpkit.learners.tabular import LOWEST_LOG_PROBABILITY
from cmdpkit.model import CMDP, AtMost
from cmdpkit.policy import TabularPolicy
from cmdpkit.primal_dual import primal_dual
from cmdpkit.rules.growing import FIRST, GrowingPMDPD, errors
from cmdpkit.solver import solve

GROWTH = 3.0
"""Factor by which steps grow where one factor is shown: the least that the theorems allow."""

COLUMNS = ("k", "gap", "gap bound", "violation", "violation bound", "certified", "certified bound")


def measured(cmdp: CMDP, steps: int, tol: float = 1e-11) -> Iterator[tuple[float, ...]]:
    """One row per accepted step: errors of the last iterate and of λ̄, each with the bound of Theorem A."""
    optimum = solve(cmdp, tol=tol)
    best, star = cmdp.sense * optimum.objective, optimum.multipliers
    visits = evaluate(cmdp, optimum.policy).occupancy / (1.0 - cmdp.gamma)
    learner = ExactLearner(cmdp, TabularPolicy.uniform(cmdp.states, cmdp.actions), floor=LOWEST_LOG_PROBABILITY)
    view = learner.look()
    M = view.dual_step(1.0) * view.known_scales[0]  # M = η′/step
    lam, before = np.zeros(cmdp.num_rows), learner.policy.log_probabilities
    # log|A|/(1 − γ) + ½ ‖λ* − λ_0‖²_* + Σ e_k (1 + ‖λ* − λ_{k+1}‖_*)
    spent = np.log(cmdp.actions) / (1.0 - cmdp.gamma) + 0.5 * _norm(star, M) ** 2
    for iterate in islice(primal_dual(learner, GrowingPMDPD()), steps):
        if iterate.state.rejected or iterate.weights.anchor == "return":
            continue
        tau, view = float(iterate.weights.step or 0.0), learner.look()
        e = max(0.0, *errors(iterate.state._replace(step=tau, eta_dual=tau * M), view))
        divergence = _divergence(visits, optimum.policy, before)
        s = np.sqrt(2.0 * divergence + _norm(star - lam, M) ** 2)
        spent += e * (1.0 + _norm(star - iterate.multipliers, M))
        gap_bound = (divergence + 0.5 * _norm(lam, M) ** 2 + e + 0.5 * e**2) / tau
        bound = minimise(cmdp, np.append(1.0, iterate.state.average)).bound
        yield (
            iterate.k,
            iterate.objective - best,
            gap_bound,
            float(np.sqrt((M * np.maximum(iterate.v, 0.0) ** 2).sum())),
            float((s + np.sqrt(s**2 + 2.0 * e + e**2)) / tau),
            iterate.objective - bound,
            gap_bound + spent / iterate.state.total,
        )
        lam, before = iterate.multipliers, learner.policy.log_probabilities


def _norm(lam: Array, M: Array) -> float:
    # ‖λ‖_* = (Σ λ_i²/M_i)^½
    return float(np.sqrt((lam**2 / M).sum()))


def _divergence(visits: Array, policy: TabularPolicy, log_other: Array) -> float:
    # D(x*, x_k) = Σ x*(s, a) log(π*/π_k)(a|s)
    ratio = np.where(visits > 0.0, policy.log_probabilities - log_other, 0.0)
    return max(0.0, float((visits * ratio).sum()))


# -- Theorem B, in extended precision --------------------------------------------------------------------------------


def small_instance() -> CMDP:
    """Three states, two actions, one limit: a unique optimum that visits every state and randomises in one."""
    rng = np.random.default_rng(7)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    cost, use = rng.random((3, 2)), rng.random((3, 2))
    plain = CMDP(transitions, action_axis=1, cost=cost, constraints=[AtMost(use, 0.0)], gamma=0.8)
    cheap, safe = (
        evaluate(plain, solve(CMDP(transitions, action_axis=1, cost=c, gamma=0.8)).policy).constraint_values[0]
        for c in (cost, use)
    )
    return CMDP(transitions, action_axis=1, cost=cost, constraints=[AtMost(use, 0.5 * (cheap + safe))], gamma=0.8)


def extended(cmdp: CMDP, steps: int, digits: int = 600) -> list[float]:
    """log10 |V_1(π_k)| for k = 1..steps, with every candidate accepted, in so many decimal digits; one constraint."""
    if find_spec("mpmath") is None:
        raise ValueError("the parabola of Theorem B needs mpmath: pip install 'cmdpkit[plot]'")
    from mpmath import mp

    found = []
    with mp.workdps(digits):
        chain = _Chain(mp, cmdp)
        span = mp.mpf(float(cmdp.spans[0]))
        step = FIRST / span
        eta_dual = FIRST * (1 - chain.gamma) * span / mp.mpf(float(cmdp.spans[1])) ** 2
        pi, lam = [[mp.mpf(1) / cmdp.actions] * cmdp.actions] * cmdp.states, mp.mpf(0)
        for _ in range(steps):
            pi, lam = chain.step(pi, lam, step, eta_dual)
            found.append(float(mp.log10(abs(chain.look(pi)[0]))))
            step, eta_dual = GROWTH * step, GROWTH * eta_dual
    return found


class _Chain:
    """A model with one constraint, in mpmath's numbers."""

    def __init__(self, mp: Any, cmdp: CMDP) -> None:
        self.mp, self.S, self.A = mp, cmdp.states, cmdp.actions
        self.gamma = mp.mpf(cmdp.gamma)
        dense = np.asarray(cmdp.transitions).reshape(self.S, self.A, self.S)
        self.P = [[[mp.mpf(float(p)) for p in row] for row in rows] for rows in dense]
        self.costs = [[[mp.mpf(float(c)) for c in row] for row in t] for t in cmdp.costs.reshape(-1, self.S, self.A)]
        self.offset, self.rho = mp.mpf(float(cmdp.offsets[0])), [mp.mpf(float(p)) for p in cmdp.initial]

    def look(self, pi: Any) -> tuple[Any, Any, Any]:
        """V_1, the visits, and the advantages of both costs."""
        mp, pairs = self.mp, range(self.A)
        system = mp.matrix(self.S)
        for s in range(self.S):
            for t in range(self.S):
                system[s, t] = (s == t) - self.gamma * mp.fsum(pi[s][a] * self.P[s][a][t] for a in pairs)
        visits = mp.lu_solve(system.T, mp.matrix(self.rho))
        advantages, totals = [], []
        for table in self.costs:
            V = mp.lu_solve(system, mp.matrix([mp.fdot(pi[s], table[s]) for s in range(self.S)]))
            ahead = [[self.gamma * mp.fdot(self.P[s][a], V) for a in pairs] for s in range(self.S)]
            advantages.append([[table[s][a] + ahead[s][a] - V[s] for a in pairs] for s in range(self.S)])
            totals.append(mp.fdot(self.rho, V))
        return totals[1] - self.offset, visits, advantages

    def step(self, pi: Any, lam: Any, step: Any, eta_dual: Any) -> tuple[Any, Any]:
        """The mirror step with the w that solves w = max(0, λ + η′ V̂(w)): Newton's method, kept in a bracket."""
        value, visits, (A_0, A_1) = self.look(pi)
        mp = self.mp

        def respond(w: Any) -> tuple[Any, Any, Any]:
            moved, predicted, slope = [], value, mp.mpf(0)
            for s in range(self.S):
                weights = [p * mp.exp(-step * (b + w * c)) for p, b, c in zip(pi[s], A_0[s], A_1[s], strict=True)]
                total = mp.fsum(weights)
                row = [x / total for x in weights]
                mean = mp.fdot(row, A_1[s])
                predicted += visits[s] * mean
                slope += visits[s] * (mp.fdot(row, [c * c for c in A_1[s]]) - mean**2)
                moved.append(row)
            return moved, predicted - (w - lam) / eta_dual, step * slope + 1 / eta_dual

        low, high, w = mp.mpf(0), None, lam
        while True:
            moved, excess, slope = respond(w)
            if (w == 0 and excess <= 0) or abs(excess / slope) <= mp.eps * mp.mpf(10) ** 20 * (1 + w):
                return moved, w
            low, high = (w, high) if excess > 0 else (low, w)
            new = w + excess / slope
            inside = new > low and (high is None or new < high)
            w = new if inside else (2 * low + 1 if high is None else (low + high) / 2)
