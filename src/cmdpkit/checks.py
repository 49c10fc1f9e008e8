"""Input validation: an error says what is wrong, where it is, and how to fix it."""

from __future__ import annotations

import hashlib
import inspect
import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Floating-point numbers of any shape. The names below are the same type and say the shape as well."""

StateArray = Array
"""(S,): one number per state."""

PairTable = Array
"""One number per state-action pair: (S, A), or (N,) where only N pairs exist (model/pairs.py)."""

ConstraintArray = Array
"""(m,): one number per constraint."""

CostArray = Array
"""(m + 1,): one number per cost, the objective first."""

CostTable = Array
"""(m + 1, N): one row per cost, one column per state-action pair."""

ROW_SUM_TOLERANCE = 1e-8
"""Rows whose sum differs from one by more than this are rejected. Bounds account for smaller differences."""


@dataclass(frozen=True)
class Handed:
    """Sparse transitions that nobody else holds: a large model need not copy them."""

    matrix: Any


def freeze(array: Array) -> Array:
    array.flags.writeable = False
    return array


def check_number(value: Any, name: str) -> float:
    """Return a finite real number as a float; otherwise raise an error that names the argument."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a floating-point number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {value}")
    return number


def check_gamma(gamma: Any) -> float:
    value = check_number(gamma, "gamma")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"gamma must be in [0, 1), got {value}; a discounted model needs gamma below 1")
    return value


def as_floats(values: Any, name: str) -> Array:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is not a rectangular array: {error}") from error
    except RuntimeError as error:  # a tensor that requires gradients
        raise TypeError(f"{name} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, not dtype {array.dtype}")
    if np.ma.isMaskedArray(values):
        raise TypeError(
            f"{name} is a masked array; if the masked actions cannot be taken, say so with available=~mask, and pass "
            f"{name}.data"
        )
    return np.array(array, dtype=np.float64, order="C")  # a copy: later changes by the user do not affect the model


def such_entries(bad: Any) -> str:
    count = int(bad.sum())
    return f"{count} such {'entry' if count == 1 else 'entries'}"


def check_transitions(
    transitions: Any, masked: bool = False, action_axis: int | None = None
) -> tuple[Any, int, int | None]:
    """The transitions with one row per pair, C-ordered float64 or CSR when sparse; the numbers of states and actions.

    With a mask of available actions (`masked`) there may be a row for every pair, or only for those that exist: the
    number of actions is None where only the mask can tell. An array of shape (S, S, S) does not tell which axis counts
    the actions: without `action_axis` it is read as (S, A, S), with a warning.
    """
    if action_axis not in (None, 0, 1):
        raise ValueError(f"action_axis must be 1 for (S, A, S) arrays or 0 for (A, S, S) arrays, not {action_axis!r}")
    handed = isinstance(transitions, Handed)
    if handed:
        transitions = transitions.matrix
    if sp.issparse(transitions):
        rows, states = transitions.shape if transitions.ndim == 2 else (0, 0)
        if states == 0 or rows == 0 or (rows % states and not masked):
            raise ValueError(
                f"sparse transitions have shape {transitions.shape}; they need S·A rows and S columns (row s·A + a), "
                f"and {rows} is not a positive multiple of {states}; if some actions are not available, say so with "
                "available="
            )
        if transitions.dtype.kind not in "fiub":
            raise TypeError(f"transitions must hold real numbers, not dtype {transitions.dtype}")
        _check_format(transitions)
        matrix = _with_short_indices(sp.csr_array(transitions, dtype=np.float64, copy=not handed))
        matrix.sum_duplicates()
        return refreeze(matrix), states, None if masked else rows // states
    array = as_floats(transitions, "transitions")
    if masked and array.ndim == 2 and array.size:
        return freeze(array), array.shape[1], None
    if array.ndim == 3 and action_axis == 0:
        array = np.ascontiguousarray(array.swapaxes(0, 1))
    if array.ndim != 3 or array.shape[0] != array.shape[2] or 0 in array.shape:
        wanted = "(A, S, S)" if action_axis == 0 else "(S, A, S)"
        raise ValueError(
            f"transitions have shape {np.shape(transitions)}; they need shape {wanted}, or must be a scipy.sparse "
            "matrix of shape (S·A, S); for (A, S, S) pass action_axis=0"
        )
    if action_axis is None and array.shape[0] == array.shape[1] > 1 and not np.array_equal(array, array.swapaxes(0, 1)):
        warnings.warn(
            f"transitions of shape {array.shape} are read as (S, A, S), but could be meant as (A, S, S); pass "
            "action_axis=1 to confirm, or action_axis=0 if the first axis counts the actions",
            UserWarning,
            stacklevel=5,  # where the model is created
        )
    states, actions, _ = array.shape
    return freeze(array.reshape(states * actions, states)), states, actions


def _check_format(matrix: Any) -> None:
    """Refuse indices out of range: SciPy's compiled code would read and write beyond its arrays."""
    try:
        if matrix.format == "coo":
            for axis, (index, size) in enumerate(zip(matrix.coords, matrix.shape, strict=True)):
                if index.size and not 0 <= index.min() <= index.max() < size:
                    raise ValueError(
                        f"indices of axis {axis} reach from {index.min()} to {index.max()}, not 0 to {size - 1}"
                    )
        elif hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
    except (ValueError, IndexError) as error:
        raise ValueError(f"sparse transitions are malformed: {error}") from error


def _with_short_indices(matrix: Any) -> Any:
    """Use 32-bit indices where they fit: sweeps over the model are limited by memory bandwidth."""
    if max(matrix.nnz, *matrix.shape) <= np.iinfo(np.int32).max:
        matrix.indices, matrix.indptr = (part.astype(np.int32, copy=False) for part in (matrix.indices, matrix.indptr))
    return matrix


def longest_row(matrix: Any) -> int:
    """The largest number of entries in a row: how many terms a sum over successors has."""
    if sp.issparse(matrix):
        return int(np.diff(matrix.indptr).max())
    return int(getattr(matrix, "longest_row", matrix.shape[1]))


def check_rows(
    transitions: Any, gamma: float, pair_name: Callable[[int], str], state_name: Callable[[int], str]
) -> tuple[float, float]:
    """Check that every row is a probability distribution; return the smallest and the largest row sum."""
    entries = transitions.data if sp.issparse(transitions) else transitions
    bad = ~np.isfinite(entries) | (entries < 0.0)
    if bad.any():
        if sp.issparse(transitions):
            k = int(np.flatnonzero(bad)[0])
            row, column, value = (
                int(np.searchsorted(transitions.indptr, k, "right")) - 1,
                transitions.indices[k],
                entries[k],
            )
        else:
            row, column = np.argwhere(bad)[0]
            value = entries[row, column]
        raise ValueError(
            f"the probability of moving from {pair_name(int(row))} to state {state_name(column)} is {value} "
            f"({such_entries(bad)}); probabilities must be finite and nonnegative"
        )
    sums = np.asarray(transitions.sum(axis=1)).ravel()
    off = np.abs(sums - 1.0)
    worst = int(off.argmax())
    if off[worst] > ROW_SUM_TOLERANCE:
        empty = int((sums == 0.0).sum())
        if empty:
            raise ValueError(
                f"all probabilities of {pair_name(int((sums == 0.0).argmax()))} are zero ({empty} of {sums.size} rows "
                "are); if the action is not available there, say so with available=, an (S, A) array of booleans"
            )
        raise ValueError(
            f"the probabilities of {pair_name(worst)} sum to {sums[worst]:.12g}, not 1 "
            f"({(off > ROW_SUM_TOLERANCE).sum()} of {sums.size} rows are off); divide each row by its sum, in float64"
        )
    if gamma * sums.max() >= 1.0:
        raise ValueError(
            f"gamma = {gamma} times the largest row sum {sums.max():.17g} is not below 1; normalise the rows"
        )
    return float(sums.min()), float(sums.max())


def check_initial(initial: Any, states: int) -> StateArray:
    if initial is None:
        return freeze(np.full(states, 1.0 / states))
    if isinstance(initial, (bool, np.bool_)):
        raise TypeError("initial must be a state index or a distribution, not a bool")
    if isinstance(initial, numbers.Integral) or (isinstance(initial, np.ndarray) and initial.ndim == 0):
        if not isinstance(initial, numbers.Integral) and initial.dtype.kind not in "iu":
            raise TypeError(f"initial must be a state index or a distribution, not {initial!r}")
        index = int(initial)
        if not 0 <= index < states:
            raise ValueError(f"initial state {index} is not one of the states 0 to {states - 1}")
        distribution = np.zeros(states)
        distribution[index] = 1.0
        return freeze(distribution)
    distribution = as_floats(initial, "initial")
    if distribution.shape != (states,):
        raise ValueError(
            f"initial has shape {distribution.shape}; a distribution over the states has shape ({states},)"
        )
    bad = ~np.isfinite(distribution) | (distribution < 0.0)
    if bad.any():
        s = int(np.flatnonzero(bad)[0])
        raise ValueError(f"initial[{s}] is {distribution[s]}; probabilities must be finite and nonnegative")
    total = distribution.sum()
    if abs(total - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(f"initial sums to {total:.12g}, not 1; divide it by its sum if that is rounding")
    return freeze(distribution)


def check_multipliers(multipliers: Any, m: int, name: str, signed: Any = False) -> ConstraintArray:
    """One finite number per constraint, not negative unless `signed` (m,) says that it may be."""
    lam = np.atleast_1d(as_floats(multipliers, name))
    if lam.shape != (m,):
        raise ValueError(f"{name} have shape {lam.shape}; the model has {m} constraints, so they need shape ({m},)")
    if not np.isfinite(lam).all() or ((lam < 0.0) & ~np.asarray(signed)).any():
        free = " (except for Equal and Between)" if np.any(signed) else ""
        raise ValueError(f"{name} must be finite and nonnegative{free}, got {lam}")
    return lam


def check_positive(value: Any, name: str) -> float:
    number = check_number(value, name)
    if number <= 0.0:
        raise ValueError(f"{name} must be positive, got {value}")
    return number


def check_nonnegative(value: Any, name: str) -> float:
    number = check_number(value, name)
    if number < 0.0:
        raise ValueError(f"{name} must not be negative, got {value}")
    return number


def check_confidence(value: Any, name: str = "confidence") -> float:
    number = check_number(value, name)
    if not 0.0 < number < 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
    return number


def check_count(value: Any, name: str, least: int) -> int:
    """Return an integer of at least `least`; otherwise raise an error that names the argument."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_flag(value: Any, name: str) -> bool:
    """Return True or False; otherwise raise an error that names the argument: "no" would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def check_cost_limits(limits: Any) -> Array:
    """Return the limits of an environment, one per cost; infinity stands for a cost that is only recorded."""
    table = as_floats(limits, "limits")
    if table.ndim != 1:
        raise ValueError(f"limits must be a list with one number per cost, got {limits!r}")
    for i, limit in enumerate(table.tolist()):
        if limit != math.inf:
            check_number(limit, f"limits[{i}]")
    return table


def refreeze(value: Any) -> Any:
    """Make the arrays in an object read-only again; copying and unpickling make them writeable."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif sp.issparse(value):
        for part in (value.data, value.indices, value.indptr):
            part.flags.writeable = False
    elif isinstance(value, (tuple, list)):
        for item in value:
            refreeze(item)
    return value


def digest(*arrays: Any) -> str:
    """A short hash of arrays: equal only for equal numbers."""
    code = hashlib.sha256()
    for array in arrays:
        table = np.ascontiguousarray(array)
        code.update(f"{table.dtype} {table.shape} ".encode())
        code.update(table.tobytes())
    return code.hexdigest()[:16]


def required_arguments(function: Callable[..., Any]) -> int | None:
    """The number of positional arguments without a default; None where Python does not know the signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
