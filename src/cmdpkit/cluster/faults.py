"""What is raised when workers of a cluster are lost; nothing here needs Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cmdpkit.cluster.pool import WorkerLost


class BlocksLost(WorkerLost):
    """Workers have died, and with them the blocks that they held.

    Attributes:
        blocks: their numbers.
    """

    def __init__(self, message: str, blocks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.blocks = tuple(blocks)

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.blocks)

    @property
    def names(self) -> str:
        """The blocks in words."""
        listed = ", ".join(map(str, self.blocks)) or "unknown"
        return f"block{'' if len(self.blocks) == 1 else 's'} {listed}"
