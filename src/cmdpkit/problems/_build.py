"""Helpers of the built-in models: sparse rows from lists of successors, and validation of parameters."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cmdpkit.checks import Array, check_number

GAMMA = 0.99
"""Discount factor of the models from operations research, unless one is given."""

ROW_SUM_SLACK = 1e-9
"""Distributions may deviate from a sum of one by rounding, up to this much."""


def sparse_transitions(successors: NDArray[np.integer[Any]], probabilities: Array) -> sp.csr_array[np.float64]:
    """The (S·A, S) matrix in which (s, a) moves to successors[s, a, k] with probabilities[s, a, k].

    Successors named twice add up; `probabilities` is broadcast against `successors`.
    """
    states, actions, width = successors.shape
    data = np.broadcast_to(probabilities, successors.shape).flatten()  # a copy: the matrix sorts its rows in place
    short = np.int32 if max(data.size, states) <= np.iinfo(np.int32).max else np.int64
    starts = np.arange(0, data.size + 1, width, dtype=short)
    parts = (data, successors.reshape(-1).astype(short), starts)
    matrix = sp.csr_array(parts, shape=(states * actions, states), dtype=np.float64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix if matrix.nnz == data.size else matrix.copy()  # without the room for what was removed


def check_whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_between(value: Any, name: str, low: float, high: float) -> float:
    """A number in [low, high]; `high` may be infinite."""
    number = check_number(value, name)
    if not low <= number <= high:
        wanted = f"at least {low:g}" if high == np.inf else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {wanted}, got {number:g}")
    return number


def check_positive(value: Any, name: str) -> float:
    number = check_number(value, name)
    if number <= 0.0:
        raise ValueError(f"{name} must be above zero, got {number:g}")
    return number


def check_numbers(values: Sequence[float], name: str, low: float, high: float, count: int | None = None) -> Array:
    """A sequence of numbers in [low, high], of length `count` if given, and never empty."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise ValueError(f"{name} must be a sequence of numbers, got {values!r}")
    if len(values) == 0 or (count is not None and len(values) != count):
        raise ValueError(f"{name} must hold {count or 'at least one'} number(s), got {len(values)}")
    return np.array([check_between(value, f"{name}[{i}]", low, high) for i, value in enumerate(values)])


def check_distribution(values: Sequence[float], name: str) -> Array:
    """Probabilities that sum to one."""
    distribution = check_numbers(values, name, 0.0, 1.0)
    total = float(distribution.sum())
    if abs(total - 1.0) > ROW_SUM_SLACK:
        raise ValueError(f"{name} sums to {total:.12g}, not 1; its entry k is the probability of k")
    return distribution / total


def criterion(gamma: float | None, average: bool) -> dict[str, Any]:
    """The criterion of a model: long-run averages, or discounted sums with a default factor."""
    return {"gamma": GAMMA if gamma is None and average is not True else gamma, "average": average}
