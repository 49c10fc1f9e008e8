"""Models from and to tidy tables: one row per transition, in a CSV file, a pandas or polars frame, or a dict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.files import PathLike, write_csv
from cmdpkit.model.encoding import encode
from cmdpkit.model.listing import Listing, assemble
from cmdpkit.model.reachability import settled
from cmdpkit.model.reading import KEYS, Table, read_table
from cmdpkit.model.references import indices_of, limit_columns, named_objective

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP


Own = Mapping[str, Any]
"""The arguments of `CMDP.from_table` that are no options of models."""


def from_table(cls: type[CMDP], source: Any, options: Mapping[str, Any], own: Own) -> CMDP:
    """See `CMDP.from_table`."""
    table = read_table(source, own["columns"])
    table.column("probability")  # a log without it is for from_samples
    objective, maximise = objective_column(table, options, own)
    listing = listed(table, objective, options, own)
    ends = indices_of(own["absorbing"], listing.state_labels, listing.states, "absorbing")
    parts, distribution = settled(assemble(listing, merge=False, absorbing=ends), own["initial"], own["unreachable"])
    return cls(**parts.arguments(objective, maximise, distribution, named_objective(options, objective)))


def objective_column(table: Table, options: Mapping[str, Any], own: Own) -> tuple[str, bool]:
    """The column of the objective, and whether it is maximised."""
    reward, cost = own["reward"], own["cost"]
    if reward is not None and cost is not None:
        raise ValueError("reward names a column to maximise and cost one to minimise; give one of the two")
    if reward is not None or cost is not None:
        return (reward, True) if reward is not None else (str(cost), False)
    limits = limit_columns(options["constraints"])
    free = [name for name in ("reward", "cost") if name in table.columns and name not in limits]
    if len(free) != 1:
        found = "both columns, reward and cost" if free else "no column reward or cost"
        raise ValueError(
            f"the table has {found}; say which column is the objective: reward='...' (maximised) or cost='...' "
            "(minimised)"
        )
    return free[0], free[0] == "reward"


def listed(table: Table, objective: str, options: Mapping[str, Any], own: Own) -> Listing:
    """The rows of a table, with the columns of the objective and the limits as their quantities."""
    names = [objective, *limit_columns(options["constraints"])]
    for key in (*KEYS, *names):
        table.column(key)
    if not table.rows:
        raise ValueError(f"{table.title or 'the table'} has no rows")
    (state, following), states, state_count = encode(table, ["state", "next_state"], own["state_labels"])
    (action,), actions, action_count = encode(table, ["action"], own["action_labels"])
    probability = table.numbers("probability") if "probability" in table.columns else np.ones(table.rows)
    quantities = {name: table.numbers(name) for name in dict.fromkeys(names)}
    return Listing(
        state, action, following, probability, quantities, state_count, action_count, states, actions, table.where
    )


def to_columns(cmdp: CMDP) -> dict[str, Any]:
    """The columns of a model: state, action, next_state, probability, reward or cost, and one per limit."""
    names = ["reward" if cmdp.maximise else "cost", *cmdp.names]
    taken = [name for i, name in enumerate(names) if name in (*KEYS, "probability", *names[:i])]
    if taken:
        raise ValueError(f"the limit {taken[0]!r} has the name of another column; rename the limit")
    matrix = sp.csr_array(cmdp.transitions)
    pair = np.repeat(np.arange(cmdp.pairs.count), np.diff(matrix.indptr))
    tables = (cmdp.objective, *(c.values for c in cmdp.constraints))
    return {
        "state": _labelled(cmdp.pairs.state[pair], cmdp.state_labels),
        "action": _labelled(cmdp.pairs.action[pair], cmdp.action_labels),
        "next_state": _labelled(matrix.indices, cmdp.state_labels),
        "probability": matrix.data.copy(),
        **{name: np.asarray(table).ravel()[pair] for name, table in zip(names, tables, strict=True)},
    }


def _labelled(codes: Any, labels: Sequence[Hashable] | None) -> Any:
    if labels is None:
        return codes.astype(np.int64)
    return np.fromiter(labels, dtype=object, count=len(labels))[codes]


def to_table(cmdp: CMDP, path: PathLike | None) -> dict[str, Any] | None:
    """See `CMDP.to_table`."""
    columns = to_columns(cmdp)
    if path is None:
        return columns
    write_csv(path, {name: column.tolist() for name, column in columns.items()})
    return None


def to_frame(cmdp: CMDP) -> Any:
    """See `CMDP.to_frame`."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install 'cmdpkit[tables]'; to_table works without") from error
    return pd.DataFrame(to_columns(cmdp))
