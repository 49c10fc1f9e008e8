"""The simulator of a known model, with compiled rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cmdpkit.checks import Array, digest
from cmdpkit.cluster import distributed, in_order
from cmdpkit.model import CMDP, StagedTransitions, as_csr
from cmdpkit.simulators.simulator import Integers, Returns, Simulator, Sums, ranges, stream

STREAM_ROLLOUTS = 1_024
"""Rollouts of a compiled simulator that share a random stream."""

BLOCK = 200_000_000
"""Transitions in a block of work: a compiled simulator takes about a second for them."""

TASK = 20_000_000
"""Transitions that a worker of a cluster draws at once."""

PARALLEL_STEPS = 2_000_000
"""Below this number of transitions one thread is as fast as two."""


class ModelSimulator(Simulator):
    """The simulator of a known model, with compiled rollouts."""

    block = BLOCK

    def __init__(self, cmdp: CMDP) -> None:
        self.cmdp, self.criterion = cmdp, cmdp.criterion
        self.states, self.actions, self.gamma = cmdp.states, cmdp.actions, cmdp.gamma
        self.pairs = cmdp.pairs
        self.constraints, self.maximise = cmdp.constraints, cmdp.maximise
        self.objective_name, self.objective_per_step = cmdp.objective_name, cmdp.objective_per_step
        self._set_units()
        # Back to the user's quantities: a per-step limit bounds (1 − γ) times the sum, and that factor comes later.
        tables = [cmdp.objective] + [np.asarray(c.values) for c in cmdp.rows]
        self.quantities: Array = np.stack(tables).reshape(len(tables), -1)
        self.bounds = np.stack([self.quantities.min(axis=1), self.quantities.max(axis=1)], axis=1)
        if self.actions > 65_536 or self.states >= 2**32:
            raise ValueError("the compiled simulator takes at most 65,536 actions and 2^32 states")

    @property
    def ends_within(self) -> int | None:
        """After so many steps nothing is counted any more, whatever happens: the stages of a horizon."""
        staged = self.cmdp.transitions
        return staged.horizon if isinstance(staged, StagedTransitions) else None

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"model": digest(*self._matrix, self.quantities, self.cmdp.initial)}

    def start(self, count: int, rng: np.random.Generator) -> Integers:
        return rng.choice(self.states, size=count, p=self.cmdp.initial)

    def step(self, states: Integers, actions: Integers, rng: np.random.Generator) -> tuple[Integers, Array]:
        pairs = self.pairs.find(states, actions)
        table, heads = self._pair_starts
        entry = heads[pairs] + rng.integers(heads[pairs + 1] - heads[pairs])
        own = rng.integers(2**32, size=pairs.size, dtype=np.uint64) < table[entry, 0] >> np.uint64(32)
        following = np.where(own, table[entry, 0] & np.uint64(2**32 - 1), table[entry, 1])
        return following.astype(np.int64), self.quantities[:, pairs]

    def returns(
        self,
        probabilities: Array,
        horizon: int | None,
        rollouts: int,
        seed: Sequence[int],
        *,
        pairs: bool = False,
        weights: Array | None = None,
        state_cost: Array | None = None,
        offset: Array | None = None,
    ) -> Returns:
        """The result for a seed does not depend on the number of threads: every block has its own random stream."""
        mix = np.eye(self.num_rows + 1) if weights is None else weights
        now = (mix @ self.quantities).T - (0.0 if offset is None else offset)  # (N, q)
        costs = now if state_cost is None else now + state_cost[self.pairs.state][:, None]
        starts, heads = self._pair_starts if pairs else self._initial_starts
        # The cost of the first pair is undiscounted; the rollout that follows it is one step shorter.
        first, discount, steps = (now, self.gamma, -1) if pairs else (np.zeros((1, len(mix))), 1.0, 0)
        sizes = [end - begin for begin, end in ranges(rollouts, STREAM_ROLLOUTS)]
        counts = np.tile(np.array(sizes, dtype=np.int64), len(heads) - 1)
        keys = stream(seed).generate_state(counts.size, np.uint64)
        length = -1 if horizon is None else horizon + steps
        mean_length = 1.0 / (1.0 - self.gamma) if horizon is None else horizon
        large = (len(heads) - 1) * rollouts * mean_length >= PARALLEL_STEPS
        chain = (
            self._heads,
            *self._tables(probabilities),
            np.ascontiguousarray(costs),
            starts,
            heads,
            np.ascontiguousarray(first),
        )
        per_task = max(1, int(TASK / (STREAM_ROLLOUTS * mean_length)))
        blocks = ranges(counts.size, per_task if distributed() and not pairs else counts.size)
        shared = (chain, (discount, self.gamma, length), counts, keys, large)
        out = [np.concatenate(part) for part in zip(*in_order(_run, blocks, shared=shared, name=_name), strict=True)]
        sums, squares = (table.reshape(len(heads) - 1, -1, len(mix)).sum(axis=1) for table in out[:2])
        drawn = int(out[2].sum()) + (len(heads) - 1) * rollouts * (1 if pairs else 0)
        return Returns(rollouts, sums, squares, drawn)

    def _tables(self, probabilities: Array) -> tuple[Any, Any]:
        from cmdpkit.simulators import compiled

        pointers, columns, data = self._matrix
        table = np.empty((data.size, 2), dtype=np.uint64)
        base = np.empty(self.states + 1, dtype=np.int64)
        pi = np.ascontiguousarray(probabilities).ravel()
        compiled.build_tables(self.pairs.heads, pointers, columns, data, pi, table, base)
        return table, base

    @cached_property
    def _matrix(self) -> tuple[Any, Any, Any]:
        matrix = as_csr(self.cmdp.transitions)
        return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data

    @property
    def _heads(self) -> Any:
        """Where the pairs of each state begin; where all have the same number, that number says it."""
        return np.array([-self.actions]) if self.pairs.is_full else self.pairs.heads

    @cached_property
    def _initial_starts(self) -> tuple[Any, Any]:
        states = np.flatnonzero(self.cmdp.initial)
        return _starts(np.array([0, states.size]), states, self.cmdp.initial[states])

    @cached_property
    def _pair_starts(self) -> tuple[Any, Any]:
        return _starts(*self._matrix)


def _run(_: None, shared: Any, block: tuple[int, int]) -> tuple[Array, Array, Any]:
    """Sums, sums of squares and transitions of the streams of a block; all starts, or a part of the streams of one."""
    from cmdpkit.simulators import compiled

    chain, lengths, counts, keys, large = shared
    begin, end = block
    width = chain[3].shape[1]
    out = (np.zeros((end - begin, width)), np.zeros((end - begin, width)), np.zeros(end - begin, np.int64))
    run: Any = compiled.rollouts_parallel if large else compiled.rollouts_serial
    run(*chain, *lengths, counts[begin:end], keys[begin:end], *out)
    return out


def _name(block: tuple[int, int]) -> str:
    return f"streams {block[0]} to {block[1] - 1} of the simulator"


def _starts(pointers: Any, columns: Any, data: Any) -> tuple[Any, Any]:
    """Alias tables of initial states, one per row of a sparse matrix, and the offset of each."""
    from cmdpkit.simulators import compiled

    table = np.empty((data.size, 2), dtype=np.uint64)
    compiled.build_starts(pointers, columns, data, table)
    return table, pointers


class StagedSimulator(ModelSimulator):
    """The simulator of a finite horizon: rollouts go from stage to stage, and end after T steps.

    Quantities count from the least of their stage on; `sums` says what that leaves out.
    """

    def __init__(self, cmdp: CMDP) -> None:
        assert cmdp.horizon is not None
        self.cmdp, self.horizon, self._steps = cmdp, cmdp.horizon, cmdp.horizon
        self.criterion, self.actions, self.gamma = cmdp.criterion, cmdp.actions, cmdp.gamma
        self.constraints, self.maximise = cmdp.constraints, cmdp.maximise
        self.objective_name, self.objective_per_step = cmdp.objective_name, cmdp.objective_per_step
        self._set_units()
        self._stages: StagedTransitions = cmdp.lowering.model.transitions  # type: ignore[union-attr]
        self.pairs, self.states = self._stages.pairs, self._stages.shape[1]
        rows = self.num_rows + 1
        tables = np.zeros((rows, self._steps, cmdp.pairs.count))
        for table, given, stage in zip(
            tables, (cmdp.objective, *(c.values for c in cmdp.rows)), (None, *(c.stage for c in cmdp.rows)), strict=True
        ):
            each = np.broadcast_to(np.asarray(given).reshape(-1, cmdp.pairs.count), table.shape)
            some = slice(None) if stage is None else stage
            table[some] = each[some]
        self.lows, self.highs = tables.min(axis=2), tables.max(axis=2)  # (rows + 1, T)
        above = (tables - self.lows[:, :, None]).reshape(rows, -1)
        self.quantities: Array = np.zeros((rows, self.pairs.count))
        self.quantities[:, : above.shape[1]] = above
        self.bounds = np.stack([np.zeros(rows), (self.highs - self.lows).max(axis=1)], axis=1)

    @property
    def ends_within(self) -> int:
        return self._steps

    def sums(self, horizon: int, bias: float = 0.0) -> Sums:
        weights = self.gamma ** np.arange(self._steps)
        least, span, none = self.lows @ weights, (self.highs - self.lows) @ weights, np.zeros(len(self.lows))
        return Sums(least, span, none, none, least, least + span)

    @cached_property
    def _matrix(self) -> tuple[Any, Any, Any]:
        plain = StagedTransitions(self._stages.matrices, np.ones(self._steps - 1), self._stages.own, whole=True)
        matrix = plain.tocsr()
        return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data

    @cached_property
    def _initial_starts(self) -> tuple[Any, Any]:
        states = np.flatnonzero(self.cmdp.initial)
        return _starts(np.array([0, states.size]), states, self.cmdp.initial[states])


def as_simulator(model: Any, what: str = "simulation", others: bool = False) -> Simulator:
    """Return a simulator; make one of a model, if its values are those of rollouts.

    `others` says that finite horizons, of which the simulator has a state for each state and stage, and long-run
    averages are welcome.
    """
    if not isinstance(model, (CMDP, Simulator)):
        raise TypeError(f"a cmdpkit.CMDP or cmdpkit.Simulator is needed, not {type(model).__name__}")
    if model.criterion == "total" and others:
        raise ValueError(
            f"{what} is for discounted models, finite horizons and long-run averages, where it is known when a rollout "
            f"may end; the criterion of this one is the {model.value_name}. evaluate() and certify() of this model are "
            "exact; for rollouts, give it a horizon, as in model.with_criterion(horizon=1000)"
        )
    if model.criterion != "discounted" and not others:
        known = isinstance(model, CMDP)
        hint = "Solve it from its transitions: solve(model) and certify(model, policy) prove the optimum"
        hint = hint if known else "CMDP.from_samples(...) estimates a model that can be solved"
        raise ValueError(
            f"{what} is for discounted models; the criterion of this one is the {model.value_name}. {hint}"
        )
    if isinstance(model, Simulator):
        return model
    return StagedSimulator(model) if model.criterion == "horizon" else ModelSimulator(model)
