"""The chain of a policy over the stages of a finite horizon: values by a backward sweep, visits by a forward sweep.

The transitions of a stage are used where they are (`StagedTransitions`), and the chain is never put together: it is the
pairs that the policy takes, with their probabilities, and a step of it gathers their rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import is_compiled, parts
from cmdpkit.model import Stage, StagedTransitions

GATHER = 0.5
"""Above this part of the pairs of a stage it is cheaper to go through all rows than to gather those that are taken."""


class StagedChain:
    """P_π of a policy over the stages: products with it and its transpose, and both linear systems.

    Args:
        staged: the transitions.
        probabilities: π(a|s) of all pairs; or
        choice: (S,) which of its actions is taken in each state.
    """

    def __init__(self, staged: StagedTransitions, probabilities: Array | None = None, choice: Any = None) -> None:
        self.staged, own = staged, staged.own
        self.shape = (staged.shape[1],) * 2
        if probabilities is None:
            self.taken = staged.pairs.rows(choice)
            self.weights: Array | None = None
            self._states, self._ones = np.arange(own.states), np.ones(own.states)
        else:
            flat = probabilities.ravel()
            self.taken = np.flatnonzero(flat)
            self.weights = flat[self.taken]
        self._ends = np.searchsorted(self.taken, own.count * np.arange(staged.horizon + 1))
        self._kernels: Any = None
        if is_compiled(staged):
            from cmdpkit.evaluation import kernels

            self._kernels = kernels
            self._parts = {key: parts(m) for key, m in staged.distinct.items()}

    @property
    def longest_row(self) -> int:
        return self.staged.longest_row

    @property
    def T(self) -> _Transposed:
        return _Transposed(self)

    def __matmul__(self, values: Array) -> Array:
        """P_π V for V (S,) or (S, n)."""
        staged, out, values = self.staged, np.empty(values.shape), np.ascontiguousarray(values)
        for t, stage in enumerate(staged.stages()):
            out[stage.states] = self._ahead(t, stage, values)
        out[staged.last_states.start :] = values[staged.end]
        return out

    def flow(self, visits: Array) -> Array:
        """P_πᵀ x."""
        staged, out = self.staged, np.zeros(visits.shape)
        for t, stage in enumerate(staged.stages()):
            out[stage.after], ended = self._flow(t, stage, visits[stage.states])
            out[staged.end] += ended
        out[staged.end] += visits[staged.last_states.start :].sum()
        return out

    def solve(self, gamma: float, b: Array) -> Array:
        """(I − γ P_π)⁻¹ b, from the last stage to the first."""
        staged, x = self.staged, np.array(b, dtype=float, order="C")
        x[staged.end] /= 1.0 - gamma
        x[staged.last_states] += gamma * x[staged.end]
        for t, stage in reversed(list(enumerate(staged.stages()))):
            ahead = self._ahead(t, stage, x)
            ahead *= gamma
            x[stage.states] += ahead
        return x

    def solve_transposed(self, gamma: float, b: Array) -> Array:
        """(I − γ P_πᵀ)⁻¹ b, from the first stage to the last."""
        staged, x = self.staged, np.array(b, dtype=float)
        for t, stage in enumerate(staged.stages()):
            moved, ended = self._flow(t, stage, x[stage.states])
            x[stage.after] += gamma * moved
            x[staged.end] += gamma * ended
        x[staged.end] += gamma * x[staged.last_states].sum()
        x[staged.end] /= 1.0 - gamma
        return x

    def _rows(self, t: int) -> tuple[Any, Array | None, Any]:
        """The pairs that are taken at a stage, counted from its first, their probabilities, and their states."""
        own, ends = self.staged.own, slice(self._ends[t], self._ends[t + 1])
        rows = self.taken[ends] - t * own.count
        weights = None if self.weights is None else self.weights[ends]
        return rows, weights, self._states if weights is None else own.of(rows)[0]

    def _ahead(self, t: int, stage: Stage, values: Array) -> Array:
        """Σ_a π(a|s) Σ P(s'|s, a) V(s') of the states of a stage."""
        rows, weights, states = self._rows(t)
        own, after, end = self.staged.own, values[stage.after], values[self.staged.end]
        if self._kernels is not None:
            table, shares = after.reshape(own.states, -1), self._ones if weights is None else weights
            out = np.zeros(table.shape)
            self._kernels.ahead_taken(rows, states, shares, *self._parts[id(stage.matrix)], table, out)
            ahead: Array = out.reshape(after.shape)
        elif weights is None:
            ahead = stage.matrix[rows] @ after
        elif rows.size > GATHER * own.count:
            ahead = own.sum(own.like(self._scaled(t, stage.matrix @ after)))
        else:
            ahead = _sums(stage.matrix[rows] @ after, weights, states, own.states)
        ahead *= stage.factor
        if np.any(end):
            rest = stage.rest(rows)
            ahead += np.multiply.outer(rest if weights is None else np.bincount(states, weights * rest), end)
        return ahead

    def _scaled(self, t: int, table: Array) -> Array:
        """A table (N, ...) of a stage, times the probabilities of its pairs."""
        rows, weights, _ = self._rows(t)
        pi = np.zeros(self.staged.own.count)
        pi[rows] = weights
        table *= pi.reshape(-1, *(1,) * (table.ndim - 1))
        return table

    def _flow(self, t: int, stage: Stage, visits: Array) -> tuple[Array, float]:
        """Visits to the states of the next stage, and to the end, from those of a stage."""
        rows, weights, states = self._rows(t)
        own = self.staged.own
        pairs = visits if weights is None else weights * visits[states]
        if self._kernels is not None:
            moved = np.empty(own.states)
            self._kernels.flow_taken(rows, pairs, *self._parts[id(stage.matrix)], moved)
        elif rows.size > GATHER * own.count:
            every = np.zeros(own.count)
            every[rows] = pairs
            moved = np.asarray(stage.matrix.T @ every)
        else:
            moved = np.asarray(stage.matrix[rows].T @ pairs)
        return stage.factor * moved, float(stage.rest(rows) @ pairs)


def _sums(table: Array, weights: Array, states: Any, count: int) -> Array:
    """Σ of the weighted rows of each state; every state has at least one."""
    weighted = table * weights.reshape(-1, *(1,) * (table.ndim - 1))
    return np.add.reduceat(weighted, np.searchsorted(states, np.arange(count)), axis=0)


class _Transposed:
    """P_πᵀ, for products."""

    def __init__(self, chain: StagedChain) -> None:
        self.chain = chain

    def __matmul__(self, visits: Array) -> Array:
        return self.chain.flow(visits)
