"""Random models and an independent LP for the tests: nothing here calls the package's solvers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck


def random_model(seed, constraints=None, sparse=None, feasible=True, gamma=None, states=None):
    """A small random model; its limits are what a random policy uses, plus a margin (or less than anything can)."""
    rng = np.random.default_rng(seed)
    S = int(rng.integers(1, 25)) if states is None else states
    A = int(rng.integers(1, 7))
    m = int(rng.integers(0, 9)) if constraints is None else constraints
    gamma = float(rng.choice([0.0, 0.5, 0.8, 0.9, 0.95, 0.99])) if gamma is None else gamma
    P = rng.dirichlet(np.full(S, 0.3), size=(S, A))
    P = np.where(P < 1e-6, 0.0, P)
    P /= P.sum(axis=2, keepdims=True)
    rho = rng.dirichlet(np.ones(S))
    pi = rng.dirichlet(np.full(A, 0.3), size=S)
    visits = np.linalg.solve(np.eye(S) - gamma * np.einsum("sa,sat->ts", pi, P), rho)[:, None] * pi
    limits = []
    for _ in range(m):
        c = rng.uniform(-1.0, 1.0, size=(S, A)) * 10.0 ** rng.integers(-1, 2)
        per_step = bool(rng.random() < 0.3)
        at_least = bool(rng.random() < 0.5)
        value = float((visits * c).sum()) * (1.0 - gamma if per_step else 1.0)
        margin = rng.uniform(0.0, 0.05) * np.abs(c).max() * (1.0 if per_step else 1.0 / (1.0 - gamma))
        limit = value - margin if at_least else value + margin
        limits.append((ck.AtLeast if at_least else ck.AtMost)(c, limit, name=f"c{len(limits)}", per_step=per_step))
    if not feasible:
        c = rng.uniform(0.1, 1.0, size=(S, A))
        limits.append(ck.AtMost(c, 0.09 / (1.0 - gamma), name="impossible"))
    objective = {("reward" if rng.random() < 0.5 else "cost"): rng.normal(size=(S, A))}
    if rng.random() < 0.4 if sparse is None else sparse:
        P = sp.csr_array(P.reshape(S * A, S))
    return ck.CMDP(P, constraints=limits, gamma=gamma, initial=rho, action_axis=1, **objective)


def coupled(states, bridge, gamma=0.99, seed=0, actions=3, limit=0.45):
    """Two random halves that a step leaves with probability `bridge`: nearly reducible, and no separator is narrow."""
    rng = np.random.default_rng(seed)
    half = states // 2
    side = half * (np.arange(states) >= half)[:, None, None]
    inside = rng.integers(0, half, size=(states, actions, 4)) + side
    across = rng.integers(0, half, size=(states, actions, 1)) + (half - side)
    p = np.concatenate([(1 - bridge) * rng.dirichlet(np.ones(4), (states, actions)), np.full(across.shape, bridge)], 2)
    successors = np.concatenate([inside, across], 2)
    P = sp.csr_array((p.ravel(), successors.ravel(), np.arange(0, p.size + 1, 5)), shape=(states * actions, states))
    costs = rng.random((2, states, actions))
    limits = [ck.AtMost(c, limit, per_step=True) for c in costs]
    return ck.CMDP(P, reward=rng.random((states, actions)), constraints=limits, gamma=gamma)


def lp_optimum(cmdp):
    """(objective, multipliers) of the occupancy LP in the user's sense and units, written from the user's own data."""
    S, A, gamma = cmdp.states, cmdp.actions, cmdp.gamma
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    flow = (np.repeat(np.eye(S), A, axis=0) - gamma * P).T
    rows, rhs = [], []
    for c in cmdp.constraints:
        sign = -1.0 if isinstance(c, ck.AtLeast) else 1.0
        unit = 1.0 - gamma if c.per_step else 1.0
        rows.append(sign * unit * np.ravel(c.values))
        rhs.append(sign * c.limit)
    sense = -1.0 if cmdp.maximise else 1.0
    answer = linprog(
        sense * cmdp.objective.ravel(),
        A_ub=np.array(rows) if rows else None,
        b_ub=rhs or None,
        A_eq=flow,
        b_eq=cmdp.initial,
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.status == 0, answer.message
    return sense * answer.fun, -answer.ineqlin.marginals


def two_state(gamma=0.9, limit=2.0):
    """Work safely (reward 1) or take a risk (reward 2, cost 1) that leads to a step of repair (reward 0).

    With p the probability of the risk: V_c = p / ((1 − γ)(1 + γp)) and V_r = 1/(1 − γ) + (1 − γ) V_c, so that the
    optimum under V_c ≤ b is V_r = 1/(1 − γ) + (1 − γ) b with multiplier 1 − γ and p = b(1 − γ) / (1 − bγ(1 − γ)).
    """
    P = np.zeros((2, 2, 2))
    P[0, 0, 0] = P[0, 1, 1] = P[1, :, 0] = 1.0
    reward, cost = [[1.0, 2.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]
    return ck.CMDP(P, reward=reward, constraints=[ck.AtMost(cost, limit, name="risk")], gamma=gamma, initial=0)


def renumbered(cmdp, seed=0):
    """The same sparse model with its states numbered at random."""
    order = np.random.default_rng(seed).permutation(cmdp.states)
    rows = (order[:, None] * cmdp.actions + np.arange(cmdp.actions)).ravel()
    limits = [replace(limit, values=np.asarray(limit.values)[order]) for limit in cmdp.constraints]
    kind = {"reward" if cmdp.maximise else "cost": np.asarray(cmdp.objective)[order]}
    matrix = cmdp.transitions[rows][:, order]
    return ck.CMDP(matrix, constraints=limits, gamma=cmdp.gamma, initial=cmdp.initial[order], **kind)
