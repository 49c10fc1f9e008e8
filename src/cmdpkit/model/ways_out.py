"""The ways out of a model that are methods of `CMDP`, other than its own files (storage.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmdpkit.files import PathLike
    from cmdpkit.model.cmdp import CMDP


class WaysOut:
    """Models as tables, and as files for other programs."""

    def to_table(self: Any, path: PathLike | None = None) -> dict[str, Any] | None:
        """The model as a tidy table, which `from_table` reads: a dict of columns, or a CSV file with `path`.

        The columns are state, action, next_state, probability, reward or cost, and one per limit, by its name. Numbers
        are written exactly. Limits, discount factor and initial distribution are not part of the table, and the labels
        in a file are text or whole numbers.
        """
        from cmdpkit.model.tables import to_table

        _refuse_stages(self, "a table of transitions")
        return to_table(self, path)

    def to_frame(self: Any) -> Any:
        """The table of `to_table` as a pandas DataFrame."""
        from cmdpkit.model.tables import to_frame

        _refuse_stages(self, "a table of transitions")
        return to_frame(self)

    def to_drn(self: Any, path: PathLike, initial: Any = None) -> None:
        """Write the model as a DRN file for the model checker Storm, with a reward model per limit.

        The format has one initial state: `initial`, or that of the model. It has no discount factor and no limits;
        they are mentioned in comments, like the labels of the states.
        """
        from cmdpkit.model.storm import to_drn

        _refuse_stages(self, "a DRN file")
        to_drn(self, path, initial)


def _refuse_stages(cmdp: CMDP, what: str) -> None:
    if cmdp.changes_with_time:
        raise ValueError(f"{what} has no stages, and this model changes with time; use save(), or NumPy's files")
