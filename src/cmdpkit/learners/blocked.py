"""The exact learner of large models: no table of all pairs exists twice, nor beside the factors of a policy.

What a rule asks a view for (the response to a step, the metric, the greedy gain) are sums over states. So the
advantages of all costs are kept in blocks of states, and each sum is taken block by block. Factors are given up before
these tables are made, unless they are small, and the tables before the next policy is factorised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array, ConstraintArray, PairTable, StateArray
from cmdpkit.evaluation.backup import add_ahead, is_compiled, padded
from cmdpkit.evaluation.threads import in_blocks
from cmdpkit.learners.exact import UNSEEN, ExactLearner
from cmdpkit.learners.exact_view import ExactView
from cmdpkit.learners.response import MirrorResponse, by_action, tables_by_action
from cmdpkit.model import CMDP, Part, StagedTransitions, partition, parts
from cmdpkit.policy import TabularPolicy
from cmdpkit.policy.tabular import UNHEARD, normalise_log
from cmdpkit.rules.base import Weights

LARGE = 1_000_000
"""From so many nonzeros on, memory matters more than a tenth of the time (measured: docs/decisions.md)."""


LIGHT = 0.2
"""Numbers in the factors of a band, in units of the model's nonzeros, up to which tables are made beside them."""


def learner_of(cmdp: CMDP) -> type[ExactLearner]:
    """The learner that suits the size of a model."""
    matrix = cmdp.transitions
    large = is_compiled(matrix) and not isinstance(matrix, StagedTransitions) and matrix.nnz >= LARGE
    return BlockedLearner if large and cmdp.pairs.count >= partition.PAIRS else ExactLearner  # else one block


class BlockedLearner(ExactLearner):
    """The exact learner of a large sparse model. Arguments: those of `ExactLearner`."""

    _pull: StateArray | None = None  # K, while policy and anchor stay

    @property
    def _kind_of_view(self) -> type[ExactView]:
        return BlockView

    @property
    def has_light_factors(self) -> bool:
        """Whether the factors of a policy take little memory beside the model."""
        band = self.cmdp.band if self._plan.method == "band" else None
        return band is not None and self.cmdp.states * (2 * band[0] + band[1]) <= LIGHT * self.cmdp.transitions.nnz

    def improve(self, weights: Weights) -> int:
        self.policy.release()
        return super().improve(weights)

    def move_to(self, policy: TabularPolicy) -> None:
        self._pull = None
        super().move_to(policy)
        if self._known_system is not None and self.cmdp.criterion != "average":
            self._known_system.release_chain()

    def _visit(self, visits: StateArray) -> None:
        self.state_visits = self._visits = visits
        values = np.zeros(len(self.cmdp.costs))
        for part, occupancy in self._occupancies():
            values += self.cmdp.costs[:, part.rows] @ occupancy.ravel()
        self._take_values(values)

    def _occupancies(self) -> Iterator[tuple[Part, PairTable]]:
        pairs, pi = self.cmdp.pairs, self.policy.pi
        return ((part, part.pairs.over(self.state_visits[part.states]) * part.of(pi)) for part in parts(pairs))

    def add_occupancy(self, total: PairTable) -> None:
        for part, occupancy in self._occupancies():
            part.of(total)[...] += occupancy

    def divergence_from_anchor(self) -> float:
        new, old = self.policy.log_pi, self._anchor
        each = (occupancy * (part.of(new) - self.log_pi_of(part, old)) for part, occupancy in self._occupancies())
        return sum(float(table.sum()) for table in each)

    def anchor_values(self) -> StateArray:
        """(S,) K, the discounted divergence from the anchor."""
        if self._pull is None:
            pairs, pi, cost = self.cmdp.pairs, self.policy.pi, np.empty(self.cmdp.states)
            for part in parts(pairs):
                cost[part.states] = part.pairs.sum(part.of(pi) * self._to_anchor(part))
            self._pull = self._system.state_values(cost)
        return self._pull

    def anchor_advantages_of(self, part: Part) -> PairTable:
        """Advantages of the cost log(π/π_k) in some states."""
        to_anchor = self._to_anchor(part)
        add_ahead(self.cmdp, part, to_anchor.reshape(-1, 1), self.anchor_values()[:, None])
        return to_anchor

    def log_pi_of(self, part: Part, policy: TabularPolicy | None = None) -> PairTable:
        """log π in some states, raised to the floor, for the current policy unless another is given."""
        own = part.of((policy or self.policy).log_pi)
        if own.min() >= self.floor:
            return own
        raised = np.maximum(own, self.floor)
        # What the floor adds to a sum of probabilities is mostly less than its rounding error
        return raised if self.floor < UNHEARD else normalise_log(part.pairs, raised)

    def _raised(self, is_left: bool) -> TabularPolicy:
        return self.policy if is_left else super()._raised(is_left)  # anchors are raised where they are read

    def _played(self) -> PairTable:
        if self.cmdp.criterion == "average":
            return super()._played()
        pi = np.maximum(self._evaluated.log_pi, UNHEARD)  # not kept beside the factors
        np.exp(pi, out=pi)
        pi[pi < UNSEEN] = 0.0
        return pi

    def _to_anchor(self, part: Part) -> PairTable:
        return self.log_pi_of(part) - self.log_pi_of(part, self._anchor)

    def _soft_values(self, cost: PairTable, to_anchor: PairTable, alpha: float, guess: StateArray | None) -> StateArray:
        if guess is not None and self._values_are_current and self._pull is not None:
            return guess + alpha * self._pull  # what is known of c̃ and of the divergence adds up
        return super()._soft_values(cost, to_anchor, alpha, guess)


class Block(NamedTuple):
    """The tables of a block of states, by action: (m + 1, A, b), or (m + 1, n) where not all actions are available."""

    part: Part
    tables: Array


Key = tuple[float, bool]
"""A step, and whether it starts from the anchor of the step before."""


@dataclass
class Tables:
    """The blocks of a view. Their first table is A_0 until a step is asked for, the others A_i times their units."""

    blocks: list[Block]
    key: Key | None = None  # the step; where it starts from the anchor, the first table is A_0 + A_K / step
    are_logits: bool = False  # log π − step times that
    response: BlockedResponse | None = None  # the last one


class BlockedResponse:
    """`MirrorResponse`, block by block. See `Response`."""

    def __init__(self, each: Callable[[], Iterator[MirrorResponse]], values: ConstraintArray) -> None:
        self._each, self._known = each, list[MirrorResponse]()
        self.soft_minimum, self.values = 0.0, values.copy()
        for response in each():
            self.soft_minimum += response.soft_minimum
            self.values += response.values
            response.release()
            self._known.append(response)

    def release(self) -> None:
        self._known.clear()

    @property
    def gram(self) -> Array:
        total = np.zeros((self.values.size, self.values.size))
        for response in self._known or self._each():
            total += response.gram
            response.release()
        return total


@dataclass(frozen=True)
class BlockView(ExactView):
    """The view of a policy on a large model. Its tables are computed on first use, and used up by a step."""

    learner: BlockedLearner | None = None

    def forget(self) -> None:
        self.__dict__.pop("_tables", None)

    @cached_property
    def _tables(self) -> Tables:
        learner = self._current()
        cmdp, values, scales = learner.cmdp, padded(learner.state_values()), np.append(1.0, self.units)
        if not learner.has_light_factors:
            learner.release_system()
        all_parts = parts(cmdp.pairs)

        def make(first: int, last: int) -> list[Block]:
            some = all_parts[first:last]
            found = ((p, add_ahead(cmdp, p, padded(cmdp.costs[:, p.rows].T), values)) for p in some)
            return [Block(p, tables_by_action(p.pairs, table, scales)) for p, table in found]

        found = in_blocks(make, len(all_parts), values.shape[1] * cmdp.transitions.nnz, len(all_parts))
        return Tables([block for some in found for block in some])

    def _current(self) -> BlockedLearner:
        assert self.learner is not None
        if self.learner.policy is not self.policy:
            raise RuntimeError("this view is of an earlier policy; call look() again")
        return self.learner

    def _for_step(self, key: Key) -> Tables:
        """The tables for a step, with A_0 + A_K / step in place of A_0 where it starts from the anchor."""
        learner, (step, keep) = self._current(), key
        if keep:
            learner.anchor_values()  # while there are factors
        if self._tables.are_logits or self._tables.key not in (None, key):
            self.forget()
        tables = self._tables
        if tables.key is None and keep:
            for part, table in tables.blocks:
                table[0] += by_action(learner.anchor_advantages_of(part)) / step
        tables.key = key
        return tables

    def response(self, prices: ConstraintArray, step: float, keep_anchor: bool = False) -> BlockedResponse:
        learner, key = self._current(), (step, keep_anchor)
        if not (self._tables.are_logits and self._tables.key == key):
            for part, table in self._for_step(key).blocks:
                # log π − step · A_0, less A_K where the step starts from the anchor
                np.subtract(by_action(learner.log_pi_of(part)), step * table[0], out=table[0])
            self._tables.are_logits = True
        tables, none, visits = self._tables, np.zeros(prices.size), learner.state_visits
        blocks = tables.blocks

        def each() -> Iterator[MirrorResponse]:
            for part, table in blocks:
                yield MirrorResponse(part.pairs, table[0], table[1:], none, visits[part.states], prices, step)

        if tables.response is not None:
            tables.response.release()  # one at a time
        tables.response = BlockedResponse(each, self._scaled_values)
        return tables.response

    def stepped(
        self, multipliers: ConstraintArray, step: float | None, keep_anchor: bool
    ) -> tuple[TabularPolicy, StateArray] | None:
        tables = self.__dict__.get("_tables")
        if step is None or tables is None or not tables.are_logits or tables.key != (step, keep_anchor):
            return None
        pairs, weights = self._current().cmdp.pairs, step * multipliers / self.units
        log_pi, level = np.empty(pairs.shape), np.empty(pairs.states)
        for part, table in tables.blocks:
            # log π′ = log π_k − step (c̃ + γPṼ) + step Ṽ − ℓ: what is in brackets are advantages, and any action tells ℓ
            for weight, advantages in zip(weights, table[1:], strict=True):
                table[0] -= weight * advantages
            new = normalise_log(part.pairs, np.ascontiguousarray(table[0].T))
            part.of(log_pi)[...] = new
            rows = part.pairs.rows(0)
            level[part.states] = (table[0, 0] if pairs.is_full else table[0][rows]) - new.ravel()[rows]
        self.forget()
        return TabularPolicy.normalised(pairs, log_pi), level

    def metric(self, step: float, keep_anchor: bool = False) -> Array:
        learner, pi = self._current(), self._current().policy.pi
        rows = np.zeros((self.units.size, self.units.size + 1))
        for part, table in self._for_step((step, keep_anchor)).blocks:
            visits = part.pairs.over(learner.state_visits[part.states]) * part.of(pi)
            flat, weights = table.reshape(len(table), -1), by_action(visits).ravel()
            for row, column in zip(rows, flat[1:], strict=True):  # advantages have mean zero under π
                row += np.dot(flat, weights * column)
        learner.policy.release()
        return rows

    def greedy_gain(self, multipliers: ConstraintArray) -> float:
        learner, tables = self._current(), self.__dict__.get("_tables")
        heavy = learner.factors is not None and not learner.has_light_factors
        if heavy or (tables is not None and tables.key is not None):
            return self._backed_up_gain(multipliers)  # no tables beside factors
        # −Σ_s x(s) min_a (A_0 + Σ λ_i A_i)(s, a)
        total, weights = 0.0, np.append(1.0, multipliers / self.units)
        for part, table in self._tables.blocks:
            lagrangian = np.dot(weights, table.reshape(len(table), -1)).reshape(table.shape[1:])
            least = np.minimum.reduce(lagrangian) if part.pairs.is_full else part.pairs.min(lagrangian)
            total -= float(learner.state_visits[part.states] @ least)
        return total

    def _backed_up_gain(self, multipliers: ConstraintArray) -> float:
        """The same from a Bellman backup of the Lagrangian, without tables."""
        learner, weights = self._current(), np.append(1.0, multipliers)
        cmdp, value, total = learner.cmdp, learner.state_values() @ weights, 0.0
        for part in parts(cmdp.pairs):
            lagrangian = add_ahead(cmdp, part, (weights @ cmdp.costs[:, part.rows])[:, None], value[:, None])
            total -= float(learner.state_visits[part.states] @ part.pairs.min(part.pairs.like(lagrangian.ravel())))
        return total
