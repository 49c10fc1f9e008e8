"""Asking for memory before it is needed, from compiled code.

A sweep over a random graph reads one row of a large table after the other, each somewhere else. The processor cannot
look ahead further than a few short loops; told the addresses, it fetches several rows at once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

AHEAD = 16
"""Entries of the matrix between the one that is used and the one that is asked for (measured: 8 to 64)."""


def _prefetch(_: Any, table: Any, row: Any) -> Any:  # pragma: no cover
    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, given[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        offset = builder.mul(given[1], builder.extract_value(array.strides, 0))
        address = builder.gep(builder.bitcast(array.data, byte), [offset])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [address, number(0), number(3), number(1)])  # to read, and to keep, data
        return context.get_dummy_value()

    return types.void(table, row), generate


prefetch: Any = intrinsic(_prefetch)
"""prefetch(table, row) brings the beginning of table[row] into the caches; `row` has 64 bits."""
