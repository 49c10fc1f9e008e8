"""Limits that are hard to meet: whether any policy meets them, and what `tol` allows where rounding decides.

While the columns found so far cannot meet the limits, the largest scaled violation is minimised like the objective. Its
prices y become a Farkas proof when no policy meets the limits: y ≥ 0 and min_π Σ y_i V_i(π) > 0. Where the limits touch
what is possible, they are met up to rounding only, and half of `tol` is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cmdpkit.exact.columns import ColumnSearch, Cut
from cmdpkit.exact.master import best_mixture, least_violation


def seek_feasible(search: ColumnSearch) -> Iterator[ColumnSearch]:
    """Minimise the largest scaled violation until the limits are met, or proved impossible to meet."""
    while True:
        worst, game = least_violation(search.scaled_rows())
        if worst <= 0.0:
            return
        y = game.prices / search.scales[1:]
        total = float(y.sum())
        y = y / total  # the margin is proved for these very weights
        answer = search.ask(np.concatenate([[0.0], y]))
        fresh = search.take(answer)
        search.refuted.append(Cut(y, search.cmdp.offsets, answer.bound))
        if answer.bound > 0.0:
            search.farkas, search.farkas_margin = y, answer.bound
            return
        if not fresh or total * float(y @ answer.values[1:]) >= worst - 1e-13:
            _settle(search, worst)
            return
        yield search


def _settle(search: ColumnSearch, worst: float) -> None:
    """Neither met nor refuted together: a single limit may be refuted, else they touch what is possible."""
    for i, single in enumerate(np.eye(search.cmdp.num_rows)):
        answer = search.ask(np.append(0.0, single))
        search.take(answer)
        search.refuted.append(Cut(single, search.cmdp.offsets, answer.bound))
        if answer.bound > 0.0:
            search.farkas, search.farkas_margin = np.eye(len(single))[i], answer.bound
            return
    search.relaxation, search.master = np.full(search.cmdp.num_rows, worst), None


def relax(search: ColumnSearch) -> bool:
    """Limits that are met only up to rounding may hide the answer: allow half of `tol` in each, once."""
    if search.tol == 0.0 or search.relaxation.any() or not search.cmdp.num_rows:
        return False
    search.relaxation = 0.5 * search.tol * search.cmdp.fine_scales[1:] / search.scales[1:]
    search.master = None
    search.stuck = not search.relaxation.any() or not search.price()  # costs that are zero leave nothing to allow
    return not search.stuck


def meet(search: ColumnSearch, bound: float) -> None:
    """Take the mixture that comes halfway from `tol` to a bound which rounding keeps below the optimum.

    Where prices are steep, a bound loses a multiple of the rounding error that they weigh. A mixture of the best
    within the limits and the best within half of `tol` beyond them has any objective in between.
    """
    table = search.table.T / search.scales[:, None]
    loose = 0.5 * search.tol * search.cmdp.fine_scales[1:] / search.scales[1:]
    strict, relaxed = (best_mixture(table[0], table[1:], limits) for limits in (np.zeros(loose.size), loose))
    high, low = (float(table[0] @ mixture.weights) for mixture in (strict, relaxed))
    target = (bound + 0.5 * search.tol * search.cmdp.proof_scale(bound)) / float(search.scales[0])
    if low < high and np.isfinite(target):
        share = min(max((high - target) / (high - low), 0.0), 1.0)
        search.mixture = strict._replace(weights=(1.0 - share) * strict.weights + share * relaxed.weights)
