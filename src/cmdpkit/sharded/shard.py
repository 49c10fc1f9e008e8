"""One block of a sharded model, on the worker that holds it: its rows of P, and slices of values and policies.

A table of values has a row for each of the block's own n states, and for each state of its halo, to which it leads in
other blocks (halo.py).

Every operation is called as op(inbox, ...) and returns a few numbers and its messages (exchange.py). Sums and products
are NumPy's own, not those of BLAS, whose order of summation depends on the number of threads.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array, longest_row
from cmdpkit.evaluation import chain_kernels, kernels
from cmdpkit.evaluation.backup import looking_ahead, padded, parts
from cmdpkit.evaluation.chain import chosen_chain, mixed_chain
from cmdpkit.evaluation.threads import in_blocks
from cmdpkit.files import load_arrays, save_arrays
from cmdpkit.model.blocks import Facts
from cmdpkit.model.sharded import ShardedCMDP
from cmdpkit.policy import TabularPolicy
from cmdpkit.sharded.exchange import Exchange, Inbox, Messages
from cmdpkit.sharded.halo import localise

KIND = "cmdpkit state of a block"

TURNS = 1.5
"""Up to this ratio of own states and halo to own states, two tables of values take turns."""


class Setup(NamedTuple):
    """What a block reports when it has been built."""

    facts: Facts
    sources: list[tuple[int, bool]]  # the blocks whose values it needs, and whether all of them


class BackupSums(NamedTuple):
    """The numbers of one Bellman backup of a block."""

    low: float  # of TV − V
    high: float
    moved: int
    start: float  # ρ · TV
    size: float  # at least ρ · |TV|
    largest: float  # max |V|
    now: float  # ρ · V
    total: float  # Σ V


class Swept(NamedTuple):
    """The numbers of one sweep of a block, for every column."""

    low: Array  # of TV − V
    high: Array
    sums: tuple[Array, ...] = ()  # ρ · TV, at least ρ · |TV|, and max |V|, if asked for


class Traffic(NamedTuple):
    """What a block has sent, and what its process has used."""

    sent: int  # bytes
    seconds: float  # of processor time
    memory: int  # bytes, at most


class Shard:
    """A block of a sharded model.

    Args:
        model: the model; only the block is built.
        number: which block.
    """

    def __init__(self, model: ShardedCMDP, number: int) -> None:
        block = model.block(number)
        self.number, self.first, self.gamma = number, block.first, model.gamma
        self.pairs, self.costs, self.initial = block.pairs, block.costs, block.initial
        self.states = self.pairs.states
        self._facts, self._mass = block.facts, float(np.nextafter(1.01 * block.initial.sum(), np.inf))
        self.transitions, sources, self.own = localise(block.transitions, model.bounds, number)
        self.size = self.transitions.shape[1]  # own states and halo
        self.columns = len(self.costs)
        self.exchange = Exchange(sources, self.size, self.columns)
        self.reset([])

    def reset(self, _: Inbox) -> tuple[Setup, Messages]:
        """Forget all values and policies."""
        width = padded(np.zeros((1, self.columns))).shape[1]
        self.values = np.zeros((self.size, width))  # V_0..V_m of the current policy, padded
        # Two tables with a halo take turns, where it is small; else sweeps are copied
        self._turns = self.size <= TURNS * self.states
        rows = self.size if self._turns else self.states
        self._room = self.own if self._turns else slice(0, self.states)  # of own states in what is computed
        self._spare, self._backup = np.zeros((rows, width)), np.zeros(rows)
        self.mix = np.zeros(self.size)  # Σ w_i V_i
        self.choice = np.zeros(self.states, dtype=np.int32)
        self._chosen = np.zeros(self.states, dtype=np.int32)
        self.kept: dict[str, Any] = {}  # deterministic policies by name
        self.policies: dict[str, Any] = {}  # randomised ones: π(a|s) of all pairs
        self._weights: Array | None = None
        self._mixed_cost = np.empty(0)
        self.chain: Any = None  # P_π of the policy that is followed, and its sweep
        self._look: Any = None
        return Setup(self._facts, [(source.block, source.whole) for source in self.exchange.sources]), []

    def ask(self, _: Inbox) -> tuple[None, Messages]:
        """Ask the sources for what is needed."""
        return None, self.exchange.wanted()

    def serve(self, inbox: Inbox) -> tuple[None, Messages]:
        """Learn what the consumers need."""
        self.exchange.serve(inbox)
        return None, []

    def traffic(self, _: Inbox) -> tuple[Traffic, Messages]:
        memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Traffic(self.exchange.sent, time.process_time(), memory), []

    # -- one step ahead -------------------------------------------------------------------------------------------

    def backup(
        self, inbox: Inbox, weights: Array, noise: float, from_mix: bool, go_on: bool
    ) -> tuple[BackupSums, Messages]:
        """TV for V = Σ w_i V_i of the last values, and a greedy choice, which `adopt` makes the current policy.

        With `go_on`, TV is sent, for another backup `from_mix` to start from: value iteration.
        """
        after = self.mix
        if from_mix and self.exchange.is_joined(inbox):
            after = inbox[0]
        elif from_mix:
            self.exchange.receive(inbox, self.mix)
        else:
            self.exchange.receive(inbox, self.values)
            kernels.mix(self.values, weights, self.mix)
        cost = self._cost(weights)
        backup, value = self._backup[self._room], after[self.own]
        np.copyto(self._chosen, self.choice)
        matrix = (self.pairs.heads, self.pairs.largest, *parts(self.transitions))

        def block(first: int, last: int) -> tuple[float, float, int]:
            found: tuple[float, float, int] = kernels.bellman(
                *matrix, cost, self.gamma, after, value, noise, backup, self._chosen, first, last
            )
            return found

        low, high, moved = zip(*in_blocks(block, self.states, self.transitions.nnz), strict=True)
        start, now, total, most, largest = kernels.start_sums(self.initial, backup, value)
        numbers = BackupSums(min(low), max(high), sum(moved), start, self._mass * most, largest, now, total)
        if not go_on:
            return numbers, []
        if self._turns:
            self.mix, self._backup = self._backup, self.mix
        else:
            self.mix[self.own] = backup
        return numbers, self.exchange.send(self.mix[self.own])

    def forget_mix(self, _: Inbox) -> tuple[None, Messages]:
        """Start value iteration from zero."""
        self.mix[:] = 0.0
        return None, self.exchange.send(self.mix[self.own])

    def _cost(self, weights: Array) -> Array:
        """Σ w_i c_i, kept for the next backup with the same weights."""
        if self._weights is None or not np.array_equal(weights, self._weights):
            cost = weights[0] * self.costs[0]
            for i in range(1, self.columns):
                cost += weights[i] * self.costs[i]
            self._mixed_cost, self._weights = cost, np.array(weights)
        return self._mixed_cost

    # -- policies -------------------------------------------------------------------------------------------------

    def adopt(self, _: Inbox) -> tuple[None, Messages]:
        """Make the greedy choice of the last backup the current policy."""
        np.copyto(self.choice, self._chosen)
        return self._follow(self.choice)

    def resume(self, _: Inbox) -> tuple[Any, Messages]:
        """Return to the current choice after another policy was followed."""
        return self._follow(self.choice)

    def spread(self, _: Inbox, name: str) -> tuple[None, Messages]:
        """Keep the uniform policy by name."""
        self.policies[name] = self.pairs.uniform()
        return None, []

    def follow(self, _: Inbox, name: str) -> tuple[Any, Messages]:
        """Make a kept policy the current one; returns the largest error of a sum of probabilities."""
        self.chain = self._look = None  # their memory first
        if name in self.kept:
            return self._follow(self.kept[name])
        pi = self.policies[name]
        return self._mix(pi)

    def _mix(self, pi: Any) -> tuple[Any, Messages]:
        self.chain = mixed_chain(self, pi)
        self._look = looking_ahead(self.chain, self.gamma, padded(self.pairs.expect(pi, self.costs)))
        return (float(np.abs(self.pairs.sum(pi) - 1.0).max()), longest_row(self.chain)), []

    def _follow(self, choice: Any) -> tuple[Any, Messages]:
        self.chain = self._look = None
        self.chain = chosen_chain(self, choice)
        rows = self.pairs.rows(choice)
        cost = np.zeros((self.states, self.values.shape[1]))
        for i in range(self.columns):
            cost[:, i] = self.costs[i, rows]
        self._look = looking_ahead(self.chain, self.gamma, cost)
        return (0.0, longest_row(self.chain)), []

    def keep(self, _: Inbox, name: str) -> tuple[None, Messages]:
        """Keep the current choice by name."""
        self.kept[name] = self.choice.astype(np.min_scalar_type(self.pairs.actions))
        return None, []

    def same(self, _: Inbox, names: list[str]) -> tuple[list[bool], Messages]:
        """Which of the kept policies equal the current choice in this block."""
        return [bool(np.array_equal(self.kept[name], self.choice)) for name in names], []

    def known(self, _: Inbox) -> tuple[list[str], Messages]:
        """The names of all policies."""
        return [*self.kept, *self.policies], []

    def drop(self, _: Inbox, names: list[str]) -> tuple[None, Messages]:
        """Forget policies."""
        for name in names:
            self.kept.pop(name, None)
            self.policies.pop(name, None)
        return None, []

    # -- values of the current policy -----------------------------------------------------------------------------

    def announce(self, _: Inbox) -> tuple[None, Messages]:
        """Send the values as they are."""
        return None, self.exchange.send(self.values[self.own])

    def sweep(self, inbox: Inbox, measure: bool) -> tuple[Swept, Messages]:
        """V ← c_π + γ P_π V for all costs at once."""
        self.exchange.receive(inbox, self.values)
        values, out, n = self.values, self._spare[self._room], self.columns
        low, high = self._look(values, values[self.own], out)
        numbers = Swept(low[:n], high[:n])
        if measure:
            start = np.array([_dot(self.initial, out[:, i]) for i in range(n)])
            size = np.array([self._mass * _largest(out[:, i]) for i in range(n)])
            before = np.array([_largest(values[self.own, i]) for i in range(n)])
            numbers = numbers._replace(sums=(start, size, before))
        if self._turns:
            self.values, self._spare = self._spare, values
        else:
            values[self.own] = out
        return numbers, self.exchange.send(self.values[self.own])

    def settle(self, inbox: Inbox, shift: Array) -> tuple[tuple[Array, Array], Messages]:
        """The values of the last sweep, moved by a constant (the middle of MacQueen's interval): ρ · V and max |V|."""
        self.exchange.receive(inbox, self.values)
        for i in range(self.columns):
            self.values[:, i] += shift[i]
        own = self.values[self.own, : self.columns]
        start = np.array([_dot(self.initial, own[:, i]) for i in range(self.columns)])
        return (start, np.array([_largest(own[:, i]) for i in range(self.columns)])), []

    # -- visits of the current policy -----------------------------------------------------------------------------

    def depart(self, _: Inbox) -> tuple[float, Messages]:
        """Start from visits of the right mass; send what flows out of the block."""
        self.visits = self.initial / (1.0 - self.gamma)
        return 0.0, self._flow()

    def flow(self, inbox: Inbox, last: bool) -> tuple[float, Messages]:
        """x ← ρ + γ P_πᵀ x; returns the change in the 1-norm."""
        moved = self._moved[self.own]
        self.exchange.receive_back(inbox, moved)
        after = self.initial + self.gamma * moved
        change = float(np.abs(after - self.visits).sum())
        self.visits = after
        return change, [] if last else self._flow()

    def _flow(self) -> Messages:
        self._moved = np.empty(self.size)
        chain_kernels.flow(*parts(self.chain), self.visits, self._moved, 0, self.visits.size)
        return self.exchange.send_back(self._moved)

    def occupy(self, _: Inbox, weight: float, name: str, fresh: bool) -> tuple[None, Messages]:
        """Add the visits of a kept policy to the occupancy of a mixture."""
        if fresh:
            self._occupancy = np.zeros(self.pairs.count)
        self._occupancy[self.pairs.rows(self.kept[name])] += weight * self.visits
        return None, []

    def blend(self, _: Inbox, name: str) -> tuple[None, Messages]:
        """The stationary policy of the occupancy; where nothing is visited, the current choice."""
        fallback = self.pairs.one_hot(self.choice)
        policy = TabularPolicy.from_occupancy(self.pairs, self.pairs.like(self._occupancy), fallback)
        self.policies[name] = policy.pi
        self._occupancy = np.empty(0)
        return None, []

    def show(self, _: Inbox, name: str) -> tuple[Any, Messages]:
        """A policy as probabilities (n, A), zero where an action is not available."""
        pi = self.policies[name] if name in self.policies else self.pairs.one_hot(self.kept[name])
        return self.pairs.table(pi, 0.0), []

    # -- files ----------------------------------------------------------------------------------------------------

    def write(self, _: Inbox, folder: str, name: str) -> tuple[None, Messages]:
        """Write the current choice and its values to a file."""
        arrays = {"choice": self.choice, "values": self.values[self.own, : self.columns]}
        save_arrays(self._path(folder, name), KIND, arrays, compress=False)
        return None, []

    def write_kept(self, _: Inbox, folder: str, name: str) -> tuple[None, Messages]:
        """Write a kept policy to a file."""
        save_arrays(self._path(folder, name), KIND, {"choice": self.kept[name]}, compress=False)
        return None, []

    def read(self, _: Inbox, folder: str, name: str, kept: list[str]) -> tuple[None, Messages]:
        """Read what `write` and `write_kept` wrote; send the values."""
        arrays = load_arrays(self._path(folder, name), KIND)
        self.choice[:] = arrays["choice"]
        self.values[self.own, : self.columns] = arrays["values"]
        self.kept = {each: load_arrays(self._path(folder, each), KIND)["choice"] for each in kept}
        return None, self.exchange.send(self.values[self.own])

    def install(self, inbox: Inbox) -> tuple[None, Messages]:
        """Take the values of the halo from the messages."""
        self.exchange.receive(inbox, self.values)
        return None, []

    def remove(self, _: Inbox, folder: str, name: str) -> tuple[None, Messages]:
        """Remove a file that is not needed any more."""
        self._path(folder, name).unlink(missing_ok=True)
        return None, []

    def _path(self, folder: str, name: str) -> Path:
        return Path(folder) / f"{name}-{self.number:05d}.npz"


def _dot(one: Array, other: Array) -> float:
    return float(np.einsum("s,s->", one, other))


def _largest(values: Array) -> float:
    """max |values|."""
    return max(float(values.max()), -float(values.min()))
