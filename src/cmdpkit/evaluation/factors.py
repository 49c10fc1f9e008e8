"""Direct and Krylov solvers of (I − γ P_π) x = b and its transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import parts, rows_of
from cmdpkit.evaluation.chain import is_flipped
from cmdpkit.evaluation.patience import Hurry, breathe

Solve = Callable[[Array], Array]

ONE_BY_ONE = 500
"""Up to this many states right-hand sides are solved one by one: BLAS threads are very slow on a busy machine."""

RESTART, CYCLES = 30, 50
"""Length of a GMRES cycle, and maximum number of cycles."""

SLOW, SLOW_CYCLES = 0.5, 3
"""If the residual is still larger than this fraction after so many cycles, GMRES is preconditioned."""

LOST = "some states are left so seldom that long-run averages are lost in rounding"

FILLS = 1.5
"""Factors with so many times the entries of those that an order was found for get an order of their own."""

HUB = 0.1
"""A state that so many of all states lead to is a hub: a common restart, the state after a repair."""

NARROW, PER_ENTRY = 5_000, 60
"""A band is factorised as such up to so many multiplications per state, and so many more for each of its successors: a
sparse LU of a lattice is as fast at 50 x 50 states, and of chains with many successors much slower (measured)."""

VERY_NARROW = 2_000
"""The same for bands that are factorised without trying sweeps before."""

HIGHEST = 400
"""Numbers per state that the factors of a band may have."""

FILLING_STATES = 2_000
"""Up to this many states a chain whose sparse factors would fill in is factorised densely."""


def dense_lu(chain: Any, gamma: float) -> tuple[Solve, Solve]:
    """LAPACK's LU."""
    from scipy.linalg import lapack

    chain = chain.toarray() if sp.issparse(chain) else chain
    system = np.multiply(chain, -gamma, order="F")
    system.flat[:: chain.shape[0] + 1] += 1.0
    factors, pivots, _ = lapack.dgetrf(system, overwrite_a=True)

    def solve(b: Array) -> Array:
        if b.ndim == 2 and b.shape[1] and len(b) <= ONE_BY_ONE:
            return np.stack([lapack.dgetrs(factors, pivots, column)[0] for column in b.T], axis=1)
        return np.asarray(lapack.dgetrs(factors, pivots, b)[0])

    def solve_transposed(b: Array) -> Array:
        return np.asarray(lapack.dgetrs(factors, pivots, b, trans=1)[0])

    return solve, solve_transposed


def lu_without_differences(chain: Any, leave: Array) -> tuple[Solve, Solve]:
    """I − P = (I − U)(D − L) for a chain that is left with these probabilities, to full relative accuracy.

    Differences 1 − P(k, k) are taken as the sum of the other probabilities of a row (Grassmann, Taksar and Heyman
    1985), so that no digits are lost where states are hardly ever left.
    """
    from scipy.linalg import solve_triangular

    table, leave = np.array(chain.toarray() if sp.issparse(chain) else chain), np.array(leave)
    size = leave.size
    upper, lower = np.eye(size), np.zeros((size, size))
    for k in range(size - 1, -1, -1):
        onward, left = table[k, :k], leave[k]
        lower[k, :k], lower[k, k] = -onward, onward.sum() + left
        if not lower[k, k] > 0.0:
            raise ArithmeticError(LOST)
        entered = table[:k, k] / lower[k, k]
        upper[:k, k] = -entered
        table[:k, :k] += np.outer(entered, onward)
        leave[:k] += entered * left

    def solve(b: Array) -> Array:
        return np.asarray(solve_triangular(lower, solve_triangular(upper, b), lower=True))

    def solve_transposed(b: Array) -> Array:
        return np.asarray(solve_triangular(upper, solve_triangular(lower, b, trans=1, lower=True), trans=1))

    return solve, solve_transposed


def band_lu(system: Array, below: int, above: int) -> tuple[Solve, Solve]:
    """LAPACK's LU of a band: of I − γ P_π as `band_of` stores it, which is overwritten."""
    from scipy.linalg import lapack

    flipped = is_flipped(below, above)
    band = (above, below) if flipped else (below, above)
    factors, pivots, _ = lapack.dgbtrf(system.T, *band, overwrite_ab=True)

    def solve(b: Array, transposed: int = int(flipped)) -> Array:
        return np.asarray(lapack.dgbtrs(factors, *band, b, pivots, trans=transposed)[0])

    return solve, partial(solve, transposed=int(not flipped))


def is_narrow(cmdp: Any, most: int = NARROW) -> bool:
    """Whether the chains of a model are factorised as bands: in the order in which the states are numbered."""
    if cmdp.criterion == "average" or cmdp.band is None:
        return False
    below, above = cmdp.band
    entries = cmdp.transitions.nnz / cmdp.pairs.count
    return bool(below * (below + above) <= most + PER_ENTRY * entries and 2 * below + above < HIGHEST)


@dataclass
class Order:
    """The order of elimination of an earlier factorisation, for other policies of the same model.

    Finding one takes up to three quarters of the time of a factorisation. The order of a policy that takes all actions
    suits every other one; a chain whose factors would be much larger than those it was found for gets its own.
    """

    states: Any = None  # (S,) first to last
    fill: int = 0  # entries of the factors that it was found for
    is_used: bool = False  # by the last factorisation

    def factorised(self, chain: Any, gamma: float) -> tuple[Any, Any]:
        """The factors of a chain, and the order of the states in them: None for the order that they have."""
        if self.states is not None:
            factors = _superlu(_system(self._applied(chain), gamma), "NATURAL")
            self.is_used = factors.nnz <= FILLS * self.fill
            if self.is_used:
                return factors, self.states
        factors = _superlu(_system(chain, gamma), "COLAMD" if _has_hub(chain) else "MMD_AT_PLUS_A")
        self.states, self.fill = np.argsort(factors.perm_c), int(factors.nnz)
        return factors, None

    def _applied(self, chain: Any) -> Any:
        rank = np.empty(self.states.size, dtype=chain.indices.dtype)
        rank[self.states] = np.arange(self.states.size)
        rows = chain[self.states]
        return sp.csr_array((rows.data, rank[rows.indices], rows.indptr), shape=chain.shape)


def sparse_lu(chain: Any, gamma: float, order: Order | None = None) -> tuple[Solve, Solve]:
    """SuperLU in symmetric mode: I − γ P_π is diagonally dominant and needs no pivoting (growth ≤ 2)."""
    factors, states = (order or Order()).factorised(chain, gamma)

    def solve(b: Array, kind: str = "N") -> Array:
        if states is None:
            return np.asarray(factors.solve(np.asarray(b), kind))
        x = np.empty(b.shape)
        x[states] = factors.solve(np.asarray(b)[states], kind)
        return x

    return solve, partial(solve, kind="T")


def _has_hub(chain: Any) -> bool:
    """Whether a state is a successor of very many: minimum degree would take time that grows with their square."""
    return bool(np.bincount(chain.indices, minlength=1).max() > HUB * chain.shape[0])


def _superlu(system: Any, order: str) -> Any:
    from scipy.sparse.linalg import splu

    # For matrices this sparse, blocks of columns do not help: a quarter faster without them (measured)
    settings = {"relax": 1, "panel_size": 1, "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    return splu(system, permc_spec=order, **settings)


def by_blocks(chain: Any, gamma: float, blocks: Sequence[int]) -> tuple[Solve, Solve]:
    """Backward and forward substitution, where every block of states leads to later blocks only (`CMDP.blocks`)."""
    stays = 1.0 - gamma * chain.diagonal()
    transposed: list[Any] = []

    def run(matrix: Any, b: Array, ends: list[tuple[int, int]]) -> Array:
        right = np.asarray(b, dtype=float)
        x = np.zeros(right.shape)
        for first, last in ends:
            own = stays[first:last] if right.ndim == 1 else stays[first:last, None]
            x[first:last] = (right[first:last] + gamma * (rows_of(matrix, first, last) @ x)) / own
        return x

    def solve(b: Array) -> Array:
        return run(chain, b, list(pairwise(blocks))[::-1])

    def solve_transposed(b: Array) -> Array:
        if not transposed:
            transposed.append(sp.csr_array(chain.T))
        return run(transposed[0], b, list(pairwise(blocks)))

    return solve, solve_transposed


class Krylov:
    """GMRES, for chains whose factors fill in and whose sweeps converge slowly.

    A few slow modes, as in a chain of nearly separate parts, are no obstacle to plain GMRES. Where its cycles make
    little progress it is preconditioned: by a dense LU up to `FILLING_STATES` states, by an incomplete LU above.
    It iterates until the residual is as small as requested or at the level of rounding, or until progress stops; the
    caller checks the residual.
    """

    def __init__(self, chain: Any, gamma: float) -> None:
        self.chain, self.gamma = chain, gamma
        self._transposed: Any = None
        self._nearly: tuple[Solve, Solve] | None = None

    def solve(self, b: Array, guess: Array | None = None, residual: Array | float = 0.0) -> Array:
        """(I − γ P_π)⁻¹ b for b of shape (S,) or (S, n), until the residual is at most `residual`."""
        if b.ndim == 1:
            return self._solve_one(b, guess, float(np.min(residual)), transposed=False)
        allowed = np.broadcast_to(residual, b.shape[1:])
        starts = [None] * b.shape[1] if guess is None else list(guess.T)
        found = [self._solve_one(*each, transposed=False) for each in zip(b.T, starts, allowed, strict=True)]
        return np.stack(found, axis=1)

    def solve_transposed(self, b: Array) -> Array:
        return self._solve_one(b, None, 0.0, transposed=True)

    def _solve_one(self, b: Array, guess: Array | None, allowed: float, transposed: bool) -> Array:
        chain = self._chain(transposed)
        x = np.zeros_like(b) if guess is None else guess
        slow, hurry = 0, Hurry()
        for _ in range(CYCLES):
            breathe()
            rest = b - x + self.gamma * (chain @ x)
            size = float(np.abs(rest).max())
            rounding = 8.0 * np.finfo(float).eps * float(np.abs(x).max())
            if size <= max(allowed, rounding) or hurry():
                break
            step = self._cycle(chain, rest, max(0.5 * allowed, 1e-12 * size), transposed)
            left = float(np.abs(rest - step + self.gamma * (chain @ step)).max())
            if left < size:
                x = x + step
            slow += left > max(SLOW * size, 100.0 * rounding)
            if slow >= SLOW_CYCLES and self._nearly is None:
                self._nearly = dense_lu(self.chain, self.gamma) if b.size <= FILLING_STATES else self._incomplete_lu()
            elif left > 0.99 * size and (self._nearly is not None or left <= 100.0 * rounding):
                break
        return np.asarray(x)

    def _cycle(self, chain: Any, rest: Array, aim: float, transposed: bool) -> Array:
        """One cycle of GMRES."""
        if self._nearly is None:
            from cmdpkit.evaluation import chain_kernels

            return np.asarray(chain_kernels.gmres_cycle(*parts(chain), self.gamma, rest, RESTART, aim))
        from scipy.sparse.linalg import LinearOperator, gmres

        system = sp.eye_array(rest.size, format="csr") - self.gamma * chain
        nearly = LinearOperator(chain.shape, matvec=self._nearly[int(transposed)], dtype=np.float64)
        return np.asarray(gmres(system, rest, rtol=0.0, atol=aim, restart=RESTART, maxiter=1, M=nearly)[0])

    def _chain(self, transposed: bool) -> Any:
        if transposed and self._transposed is None:
            self._transposed = self.chain.T.tocsr()
        return self._transposed if transposed else self.chain

    def _incomplete_lu(self) -> tuple[Solve, Solve]:
        from scipy.sparse.linalg import spilu

        system = _system(self.chain, self.gamma)
        nearly = spilu(system, drop_tol=1e-3, fill_factor=5.0, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0)
        return nearly.solve, lambda b: nearly.solve(b, "T")


def _system(chain: Any, gamma: float) -> Any:
    return sp.csc_array(sp.eye_array(chain.shape[0], format="csc") - gamma * chain.tocsc())
