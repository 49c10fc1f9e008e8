"""GMRES over the blocks, where sweeps contract slowly: hundreds of products in place of thousands of sweeps.

Inner products are summed in the order of the blocks, so that the numbers do not depend on where the blocks are. What it
finds is a better guess and nothing else: sweeps go on from it, and their residual proves how good it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation.patience import breathe
from cmdpkit.sharded.crew import Crew, Step
from cmdpkit.sharded.subspace import Form, Product

VALUES, VISITS = 12, 36
"""Vectors of a cycle: in all they take as much memory for the values of three costs as for the visits."""

SLOW = 150
"""Sweeps that would be needed, from which on GMRES is tried."""

SHARE = 2
"""It may use this part of the sweeps, as products, until it is given up. A product costs about two or three of them."""

LOOK = 4
"""So often a cycle is asked how small its residual is."""

AIM = 0.5
"""Residuals are brought to this part of what is allowed."""


class Cycle:
    """The projected problem of every column: A q_j = Σ_i h_ij q_i + η_j q_{j+1}, and r = β q_0.

    Vectors have nearly the length one, which is measured when they are multiplied.
    """

    def __init__(self, squares: Array, most: int) -> None:
        self.size = _lengths(squares)
        self.used, self.most = 0, most
        self.table = np.zeros((squares.size, most + 1, most))
        self.squares = np.ones((most + 1, squares.size))  # of the vectors

    def add(self, sums: Array) -> tuple[Array, Array]:
        """h_j and η_j from the sums of a product."""
        j = self.used
        self.squares[j] = np.maximum(sums[j + 2], 1e-300)
        h, total = sums[: j + 1] / self.squares[: j + 1], sums[j + 1]
        eta = _lengths(np.maximum(total - (h**2 * self.squares[: j + 1]).sum(axis=0), 1e-16 * total))
        self.table[:, : j + 1, j], self.table[:, j + 1, j] = h.T, eta
        self.used += 1
        return h, eta

    def solved(self) -> tuple[Array, Array, Array]:
        """Weights of the basis in the solution and in the residual, and the length of that, for every column."""
        k = self.used
        take, rest = np.zeros((k, self.size.size)), np.zeros((k + 1, self.size.size))
        lengths = np.sqrt(self.squares[: k + 1])
        for c, size in enumerate(self.size):
            matrix, target = self.table[c, : k + 1, :k], np.zeros(k + 1)
            target[0] = size
            take[:, c] = np.linalg.lstsq(lengths[:, c, None] * matrix, lengths[:, c] * target, rcond=None)[0]
            rest[:, c] = target - (matrix * take[:, c]).sum(axis=1)
        return take, rest, np.sqrt(((lengths * rest) ** 2).sum(axis=0))


class Search:
    """Cycle after cycle: how to form the next vector, from the sums of the last product."""

    def __init__(self, start: Product, error_of: Callable[[Product], Array], vectors: int, sweeps: int) -> None:
        self.error_of, self.most = error_of, max(2 * vectors, sweeps // SHARE)
        self.first = self.errors = error_of(start)
        self.cycle = Cycle(start.sums[0], vectors)
        self.products = 0

    def begin(self) -> Form:
        return Form(np.zeros((0, self.first.size)), self.cycle.size)

    def next(self, product: Product) -> Form:
        """The next vector of the cycle, or the first of a new one."""
        self.products += 1
        h, eta = self.cycle.add(product.sums)
        full = self.cycle.used == self.cycle.most or self.products >= self.most
        if not full and self.cycle.used % LOOK:
            return Form(h, eta)
        take, rest, sizes = self.cycle.solved()
        if not full and (self.errors * sizes > 0.5 * AIM * self.cycle.size).any():
            return Form(h, eta)
        self.cycle = Cycle(sizes**2, self.cycle.most)
        return Form(h, eta, take, rest, self.cycle.size)

    def ends(self, residual: Product) -> bool:
        """Whether the residual with which a new cycle begins is small enough, or GMRES is given up."""
        self.errors = self.error_of(residual)
        worst = float(self.errors.max(initial=0.0))
        return worst <= AIM or self.products >= self.most or not np.isfinite(worst)

    @property
    def helped(self) -> Array:
        """Where the error is smaller than at the start."""
        return np.asarray(np.isfinite(self.errors) & (self.errors < self.first))


def improve_values(crew: Crew, after: Step, error_of: Callable[[Array], Array], sweeps: int) -> tuple[Step, bool, int]:
    """Better values of the policy that is followed, which are sent; whether they reached their aim; products.

    Args:
        crew: the blocks.
        after: the step whose messages are the values.
        error_of: of the span of the residuals of all columns, the errors in units of what is allowed.
        sweeps: how many of them it would take.
    """

    def errors(residual: Product) -> Array:
        return error_of(residual.high - residual.low)

    step = crew.submit("value_start", VALUES, after=after, send=True)
    search = Search(_reduced(crew.fetch(step)), errors, VALUES, sweeps)
    form = search.begin()
    while True:
        breathe()
        step = crew.submit("value_product", form, after=step, send=True)
        product = _reduced(crew.fetch(step))
        if (form.take is not None and search.ends(product)) or not np.isfinite(product.sums).all():
            break
        form = search.next(product)
    step = crew.submit("value_end", search.helped, send=True)
    crew.fetch(step)
    return step, bool((search.errors <= AIM).all()), search.products


def improve_visits(crew: Crew, after: Step, accuracy: float, sweeps: int) -> tuple[Step, bool, int]:
    """The same for visits, whose error is Σ |r|."""

    def errors(residual: Product) -> Array:
        return np.asarray(residual.total / accuracy)

    start = _reduced(crew.fetch(crew.submit("visit_start", VISITS, after=after)))
    search = Search(start, errors, VISITS, sweeps)
    form = search.begin()
    while True:
        breathe()
        step = crew.submit("visit_form", form, back=True)
        if form.take is not None and search.ends(_reduced(crew.fetch(step))):
            break
        product = _reduced(crew.fetch(crew.submit("visit_product", after=step)))
        if not np.isfinite(product.sums).all():
            break
        form = search.next(product)
    step = crew.submit("visit_end", search.helped, back=True)
    crew.fetch(step)
    return step, bool((search.errors <= AIM).all()), search.products


def _reduced(found: list[Product]) -> Product:
    """The numbers of all blocks, in their order."""
    sums = np.sum([p.sums for p in found], axis=0)
    if found[0].low is None:
        return Product(sums)
    low, high = np.min([p.low for p in found], axis=0), np.max([p.high for p in found], axis=0)
    return Product(sums, low, high, np.sum([p.total for p in found], axis=0))


def _lengths(squares: Array) -> Array:
    """Square roots; one in place of zero, which is divided by."""
    roots = np.sqrt(squares)
    return np.where(roots > 0.0, roots, 1.0)
