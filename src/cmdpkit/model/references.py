"""What users refer to by name: the quantities of limits, and states by their labels.

Errors about an unknown name suggest the closest known one, or list those that there are.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cmdpkit.checks import Array, StateArray, check_initial
from cmdpkit.model.limits import Limit

SHOWN = 5
"""How many states or rows an error message names before it only counts them."""


def name_of(labels: Sequence[Hashable] | None, index: Any) -> str:
    """A state or action as messages call it: its label, or its number."""
    return repr(labels[int(index)]) if labels is not None else str(int(index))


def some(names: Iterable[str], count: int) -> str:
    """The first names of a list, and how many more there are."""
    shown = ", ".join(name for name, _ in zip(names, range(SHOWN), strict=False))
    return shown if count <= SHOWN else f"{shown} and {count - SHOWN} more"


def suggestion(name: Any, known: Sequence[Hashable], noun: str) -> str:
    """What may have been meant by an unknown name."""
    if isinstance(name, str):
        close = difflib.get_close_matches(name, [k for k in known if isinstance(k, str)], n=1)
        if close:
            return f"did you mean {close[0]!r}?"
    return f"the {noun} are {some(map(repr, known), len(known))}" if known else f"there are no {noun}"


# -- limits and their quantities ---------------------------------------------------------------------------------------


def limit_list(constraints: Any) -> list[Any]:
    if isinstance(constraints, (Limit, Mapping)) or not isinstance(constraints, Iterable):
        raise TypeError(f"constraints must be a list: constraints=[AtMost(...)], not {type(constraints).__name__}")
    return list(constraints)


def named_limits(constraints: Iterable[Any], quantities: Mapping[str, Array]) -> list[Any]:
    """The limits, with the quantity in place of its name; a limit without a name takes that of its quantity."""
    return [_named(limit, quantities) for limit in constraints]


def _named(limit: Any, quantities: Mapping[str, Array]) -> Any:
    if not isinstance(getattr(limit, "values", None), str):
        return limit
    name = limit.values
    if name not in quantities:
        raise ValueError(f"a limit refers to the column {name!r}; {suggestion(name, list(quantities), 'columns')}")
    return replace(limit, values=quantities[name], name=limit.name if limit.name is not None else name)


def named_objective(options: Mapping[str, Any], quantity: str) -> dict[str, Any]:
    """Options that name the objective after its quantity, unless it has a name or that is just `reward` or `cost`."""
    plain = quantity in ("reward", "cost") or options.get("objective_name") is not None
    return dict(options) if plain else {**options, "objective_name": quantity}


def limit_columns(constraints: Any) -> list[str]:
    """The names of the columns that limits refer to, each once."""
    names = (getattr(limit, "values", None) for limit in constraints)
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


# -- states ------------------------------------------------------------------------------------------------------------


def initial_distribution(initial: Any, states: int, labels: Sequence[Hashable] | None) -> StateArray:
    """A distribution from what users state: nothing (uniform), a state, probabilities per state, or a distribution."""
    if initial is None or (labels is None and not isinstance(initial, Mapping)):
        return check_initial(initial, states)
    index = _numbers(labels, states)
    if isinstance(initial, Mapping):
        distribution = np.zeros(states)
        for label, probability in initial.items():
            distribution[_state_index(label, index, "initial")] = probability
        return check_initial(distribution, states)
    if isinstance(initial, Hashable) and (initial in index or not _is_distribution(initial)):
        return check_initial(_state_index(initial, index, "initial"), states)
    return check_initial(initial, states)


def _is_distribution(initial: Any) -> bool:
    return (
        isinstance(initial, (tuple, np.ndarray)) and np.ndim(initial) == 1 and np.asarray(initial).dtype.kind in "fiu"
    )


def indices_of(labels: Any, known: Sequence[Hashable] | None, states: int, name: str) -> list[int] | bool:
    """Indices of the states that an argument lists by their labels; True and False are kept."""
    if isinstance(labels, (bool, np.bool_)):
        return bool(labels)
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(f"{name} must be True, False or a list of states, not {labels!r}")
    index = _numbers(known, states)
    return [_state_index(label, index, name) for label in labels]


def _numbers(labels: Sequence[Hashable] | None, states: int) -> dict[Hashable, int]:
    """The index of each label; states without labels are called by their index."""
    return {label: s for s, label in enumerate(labels if labels is not None else range(states))}


def _state_index(label: Hashable, index: Mapping[Hashable, int], name: str) -> int:
    if label not in index:
        raise ValueError(f"{name} names the state {label!r}; {suggestion(label, list(index), 'states')}")
    return index[label]
