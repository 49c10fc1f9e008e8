"""Models that no process holds as a whole: blocks of states, built by a function or read from files where needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import (
    ROW_SUM_TOLERANCE,
    Array,
    as_floats,
    check_count,
    check_gamma,
    check_rows,
    digest,
    such_entries,
)
from cmdpkit.files import PathLike, write_json
from cmdpkit.model.blocks import Block, BlockFiles, CheckedBlock, Facts, check_matrix, write_block
from cmdpkit.model.cmdp import CMDP
from cmdpkit.model.limits import AtLeast, AtMost, Between, Equal, Limit, check_limits
from cmdpkit.model.pairs import Pairs, check_available
from cmdpkit.model.problem import Problem

DISCOUNTED_ONLY = "ShardedCMDP knows discounted sums only"
MODEL_FILE, FORMAT = "model.json", 1


class ShardedCMDP(Problem):
    """A discounted constrained MDP in blocks of states, each of which is built where it is used.

    Args:
        build: called as build(first, last) on a worker; returns a `Block` (or a tuple with the same entries) with the
            rows of the states first to last − 1. It is called again where a worker was lost, and must return the same.
        states, actions: number of states and of actions.
        blocks: number of blocks, of equal size but for one state; or the states at which blocks begin, as in
            [0, 1000, 5000]. The numbers of a result depend on the blocks, and never on how many workers hold them.
        gamma: the discount factor, in [0, 1).
        constraints: limits without values, as in `AtMost(None, 5.0, name="power")`; the values come from `build`.
        maximise: True if row 0 of the quantities is a reward, False for a cost.
        initial: the initial state; None for what the blocks say, and if they say nothing, the uniform distribution.
        objective_name, objective_per_step: as for `CMDP`.

    Example:
        A walk on a ring of 1,000 states, of which no process holds more than 250.

        >>> import numpy as np, scipy.sparse as sp, cmdpkit as ck
        >>> def ring(first, last):
        ...     s = np.repeat(np.arange(first, last), 2)                      # stay, or move on
        ...     to = (s + np.tile([0, 1], last - first)) % 1000
        ...     P = sp.csr_array((np.ones(to.size), (np.arange(to.size), to)), shape=(to.size, 1000))
        ...     reward = (np.arange(first, last) == 500)[:, None] * np.ones(2)
        ...     moves = np.ones((last - first, 1)) * [0.0, 1.0]
        ...     return ck.Block(P, [reward, moves])
        >>> model = ck.ShardedCMDP(
        ...     ring, states=1000, actions=2, blocks=4, gamma=0.9, initial=495,
        ...     constraints=[ck.AtMost(None, 3.0, name="moves")],
        ... )
        >>> result = ck.solve(model)
        >>> result.status.name, round(result.objective, 4)
        ('OPTIMAL', 4.3258)
    """

    def __init__(
        self,
        build: Callable[[int, int], Any],
        *,
        states: int,
        actions: int,
        blocks: int | Sequence[int],
        gamma: float | None = None,
        constraints: Sequence[Limit] = (),
        maximise: bool = True,
        initial: int | None = None,
        objective_name: str | None = None,
        objective_per_step: bool = False,
        average: bool = False,
        horizon: int | None = None,
    ) -> None:
        if average or horizon is not None:
            what = "average=True" if average else f"horizon={horizon}"
            raise ValueError(f"{DISCOUNTED_ONLY}, not {what}; use a CMDP, or a gamma close to 1")
        if gamma is None:
            raise TypeError("gamma is needed: a discount factor below 1")
        if not callable(build):
            raise TypeError(f"build must be callable as build(first, last), not {type(build).__name__}")
        self.states, self.actions = check_count(states, "states", least=1), check_count(actions, "actions", least=1)
        self.gamma = check_gamma(gamma)
        self.pairs = Pairs(self.states, self.actions)
        self.bounds = _check_bounds(blocks, self.states)
        self.constraints = check_limits(constraints)
        for limit in self.constraints:
            if limit.values is not None:
                raise ValueError(f"constraint {limit.name!r} has values; its values come from build: use None")
            if limit.stage is not None:
                raise ValueError(f"constraint {limit.name!r} is for one stage; {DISCOUNTED_ONLY}")
        if not isinstance(maximise, (bool, np.bool_)):
            raise TypeError(f"maximise must be True or False, not {maximise!r}")
        self.maximise = bool(maximise)
        if initial is not None and check_count(initial, "initial", least=0) >= self.states:
            raise ValueError(f"initial state {initial} is not one of the states 0 to {self.states - 1}")
        self.initial_state = None if initial is None else int(initial)
        self._set_objective(objective_name, objective_per_step)
        self._set_units()
        self.build = build

    entry_error: ClassVar[int] = 0
    """As for `CMDP`: probabilities and costs are those of the blocks."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.bounds) - 1

    def block(self, number: int) -> CheckedBlock:
        """Build a block and check it; errors name the block and the state."""
        first, last = self.bounds[number : number + 2]
        where = f"block {number} (states {first} to {last - 1})"
        try:
            given = self.build(first, last)
            if not isinstance(given, tuple) or not 2 <= len(given) <= 4:
                raise TypeError(f"build must return a cmdpkit.Block, not {type(given).__name__}")
            return self._checked(Block(*given), first, last)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            raise RuntimeError(f"{where}: build failed with {type(error).__name__}: {error}") from error

    def _checked(self, block: Block, first: int, last: int) -> CheckedBlock:
        n = last - first
        pairs = Pairs(n, self.actions)
        if block.available is not None:
            pairs = check_available(block.available, n, self.actions)
        matrix = check_matrix(block.transitions, pairs.count, self.states)

        def pair_name(row: int) -> str:
            state, action = pairs.of(np.array([row]))
            return f"state {first + int(state[0])}, action {int(action[0])}"

        check_rows(matrix, self.gamma, pair_name, lambda state: str(int(state)))
        table = as_floats(block.quantities, "quantities")
        m = self.num_constraints
        if table.shape == (m + 1, n, self.actions):
            table = table.reshape(m + 1, -1) if pairs.is_full else table[:, pairs.state, pairs.action]
        if table.shape != (m + 1, pairs.count):
            raise ValueError(
                f"quantities have shape {table.shape}; {m} limits, {n} states and {self.actions} actions need shape "
                f"{(m + 1, n, self.actions)}" + ("" if pairs.is_full else f" or {(m + 1, pairs.count)}")
            )
        bad = ~np.isfinite(table)
        if bad.any():
            i, row = np.argwhere(bad)[0]
            name = "the objective" if i == 0 else f"constraint {self.names[i - 1]!r}"
            raise ValueError(
                f"{name} of {pair_name(int(row))} is {table[i, row]} ({such_entries(bad)}); every entry must be finite"
            )
        costs = self.units[:, None] * table[np.append(0, 1 + self.owners)]
        return CheckedBlock(first, pairs, matrix, costs, self._initial(block.initial, first, n))

    def _initial(self, given: Any, first: int, n: int) -> Array:
        if self.initial_state is not None:
            if given is not None:
                raise ValueError("the model has an initial state, and the block an initial distribution; give one")
            return np.asarray(np.arange(first, first + n) == self.initial_state, dtype=float)
        if given is None:
            return np.full(n, 1.0 / self.states)
        part = as_floats(given, "initial")
        if part.shape != (n,):
            raise ValueError(f"initial has shape {part.shape}; the block has {n} states, so it must have shape ({n},)")
        bad = ~np.isfinite(part) | (part < 0.0)
        if bad.any():
            s = int(bad.argmax())
            raise ValueError(f"initial of state {first + s} is {part[s]}; probabilities must be finite and >= 0")
        return part

    def measured(self, facts: Sequence[Facts]) -> None:
        """Set what solvers need to know of all blocks together, in the order of the blocks."""
        mass = sum(f.mass for f in facts)
        if abs(mass - 1.0) > ROW_SUM_TOLERANCE:
            raise ValueError(f"the initial distribution sums to {mass:.12g} over all blocks, not 1")
        highest = np.max([f.highest for f in facts], axis=0)
        lowest = np.min([f.lowest for f in facts], axis=0)
        self.cost_sizes = np.maximum(highest, -lowest)
        self.spans = highest - lowest
        self.row_sums = min(f.row_sums[0] for f in facts), max(f.row_sums[1] for f in facts)
        self.longest_row, self.largest = max(f.longest_row for f in facts), max(f.largest for f in facts)
        self.mass, self.num_pairs = mass, sum(f.pairs for f in facts)
        self.entries = sum(f.entries for f in facts)
        self.fingerprint = digest(
            np.array([f.digest for f in facts]), np.array(self.bounds), self.offsets, np.array(self.gamma)
        )

    # -- other forms ----------------------------------------------------------------------------------------------

    @classmethod
    def split(cls, cmdp: CMDP, blocks: int | Sequence[int]) -> ShardedCMDP:
        """A model that fits into memory, in blocks: to try things out."""
        if cmdp.criterion != "discounted":
            raise ValueError(f"{DISCOUNTED_ONLY}; the criterion of this model is the {cmdp.value_name}")
        return cls(
            _Split(cmdp),
            states=cmdp.states,
            actions=cmdp.actions,
            blocks=blocks,
            gamma=cmdp.gamma,
            constraints=[replace(c, values=None) for c in cmdp.constraints],
            maximise=cmdp.maximise,
            objective_name=cmdp.objective_name,
            objective_per_step=cmdp.objective_per_step,
        )

    def save(self, folder: PathLike) -> None:
        """Write the model to a folder, a file for each block, one after the other and without pickle.

        Workers read their blocks from there after `ShardedCMDP.load(folder)`.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for number in range(self.blocks):
            write_block(target, number, self.build(*self.bounds[number : number + 2]))
        limits = [
            {"kind": type(c).__name__, "bound": c.bound, "name": c.name, "per_step": c.per_step}
            for c in self.constraints
        ]
        names = ("states", "actions", "gamma", "maximise", "objective_name", "objective_per_step")
        plain = {name: getattr(self, name) for name in names}
        initial = {"initial": self.initial_state, "blocks": list(self.bounds), "constraints": limits}
        write_json(target / MODEL_FILE, {"kind": "ShardedCMDP", "format": FORMAT, **plain, **initial})

    @classmethod
    def load(cls, folder: PathLike) -> ShardedCMDP:
        """The model that `save` has written; its blocks are read by the workers that hold them."""
        path = Path(folder) / MODEL_FILE
        if not path.exists():
            raise FileNotFoundError(f"{folder} holds no model that ShardedCMDP.save has written: {path} is missing")
        try:
            plain = json.loads(path.read_text("utf-8"))
            if (plain.pop("kind"), plain.pop("format")) != ("ShardedCMDP", FORMAT):
                raise ValueError("it is of another kind or format")
            limits = [_limit(entry) for entry in plain.pop("constraints")]
            return cls(BlockFiles(Path(folder).resolve(), plain["blocks"]), constraints=limits, **plain)
        except (KeyError, TypeError, json.JSONDecodeError, ValueError) as error:
            raise ValueError(f"{path} does not describe a sharded model: {error}") from error


class _Split:
    """The rows of some states of a model."""

    def __init__(self, cmdp: CMDP) -> None:
        self.cmdp = cmdp

    def __call__(self, first: int, last: int) -> Block:
        cmdp = self.cmdp
        begin, end = (int(head) for head in cmdp.pairs.heads[[first, last]])
        tables = [cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints)]
        quantities = [table.reshape(-1)[begin:end] for table in tables]
        available = None if cmdp.pairs.is_full else cmdp.pairs.sparse_mask[first:last]
        if cmdp.pairs.is_full:
            quantities = [table.reshape(-1, cmdp.actions) for table in quantities]
        return Block(sp.csr_array(cmdp.transitions[begin:end]), quantities, cmdp.initial[first:last], available)


def _limit(entry: dict[str, Any]) -> Limit:
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (AtMost, AtLeast, Equal, Between)}
    bound = entry["bound"] if isinstance(entry["bound"], list) else [entry["bound"]]
    limit: Limit = kinds[entry["kind"]](None, *bound, name=entry["name"], per_step=entry["per_step"])
    return limit


def _check_bounds(blocks: Any, states: int) -> tuple[int, ...]:
    """Where blocks begin, and the number of states at the end."""
    if not isinstance(blocks, (list, tuple, np.ndarray)):
        count = check_count(blocks, "blocks", least=1)
        if count > states:
            raise ValueError(f"there are {count} blocks, but only {states} states")
        return tuple(states * b // count for b in range(count + 1))
    starts = [check_count(start, "the start of a block", least=0) for start in blocks]
    bounds = starts if starts and starts[-1] == states else [*starts, states]
    if bounds[0] != 0 or any(later <= earlier for earlier, later in pairwise(bounds)):
        raise ValueError(f"blocks must begin at 0 and at increasing states below {states}, got {list(blocks)}")
    return tuple(bounds)
