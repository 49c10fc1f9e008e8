"""Simulators: models whose transition probabilities are not known.

A simulator takes arrays of states and actions and returns next states and the quantities of each step: row 0 is the
reward (or cost), rows 1..m are the quantities that the limits bound, all in the user's sense and units. Simulators are
made of a `CMDP` (with compiled rollouts), of a user's function, or of a Gymnasium environment with discrete spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmdpkit.checks import Array, check_count, check_flag, digest
from cmdpkit.cluster import in_order
from cmdpkit.model import Label, Limit, Pairs, Problem, check_available, check_criterion, check_labels, check_limits

Integers = NDArray[np.int64]
LEARNING, JUDGING, STARTS = 1, 2, 3
"""Purposes of random numbers: streams with different purposes never overlap, whatever the seed."""


def stream(seed: Sequence[int]) -> np.random.SeedSequence:
    """The random stream of (seed of the run, purpose, ...); different tuples have different streams."""
    return np.random.SeedSequence(seed[0], spawn_key=tuple(seed[1:]))


StepFunction = Callable[[Integers, Integers, np.random.Generator], tuple[Any, Any]]
StartFunction = Callable[[int, np.random.Generator], Any]


class Returns(NamedTuple):
    """Returns of i.i.d. rollouts: number per start, sums and sums of squares (one row per start), transitions."""

    rollouts: int
    sums: Array
    squares: Array
    transitions: int

    def __add__(self, other: Any) -> Returns:
        return Returns(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def means(self) -> Array:
        return self.sums / self.rollouts


class Sums(NamedTuple):
    """What is known of the sums of n quantities over rollouts that count from the least value of a step on."""

    least: Array  # (n,) the sum of the least values
    span: Array  # (n,) by how much a rollout can exceed it
    rest_low: Array  # (n,) what is cut off is at least this
    rest_high: Array  # (n,) and at most this
    lowest: Array  # (n,) the whole sum is at least this
    highest: Array  # (n,) and at most this


TOGETHER = 50_000
"""Rollouts of a user's simulator that are at most advanced together; it bounds the memory used."""

BLOCK = 1_000_000
"""Transitions in a block of work by default."""

ABREAST = 1_000
"""Rollouts of a long-run average that are advanced together, though they are longer than a block."""


class Simulator(Problem):
    """A simulator made of two functions.

    Args:
        step: called with arrays of states and actions and a random generator; returns the next states (n,) and the
            quantities of each step (m + 1, n): row 0 the reward (or cost), then one row per limit.
        start: called with a number n and a random generator; returns n initial states.
        states, actions: number of states and of actions; states are 0..states − 1.
        gamma: the discount factor, in [0, 1). For a finite horizon of T steps make the stage part of the state, with
            one more state for the end, at which all quantities are 0, and take a gamma near 1: a sum is then off by at
            most T (1 − gamma) times that of its absolute terms.
        average: long-run averages per step, instead of gamma. They are learned from pooled transitions, and
            certificates need a bound on the mixing time, `Sampling(mixing=...)`.
        constraints: limits without values, as in `AtMost(None, 5.0, name="power")`; the values come from `step`.
        maximise: True if row 0 is a reward, False for a cost.
        objective_name, objective_per_step: as for `CMDP`.
        bounds: (low, high) of each of the m + 1 quantities in one step; statistical certificates need them.
        block: transitions in a block of work, a million by default. A block has random numbers of its own, a run can
            stop between blocks, and a cluster does them side by side: smaller blocks suit simulators that take more
            than a few seconds for so many. Results depend on it as on the seed, and on nothing else of how the work is
            divided.
        available: (S, A) booleans, or a scipy.sparse matrix whose stored entries are the available pairs: `step` is
            called with these only. All are available by default.
        state_labels, action_labels: what states and actions are called in results; `step` gets their numbers.

    Example:
        A stock of at most 9 pieces; order up to 4 per day, meet demand, and lose at most 0.1 sales per day on average.

        >>> import numpy as np, cmdpkit as ck
        >>> def step(stock, order, rng):
        ...     stock = np.minimum(stock + order, 9)
        ...     demand = rng.poisson(2.0, stock.size)
        ...     sold = np.minimum(stock, demand)
        ...     return stock - sold, np.stack([5.0 * sold - 2.0 * order - 0.1 * stock, np.minimum(demand - sold, 10)])
        >>> shop = ck.Simulator(
        ...     step, lambda n, rng: np.zeros(n, dtype=int), states=10, actions=5, gamma=0.95,
        ...     constraints=[ck.AtMost(None, 0.1, name="lost sales", per_step=True)],
        ...     bounds=[(-9.0, 45.0), (0.0, 10.0)],
        ... )
        >>> shop
        Simulator(states=10, actions=5, constraints=['lost sales'], gamma=0.95)
    """

    block: int = BLOCK
    """Transitions in a block of work."""

    def __init__(
        self,
        step: StepFunction,
        start: StartFunction,
        *,
        states: int,
        actions: int,
        gamma: float | None = None,
        average: bool = False,
        constraints: Sequence[Limit] = (),
        maximise: bool = True,
        bounds: Sequence[tuple[float, float]] | None = None,
        block: int | None = None,
        available: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
        objective_name: str | None = None,
        objective_per_step: bool = False,
    ) -> None:
        for name, value in (("states", states), ("actions", actions)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name, function in (("step", step), ("start", start)):
            if not callable(function):
                raise TypeError(f"{name} must be callable, not {type(function).__name__}")
        if gamma == 1:
            raise ValueError(
                "gamma = 1 needs a model: a simulator has discounted sums or long-run averages. For a finite horizon "
                "of T steps, make the stage part of the state and take gamma = 1 - 0.001/T; for a long-run average, "
                "give average=True instead of gamma; or estimate a model, as in CMDP.from_samples(...)"
            )
        if gamma is None and average is False:
            raise TypeError("gamma is needed, a discount factor below 1; or average=True for long-run averages")
        self.criterion, self.gamma, _ = check_criterion(gamma, None, average)
        self.states, self.actions = int(states), int(actions)
        pairs = Pairs(self.states, self.actions)
        if available is not None:
            pairs = check_available(available, self.states, self.actions)
        names = check_labels(state_labels, self.states, "state"), check_labels(action_labels, self.actions, "action")
        self.pairs = pairs.named(*names)
        self.constraints = check_limits(constraints)
        for limit in self.constraints:
            if limit.values is not None:
                raise ValueError(f"constraint {limit.name!r} has values; its values come from step: use None")
            if limit.stage is not None:
                raise ValueError(
                    f"constraint {limit.name!r} is for one stage of a horizon, which simulators do not have"
                )
        self.maximise = check_flag(maximise, "maximise")
        self._set_objective(objective_name, objective_per_step)
        self._set_units()
        # Where the quantity of each row stands among those of `step`: both rows of `Equal` and `Between` have the same
        self._sources = np.append(0, 1 + self.owners)
        self._ends = _check_bounds(bounds, self.num_constraints + 1)
        self.bounds: Any = None if self._ends is None else self._ends[self._sources]
        self._step, self._start = step, start
        self.block = BLOCK if block is None else check_count(block, "block", least=1)

    @property
    def ends_within(self) -> int | None:
        """After so many steps nothing is counted any more; None if that is not known."""
        return None

    def sums(self, horizon: int, bias: float = 0.0) -> Sums:
        """Bounds on the sums over rollouts of this many steps, and on what comes after them.

        For long-run averages on T times the average, from which the mean sum over T steps differs by at most `bias`
        times the range of a quantity.
        """
        low, high = self.bounds.T
        if self.criterion == "average":
            least, span, off = horizon * low, horizon * (high - low), bias * (high - low)
            return Sums(least, span, -off, off, least, least + span)
        length = (1.0 - self.gamma**horizon) / (1.0 - self.gamma)
        rest = self.gamma**horizon / (1.0 - self.gamma)
        least, span = low * length, (high - low) * length
        return Sums(least, span, rest * low, rest * high, least + rest * low, least + span + rest * high)

    def identity(self) -> dict[str, Any]:
        """What is known of the simulator, as plain data, to recognise its checkpoints."""
        limits = [[c.name, c.symbol, c.bound, c.per_step] for c in self.constraints]
        sizes: dict[str, Any] = {"states": self.states, "actions": self.actions}
        sizes |= {"gamma": self.gamma, "maximise": self.maximise}
        sizes |= {"objective_per_step": True} if self.objective_per_step else {}
        sizes |= {"criterion": self.criterion} if self.criterion != "discounted" else {}
        sizes |= {"block": self.block} if self.block not in (BLOCK, type(self).block) else {}
        masked = {} if self.pairs.is_full else {"available": digest(self.pairs.first, self.pairs.action)}
        return sizes | masked | {"limits": limits}

    def start(self, count: int, rng: np.random.Generator) -> Integers:
        """Draw initial states, with validation."""
        states = np.asarray(self._start(count, rng))
        if states.shape != (count,) or states.dtype.kind not in "iu":
            raise ValueError(f"start returned {_what(states)}; it must return {count} whole numbers, shape ({count},)")
        bad = (states < 0) | (states >= self.states)
        if bad.any():
            raise ValueError(f"start returned the state {states[bad][0]}; states are 0 to {self.states - 1}")
        return states.astype(np.int64)

    def step(self, states: Integers, actions: Integers, rng: np.random.Generator) -> tuple[Integers, Array]:
        """Simulate one step, with validation; an error names the state and action that caused it.

        Returns the next states, and the quantities of the objective and of all rows.
        """
        try:
            # Read-only: a step that wrote into its arguments would corrupt the rollout.
            answer = self._step(_read_only(states), _read_only(actions), rng)
        except Exception as error:
            where = self._culprit(states, actions)
            raise ValueError(f"the simulator failed {where}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValueError(f"step must return a pair, next states and quantities, not a {type(answer).__name__}")
        following, quantities = answer
        following, quantities = np.asarray(following), np.asarray(quantities, dtype=float)
        n, rows = states.size, self.num_constraints + 1
        if following.shape != (n,) or following.dtype.kind not in "iu":
            raise ValueError(
                f"step returned next states as {_what(following)}; whole numbers of shape ({n},) are needed"
            )
        if quantities.shape != (rows, n):
            raise ValueError(f"step returned quantities as {_what(quantities)}; shape ({rows}, {n}) is needed")
        self._refuse((following < 0) | (following >= self.states), states, actions, following, "moved to state")
        self._refuse(~np.isfinite(quantities).all(axis=0), states, actions, quantities.T, "gave the quantities")
        if self._ends is not None:
            outside = ((quantities < self._ends[:, :1]) | (quantities > self._ends[:, 1:])).any(axis=0)
            self._refuse(outside, states, actions, quantities.T, "left its bounds with the quantities")
        if self.num_rows > self.num_constraints:
            quantities = quantities[self._sources]
        return following.astype(np.int64), quantities

    def _refuse(self, bad: Any, states: Integers, actions: Integers, values: Any, what: str) -> None:
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            where = f"in state {self.pairs.state_name(states[i])} with action {self.pairs.action_name(actions[i])}"
            raise ValueError(f"{where} the simulator {what} {values[i]}")

    def _culprit(self, states: Integers, actions: Integers) -> str:
        """Describe the first pair that fails by itself, if there is one."""
        for pair in np.unique(states * self.actions + actions)[:10_000]:
            s, a = divmod(int(pair), self.actions)
            try:
                self._step(np.array([s]), np.array([a]), np.random.default_rng(0))
            except Exception:
                return f"in state {self.pairs.state_name(s)} with action {self.pairs.action_name(a)}"
        return f"on a batch of {states.size} states and actions, but on none of them individually"

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
        """Returns of i.i.d. rollouts under a policy.

        Args:
            probabilities: π(a|s) of all pairs, (S, A) or (N,).
            horizon: discounted sums over this many steps. None: undiscounted sums over a random number of steps, drawn
                Geometric(1 − γ). The mean of both is the discounted value, up to the truncation of the former.
            rollouts: number of rollouts per start.
            seed: seed of the random numbers.
            pairs: start from every pair (s, a), one row of the result each, instead of the initial distribution.
            weights: (q, rows + 1), which mixes of the quantities to sum; by default each of them.
            state_cost: (S,), added to every mix in every step, except for the first step of a pair.
            offset: (q,), subtracted from every mix in every step: for returns far from zero the variance would be lost
                to rounding.
        """
        mix = np.eye(self.num_rows + 1) if weights is None else weights
        away = np.zeros(len(mix)) if offset is None else offset
        extra = np.zeros(self.states) if state_cost is None else state_cost
        cumulative = np.cumsum(probabilities, axis=-1)
        starts = self.pairs.count if pairs else 1
        length = 1.0 / (1.0 - self.gamma) if horizon is None else horizon
        size = max(1, min(TOGETHER, int(self.block / length)))
        if self.criterion == "average":
            size = max(size, ABREAST)
        blocks = list(enumerate(ranges(starts * rollouts, size)))
        shared = (cumulative, horizon, rollouts, tuple(seed), pairs, mix, extra, away)
        sums, squares, transitions = np.zeros((starts, len(mix))), np.zeros((starts, len(mix))), 0
        for (_, (begin, end)), (values, drawn) in zip(
            blocks, in_order(_roll, blocks, self, shared, name=partial(_name, seed)), strict=True
        ):
            row = np.arange(begin, end) // rollouts
            np.add.at(sums, row, values.T)
            np.add.at(squares, row, values.T**2)
            transitions += drawn
        return Returns(rollouts, sums, squares, transitions)

    def visits(
        self, probabilities: Array, horizon: int | None, rollouts: int, seed: Sequence[int]
    ) -> tuple[Array, Array, int]:
        """Sums of the quantities and of the visits to the states over rollouts from the start, as in `returns`.

        Returns (rows + 1,), (S,) and the number of transitions.
        """
        rng, cumulative = np.random.default_rng(stream(seed)), np.cumsum(probabilities, axis=-1)
        steps = rng.geometric(1.0 - self.gamma, size=rollouts) if horizon is None else np.full(rollouts, horizon)
        states, sums, visits = self.start(rollouts, rng), np.zeros(self.num_rows + 1), np.zeros(self.states)
        transitions = int(steps.sum())
        for t in range(int(steps.max())):
            alive, weight = steps > t, 1.0 if horizon is None else self.gamma**t
            states, steps = states[alive], steps[alive]
            visits += weight * np.bincount(states, minlength=self.states)
            states, quantities = self.step(states, self._choose(cumulative, states, rng), rng)
            sums += weight * quantities.sum(axis=1)
        return sums, visits, transitions

    def _choose(self, cumulative: Array, states: Integers, rng: np.random.Generator) -> Integers:
        if not self.pairs.is_full:
            first, last = self.pairs.first[states], self.pairs.first[states + 1] - 1
            before = np.where(first > 0, cumulative[first - 1], 0.0)
            draws = before + rng.random(states.size) * (cumulative[last] - before)
            found: Integers = self.pairs.of(np.clip(np.searchsorted(cumulative, draws, "right"), first, last))[1]
            return found
        draws = rng.random(states.size)[:, None] * cumulative[states, -1:]
        chosen: Integers = (cumulative[states] <= draws).sum(axis=1)
        return np.minimum(chosen, self.actions - 1)


def _roll(simulator: Simulator, shared: Any, block: tuple[int, tuple[int, int]]) -> tuple[Array, int]:
    """The returns (q, n) of a block of rollouts, and the number of transitions."""
    cumulative, horizon, rollouts, seed, pairs, mix, extra, away = shared
    number, (begin, end) = block
    rng, count = np.random.default_rng(stream((*seed, number))), end - begin
    steps = rng.geometric(1.0 - simulator.gamma, size=count) if horizon is None else np.full(count, horizon)
    if pairs:
        states, actions = simulator.pairs.of(np.arange(begin, end) // rollouts)
    else:
        states = simulator.start(count, rng)
        actions = simulator._choose(cumulative, states, rng)
    values, alive = np.zeros((len(mix), count)), np.arange(count)
    for t in range(int(steps.max())):
        alive = alive[steps[alive] > t]
        if t > 0:
            actions[alive] = simulator._choose(cumulative, states[alive], rng)
        before = states[alive]
        states[alive], quantities = simulator.step(before, actions[alive], rng)
        cost = mix @ quantities - away[:, None] + (extra[before] if t > 0 or not pairs else 0.0)
        values[:, alive] += cost if horizon is None else simulator.gamma**t * cost
    return values, int(steps.sum())


def _name(seed: Sequence[int], block: tuple[int, tuple[int, int]]) -> str:
    return f"rollouts {block[1][0]} to {block[1][1] - 1} of the simulator, seed {seed[0]}"


def ranges(total: int, size: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + size, total)) for begin in range(0, total, size)]


def _read_only(array: Integers) -> Integers:
    view = array.view()
    view.flags.writeable = False
    return view


def _what(array: Any) -> str:
    return f"an array of shape {array.shape} and dtype {array.dtype}"


def _check_bounds(bounds: Any, rows: int) -> Any:
    if bounds is None:
        return None
    table = np.asarray(bounds, dtype=float)
    if table.shape != (rows, 2) or not np.isfinite(table).all() or (table[:, 0] > table[:, 1]).any():
        raise ValueError(
            f"bounds must be {rows} pairs (low, high), one for the objective and one for each limit, got {bounds!r}"
        )
    return table
