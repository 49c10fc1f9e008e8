"""Limits that cannot be met together: a smallest set of them, and how far each would have to move.

A Farkas proof y names limits that conflict, but not a smallest set of them. The deletion filter finds one: leave out
one limit after another, and keep it out where the rest is still refuted (Chinneck and Dravnieks 1991). A limit outside
the set cannot help alone; one inside it helps exactly if all others can be met.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal
from typing import NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.exact.band import Band
from cmdpkit.exact.columns import ColumnSearch
from cmdpkit.exact.mdp import Stop, minimise, never
from cmdpkit.exact.search import steps
from cmdpkit.exact.tightest import tightest
from cmdpkit.model import CMDP


class Conflict(NamedTuple):
    """Limits that no policy meets together, with the proof."""

    members: tuple[int, ...]
    weights: Array  # (m,) y ≥ 0, zero for all others, with Σ y_i V_i > 0 for every policy
    margin: float  # Σ y_i V_i is at least this
    irreducible: bool  # without any one of them the others can be met


def minimal_conflict(cmdp: CMDP, weights: Array, margin: float, stop: Stop = never) -> Conflict:
    """A smallest set of conflicting limits within those that a proof has weight on."""
    members = _support(weights)
    size = weights * cmdp.cost_sizes[1:]
    tested = True
    for i in sorted(members, key=lambda j: float(size[j])):
        rest = tuple(j for j in members if j != i)
        if i not in members or not rest:
            continue
        if stop():
            tested = False
            break
        proof = _refute(cmdp, rest, stop)
        if proof is not None:
            weights, margin = proof
            members = _support(weights)
    return Conflict(members, weights, margin, tested and not stop())


def _support(weights: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.flatnonzero(weights > 0.0))


def _refute(cmdp: CMDP, keep: tuple[int, ...], stop: Stop) -> tuple[Array, float] | None:
    """A proof that these limits alone cannot be met; None where they can."""
    fewer = cmdp.with_limits({name: None for i, name in enumerate(cmdp.names) if i not in keep})
    search = ColumnSearch(fewer, stop=stop)
    for _ in steps(search):
        if search.mixture is not None or search.farkas is not None or search.stuck or stop():
            break
    if search.farkas is None:
        return None
    weights = np.zeros(cmdp.num_constraints)
    weights[list(keep)] = search.farkas
    # Proved for the smaller model; the sums of the larger one are rounded in another order
    margin = minimise(cmdp, np.append(0.0, weights), stop=stop).bound
    return (weights, margin) if margin > 0.0 else None


class Relaxation(NamedTuple):
    """The value to which one limit alone would have to be relaxed, in the user's units."""

    proved: float  # tighter values cannot be met
    attained: float  # this value can, by a policy that was evaluated


def relaxation(cmdp: CMDP, index: int, tol: float = 1e-6, stop: Stop = never) -> Relaxation | None:
    """How far one limit must be relaxed for the model to become feasible; None if relaxing it alone does not help."""
    proved, attained = tightest(Band(cmdp, tol, [index], stop), index)
    if not math.isfinite(proved) and proved > 0.0:
        return None
    sign = float(cmdp.signs[index])
    return Relaxation(sign * proved, sign * attained)


def rounded_outwards(found: Relaxation, sign: float, digits: int = 6) -> str:
    """The attained limit with a few digits, looser rather than tighter, or the nearest number if it may do."""
    value = found.attained
    if abs(value) <= 1e-8 and sign * found.proved <= 0.0:  # what is left of zero is rounding
        return "0"
    if abs(value) <= 1e-12:  # zero is proved impossible, and further digits say nothing
        digits = 1
    nearest = float(f"{value:.{digits}g}")
    close = abs(nearest - value) <= 1e-8 * max(1.0, abs(value)) and digits > 1
    if close and sign * nearest >= sign * found.proved:
        return f"{nearest:.{digits}g}"
    if not math.isfinite(value):
        return f"{value:.{digits}g}"
    outwards = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(sign * value))
    return f"{sign * float(outwards):.{digits}g}"
