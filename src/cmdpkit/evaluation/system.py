"""The linear system of a policy, (I − γ P_π) x = b, by the method that suits its chain.

For a sparse model of more than `DENSE_STATES` states (others: dense LU; measurements in docs/decisions.md):

0. Substitution, if states lead forward only: stage by stage over a finite horizon, else block by block. A band LU, if
   states lead only to others with nearby numbers (inventories, small lattices): it costs less than a trial of sweeps.
1. Sweeps, if the chain mixes: thirty sweeps measure the contraction, which must predict an end within `SWEEPS`.
2. Sparse LU, if a small set of states separates the chain (queues, grids): its factors stay sparse. In a band some
   states in a row do.
3. GMRES; if it is slow, preconditioned by a dense LU (up to 2,000 states) or an incomplete one. If that fails too,
   sweeps without an early stop. Up to `DENSE_ANYWAY` states a dense LU instead.

A `Plan` records the method found, for the next policies of the same run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.backup import is_compiled
from cmdpkit.evaluation.chain import band_of, chosen_chain, mixed_chain, separator_width
from cmdpkit.evaluation.factors import (
    VERY_NARROW,
    Krylov,
    Order,
    Solve,
    band_lu,
    by_blocks,
    dense_lu,
    is_narrow,
    sparse_lu,
)
from cmdpkit.evaluation.patience import breathe
from cmdpkit.evaluation.stages import StagedChain
from cmdpkit.evaluation.sweeps import Swept, sweep_occupancy, sweep_values
from cmdpkit.model import CMDP

DENSE_STATES = 200
"""Up to this many states a dense LU is at least as fast as any other method, even for sparse chains."""

BAND_STATES = 100
"""The same for bands."""

DENSE_ANYWAY = 500
"""Up to this many states a dense LU is faster than GMRES where neither sweeps nor a sparse LU are an option."""

SWEEPS = 400
"""More sweeps than this cost more than a factorisation."""

MOST_SWEEPS = 10_000
"""Number of sweeps after a Krylov solver failed; the bounds account for whatever accuracy they reach."""

SEPARATOR = 1_500
"""Largest separator for which a sparse LU is used; it must also be at most an eighth of the states."""


@dataclass
class Plan:
    """The method for the chains of one run: "sweeps", "dense", "stages", "blocks", "band", "sparse" or "krylov".

    None while it is not known. `frequent` is a state that the last of them visits often, for averages.
    """

    method: str | None = None
    frequent: int | None = None
    patience: float = np.inf  # more sweeps than this are given up for factors, also where `SWEEPS` would allow them
    order: Order = field(default_factory=Order, compare=False)  # of elimination, for sparse factors

    def copy(self) -> Plan:
        """The same method, for work that must not change the run."""
        return Plan(self.method, order=replace(self.order))

    @property
    def is_direct(self) -> bool:
        """Factorisations solve up to rounding, whatever accuracy is requested."""
        return self.method in ("dense", "stages", "blocks", "band", "sparse")

    @property
    def has_factors(self) -> bool:
        """Once they are known, another right-hand side costs little."""
        return self.method in ("dense", "blocks", "band", "sparse")


class PolicySystem:
    """Values and occupancies of one policy.

    Args:
        cmdp: the model.
        probabilities: π(a|s) of all pairs; or
        choice: (S,) integers, which of its actions a deterministic policy takes in each state (cheaper: rows are
            gathered).
        plan: the method for the model's chains; shared by the policies of a run.
    """

    def __init__(
        self, cmdp: CMDP, probabilities: Array | None = None, choice: Any = None, plan: Plan | None = None
    ) -> None:
        self.cmdp = cmdp
        self.plan = Plan() if plan is None else plan
        self.plan.method = self.plan.method or band_method(cmdp)
        self._probabilities = probabilities  # a band is filled from the pairs, without the chain
        if choice is not None:
            self.chain = chosen_chain(cmdp, choice)
        elif self.plan.method != "band":
            assert probabilities is not None
            self.chain, self._probabilities = mixed_chain(cmdp, probabilities), None
        self.plan.method = self.plan.method or first_method(self.chain) or structured(cmdp)
        self._factors: tuple[Solve, Solve] | None = None
        self._krylov: Krylov | None = None

    @cached_property
    def chain(self) -> Any:
        """P_π."""
        assert self._probabilities is not None
        return mixed_chain(self.cmdp, self._probabilities)

    def solve(self, b: Array) -> Array:
        """(I − γ P_π)⁻¹ b for b of shape (S,) or (S, n), as exactly as rounding allows."""
        return self.state_values(b)

    def state_values(self, policy_cost: Array, guess: Array | None = None, accuracy: Array | float = 0.0) -> Array:
        """V = (I − γ P_π)⁻¹ c_π for c_π of shape (S,) or (S, n), from a guess and to within `accuracy` (n,)."""
        if self._may_sweep():
            swept = self._sweep(policy_cost, guess, accuracy, min(SWEEPS, self.plan.patience))
            if self._keep_sweeping(swept.reached):
                return swept.values.reshape(policy_cost.shape)
        if self._decide() != "krylov":
            return self._direct()[0](policy_cost)
        residual = np.asarray(accuracy) * (1.0 - self.cmdp.gamma)  # |V − V^π| ≤ max|r| / (1 − γ)
        values = self._by_krylov().solve(policy_cost, guess, residual)
        return self._sweep(policy_cost, values, accuracy, MOST_SWEEPS).values.reshape(policy_cost.shape)

    def values_and_start(self, policy_cost: Array) -> tuple[Array, Array]:
        """V (S, n) of costs (S, n), and their values (n,) from the initial distribution."""
        values = self.state_values(policy_cost)
        return values, self.cmdp.initial @ values

    def rough(self, policy_cost: Array) -> Array:
        """Values to a few digits where that takes fewer sweeps; after that the plan is known."""
        if self._may_sweep():
            swept = self._sweep(policy_cost, None, 0.0, min(SWEEPS, self.plan.patience), brief=True)
            if self._keep_sweeping(swept.reached):
                return swept.values.reshape(policy_cost.shape)
            self._decide()
        return self.state_values(policy_cost)

    def glance(self, policy_cost: Array, accuracy: float, guess: Array | None = None) -> Array:
        """Values by sweeps from a guess, however near they come: after that the plan is known."""
        if not self._may_sweep():
            return self.state_values(policy_cost)
        swept = self._sweep(policy_cost, guess, accuracy, min(SWEEPS, self.plan.patience))
        if not self._keep_sweeping(swept.reached):
            self._decide()
        return swept.values.reshape(policy_cost.shape)

    def _sweep(
        self, policy_cost: Array, guess: Array | None, accuracy: Array | float, most: float, brief: bool = False
    ) -> Swept:
        gamma = self.cmdp.gamma
        cost, start = (
            policy_cost.reshape(len(policy_cost), -1),
            None if guess is None else guess.reshape(len(guess), -1),
        )
        least = _rounding(gamma) * np.abs(cost).max(axis=0, initial=0.0) / (1.0 - gamma)
        chain, weight = self._rows()
        allowed = np.maximum(accuracy, least)
        return sweep_values(chain, gamma, cost, start, allowed, most, self._compiled, weight, brief)

    def _rows(self) -> tuple[Any, float]:
        """A matrix and a number whose product is P_π."""
        return self.chain, 1.0

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

    def flow(self, visits: Array) -> Array:
        """P_πᵀ x."""
        if self._probabilities is None:
            return np.asarray(self.chain.T @ visits)
        entered = self._probabilities * self.cmdp.pairs.over(visits)
        return np.asarray(self.cmdp.transitions.T @ entered.ravel())

    @property
    def _compiled(self) -> bool:
        return is_compiled(self.cmdp.transitions)

    def _may_sweep(self) -> bool:
        return self.plan.method in (None, "sweeps") and SWEEPS > 0

    def _keep_sweeping(self, reached: bool) -> bool:
        """Keep sweeps as the method if they converged; otherwise leave the choice open."""
        self.plan.method = "sweeps" if reached else None
        return reached

    def _decide(self) -> str:
        """The method for a chain on which sweeps are slow."""
        if self.plan.method is None:
            breathe()
            widest = min(SEPARATOR, self.cmdp.states / 8)
            if is_narrow(self.cmdp):
                self.plan.method = "band"
            elif max(self.cmdp.band or (np.inf,)) <= widest or separator_width(self.chain) <= widest:
                self.plan.method = "sparse"
            else:
                self.plan.method = "dense" if self.cmdp.states <= DENSE_ANYWAY else "krylov"
        return self.plan.method

    def _direct(self) -> tuple[Solve, Solve]:
        if self._factors is None:
            breathe()  # a factorisation cannot be stopped
            if self.plan.method == "stages":
                gamma = self.cmdp.gamma
                self._factors = partial(self.chain.solve, gamma), partial(self.chain.solve_transposed, gamma)
            elif self.plan.method == "blocks":
                self._factors = by_blocks(self.chain, self.cmdp.gamma, self.cmdp.blocks or ())
            elif self.plan.method == "band":
                chain = self.chain if self._probabilities is None else None
                self._factors = band_lu(band_of(self.cmdp, self._probabilities, chain), *(self.cmdp.band or (0, 0)))
            elif self.plan.method == "sparse":
                self._factors = sparse_lu(self.chain, self.cmdp.gamma, self.plan.order)
            else:
                self._factors = dense_lu(self.chain, self.cmdp.gamma)
        return self._factors

    def release_chain(self) -> None:
        """Give up the chain of a policy whose factors are known."""
        if self._factors is not None and self.plan.method in ("sparse", "band"):
            self.chain = self._probabilities = None

    def _by_krylov(self) -> Krylov:
        if self._krylov is None:
            self._krylov = Krylov(self.chain, self.cmdp.gamma)
        return self._krylov


class UniformSystem(PolicySystem):
    """The uniform policy of a large model: sweeps read the model itself, and the chain is built only if they fail.

    P_π is the model's matrix with the rows of each state put together, over the number of actions.
    """

    def __init__(self, cmdp: CMDP, plan: Plan) -> None:
        self.cmdp, self.plan, self._probabilities = cmdp, plan, None
        self.plan.method = self.plan.method or band_method(cmdp) or structured(cmdp)
        self._factors: tuple[Solve, Solve] | None = None
        self._krylov: Krylov | None = None

    @cached_property
    def chain(self) -> Any:
        return mixed_chain(self.cmdp, self.cmdp.pairs.uniform())

    def _rows(self) -> tuple[Any, float]:
        matrix, actions = self.cmdp.transitions, self.cmdp.actions
        parts = (matrix.data, matrix.indices, matrix.indptr[::actions])
        return sp.csr_array(parts, shape=(self.cmdp.states,) * 2), 1.0 / actions


def reads_model(cmdp: CMDP) -> bool:
    """Whether there is a `UniformSystem` of the model."""
    large = is_compiled(cmdp.transitions) and sp.issparse(cmdp.transitions) and cmdp.states > DENSE_STATES
    return large and cmdp.criterion == "discounted" and cmdp.pairs.is_full


def first_method(chain: Any) -> str | None:
    """Stages of a horizon; dense LU for dense or small models; otherwise None, and sweeps are tried first."""
    if isinstance(chain, StagedChain):
        return "stages"
    return "dense" if not sp.issparse(chain) or chain.shape[0] <= DENSE_STATES else None


def structured(cmdp: CMDP) -> str | None:
    """Substitution, if states lead forward only."""
    return "blocks" if cmdp.blocks else None


def band_method(cmdp: CMDP) -> str | None:
    """A band LU, if states lead only to others with nearby numbers, and not forward only."""
    narrow = cmdp.states > BAND_STATES and is_narrow(cmdp, VERY_NARROW)
    return "band" if narrow and not cmdp.blocks else None


def rounding_floor(cmdp: Any) -> Array:
    """(m + 1,) rounding error of the values of a policy: no evaluation needs to be more accurate."""
    discount = 0.0 if cmdp.criterion == "average" else cmdp.gamma
    return np.asarray(_rounding(discount) * cmdp.cost_sizes / cmdp.step_weight)


def _rounding(gamma: float) -> float:
    # A few eps of the values in every sweep, times γ/(1 − γ) in the bounds
    return 4.0 * float(np.finfo(float).eps) * max(1.0, gamma / (1.0 - gamma))
