"""GMRES on one block: slices of its basis, products with I − γP_π or its transpose, and parts of inner products.

For values all costs are solved side by side. A vector of the basis is formed by its owner and, to the same bits, in the
halo of every other block that needs it: what is sent is a product, one message for each as in a sweep. For visits,
products send back what leaves the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cmdpkit.checks import Array
from cmdpkit.evaluation import chain_kernels
from cmdpkit.evaluation.backup import looking_ahead, parts
from cmdpkit.sharded import krylov_kernels as steps
from cmdpkit.sharded.exchange import Inbox, Messages
from cmdpkit.sharded.shard import Shard


class Form(NamedTuple):
    """How the next vector is formed: (w − Σ_i h_i q_i) / scale. With `take`, a cycle ends there."""

    h: Array  # (j, columns)
    scale: Array  # (columns,)
    take: Array | None = None  # (j, columns) weights of the basis in the solution
    rest: Array | None = None  # (j + 1, columns) those in the residual, with which the next cycle begins
    size: Array | None = None  # (columns,) that of the residual


class Product(NamedTuple):
    """The numbers of one product on a block, per column."""

    sums: Array  # of every vector with the product, of the product with itself, and of the last vector with itself
    low: Any = None  # extremes of the residual, and Σ |r|, where a cycle has begun
    high: Any = None
    total: Any = None


class SubspaceShard(Shard):
    """A block that takes part in GMRES."""

    # -- values -----------------------------------------------------------------------------------------------------

    def value_start(self, inbox: Inbox, vectors: int) -> tuple[Product, Messages]:
        """r = TV − V of the current values; sends it."""
        self.exchange.receive(inbox, self.values)
        width = self.values.shape[1]
        self._begin_basis(vectors, self.size, width, self.own)
        self._product = looking_ahead(self.chain, self.gamma, np.zeros((self.states, width)), 1.0)
        own, values = self._w[self.own], self.values[self.own]
        self._look(self.values, values, own)
        own -= values
        return self._measured(own, self._squares(own)), self.exchange.send(own)

    def value_product(self, inbox: Inbox, form: Form) -> tuple[Product, Messages]:
        """Form the next vector q; then w = (I − γP) q, which is sent."""
        self.exchange.receive(inbox, self._w)
        residual = self._formed(form)
        vector = self._basis[self._count - 1]
        own = self._w[self.own]
        self._product(vector, vector[self.own], own)  # γPq − q
        np.negative(own, out=own)
        sums = self._inner_products()
        return (Product(sums) if residual is None else self._measured(residual, sums)), self.exchange.send(own)

    def value_end(self, _: Inbox, taken: Array) -> tuple[None, Messages]:
        """Add what was found, in the columns in which it helps; sends the values."""
        own = self.values[self.own]
        for i in np.flatnonzero(taken):
            own[:, i] += self._found[:, i]
        self._end_basis()
        return None, self.exchange.send(own)

    # -- visits -----------------------------------------------------------------------------------------------------

    def visit_start(self, inbox: Inbox, vectors: int) -> tuple[Product, Messages]:
        """r = ρ + γPᵀx − x of the current visits."""
        self._begin_basis(vectors, self.states, 1, slice(0, self.states))
        moved = self._moved[self.own]
        self.exchange.receive_back(inbox, moved)
        self._w[:, 0] = self.initial + self.gamma * moved - self.visits
        return self._measured(self._w, self._squares(self._w)), []

    def visit_form(self, _: Inbox, form: Form) -> tuple[Product | None, Messages]:
        """Form the next vector q; sends back what Pᵀq leaves."""
        residual = self._formed(form)
        self._moved = np.empty(self.size)
        vector = np.ascontiguousarray(self._basis[self._count - 1, :, 0])
        chain_kernels.flow(*parts(self.chain), vector, self._moved, 0, vector.size)
        found = None if residual is None else self._measured(residual, self._squares(residual))
        return found, self.exchange.send_back(self._moved)

    def visit_product(self, inbox: Inbox) -> tuple[Product, Messages]:
        """w = (I − γPᵀ) q."""
        moved = self._moved[self.own]
        self.exchange.receive_back(inbox, moved)
        self._w[:, 0] = self._basis[self._count - 1, :, 0] - self.gamma * moved
        return Product(self._inner_products()), []

    def visit_end(self, _: Inbox, taken: Array) -> tuple[None, Messages]:
        """Add what was found, if it helps; sends back what flows out of the block."""
        if taken[0]:
            self.visits = np.maximum(self.visits + self._found[:, 0], 0.0)
        self._end_basis()
        return None, self._flow()

    # -- the basis --------------------------------------------------------------------------------------------------

    def _begin_basis(self, vectors: int, rows: int, width: int, own: slice) -> None:
        """A basis of tables with this number of rows, `own` of which are the block's states."""
        self._rows = own
        self._basis, self._count = np.zeros((vectors + 1, rows, width)), 0
        self._w, self._found = np.zeros((rows, width)), np.zeros((self.states, width))

    def _end_basis(self) -> None:
        del self._basis, self._w, self._found

    def _formed(self, form: Form) -> Array | None:
        """Form the next vector; the residual of own states, if a cycle ends and the next one begins with it."""
        width = self._w.shape[1]
        count = len(form.h)
        steps.next_vector(self._basis, count, self._w, _wide(form.h, width), _wide(form.scale, width, 1.0))
        self._count = count + 1
        if form.take is None or form.rest is None or form.size is None:
            return None
        steps.combine(self._basis[:, self._rows], _wide(form.take, width), self._found, 1.0)
        steps.combine(self._basis, _wide(form.rest, width), self._w, 0.0)
        residual = self._w[self._rows].copy()
        steps.next_vector(self._basis, 0, self._w, _wide(form.h, width), _wide(form.size, width, 1.0))
        self._count = 1
        return residual

    def _inner_products(self) -> Array:
        sums = np.empty((self._count + 2, self._w.shape[1]))
        steps.inner_products(self._basis[:, self._rows], self._count, self._w[self._rows], sums)
        return self._narrow(sums)

    def _squares(self, table: Array) -> Array:
        return self._narrow(np.array([[np.einsum("s,s->", x, x) for x in table.T]]))

    def _measured(self, residual: Array, sums: Array) -> Product:
        found = (residual.min(axis=0), residual.max(axis=0), np.abs(residual).sum(axis=0))
        return Product(sums, *(self._narrow(numbers) for numbers in found))

    def _narrow(self, numbers: Array) -> Array:
        """Without padding."""
        return np.ascontiguousarray(numbers[..., : self.columns])


def _wide(numbers: Array, width: int, fill: float = 0.0) -> Array:
    """With as many columns as tables have."""
    wide = np.full((*numbers.shape[:-1], width), fill)
    wide[..., : numbers.shape[-1]] = numbers
    return wide
