"""Exact rational arithmetic on the doubles of a model: an independent judge of bounds and values."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import scipy.sparse as sp


def fractions(table):
    return [Fraction(float(x)) for x in np.ravel(table)]


class Exact:
    """A model in exact fractions: costs with the user's sense turned into minimisation, limits as they are."""

    def __init__(self, cmdp):
        self.states, self.actions, self.m = cmdp.states, cmdp.actions, cmdp.num_constraints
        P = cmdp.transitions.toarray() if sp.issparse(cmdp.transitions) else np.asarray(cmdp.transitions)
        self.P = [fractions(row) for row in P]
        self.gamma = Fraction(cmdp.gamma)
        self.initial = fractions(cmdp.initial)
        sense = -1 if cmdp.maximise else 1
        self.costs = [[sense * x for x in fractions(cmdp.objective)]]
        self.offsets = [Fraction(0)]
        for limit in cmdp.constraints:
            sign = Fraction(int(limit.sign)) * (1 - self.gamma if limit.per_step else 1)
            self.costs.append([sign * x for x in fractions(limit.values)])
            self.offsets.append(int(limit.sign) * Fraction(float(limit.limit)))

    def state_values(self, cost, probabilities):
        """Solve (I − γ P_π) V = c_π by Gaussian elimination. `probabilities` has one list of fractions per state."""
        S, A = self.states, self.actions
        rows = []
        for s in range(S):
            row = [Fraction(int(s == t)) for t in range(S)] + [Fraction(0)]
            for a, p in enumerate(probabilities[s]):
                if p:
                    for t in range(S):
                        row[t] -= self.gamma * p * self.P[s * A + a][t]
                    row[S] += p * cost[s * A + a]
            rows.append(row)
        for i in range(S):  # diagonally dominant: no pivoting is needed
            pivot = rows[i][i]
            rows[i] = [x / pivot for x in rows[i]]
            for j in range(S):
                if j != i and rows[j][i]:
                    factor = rows[j][i]
                    rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i], strict=True)]
        return [row[S] for row in rows]

    def normalised(self, policy):
        """The policy as it is played: its stored probabilities divided by their exact sums."""
        table = [fractions(row) for row in policy.probabilities]
        return [[p / sum(row) for p in row] for row in table]

    def values(self, probabilities):
        """V_0..V_m from the start, limits subtracted."""
        return [
            sum(r * v for r, v in zip(self.initial, self.state_values(cost, probabilities), strict=True)) - offset
            for cost, offset in zip(self.costs, self.offsets, strict=True)
        ]

    def minimum(self, weights):
        """min over all policies of Σ w_i V_i: exact, over the deterministic ones."""
        weights = [Fraction(float(w)) for w in weights]
        cost = [sum(w * c[k] for w, c in zip(weights, self.costs, strict=True)) for k in range(len(self.costs[0]))]
        offset = sum(w * b for w, b in zip(weights, self.offsets, strict=True))
        best = None
        for choice in product(range(self.actions), repeat=self.states):
            pi = [[Fraction(int(a == chosen)) for a in range(self.actions)] for chosen in choice]
            value = sum(r * v for r, v in zip(self.initial, self.state_values(cost, pi), strict=True)) - offset
            best = value if best is None else min(best, value)
        return best
