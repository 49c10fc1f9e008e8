"""Finite horizons: one copy of the states for each of T stages, and an end.

State s at stage t is number t·S + s, the end is T·S. The discounted model with the same values has weights w that are
known: w_t ≥ 1 + γ w_(t+1), the (discounted) number of steps that are left. See absorbing.py for how it is made.

The transitions between two stages are those of the model times one number, f_t = γ w_(t+1) / (β w_t), and the rest of
every row goes to the end. So they are held once, whatever T is: `StagedTransitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, StateArray, longest_row, refreeze
from cmdpkit.model.absorbing import SMALLEST, Scaled, with_rest
from cmdpkit.model.pairs import Pairs

SPARSE = 0.1
"""An array of transitions with fewer nonzeros than this part is held as a sparse matrix."""

MOST_PAIRS = 2**31
"""Of all stages together. Their tables alone would take more than a hundred gigabytes."""


class Stage(NamedTuple):
    """One stage: its states and pairs among those of all stages, and how they lead to the next."""

    states: slice
    pairs: slice
    after: slice  # the states of the next stage
    matrix: Any  # (N, S) the model's transitions
    factor: float  # by which they are multiplied
    sums: Array  # (N,) of their rows

    def rest(self, rows: Any) -> Array:
        """What goes to the end from some of the pairs."""
        return np.asarray(np.maximum(1.0 - self.factor * self.sums[rows], 0.0))


class StagedTransitions:
    """Transitions (T·N + n, T·S + 1) of all stages and the end, from the matrices (N, S) of single stages.

    Args:
        matrices: T − 1 of them, which lead from a stage to the next; the same object where it is the same matrix. The
            last stage leads to the end.
        factors: (T − 1,) by which they are multiplied.
        own: the pairs of a single stage.
        whole: nothing goes to the end before the last stage, even if rows sum to less than one.
        scales: (T,) by which costs that are the same at every stage are multiplied, if that is known.
    """

    def __init__(
        self,
        matrices: tuple[Any, ...],
        factors: Array,
        own: Pairs,
        whole: bool = False,
        scales: Array | None = None,
    ) -> None:
        self.scales = None if scales is None else refreeze(scales)
        self.matrices, self.factors, self.own, self.whole = matrices, refreeze(factors), own, whole
        self.horizon = len(matrices) + 1
        self.pairs = staged_pairs(own, self.horizon)
        self.shape = (self.pairs.count, self.pairs.states)
        self.end = self.horizon * own.states
        self.last_states = slice(self.end - own.states, self.end)
        self.last_pairs = slice((self.horizon - 1) * own.count, self.horizon * own.count)
        self.is_sparse = all(map(sp.issparse, matrices))
        self.longest_row = 1 + max(map(longest_row, matrices), default=0)

    @property
    def distinct(self) -> dict[int, Any]:
        """Every matrix once, by its id."""
        return {id(m): m for m in self.matrices}

    @cached_property
    def runs(self) -> list[tuple[int, int, Any]]:
        """(first, last + 1, matrix) of consecutive stages with the same matrix."""
        found, first = [], 0
        for _, group in groupby(self.matrices, key=id):
            same = list(group)
            found.append((first, first + len(same), same[0]))
            first += len(same)
        return found

    @cached_property
    def nnz(self) -> int:
        """Transitions of all stages: what a sweep over them costs."""
        return sum(m.nnz if sp.issparse(m) else m.size for m in self.matrices)

    @cached_property
    def _sums(self) -> dict[int, Array]:
        """(N,) row sums of every matrix."""
        return {key: np.asarray(m.sum(axis=1)).ravel() for key, m in self.distinct.items()}

    def stages(self) -> Iterator[Stage]:
        """The stages that lead to others, from the first on."""
        S, N = self.own.states, self.own.count
        for t, (matrix, factor) in enumerate(zip(self.matrices, self.factors.tolist(), strict=True)):
            yield Stage(
                slice(t * S, (t + 1) * S),
                slice(t * N, (t + 1) * N),
                slice((t + 1) * S, (t + 2) * S),
                matrix,
                factor,
                self._sums[id(matrix)],
            )

    @property
    def row_sums(self) -> tuple[float, float]:
        """The smallest and the largest sum of a row."""
        sums = [f * s for m, f in zip(self.matrices, self.factors, strict=True) for s in _extremes(self._sums[id(m)])]
        whole = np.append(sums, 1.0)
        whole += np.maximum(1.0 - whole, 0.0)
        return float(whole.min()), float(whole.max())

    def __matmul__(self, values: Array) -> Array:
        """P V for values (T·S + 1,) or (T·S + 1, n)."""
        ahead = np.empty((self.shape[0], *values.shape[1:]))
        ahead[self.last_pairs.start :] = values[self.end]
        for stage in self.stages():
            part = ahead[stage.pairs]
            np.multiply(stage.matrix @ values[stage.after], stage.factor, out=part)
            if values[self.end].any():
                part += np.multiply.outer(stage.rest(slice(None)), values[self.end])
        return ahead

    def ahead_of(self, rows: Any, values: Array) -> Array:
        """P V for some of the pairs."""
        stage = rows // self.own.count
        ahead = np.zeros((rows.size, *values.shape[1:]))
        ahead[:] = values[self.end]
        for t in np.unique(stage[stage < self.horizon - 1]).tolist():
            some = np.flatnonzero(stage == t)
            own, after = rows[some] - t * self.own.count, (t + 1) * self.own.states
            rest = np.maximum(1.0 - self.factors[t] * self._sums[id(self.matrices[t])][own], 0.0)
            moved = self.matrices[t][own] @ values[after : after + self.own.states]
            ahead[some] = self.factors[t] * moved + np.multiply.outer(rest, values[self.end])
        return ahead

    def rest(self, rows: Any) -> Array:
        """What goes to the end from some of the pairs, in ascending order."""
        rest, count = np.ones(rows.size), self.own.count
        for first, last, matrix in self.runs:
            some = slice(*np.searchsorted(rows, [first * count, last * count]))
            stage, own = np.divmod(rows[some], count)
            rest[some] = np.maximum(1.0 - self.factors[stage] * self._sums[id(matrix)][own], 0.0)
        return rest

    def tocsr(self) -> Any:
        """All of it as one matrix, T times as large."""
        parts = [stage.factor * sp.csr_array(stage.matrix) for stage in self.stages()]
        for part in parts:
            part.eliminate_zeros()
        inner = sp.block_diag(parts, format="csr") if parts else sp.csr_array((0, 0))
        before, rest = self.own.states, self.shape[0] - inner.shape[0]
        wide = sp.csr_array(
            (inner.data, inner.indices + before, np.append(inner.indptr, np.full(rest, inner.indptr[-1]))),
            shape=self.shape,
        )
        if self.whole:
            rows = np.arange(self.last_pairs.start, self.shape[0])
            return wide + sp.csr_array((np.ones(rows.size), (rows, np.full(rows.size, self.end))), shape=self.shape)
        return with_rest(wide, self.end)

    def parts(self) -> tuple[Any, ...]:
        """All numbers, each once."""
        once = self.distinct
        arrays = [a for m in once.values() for a in ((m.data, m.indices, m.indptr) if sp.issparse(m) else (m,))]
        order = [list(once).index(id(m)) for m in self.matrices]
        return (*arrays, np.array(order), self.factors)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies are frozen like the original."""
        for name in ("matrices", "factors", "scales"):
            if state[name] is not None:
                refreeze(state[name])
        self.__dict__.update({name: value for name, value in state.items() if name != "_sums"})  # its keys are ids


def like_shapes(tables: list[Any]) -> list[Any]:
    """Tables of all stages, where one of them is."""
    largest = max((table.shape for table in tables), key=len)
    return [np.broadcast_to(table, largest) for table in tables]


def is_by_stage(transitions: Any) -> bool:
    """Whether transitions are given for each stage: a list with sparse matrices in it, or an array (T, S, A, S)."""
    if isinstance(transitions, (list, tuple)):
        if any(map(sp.issparse, transitions)):
            return True
        return bool(transitions) and all(isinstance(part, np.ndarray) and part.ndim == 3 for part in transitions)
    return isinstance(transitions, np.ndarray) and transitions.ndim == 4


def stored_transitions(transitions: Any) -> dict[str, Any]:
    """For files: the arrays of transitions, every matrix once."""
    if not isinstance(transitions, tuple):
        if sp.issparse(transitions):
            return {name: getattr(transitions, name) for name in ("data", "indices", "indptr")}
        return {"transitions": transitions}
    known = list({id(m): m for m in transitions})
    arrays: dict[str, Any] = {"stage_matrices": np.array([known.index(id(m)) for m in transitions])}
    for matrix in transitions:
        suffix = f"_{known.index(id(matrix))}"
        arrays |= {name + suffix: part for name, part in stored_transitions(matrix).items()}
    return arrays


def restored_transitions(arrays: dict[str, Any], pairs: Pairs, suffix: str = "") -> Any:
    """What `stored_transitions` wrote."""
    if "stage_matrices" in arrays and not suffix:
        order = arrays["stage_matrices"].tolist()
        known = {k: restored_transitions(arrays, pairs, f"_{k}") for k in set(order)}
        return [known[k] for k in order]
    if "transitions" + suffix in arrays:
        table = arrays["transitions" + suffix]
        return table.reshape(pairs.states, -1, pairs.states) if pairs.is_full else table
    parts = tuple(arrays[name + suffix] for name in ("data", "indices", "indptr"))
    matrix = sp.csr_array(parts, shape=(pairs.count, pairs.states))
    matrix.check_format(full_check=True)
    return matrix


def as_csr(transitions: Any) -> Any:
    """Transitions of any kind as one sparse matrix."""
    return transitions.tocsr() if isinstance(transitions, StagedTransitions) else sp.csr_array(transitions)


def over_stages(transitions: Any, pairs: Pairs, initial: StateArray, gamma: float, horizon: int) -> Scaled:
    """The discounted model of sums over `horizon` steps, from one matrix or a tuple of one for each stage."""
    if horizon * pairs.count > MOST_PAIRS:
        raise ValueError(
            f"horizon={horizon} makes {horizon * pairs.count:.2g} pairs of state and action, one of each for every "
            f"stage, more than the {MOST_PAIRS:.2g} that can be held; for so long a time use average=True or a gamma "
            "close to 1"
        )
    given = transitions if isinstance(transitions, tuple) else (transitions,) * horizon
    known = {id(m): _packed(m) for m in given[: horizon - 1]}
    matrices = tuple(known[id(m)] for m in given[: horizon - 1])
    largest = {key: max(1.0, float(np.asarray(m.sum(axis=1)).max())) for key, m in known.items()}
    w = np.ones(horizon)
    for t in range(horizon - 2, -1, -1):
        w[t] = 1.0 + gamma * largest[id(given[t])] * w[t + 1]
    beta = 1.0 - 1.0 / max(2.0, float(w[0]))
    factors = gamma * w[1:] / (beta * w[:-1])
    _check_range(known.values(), factors)
    start = np.zeros(horizon * pairs.states + 1)
    start[: pairs.states] = initial
    sizes = np.append(np.repeat(w / w[0], pairs.states), 0.0)
    staged = StagedTransitions(matrices, factors, pairs, scales=1.0 / sizes[: -1 : pairs.states])
    return Scaled(staged, staged.pairs, start, beta, sizes, pairs.count, horizon)


def _packed(matrix: Any) -> Any:
    """Arrays with few nonzeros as sparse matrices."""
    if sp.issparse(matrix) or np.count_nonzero(matrix) > SPARSE * matrix.size:
        return matrix
    return refreeze(sp.csr_array(matrix))


def _extremes(values: Array) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _check_range(matrices: Any, factors: Array) -> None:
    """Near the end of the range of floating point the error of a product is not relative to it any more."""
    positive = factors[factors > 0.0].min(initial=1.0)
    for matrix in matrices:
        entries = matrix.data if sp.issparse(matrix) else matrix
        least = float(entries.min(where=entries > 0.0, initial=1.0))
        if least * positive < SMALLEST:
            raise ValueError("some probabilities are too small for this criterion; set them to 0")


def staged_pairs(pairs: Pairs, horizon: int) -> Pairs:
    """The pairs of all stages, and those of the end, which keep it there."""
    states = horizon * pairs.states + 1
    if pairs.is_full:
        return Pairs(states, pairs.actions)
    first = np.append((pairs.count * np.arange(horizon))[:, None] + pairs.first[:-1], horizon * pairs.count)
    return Pairs(
        states,
        pairs.actions,
        np.append(first, horizon * pairs.count + 1).astype(np.int64),
        np.append(np.tile(pairs.action, horizon), 0).astype(np.int32),
    )


FEWEST = 8
"""Blocks of states must have at least this size on average to be worth it."""


def forward_blocks(transitions: Any, pairs: Pairs) -> tuple[int, ...] | None:
    """Where blocks of states begin, and the last one ends, such that no state leads to others of its block or before.

    A system with such blocks is solved by one pass over them. None if there are no such blocks, or too many small ones.
    """
    if not sp.issparse(transitions) or not transitions.has_sorted_indices or not np.diff(transitions.indptr).all():
        return None
    begin, state = transitions.indptr[:-1], pairs.state
    column = transitions.indices[begin]
    if (column < state).any():
        return None
    stays = np.flatnonzero(column == state)
    more = np.diff(transitions.indptr)[stays] > 1
    column = column.astype(np.int64)
    column[stays] = pairs.states
    column[stays[more]] = transitions.indices[begin[stays[more]] + 1]
    following = pairs.min(pairs.like(column))  # the first other state that can follow each
    bounds, looked = [0], 0
    while bounds[-1] < pairs.states:
        first = bounds[-1]
        last = int(following[first])
        while (least := int(following[first:last].min())) < last:
            looked, last = looked + last - first, least
        bounds.append(last)
        looked += last - first
        if len(bounds) > 1 + pairs.states / FEWEST or looked > 10 * pairs.states:
            return None
    return tuple(bounds)


def band_of(transitions: Any, pairs: Pairs) -> tuple[int, int] | None:
    """How many places before and after a state the states that follow it are at most; None for dense transitions."""
    if not sp.issparse(transitions) or not transitions.has_sorted_indices:
        return None
    rows = np.flatnonzero(np.diff(transitions.indptr))
    state = pairs.state if rows.size == pairs.count else pairs.state[rows]
    first, last = transitions.indices[transitions.indptr[rows]], transitions.indices[transitions.indptr[rows + 1] - 1]
    return int((state - first).max(initial=0)), int((last - state).max(initial=0))
