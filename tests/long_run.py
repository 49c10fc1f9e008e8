"""Random models of long-run averages and independent LPs for the tests: nothing here calls the package's solvers."""

from __future__ import annotations

from itertools import product

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

import cmdpkit as ck


def average_lp(cmdp, several=False):
    """The optimum over stationary occupancies x, in the user's sense; None if no policy meets the limits.

    With `several`, of models with several classes (Hordijk and Kallenberg 1984): y are visits on the way to a class,
    Σ_a x(s', a) + Σ_a y(s', a) − Σ P y = ρ(s').
    """
    P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
    n, S = P.shape
    leave = np.zeros((S, n))
    leave[cmdp.pairs.state, np.arange(n)] = 1.0
    # Balance in all states but one implies it there
    balance, b_eq = np.vstack([(leave - P.T)[1:], np.ones((1, n))]), np.append(np.zeros(S - 1), 1.0)
    sides = [side for c in cmdp.constraints for side in c.sides()]
    rows = np.array([side.sign * np.ravel(side.values) for side in sides]).reshape(-1, n)
    limits = [side.sign * side.limit for side in sides]
    cost = (-1.0 if cmdp.maximise else 1.0) * np.ravel(cmdp.objective)
    if several:
        balance = np.block([[balance, np.zeros((S, n))], [leave, leave - P.T]])
        b_eq = np.append(b_eq, cmdp.initial)
        rows, cost = np.hstack([rows, np.zeros_like(rows)]), np.append(cost, np.zeros(n))
    found = linprog(cost, rows, limits, balance, b_eq, method="highs")
    assert found.status in (0, 2), found.message
    return None if found.status == 2 else (-found.fun if cmdp.maximise else found.fun)


def unichain(seed):
    """A small random model in which every policy comes back to state 0: sparse, dense, periodic, with missing actions.

    Limits are what a random policy has, with a margin; some are equations, and some are impossible.
    """
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(1, 13)), int(rng.integers(1, 5)), int(rng.integers(0, 4))
    P = np.where(rng.random((S, A, S)) < 0.4, rng.random((S, A, S)) ** 3, 0.0)
    if seed % 4 == 1 and S > 1:  # period 2: states move between two halves, and half of them hold state 0
        side = np.arange(S) % 2
        P[side[:, None, None] == side[None, None, :] + np.zeros((S, A, S), dtype=int)] = 0.0
        P[side == 0, :, 1] += 0.05
        P[side == 1, :, 0] += 0.05
    else:
        P[:, :, 0] += 0.05
    P /= P.sum(axis=2, keepdims=True)
    pi = rng.dirichlet(np.ones(A), size=S)
    chain = np.linalg.matrix_power(0.5 * np.eye(S) + 0.5 * np.einsum("sa,sat->st", pi, P), 2**14)
    limits = []
    for i in range(m):
        c = rng.uniform(-1.0, 1.0, (S, A)) * 10.0 ** rng.integers(-1, 2)
        value = float((chain[0][:, None] * pi * c).sum())
        margin = float(rng.choice([1e-4, 0.05])) * np.abs(c).max()
        if i == 0 and seed % 5 == 2:
            limits.append(ck.Equal(c, value, name="equal"))
        elif i == 0 and seed % 5 == 3:
            limits.append(ck.Between(c, value - 1e-3, value + 1e-2, name="between"))
        elif rng.random() < 0.5:
            limits.append(ck.AtLeast(c, value - margin, name=f"c{i}", per_step=bool(i % 2)))
        else:
            limits.append(ck.AtMost(c, value + margin, name=f"c{i}", per_step=bool(i % 2)))
    if seed % 6 == 5:
        limits.append(ck.AtMost(rng.uniform(0.1, 1.0, (S, A)), 0.09, name="impossible"))
    available = None
    if seed % 3 == 1 and not limits:  # with limits, the policy above needs its actions
        available = rng.random((S, A)) < 0.7
        available[np.arange(S), rng.integers(A, size=S)] = True
    objective = {("reward" if rng.random() < 0.5 else "cost"): rng.normal(size=(S, A))}
    matrix = sp.csr_array(P.reshape(S * A, S)) if rng.random() < 0.5 else P
    initial = int(rng.integers(S)) if rng.random() < 0.5 else None
    extra = {} if sp.issparse(matrix) else {"action_axis": 1}
    return ck.CMDP(matrix, constraints=limits, average=True, initial=initial, available=available, **objective, **extra)


def communicating(seed):
    """A model in which every state can be reached from every other, and policies may stay in parts of it.

    The first action of every state leads around a cycle through all of them; the others stay, or lead anywhere. In
    half of the models every move is certain. Limits are halfway between what is least and what some policy has.
    """
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(2, 8)), int(rng.integers(2, 5)), int(rng.integers(0, 3))
    P = np.zeros((S, A, S))
    order = rng.permutation(S)
    P[order, 0, np.roll(order, 1)] = 1.0
    for s, a in product(range(S), range(1, A)):
        k = 1 if seed % 2 else int(rng.integers(1, 3))
        goals = np.array([s]) if rng.random() < 0.4 else rng.choice(S, k, replace=False)
        P[s, a, goals] = rng.dirichlet(np.ones(goals.size))
    costs = rng.integers(-4, 5, size=(m + 1, S, A)).astype(float)
    costs += np.linspace(0.0, 1.0, S * A).reshape(S, A) * (seed % 3)
    limits = []
    for i, c in enumerate(costs[1:]):
        plain = ck.CMDP(P, cost=c, average=True, initial=0, action_axis=1)
        best = ck.CMDP(P, cost=costs[0], constraints=limits, average=True, initial=0, action_axis=1)
        low, high = average_lp(plain), float(np.max(c))
        middle = low + (0.3 if average_lp(best) is not None else 0.9) * (high - low)
        limits.append(ck.AtMost(c, middle if (seed + i) % 7 else low - 0.01, name=f"c{i}"))
    return ck.CMDP(P, cost=costs[0], constraints=limits, average=True, initial=0, action_axis=1)


def multichain(seed):
    """Any moves: deterministic or to two states; policies have several classes, and the start may decide."""
    rng = np.random.default_rng(seed)
    S, A, m = int(rng.integers(2, 7)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    P = np.zeros((S, A, S))
    for s, a in product(range(S), range(A)):
        k = int(rng.integers(1, 3)) if seed % 2 else 1
        P[s, a, rng.choice(S, k, replace=False)] = rng.dirichlet(np.ones(k))
    costs = rng.integers(-3, 4, size=(m + 1, S, A)).astype(float)
    limits = [ck.AtMost(c, float(rng.integers(-2, 3)) + 0.5 * (seed % 2)) for c in costs[1:]]
    initial = 0 if seed % 4 < 2 else None
    return ck.CMDP(P, cost=costs[0], constraints=limits, average=True, initial=initial, action_axis=1)


def admission(capacity, arrive, serve, limit):
    """A queue in ticks: an arrival (admitted or not) or a service. Most admissions, with a limit on the mean length."""
    S = capacity + 1
    P = np.zeros((S, 2, S))
    admitted = np.zeros((S, 2))
    for n in range(S):
        down, up = max(n - 1, 0), min(n + 1, capacity)
        for a in (0, 1):
            P[n, a, down] += serve
            P[n, a, up if a else n] += arrive
            P[n, a, n] += 1.0 - arrive - serve
        admitted[n, 1] = arrive if n < capacity else 0.0
    length = ck.AtMost(np.arange(S)[:, None] * np.ones((1, 2)), limit, name="length")
    return ck.CMDP(P, reward=admitted, constraints=[length], average=True, initial=capacity, action_axis=1)
