"""The chain of a policy over the stages of a finite horizon: values by a backward sweep, visits by a forward sweep.

The transitions of a stage are used where they are (`StagedTransitions`), and the chain is never put together: it is the
pairs that the policy takes, with their probabilities, and a step of it gathers their rows.
"""

from __future__ import annotations

from functools import cached_property
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
            self._states = np.arange(own.states)
        else:
            flat = probabilities.ravel()
            self.taken = np.flatnonzero(flat != 0.0)
            self.weights = flat[self.taken]
        self._ends = np.searchsorted(self.taken, own.count * np.arange(staged.horizon + 1))
        self._compiled = is_compiled(staged)

    @property
    def longest_row(self) -> int:
        return self.staged.longest_row

    @property
    def T(self) -> _Transposed:
        return _Transposed(self)

    def __matmul__(self, values: Array) -> Array:
        """P_π V for V (S,) or (S, n)."""
        staged, out, values = self.staged, np.empty(values.shape), np.ascontiguousarray(values)
        if self._compiled:
            out[:] = 0.0
            self._add_end(out, values[staged.end], 1.0)
            self._back(values, out, 1.0)
            return out
        for t, stage in enumerate(staged.stages()):
            out[stage.states] = self._ahead(t, stage, values)
        out[staged.last_states.start :] = values[staged.end]
        return out

    def flow(self, visits: Array) -> Array:
        """P_πᵀ x."""
        staged, out = self.staged, np.zeros(visits.shape)
        if self._compiled:
            self._forth(visits, out, 1.0)
            out[staged.end] = self._ended(visits)
            return out
        for t, stage in enumerate(staged.stages()):
            out[stage.after], ended = self._flow(t, stage, visits[stage.states])
            out[staged.end] += ended
        out[staged.end] += visits[staged.last_states.start :].sum()
        return out

    def solve(self, gamma: float, b: Array) -> Array:
        """(I − γ P_π)⁻¹ b, from the last stage to the first."""
        staged, x = self.staged, np.array(b, dtype=float, order="C")
        x[staged.end] /= 1.0 - gamma
        if self._compiled:
            self._add_end(x[: staged.end], x[staged.end], gamma)
            self._back(x, x, gamma)
            return x
        x[staged.last_states] += gamma * x[staged.end]
        for t, stage in reversed(list(enumerate(staged.stages()))):
            ahead = self._ahead(t, stage, x)
            ahead *= gamma
            x[stage.states] += ahead
        return x

    def solve_transposed(self, gamma: float, b: Array) -> Array:
        """(I − γ P_πᵀ)⁻¹ b, from the first stage to the last."""
        staged, x = self.staged, np.array(b, dtype=float)
        if self._compiled:
            self._forth(x, x, gamma)
            x[staged.end] = (x[staged.end] + gamma * self._ended(x, staged.end)) / (1.0 - gamma)
            return x
        for t, stage in enumerate(staged.stages()):
            moved, ended = self._flow(t, stage, x[stage.states])
            x[stage.after] += gamma * moved
            x[staged.end] += gamma * ended
        x[staged.end] += gamma * x[staged.last_states].sum()
        x[staged.end] /= 1.0 - gamma
        return x

    # -- compiled, all stages at once ---------------------------------------------------------------------------

    @cached_property
    def _pairs(self) -> tuple[Any, ...]:
        """The pairs that are taken, their states and probabilities, where stages begin, and the pairs of a stage."""
        states = np.arange(self.shape[0]) if self.weights is None else self.staged.pairs.of(self.taken)[0]
        shares = np.ones(self.taken.size) if self.weights is None else self.weights
        return self.taken, states, shares, self._ends, self.staged.own.heads

    def _back(self, values: Array, out: Array, gamma: float) -> None:
        kernel = _kernels().back
        tables, discounts = [x.reshape(len(x), -1) for x in (values, out)], gamma * self.staged.factors
        for first, last, matrix in reversed(self.staged.runs):
            kernel(*parts(matrix), *self._pairs, discounts, *tables, first, last)

    def _forth(self, visits: Array, out: Array, gamma: float) -> None:
        kernel = _kernels().forth
        for first, last, matrix in self.staged.runs:
            kernel(*parts(matrix), *self._pairs, gamma * self.staged.factors, visits, out, first, last)

    @cached_property
    def _rest(self) -> Array:
        """(S,) the probability of moving to the end."""
        taken, states, shares, _, _ = self._pairs
        return np.asarray(np.bincount(states, shares * self.staged.rest(taken), self.shape[0]), dtype=float)

    def _add_end(self, out: Array, value: Any, factor: float) -> None:
        """out += factor · P(end|s) V(end)."""
        if np.any(value):
            out += np.multiply.outer(factor * self._rest[: len(out)], value)

    def _ended(self, visits: Array, before: int | None = None) -> float:
        """Visits to the end from those of states, or of the first of them."""
        return float(self._rest[:before] @ visits[:before])

    # -- stage by stage -----------------------------------------------------------------------------------------

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
        if weights is None:
            ahead: Array = stage.matrix[rows] @ after
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
        if rows.size > GATHER * own.count:
            every = np.zeros(own.count)
            every[rows] = pairs
            moved = np.asarray(stage.matrix.T @ every)
        else:
            moved = np.asarray(stage.matrix[rows].T @ pairs)
        return stage.factor * moved, float(stage.rest(rows) @ pairs)


def _kernels() -> Any:
    """The compiled sweeps, imported where they are needed."""
    from cmdpkit.evaluation import stage_kernels

    return stage_kernels


def ahead_of(staged: StagedTransitions, rows: Any, values: Array) -> Array:
    """P V for some of the pairs, in ascending order."""
    if not is_compiled(staged):
        return staged.ahead_of(rows, values)
    kernel = _kernels().back
    out: Array = np.multiply.outer(staged.rest(rows), values[staged.end])
    tables = [np.ascontiguousarray(x).reshape(len(x), -1) for x in (values, out)]
    ends = np.searchsorted(rows, staged.own.count * np.arange(staged.horizon + 1))
    taken = rows, np.arange(rows.size), np.ones(rows.size), ends, staged.own.heads
    for first, last, matrix in staged.runs:
        kernel(*parts(matrix), *taken, staged.factors, *tables, first, last)
    return out


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
