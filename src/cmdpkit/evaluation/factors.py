"""Direct and Krylov solvers of (I − γ P_π) x = b and its transpose: each function returns both solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array

Solve = Callable[[Array], Array]

ONE_BY_ONE = 500
"""Up to this many states right-hand sides are solved one by one: BLAS would start threads, ruinous on a busy machine."""

RESTART, CYCLES = 40, 50
"""Length of a GMRES cycle, and how many are tried."""


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


def sparse_lu(chain: Any, gamma: float) -> tuple[Solve, Solve]:
    """SuperLU in symmetric mode: I − γ P_π is diagonally dominant, so that no pivoting is needed (growth ≤ 2)."""
    from scipy.sparse.linalg import splu

    factors = splu(
        _system(chain, gamma), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )

    def solve(b: Array) -> Array:
        return np.asarray(factors.solve(np.asarray(b)))

    def solve_transposed(b: Array) -> Array:
        return np.asarray(factors.solve(np.asarray(b), "T"))

    return solve, solve_transposed


def krylov(chain: Any, gamma: float) -> tuple[Solve, Solve]:
    """GMRES with an incomplete LU, for chains whose factors fill up and whose sweeps crawl.

    It solves until the residual is rounding, or for as long as that makes progress; whoever uses the result looks at
    the residual.
    """
    from scipy.sparse.linalg import LinearOperator, gmres, spilu

    system = _system(chain, gamma)
    nearly = spilu(system, drop_tol=1e-3, fill_factor=5.0, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0)

    def solver(matrix: Any, trans: str) -> Solve:
        precondition = LinearOperator(system.shape, matvec=lambda r: nearly.solve(r, trans), dtype=np.float64)

        def solve_one(b: Array) -> Array:
            x = precondition @ b
            for _ in range(CYCLES):
                residual = b - matrix @ x
                size = np.abs(residual).max()
                if size <= 4.0 * np.finfo(float).eps * np.abs(x).max():
                    break
                step = gmres(matrix, residual, rtol=1e-8, restart=RESTART, maxiter=1, M=precondition)[0]
                if np.abs(residual - matrix @ step).max() > 0.9 * size:
                    break
                x = x + step
            return np.asarray(x)

        def solve(b: Array) -> Array:
            b = np.asarray(b, dtype=float)
            return solve_one(b) if b.ndim == 1 else np.stack([solve_one(column) for column in b.T], axis=1)

        return solve

    return solver(system, "N"), solver(system.T.tocsr(), "T")


def _system(chain: Any, gamma: float) -> Any:
    return sp.csc_array(sp.eye_array(chain.shape[0], format="csc") - gamma * chain.tocsc())
