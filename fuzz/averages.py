"""Long-run averages in exact arithmetic: all deterministic policies of a small model, one by one.

Rows of P, the probabilities of a policy and the initial distribution are divided by their exact sums. The recurrent
classes of a policy are those of its graph; each has a stationary distribution, and the start ends in each of them with
some probability. No policy, also none that remembers, has a smaller average than the best deterministic one.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from fuzz.exact import Exact, fractions, own_costs, own_transitions


class ExactAverages:
    """What `fuzz.exact.ExactModel` is for sums."""

    def __init__(self, cmdp: Any) -> None:
        P, self.own = own_transitions(cmdp)
        self.transitions = P / P.sum(axis=2)[:, :, None]
        self.shape = P.shape[:2]
        initial = fractions(cmdp.initial)
        self.initial = initial / initial.sum()
        self.costs, self.offsets, _ = own_costs(cmdp, Fraction(1))
        self.scales = [max(Fraction(1), abs(offset)) for offset in self.offsets[1:]]
        self.slack = max(abs(total - 1) for total in P.sum(axis=2).ravel())  # of the rows
        self._all: list[tuple[Any, list[Fraction]]] = []

    def is_connected(self) -> bool:
        """Whether one set of states can be reached from everywhere, and no policy can stay outside it for ever."""
        moves = (self.transitions > 0).any(axis=1)
        classes = recurrent_classes(moves)
        outside = np.ones(self.shape[0], dtype=bool)
        outside[classes[0]] = False
        while outside.any():
            stays = outside & ((self.transitions[:, :, ~outside] > 0).any(axis=2) == 0).any(axis=1)
            if (stays == outside).all():
                break
            outside = stays
        return len(classes) == 1 and not outside.any()

    def condition(self) -> Fraction:
        """The relative error of averages that double precision cannot avoid, roughly."""
        error: Fraction = self.slack + Fraction(1, 2**52) / self.transitions[self.transitions > 0].min()
        return 1000 * error

    def sizes(self) -> list[Fraction]:
        """max |c_i| + |offset_i|: no V_i is larger."""
        return [abs(c).max() + abs(o) for c, o in zip(self.costs, self.offsets, strict=True)]

    def values(self, probabilities: Any) -> list[Fraction]:
        """V_0..V_m of a policy."""
        pi = fractions(probabilities)
        pi = pi / pi.sum(axis=1)[:, None]
        chain = (pi[:, :, None] * self.transitions).sum(axis=1)
        visits = self._visits(chain)
        return [(visits * (pi * c).sum(axis=1)).sum() - o for c, o in zip(self.costs, self.offsets, strict=True)]

    def _visits(self, chain: Exact) -> Exact:
        """The long-run frequencies of all states."""
        S, classes = len(chain), recurrent_classes(chain)
        visits = np.full(S, Fraction(0), dtype=object)
        closed = {s for members in classes for s in members}
        before = [s for s in range(S) if s not in closed]
        # Expected visits to the transient states, and from them into each class
        passing = gauss(_identity(len(before)) - chain[np.ix_(before, before)].T, self.initial[before])
        for members in classes:
            ends = self.initial[members].sum() + (passing @ chain[np.ix_(before, members)]).sum()
            # μ (I − P) = 0 and Σ μ = 1, which takes the place of one equation
            balance = _identity(len(members)) - chain[np.ix_(members, members)].T
            balance[0] = Fraction(1)
            one = np.array([Fraction(int(i == 0)) for i in range(len(members))], dtype=object)
            visits[members] = ends * gauss(balance, one)
        return visits

    def minimum(self, weights: Any) -> Fraction:
        """min over all policies of Σ w_i V_i."""
        return self._best(weights)[0]

    def minimiser(self, weights: Any) -> Any:
        """The deterministic policy with that minimum, as probabilities."""
        return self._best(weights)[1]

    def _best(self, weights: Any) -> tuple[Fraction, Any]:
        if not self._all:
            choices = product(*(sorted(set(row.tolist())) for row in self.own))
            policies = [np.eye(self.shape[1])[list(choice)] for choice in choices]
            self._all = [(policy, self.values(policy)) for policy in policies]
        exact = [Fraction(float(w)) for w in weights]
        totals = [sum((w * v for w, v in zip(exact, values, strict=True)), Fraction(0)) for _, values in self._all]
        best = min(range(len(totals)), key=totals.__getitem__)
        return totals[best], self._all[best][0]


def recurrent_classes(chain: Exact) -> list[list[int]]:
    """Sets of states that are never left and in which every state leads to every other."""
    reach = (chain > 0) | np.eye(len(chain), dtype=bool)
    for _ in range(len(chain)):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    closed = [np.flatnonzero(reach[s]) for s in range(len(chain)) if (reach[reach[s], s]).all()]
    return [list(members) for members in dict.fromkeys(tuple(members.tolist()) for members in closed)]


def gauss(matrix: Exact, rhs: Exact) -> Exact:
    """x with matrix · x = rhs, by elimination in fractions."""
    n = len(rhs)
    table = np.column_stack([matrix, rhs]) if n else np.empty((0, 1), dtype=object)
    for k in range(n):
        pivot = next(i for i in range(k, n) if table[i, k])
        table[[k, pivot]] = table[[pivot, k]]
        table[k] = table[k] / table[k, k]
        for i in range(n):
            if i != k and table[i, k]:
                table[i] = table[i] - table[i, k] * table[k]
    return table[:, -1]


def _identity(n: int) -> Exact:
    return fractions(np.eye(n)).reshape(n, n)
