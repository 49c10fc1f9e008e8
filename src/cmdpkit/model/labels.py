"""What states and actions are called: labels that are hashable and all different, and their form in files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

Label = Hashable


class Distinct(tuple[Label, ...]):
    """Labels that are known to be hashable, plain and all different, which need not be checked again."""


def check_labels(labels: Any, count: int, kind: str) -> tuple[Label, ...] | None:
    """Labels of states or actions: as many as there are, hashable, and all different."""
    if labels is None:
        return None
    if isinstance(labels, Distinct) and len(labels) == count:
        return tuple(labels)
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise TypeError(f"{kind}_labels must be a list with one label per {kind}, not {labels!r}")
    names = tuple(labels)
    if any(issubclass(found, np.generic) for found in set(map(type, names))):  # a million labels are mostly of one type
        names = tuple(label.item() if isinstance(label, np.generic) else label for label in names)
    if len(names) != count:
        raise ValueError(f"there are {len(names)} {kind}_labels, but {count} {kind}s; every {kind} needs one")
    try:
        different = len(set(names)) == count
    except TypeError:
        bad = next(label for label in names if not is_hashable(label))
        raise TypeError(f"the {kind} label {bad!r} is not hashable; use strings, numbers or tuples") from None
    if not different:
        twice = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{kind}_labels must differ; {twice!r} is used more than once")
    return names


def is_hashable(label: Any) -> bool:
    try:
        hash(label)
    except TypeError:
        return False
    return True


def index_of(label: Any, labels: tuple[Label, ...] | None, count: int, kind: str) -> int:
    """The number of a state or an action, given its label; without labels, its number."""
    if labels is not None:
        try:
            return labels.index(label)
        except ValueError:
            near = ", ".join(map(repr, labels[:8])) + (", ..." if count > 8 else "")
            raise ValueError(f"there is no {kind} {label!r}; the {kind}s are {near}") from None
    if isinstance(label, (bool, np.bool_)) or not isinstance(label, (int, np.integer)) or not 0 <= label < count:
        raise ValueError(f"{kind} {label!r} is not one of 0 to {count - 1}")
    return int(label)


def labels_to_json(labels: tuple[Label, ...], name: str) -> str:
    """Labels as text: strings, numbers, True, False, None and tuples of them."""

    def plain(label: Any) -> bool:
        if isinstance(label, tuple):
            return all(map(plain, label))
        return label is None or isinstance(label, (str, int, float, bool))

    for label in labels:
        if not plain(label):
            raise ValueError(
                f"{name} hold {label!r}, a {type(label).__name__}; files take strings, numbers and tuples of them"
            )
    return json.dumps(labels)


def labels_from_json(text: str, count: int, name: str) -> tuple[Label, ...] | None:
    """Read what `labels_to_json` wrote, with validation."""

    def tuples(label: Any) -> Any:
        return tuple(map(tuples, label)) if isinstance(label, list) else label

    return check_labels(tuples(json.loads(text)), count, name.removesuffix("_labels"))
