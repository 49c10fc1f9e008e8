"""The linear system of a policy, (I − γ P_π) x = b, by the method that suits its chain.

The rule, for a sparse model of more than `DENSE_STATES` states (others: dense LU; measurements in docs/design.md):

1. Sweeps, if the chain mixes: thirty sweeps measure the contraction, and it must promise an end within `SWEEPS`.
2. Sparse LU, if a narrow set of states cuts the chain in two (queues, grids): its factors stay sparse.
3. GMRES; where it is slow, with a dense LU (up to 2,000 states) or an incomplete one. Where that fails too, sweeps to
   the bitter end.

A `Plan` remembers what was found, so that the next policy of the same run starts with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import is_compiled
from cmdpkit.evaluation.chain import chosen_chain, mixed_chain, separator_width
from cmdpkit.evaluation.factors import Krylov, Solve, dense_lu, sparse_lu
from cmdpkit.evaluation.sweeps import Swept, sweep_occupancy, sweep_values
from cmdpkit.model import CMDP

DENSE_STATES = 200
"""Up to this many states a dense LU is at least as fast as anything else, however sparse the chain."""

SWEEPS = 400
"""More sweeps than this cost more than a factorisation."""

BITTER_END = 10_000
"""Sweeps after a Krylov solver that failed: whatever is reached then is what there is, and bounds will tell."""

SEPARATOR = 1_500
"""A chain that so many states cut in two is factorised by a sparse LU, if they are also few of all states."""


@dataclass
class Plan:
    """How the chains of a model are solved in one run: "sweeps", "dense", "sparse", "krylov"; None: not known yet."""

    method: str | None = None

    @property
    def is_direct(self) -> bool:
        """Factorisations solve to rounding, whatever accuracy is asked for."""
        return self.method in ("dense", "sparse")


class PolicySystem:
    """Values and occupancies of one policy.

    Args:
        cmdp: the model.
        probabilities: (S, A) array π(a|s); or
        choice: (S,) integers, the action of a deterministic policy in each state (cheaper: rows are only gathered).
        plan: what is known of the model's chains; shared by the policies of a run.
    """

    def __init__(
        self, cmdp: CMDP, probabilities: Array | None = None, choice: Any = None, plan: Plan | None = None
    ) -> None:
        self.cmdp = cmdp
        self.plan = Plan() if plan is None else plan
        if choice is None:
            assert probabilities is not None
            self.chain = mixed_chain(cmdp, probabilities)
        else:
            self.chain = chosen_chain(cmdp, choice)
        self.plan.method = self.plan.method or first_method(self.chain)
        self._factors: tuple[Solve, Solve] | None = None
        self._krylov: Krylov | None = None

    def solve(self, b: Array) -> Array:
        """(I − γ P_π)⁻¹ b for b of shape (S,) or (S, n), as exactly as rounding allows."""
        return self.state_values(b)

    def state_values(self, policy_cost: Array, guess: Array | None = None, accuracy: Array | float = 0.0) -> Array:
        """V = (I − γ P_π)⁻¹ c_π for c_π of shape (S,) or (S, n), from a guess and to within `accuracy` (n,)."""
        if self._may_sweep():
            swept = self._sweep(policy_cost, guess, accuracy, SWEEPS)
            if self._keep_sweeping(swept.reached):
                return swept.values.reshape(policy_cost.shape)
        if self._decide() != "krylov":
            return self._direct()[0](policy_cost)
        residual = np.asarray(accuracy) * (1.0 - self.cmdp.gamma)  # |V − V^π| ≤ max|r| / (1 − γ)
        values = self._by_krylov().solve(policy_cost, guess, residual)
        return self._sweep(policy_cost, values, accuracy, BITTER_END).values.reshape(policy_cost.shape)

    def _sweep(self, policy_cost: Array, guess: Array | None, accuracy: Array | float, most: float) -> Swept:
        gamma = self.cmdp.gamma
        cost, start = (
            policy_cost.reshape(len(policy_cost), -1),
            None if guess is None else guess.reshape(len(guess), -1),
        )
        least = _rounding(gamma) * np.abs(cost).max(axis=0, initial=0.0) / (1.0 - gamma)
        return sweep_values(self.chain, gamma, cost, start, np.maximum(accuracy, least), most, self._compiled)

    def state_occupancy(self, guess: Array | None = None, accuracy: float = 0.0) -> Array:
        """Expected discounted visits to each state, Σ_t γᵗ P(s_t = s) = (I − γ P_π)⁻ᵀ ρ; they sum to 1 / (1 − γ).

        `accuracy` is relative to that sum.
        """
        if self._may_sweep():
            initial = self.cmdp.initial
            least = max(accuracy, _rounding(self.cmdp.gamma))
            swept = sweep_occupancy(self.chain, self.cmdp.gamma, initial, guess, least, SWEEPS, self._compiled)
            if self._keep_sweeping(swept.reached):
                return swept.values
        if self._decide() == "krylov":
            return self._by_krylov().solve_transposed(self.cmdp.initial)
        return self._direct()[1](self.cmdp.initial)

    @property
    def _compiled(self) -> bool:
        return is_compiled(self.cmdp.transitions)

    def _may_sweep(self) -> bool:
        return self.plan.method in (None, "sweeps") and SWEEPS > 0

    def _keep_sweeping(self, reached: bool) -> bool:
        """Sweeps that reach their end are the method; those that crawl leave the plan to the factorisations."""
        self.plan.method = "sweeps" if reached else None
        return reached

    def _decide(self) -> str:
        """The method for a chain that is not swept."""
        if self.plan.method is None:
            width = separator_width(self.chain)
            self.plan.method = "sparse" if width <= min(SEPARATOR, self.cmdp.states / 8) else "krylov"
        return self.plan.method

    def _direct(self) -> tuple[Solve, Solve]:
        if self._factors is None:
            factorise = sparse_lu if self.plan.method == "sparse" else dense_lu
            self._factors = factorise(self.chain, self.cmdp.gamma)
        return self._factors

    def _by_krylov(self) -> Krylov:
        if self._krylov is None:
            self._krylov = Krylov(self.chain, self.cmdp.gamma)
        return self._krylov


def first_method(chain: Any) -> str | None:
    """Dense LU for what is dense or small; the rest is found out by sweeping."""
    return "dense" if not sp.issparse(chain) or chain.shape[0] <= DENSE_STATES else None


def rounding_floor(cmdp: CMDP) -> Array:
    """(m + 1,) error that the values of a policy have by rounding alone: no evaluation need be more exact."""
    return _rounding(cmdp.gamma) * cmdp.cost_sizes / (1.0 - cmdp.gamma)


def _rounding(gamma: float) -> float:
    # A few eps of the values in every sweep, times γ/(1 − γ) in the bounds
    return 4.0 * float(np.finfo(float).eps) * max(1.0, gamma / (1.0 - gamma))
