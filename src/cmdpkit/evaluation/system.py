"""The linear system of a policy, (I − γ P_π) x = b, factorised once and solved for any right-hand side.

P_π(s'|s) = Σ_a π(a|s) P(s'|s, a). Dense models and small ones use LAPACK's LU, larger sparse ones SuperLU where the
chain has structure that keeps its factors sparse (queues, grids). On a random graph the factors fill up, and up to a
few thousand states dense LU is three times faster (docs/design.md). Both solve the transposed system, which gives
occupancies, from the same factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.model import CMDP

DENSE_STATES = 200
"""Up to this many states a dense LU is at least as fast as a sparse one, however sparse the chain."""

FILLING_STATES = 4_000
"""Up to this many states a chain whose factors would fill up is factorised densely."""

Solve = Callable[[Array], Array]


class PolicySystem:
    """Values and occupancies of one policy, from one factorisation.

    Args:
        cmdp: the model.
        probabilities: (S, A) array π(a|s); or
        choice: (S,) integers, the action of a deterministic policy in each state (cheaper: rows are only gathered).
    """

    def __init__(self, cmdp: CMDP, probabilities: Array | None = None, choice: Any = None) -> None:
        self.cmdp = cmdp
        chain = _mixed_chain(cmdp, probabilities) if choice is None else _chosen_chain(cmdp, choice)
        factorise = _factorise_sparse if sp.issparse(chain) else _factorise_dense
        self.solve: Solve
        self.solve_transposed: Solve
        self.solve, self.solve_transposed = factorise(chain, cmdp.gamma)

    def state_values(self, policy_cost: Array) -> Array:
        """V = (I − γ P_π)⁻¹ c_π for c_π of shape (S,) or (S, n)."""
        return self.solve(policy_cost)

    def state_occupancy(self) -> Array:
        """Expected discounted visits to each state, Σ_t γᵗ P(s_t = s) = (I − γ P_π)⁻ᵀ ρ; they sum to 1 / (1 − γ)."""
        return self.solve_transposed(self.cmdp.initial)


def look_ahead(cmdp: CMDP, state_values: Array) -> Array:
    """γ Σ_s' P(s'|s, a) V(s') for every pair, as (S·A,) or (S·A, n)."""
    ahead: Array = cmdp.transitions @ state_values
    ahead *= cmdp.gamma
    return ahead


def _mixed_chain(cmdp: CMDP, probabilities: Array | None) -> Any:
    assert probabilities is not None
    states, actions = cmdp.states, cmdp.actions
    if sp.issparse(cmdp.transitions):
        pointers = np.arange(0, states * actions + 1, actions)
        mixing = sp.csr_array(
            (probabilities.ravel(), np.arange(states * actions), pointers), shape=(states, states * actions)
        )
        return _dense_if_small(mixing @ cmdp.transitions)
    # One vector-matrix product a state: (S, 1, A) @ (S, A, S).
    return np.matmul(probabilities[:, None, :], cmdp.transitions.reshape(states, actions, states))[:, 0, :]


def _chosen_chain(cmdp: CMDP, choice: Any) -> Any:
    return _dense_if_small(cmdp.transitions[np.arange(cmdp.states) * cmdp.actions + choice])


def _dense_if_small(chain: Any) -> Any:
    states = chain.shape[0]
    if not sp.issparse(chain) or states > FILLING_STATES:
        return chain
    return chain.toarray() if states <= DENSE_STATES or _fills_up(chain) else chain


def _fills_up(chain: Any) -> bool:
    """The best ordering leaves a bandwidth of a quarter of the states: a lattice has its side, a random graph most."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(sp.csr_matrix(chain), symmetric_mode=False)
    place = np.empty(chain.shape[0], dtype=np.int64)
    place[order] = np.arange(chain.shape[0])
    rows, columns = chain.tocoo().coords
    return bool(np.abs(place[rows] - place[columns]).max(initial=0) > 0.25 * chain.shape[0])


def _factorise_dense(chain: Array, gamma: float) -> tuple[Solve, Solve]:
    from scipy.linalg import lapack

    system = np.multiply(chain, -gamma, order="F")
    system.flat[:: chain.shape[0] + 1] += 1.0
    factors, pivots, _ = lapack.dgetrf(system, overwrite_a=True)

    def solve(b: Array) -> Array:
        return np.asarray(lapack.dgetrs(factors, pivots, b)[0])

    def solve_transposed(b: Array) -> Array:
        return np.asarray(lapack.dgetrs(factors, pivots, b, trans=1)[0])

    return solve, solve_transposed


def _factorise_sparse(chain: Any, gamma: float) -> tuple[Solve, Solve]:
    from scipy.sparse.linalg import splu

    system = sp.eye_array(chain.shape[0], format="csc") - gamma * chain.tocsc()
    factors = splu(system)

    def solve(b: Array) -> Array:
        return np.asarray(factors.solve(np.asarray(b)))

    def solve_transposed(b: Array) -> Array:
        return np.asarray(factors.solve(np.asarray(b), "T"))

    return solve, solve_transposed
