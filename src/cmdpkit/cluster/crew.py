"""Workers that keep something: each member of a crew makes its part once, and uses it in every call.

A member that dies is started again and makes its part anew, on another node if need be; what it was doing is done
again. A part must therefore not remember anything from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cmdpkit.cluster.pool import RETRIES, put, wait_for


class Crew:
    """Members that each hold `make(what, part)`.

    Args:
        make: makes the part of a member; a function at the top level of a module.
        what: sent to all members.
        parts: one per member.
        names: what the members are called where they fail.
    """

    def __init__(self, make: Callable[[Any, Any], Any], what: Any, parts: Sequence[Any], names: Sequence[str]) -> None:
        import ray

        kind = ray.remote(max_restarts=-1, max_task_retries=RETRIES, num_cpus=0, scheduling_strategy="SPREAD")(_Member)
        self.names = list(names)
        self._members = [kind.remote(make, what, part) for part in parts]  # not put: a restart needs it again

    def __len__(self) -> int:
        return len(self._members)

    def call(self, work: Callable[[Any, Any, Any], Any], shared: Any, pieces: Sequence[Any]) -> list[Any]:
        """`work(part, shared, piece)` of every member, side by side.

        Where it fails, the member makes its part again and tries a second time before the error is raised here.
        """
        sent = put(shared)
        under_way = [member.run.remote(work, sent, piece) for member, piece in zip(self._members, pieces, strict=True)]
        return [wait_for(each, name) for each, name in zip(under_way, self.names, strict=True)]


class _Member:
    def __init__(self, make: Callable[[Any, Any], Any], what: Any, part: Any) -> None:
        self._make, self._what, self._where = make, what, part
        self._part: Any = None

    def run(self, work: Callable[[Any, Any, Any], Any], shared: Any, piece: Any) -> Any:
        if self._part is None:
            self._part = self._make(self._what, self._where)
        try:
            return work(self._part, shared, piece)
        except Exception:
            self._part = None
        self._part = self._make(self._what, self._where)
        return work(self._part, shared, piece)
