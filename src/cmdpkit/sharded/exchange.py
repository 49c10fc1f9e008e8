"""Messages between blocks: a block sends what others need of it, and finds what it needs in its inbox.

A block that needs most states of another takes all of them. Where every block needs all states, messages may come
joined as one table, which all blocks on a node read in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation import kernels
from cmdpkit.sharded.halo import Source

Inbox = list[Any]
Messages = list[Any]


class Exchange:
    """The connections of a block to others.

    Args:
        sources: the blocks of which it needs states.
        size: own states and halo.
        columns: numbers per state in a message.
    """

    def __init__(self, sources: list[Source], size: int, columns: int) -> None:
        self.sources, self.size, self.columns = sources, size, columns
        self.exports: list[Any] = []  # what each consumer needs: own states, or None for all
        self.sent = 0  # bytes

    def wanted(self) -> Messages:
        """To every source: which of its states are needed; nothing where all of them are."""
        return [np.empty(0, dtype=np.int64) if s.whole else s.states for s in self.sources]

    def serve(self, inbox: Inbox) -> None:
        """From every consumer: what it needs."""
        self.exports = [None if wanted.size == 0 else np.array(wanted) for wanted in inbox]

    def send(self, table: Array) -> Messages:
        """A table of own states, without padding: all of it once, if any consumer needs all, and parts for others.

        A message may be a view, which is read before the next operation on this block.
        """
        whole = [self._packed(table, None)] if any(wanted is None for wanted in self.exports) else []
        messages = whole + [self._packed(table, wanted) for wanted in self.exports if wanted is not None]
        self.sent += sum(message.nbytes for message in messages)
        return messages

    def _packed(self, table: Array, wanted: Any) -> Array:
        if table.ndim == 1:
            return table if wanted is None else table[wanted]
        out = np.empty((len(table) if wanted is None else wanted.size, self.columns))
        if wanted is None:
            kernels.copy_columns(table, self.columns, out)
        else:
            kernels.gather_columns(table, wanted, self.columns, out)
        return out

    def receive(self, inbox: Inbox, table: Array) -> None:
        """Put messages from the sources into the halo of a table."""
        if self.is_joined(inbox):
            table[:] = inbox[0]
            return
        for source, message in zip(self.sources, inbox, strict=True) if inbox else ():
            if table.ndim == 1:
                table[source.begin : source.end] = message
            else:
                kernels.copy_columns(message, self.columns, table[source.begin : source.end])

    def is_joined(self, inbox: Inbox) -> bool:
        """Whether the messages of all blocks, this one included, come as one table."""
        return len(inbox) == 1 and len(inbox[0]) == self.size

    def send_back(self, table: Array) -> Messages:
        """To every source what its states get, from a table with a halo."""
        messages = [np.array(table[source.begin : source.end]) for source in self.sources]
        self.sent += sum(message.nbytes for message in messages)
        return messages

    def receive_back(self, inbox: Inbox, table: Array) -> None:
        """Add what consumers have sent back to own states, in the order of the blocks."""
        for wanted, message in zip(self.exports, inbox, strict=True) if inbox else ():
            if wanted is None:
                table += message
            else:
                table[wanted] += message  # every state occurs once
