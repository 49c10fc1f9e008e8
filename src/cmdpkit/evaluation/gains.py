"""Gain and bias: the long-run averages of a policy, and what a state is worth beyond them.

A policy whose chain has one recurrent class has the same average g from every state. Its bias h says by how much the
sum of the costs from a state exceeds g per step, up to a constant: h = c_π − g + P_π h. The values of an
average model are V = g + h with ρ · h = 0, so that ρ · V = g, and advantages are c + P V − V − g.

Methods, as for discounted models: sweeps if the chain mixes (relative value iteration, damped, so that chains of a
small period converge too), else a linear system. That is the regenerative one, for one state k of each recurrent class:
with Q the chain P_π without its columns k, (I − Q) w = c_π and (I − Q) t = 1 are the cost and the time until k is next
visited, and g = w(k)/t(k), h = w − g t. A chain with several classes has an average per class; g(s) is their mean,
weighted by the probabilities of ending in each of them.

Where parts of a chain are joined by rare moves only, 1 − P(s, s) and the like lose the digits on which the averages
hinge. `exact_system` then solves the same system by elimination without differences.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.evaluation.average import reachable, recurrent_classes
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.factors import LOST, Krylov, Solve, dense_lu, lu_without_differences, sparse_lu
from cmdpkit.evaluation.patience import breathe
from cmdpkit.evaluation.sweeps import sweep_gains, sweep_stationary
from cmdpkit.evaluation.system import SWEEPS, Plan, PolicySystem, UniformSystem, first_method, reads_model
from cmdpkit.model import CMDP

NEVER = 1e-14
"""Moves of smaller probability do not join classes: rounding in the linear systems is of that size."""

SELDOM, FEW_STATES = 1e-6, 1_000
"""Up to so many states, chains whose classes hinge on moves of smaller probability are solved without differences."""

RARE = 0.02
"""A state that is visited less often than this part of the most frequent one does not mark the cycles of its class."""

FIRST_SWEEPS = 20
"""Sweeps from the uniform distribution that guess the most frequent state."""

FAR_SIGHT = 1_000.0
"""Where classes differ in their averages, these count for so many cycles in the values."""


class Cycles(NamedTuple):
    """The regenerative system of a chain."""

    states: Any  # (n,) the state that marks the cycles of each class
    solve: Solve  # (I − Q)⁻¹ b
    visits: Array  # (S,) visits per cycle of the state's class
    times: Array  # (S,) t, expected steps until the next of `states`
    transposed: Solve


class Gains(NamedTuple):
    """Averages and bias of n costs."""

    gain: Array  # (S, n) from every state
    bias: Array  # (S, n)


class AverageSystem(PolicySystem):
    """Long-run averages, biases and the stationary distribution of one policy. Arguments: those of `PolicySystem`."""

    least = NEVER  # smallest probability of a move that joins classes

    def __init__(
        self, cmdp: CMDP, probabilities: Array | None = None, choice: Any = None, plan: Plan | None = None
    ) -> None:
        super().__init__(cmdp, probabilities, choice, plan)
        self.classes, self.label = recurrent_classes(self.chain, self.least)
        if self.classes > 1 and self.plan.method == "sweeps":  # no method for this chain, but for the others of the run
            self.plan = Plan(first_method(self.chain))

    def state_values(self, policy_cost: Array, guess: Array | None = None, accuracy: Array | float = 0.0) -> Array:
        """V = g + h of costs c_π of shape (S,) or (S, n), from a guess and with g to within `accuracy` (n,).

        Where g depends on the state, V = h + g(ρ) + M (g(s) − g(ρ)) with a large M: averages come first.
        """
        return self._valued(policy_cost, guess, accuracy)[0]

    def values_and_start(self, policy_cost: Array) -> tuple[Array, Array]:
        return self._valued(policy_cost, None, 0.0)  # ρ · g: where g depends on the state it is small beside V

    def _valued(self, policy_cost: Array, guess: Array | None, accuracy: Array | float) -> tuple[Array, Array]:
        cost = policy_cost.reshape(len(policy_cost), -1)
        gain, bias = self.gains(cost, None if guess is None else guess.reshape(cost.shape), accuracy)
        at_start = self.cmdp.initial @ gain
        values = bias + (at_start - self.cmdp.initial @ bias)
        if self.classes > 1:
            values += FAR_SIGHT * float(self._cycles.times.max()) * (gain - at_start)
        return values.reshape(policy_cost.shape), at_start

    def rough(self, policy_cost: Array) -> Array:
        return self.state_values(policy_cost)

    def gains(self, cost: Array, guess: Array | None = None, accuracy: Array | float = 0.0) -> Gains:
        """Averages and bias of costs (S, n)."""
        if self.classes == 1 and self._may_sweep():
            swept, gain = sweep_gains(self.chain, cost, guess, accuracy, SWEEPS, self._compiled)
            if self._keep_sweeping(swept.reached):
                return Gains(np.broadcast_to(gain, cost.shape), swept.values)
        return self._by_cycles(cost) if self.classes == 1 else self._by_classes(cost)

    def _by_cycles(self, cost: Array) -> Gains:
        cycles = self._cycles
        k, times = cycles.states[0], cycles.times[:, None]
        gain, bias = np.zeros(cost.shape[1]), np.zeros_like(cost)
        rest = cost
        for _ in range(2):  # the second time for what rounding has left
            until = cycles.solve(rest)
            more = until[k] / times[k]
            gain, bias = gain + more, bias + (until - more * times)
            rest = cost + drift(self.chain, bias) - gain
        return Gains(np.broadcast_to(gain, cost.shape), bias)

    def _by_classes(self, cost: Array) -> Gains:
        cycles, label = self._cycles, self.label
        of_class = cycles.solve(cost)[cycles.states] / cycles.times[cycles.states, None]
        gain = cycles.solve(self.chain[:, cycles.states] @ of_class)
        gain[label >= 0] = of_class[label[label >= 0]]
        return Gains(gain, cycles.solve(cost - gain))

    def state_occupancy(self, guess: Array | None = None, accuracy: float = 0.0) -> Array:
        """(S,) the share of time spent in each state in the long run, from the initial distribution."""
        if self.classes == 1 and self._may_sweep():
            start = self.cmdp.initial if guess is None else guess
            swept = sweep_stationary(self.chain, start, accuracy, SWEEPS, self._compiled)
            if self._keep_sweeping(swept.reached):
                return swept.values
        cycles = self._cycles
        if self.classes == 1:
            return np.asarray(cycles.visits / cycles.visits.sum())
        # Visits before the first of the states that mark the classes, and which of them comes first
        before = cycles.transposed(self.cmdp.initial)
        ends = self.chain[:, cycles.states].T @ before
        per_class = np.bincount(self.label[self.label >= 0], cycles.visits[self.label >= 0], minlength=self.classes)
        scale = np.maximum(ends, 0.0) / per_class / ends.sum()
        return np.where(self.label >= 0, cycles.visits * scale[self.label], 0.0)

    @property
    def marks(self) -> Any:
        """(n,) the state that marks the cycles of each class."""
        return self._cycles.states

    @property
    def times(self) -> Array:
        """(S,) expected steps until the next visit to the state that marks the cycles of a class."""
        return self._cycles.times

    @cached_property
    def _cycles(self) -> Cycles:
        """The regenerative system, for states that are visited often."""
        likely = self._guess()
        for tries_left in (2, 1, 0):
            states = _largest(likely, self.label, self.classes)
            solve, transposed = self._solvers(states)
            ends = np.zeros(self.cmdp.states)
            ends[states] = 1.0
            likely = visits = np.maximum(transposed(ends), 0.0)
            often = _largest(visits, self.label, self.classes)
            if not tries_left or (visits[states] >= RARE * visits[often]).all():
                break
        self.plan.frequent = int(often[0])
        return Cycles(states, solve, visits, solve(np.ones(self.cmdp.states)), transposed)

    def _guess(self) -> Array:
        """A rough stationary distribution, to choose states that are visited often."""
        if self.classes == 1 and self.plan.frequent is not None:
            return np.asarray(np.eye(1, self.cmdp.states, self.plan.frequent)[0])
        visits, backward = np.full(self.cmdp.states, 1.0 / self.cmdp.states), self.chain.T
        for _ in range(FIRST_SWEEPS):
            visits = 0.5 * (visits + backward @ visits)
        return visits

    def _solvers(self, states: Any) -> tuple[Solve, Solve]:
        """Solvers of I − Q and its transpose, by the method that suits the chain."""
        method, chain = self._decide(), _without_columns(self.chain, states)
        breathe()
        if method == "krylov":
            krylov = Krylov(chain, 1.0)
            return krylov.solve, krylov.solve_transposed
        return (sparse_lu if method == "sparse" else dense_lu)(chain, 1.0)


class RareMoves(AverageSystem):
    """The same where parts of the chain are joined by rare moves only: every move counts, and no digits are lost."""

    least = 0.0

    def values_and_start(self, policy_cost: Array) -> tuple[Array, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            values, at_start = super().values_and_start(policy_cost)
        if not np.isfinite(values).all():
            raise ArithmeticError(LOST)
        return values, at_start

    def _may_sweep(self) -> bool:
        return False

    def _solvers(self, states: Any) -> tuple[Solve, Solve]:
        leave = np.asarray(self.chain[:, states].sum(axis=1)).ravel()
        return lu_without_differences(_without_columns(self.chain, states), leave)


def drift(chain: Any, bias: Array, absolute: bool = False) -> Array:
    """(S, n) Σ_s' P(s'|s) (h(s') − h(s)), or of its absolute terms.

    In rows that sum to one it is P h − h, but with rounding errors that are relative to the differences: a bias that
    is large and changes little from state to state keeps its digits.
    """
    if not sp.issparse(chain):
        steps = (bias[None, :, i] - bias[:, None, i] for i in range(bias.shape[1]))
        return np.stack([(chain * (np.abs(step) if absolute else step)).sum(axis=1) for step in steps], axis=1)
    rows = np.repeat(np.arange(chain.shape[0]), np.diff(chain.indptr))
    moves = (bias[chain.indices, i] - bias[rows, i] for i in range(bias.shape[1]))
    sums = (np.bincount(rows, chain.data * (np.abs(m) if absolute else m), chain.shape[0]) for m in moves)
    return np.stack(list(sums), axis=1)


def policy_system(
    cmdp: CMDP, probabilities: Array | None = None, choice: Any = None, plan: Plan | None = None
) -> PolicySystem:
    """The linear system of a policy under the model's criterion. Arguments: those of `PolicySystem`."""
    kind = AverageSystem if cmdp.criterion == "average" else PolicySystem
    return kind(cmdp, probabilities, choice, plan)


def exact_system(cmdp: CMDP, probabilities: Array) -> PolicySystem:
    """The linear system of a policy whose averages are right however rare the moves are on which they hinge.

    Raises:
        ArithmeticError: such averages are lost in rounding.
    """
    system = policy_system(cmdp, probabilities)
    if not isinstance(system, AverageSystem) or _least_move(system.chain) > SELDOM:
        return system
    moves = mixed_chain(cmdp, (probabilities > 0.0).astype(float))  # without the underflow of a product
    count, label = recurrent_classes(moves)
    if _same_classes(count, label, *recurrent_classes(system.chain, SELDOM)):
        return system
    if cmdp.states <= FEW_STATES:
        system = RareMoves(cmdp, probabilities)
        seen = np.ones(cmdp.states, dtype=bool)
    else:
        seen = reachable(moves, cmdp.initial)
    found = np.unique(system.label[seen & (system.label >= 0)]).size, system.label[seen]
    if not _same_classes(np.unique(label[seen & (label >= 0)]).size, label[seen], *found):
        raise ArithmeticError(LOST)
    return system


def uniform_system(cmdp: CMDP, plan: Plan) -> PolicySystem:
    """The linear system of the uniform policy, which goes everywhere."""
    return UniformSystem(cmdp, plan) if reads_model(cmdp) else policy_system(cmdp, cmdp.pairs.uniform(), plan=plan)


def _least_move(chain: Any) -> float:
    """The smallest positive probability."""
    table = chain.data if sp.issparse(chain) else chain
    return float(np.min(table, where=table > 0.0, initial=1.0))


def _same_classes(count: int, label: Any, other_count: int, other: Any) -> bool:
    """Whether classes are the same without rare moves: each of them is then within one, or among transient states."""
    return count == other_count and np.array_equal(label >= 0, other >= 0)


def _largest(weights: Array, label: Any, classes: int) -> Any:
    """(n,) the state of largest weight in each class."""
    if classes == 1:
        return np.array([int(np.where(label >= 0, weights, -1.0).argmax())])
    inside = np.flatnonzero(label >= 0)
    order = inside[np.lexsort((weights[inside], label[inside]))]  # by class, and the largest last
    last = np.cumsum(np.bincount(label[inside], minlength=classes)) - 1
    return order[last]


def _without_columns(chain: Any, states: Any) -> Any:
    if not sp.issparse(chain):
        rest = np.array(chain)
        rest[:, states] = 0.0
        return rest
    removed = np.zeros(chain.shape[0], dtype=bool)
    removed[states] = True
    rest = sp.csr_array(chain.copy())
    rest.data[removed[rest.indices]] = 0.0
    rest.eliminate_zeros()
    return rest
