"""The blocks of a sharded model together: operations on all of them, and the messages between them.

A crew calls an operation on every block, in the order of the blocks, and routes the messages of the last operation to
the inboxes of the next. Numbers are reduced here, in the order of the blocks: they do not depend on where a block is.
Messages never come here; on a cluster they are references to shared memory, and operations are submitted ahead of the
results of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from cmdpkit.cluster.faults import BlocksLost
from cmdpkit.model.sharded import ShardedCMDP
from cmdpkit.policy import ShardedPolicy
from cmdpkit.run.outcome import Outcome
from cmdpkit.sharded.mirror import MirrorShard
from cmdpkit.sharded.shard import Setup

RESTARTS = 20
"""So many losses of workers in a row, without progress in between, end a run."""


class Backend(Protocol):
    """Where the blocks are: in this process, or on the workers of a cluster (cluster/actors.py)."""

    def call(
        self, method: str, args: tuple[Any, ...], inboxes: Sequence[list[Any]] | None, returns: Sequence[int]
    ) -> list[tuple[Any, list[Any]]]:
        """Call a method of every block; of each, a handle of its numbers, and handles of so many messages."""

    def join(self, messages: Sequence[Any]) -> list[Any]:
        """For every block, a handle of one table of the messages of all blocks."""

    def get(self, handles: Sequence[Any]) -> list[Any]:
        """The numbers that handles stand for; raises `BlocksLost` where a worker has died."""

    def one(self, block: int, method: str, args: tuple[Any, ...]) -> Any:
        """The numbers of one block."""

    def repair(self) -> None:
        """Build blocks that are missing: all of them at first, later those that were lost."""

    def close(self) -> None:
        """Let go of everything."""


class InProcess:
    """All blocks in this process: for small models, and to compare with."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self._make, self._count = make, count
        self.shards: list[Any] = []

    def call(
        self, method: str, args: tuple[Any, ...], inboxes: Sequence[list[Any]] | None, returns: Sequence[int]
    ) -> list[tuple[Any, list[Any]]]:
        inboxes = inboxes or [[] for _ in self.shards]
        done = [getattr(shard, method)(inbox, *args) for shard, inbox in zip(self.shards, inboxes, strict=True)]
        # On a cluster, messages are copied to shared memory
        return [(numbers, [np.array(message) for message in messages]) for numbers, messages in done]

    def join(self, messages: Sequence[Any]) -> list[Any]:
        return [np.concatenate(messages)] * self._count

    def get(self, handles: Sequence[Any]) -> list[Any]:
        return list(handles)

    def one(self, block: int, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self.shards[block], method)([], *args)[0]

    def repair(self) -> None:
        self.shards = self.shards or [self._make(number) for number in range(self._count)]

    def close(self) -> None:
        self.shards = []


class Step(NamedTuple):
    """An operation that was submitted: handles of the numbers of every block, and of the messages."""

    numbers: list[Any]
    messages: list[list[Any]]
    back: bool  # the messages go to sources, not to consumers
    joined: list[Any] | None = None  # for each block, one table of all messages in their place


class Crew:
    """The blocks of a model, built, checked and connected.

    Args:
        model: the model, which learns what the blocks say about it.
        backend: where the blocks are.
    """

    def __init__(self, model: ShardedCMDP, backend: Backend) -> None:
        self.model, self.backend = model, backend
        self.blocks = model.blocks
        self.repair()

    @classmethod
    def in_process(cls, model: ShardedCMDP) -> Crew:
        return cls(model, InProcess(lambda number: MirrorShard(model, number), model.blocks))

    def connect(self) -> None:
        """Ask every block what it needs of others, and tell them. Values and policies are forgotten."""
        self.sources: list[list[tuple[int, bool]]] = [[] for _ in range(self.blocks)]
        self._set_routes()
        setups: list[Setup] = self.each("reset")
        self.sources = [setup.sources for setup in setups]
        self._set_routes()
        self.model.measured([setup.facts for setup in setups])
        self.fetch(self.submit("serve", after=self.submit("ask", back=True)))

    # -- operations -----------------------------------------------------------------------------------------------

    def each(self, method: str, *args: Any) -> list[Any]:
        """Call an operation without messages, and wait for the numbers of all blocks."""
        return self.fetch(self.submit(method, *args))

    def submit(
        self,
        method: str,
        *args: Any,
        after: Step | None = None,
        send: bool = False,
        back: bool = False,
        join: bool = False,
    ) -> Step:
        """Submit an operation to all blocks, with the messages of the step `after` in their inboxes.

        `send` says that it sends values to consumers, `back` that it sends something to sources. With `join`, values
        that all blocks need become one table per node: copies for each of them would not fit into its cache.
        """
        returns = [self._sent[b] if send else len(self.sources[b]) if back else 0 for b in range(self.blocks)]
        inboxes = None if after is None else [self._inbox(after, b) for b in range(self.blocks)]
        done = self.backend.call(method, args, inboxes, returns)
        numbers, messages = [numbers for numbers, _ in done], [messages for _, messages in done]
        if join and self._all_need_all:
            return Step(numbers, messages, back, self.backend.join([sent[0] for sent in messages]))
        return Step(numbers, messages, back)

    def fetch(self, step: Step) -> list[Any]:
        """Wait for the numbers of a step, in the order of the blocks."""
        return self.backend.get(step.numbers)

    def repeat(
        self, method: str, calls: Sequence[tuple[Any, ...]], after: Step, **sending: bool
    ) -> tuple[Step, list[list[Any]]]:
        """Submit an operation once for each tuple of arguments, all ahead, each with the messages of the one before.

        Returns the last step, and the numbers of all of them, for which it waits once.
        """
        handles: list[Any] = []
        for args in calls:
            after = self.submit(method, *args, after=after, **sending)
            handles += after.numbers  # not the messages: those that have been read take no more memory
        found = self.backend.get(handles)
        return after, [found[i : i + self.blocks] for i in range(0, len(found), self.blocks)]

    def one(self, block: int, method: str, *args: Any) -> Any:
        """The numbers of one block."""
        return self.backend.one(block, method, args)

    def collect(self, names: Sequence[str], weights: Sequence[float]) -> ShardedPolicy:
        """Policies that the blocks keep, as one in files: one block at a time is here."""
        tables = ((p, b, self.one(b, "show", name)) for p, name in enumerate(names) for b in range(self.blocks))
        return ShardedPolicy.temporary(tables, weights, self.model.bounds, self.model.actions)

    def repair(self) -> None:
        """Build what is missing, and start again with nothing but the model."""
        for attempt in range(RESTARTS + 1):
            try:
                self.backend.repair()
                self.connect()
                return
            except BlocksLost:  # while others were built
                if attempt == RESTARTS:
                    raise

    def through_losses(self, attempt: Callable[[], Outcome], done: Callable[[], int]) -> Outcome:
        """The outcome of a run that is attempted again when blocks are lost, as long as more gets `done`."""
        failures, reached, note = 0, 0, ""
        while True:
            try:
                return replace(attempt(), note=note)
            except BlocksLost as loss:
                failures = failures + 1 if done() <= reached else 1
                reached = max(reached, done())
                if failures > RESTARTS:
                    raise BlocksLost(f"{loss}; given up after {failures} losses in a row", loss.blocks) from loss
                note = f"Blocks were lost during the run and built again (last: {loss.names})."
            self.repair()

    def close(self) -> None:
        self.backend.close()

    # -- routes ---------------------------------------------------------------------------------------------------

    def _set_routes(self) -> None:
        """Which message of which block goes into which inbox, for both directions."""
        consumers: list[list[tuple[int, bool]]] = [[] for _ in range(self.blocks)]
        for consumer, needs in enumerate(self.sources):
            for source, whole in needs:
                consumers[source].append((consumer, whole))
        # A block sends one message for all who need all of it, and one for each of the others
        ports: list[dict[int, int]] = []
        for wanted in consumers:
            parts = [consumer for consumer, whole in wanted if not whole]
            wholes = [consumer for consumer, whole in wanted if whole]
            ports.append(dict.fromkeys(wholes, 0) | {c: i + bool(wholes) for i, c in enumerate(parts)})
        everyone = [len(needs) == self.blocks - 1 and all(whole for _, whole in needs) for needs in self.sources]
        self._all_need_all = self.blocks > 1 and all(everyone)
        self._sent = [max(port.values(), default=-1) + 1 for port in ports]
        self._forward = [[(s, ports[s][b]) for s, _ in needs] for b, needs in enumerate(self.sources)]
        places = [{source: i for i, (source, _) in enumerate(needs)} for needs in self.sources]
        self._backward = [[(c, places[c][b]) for c, _ in wanted] for b, wanted in enumerate(consumers)]

    def _inbox(self, step: Step, block: int) -> list[Any]:
        if step.joined is not None:
            return [step.joined[block]]
        routes = self._backward if step.back else self._forward
        return [step.messages[other][place] for other, place in routes[block]]
