"""A builder of LLVM IR with the few words that the kernels are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir

__all__ = [
    "F16",
    "F32",
    "I8",
    "I16",
    "I32",
    "I64",
    "LINE",
    "POINTER",
    "VOID",
    "Builder",
    "vector",
]

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
POINTER = I8.as_pointer()
VOID = ir.VoidType()

LINE = 64
"""Bytes of a cache line."""

Value = Any
"""An ir.Value: llvmlite has no types."""


def vector(element: Any, count: int) -> Any:
    """Return the type of so many elements."""
    return ir.VectorType(element, count)


class Builder(ir.IRBuilder):  # type: ignore[misc]
    """Appends instructions to a function."""

    def splat(self, value: Value, count: int) -> Value:
        """Return a vector of the same value."""
        kind = vector(value.type, count)
        if isinstance(value, ir.Constant):
            return ir.Constant(kind, [value.constant] * count)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.insert_element(undefined, value, I32(0))
        return self.shuffle_vector(first, undefined, ir.Constant(vector(I32, count), [0] * count))

    def shift(self, value: Value, right: int) -> Value:
        """Return every 32-bit lane shifted right (left if negative) without its sign."""
        if right == 0:
            return value
        distance = self.splat(I32(abs(right)), value.type.count)
        return self.lshr(value, distance) if right > 0 else self.shl(value, distance)

    def masked(self, value: Value, mask: int) -> Value:
        """Return every lane AND a constant."""
        return self.and_(value, self.splat(value.type.element(mask), value.type.count))

    def at(self, pointer: Value, offset: Value | int, kind: Any) -> Value:
        """Return a pointer to `kind`, so many bytes behind another pointer."""
        distance = I64(offset) if isinstance(offset, int) else offset
        return self.bitcast(self.gep(pointer, [distance]), kind.as_pointer())

    def load_at(self, pointer: Value, offset: Value | int, kind: Any) -> Value:
        """Load from any address."""
        loaded = self.load(self.at(pointer, offset, kind))
        loaded.align = 1
        return loaded

    def store_at(self, value: Value, pointer: Value, offset: Value | int) -> None:
        """Store to any address."""
        self.store(value, self.at(pointer, offset, value.type)).align = 1

    def intrinsic(self, name: str, result: Any, *arguments: Value) -> Value:
        """Call an intrinsic function of LLVM."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.module, kind, name)
        return self.call(function, arguments)

    def loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Run `body` for start, start + step ... below stop.

        Args:
            carried: values that `body` gets with the index, and returns anew.

        Returns:
            The carried values after the last round.
        """
        before = self.block
        head = self.append_basic_block("head")
        inside = self.append_basic_block("inside")
        after = self.append_basic_block("after")
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        values = [self.phi(value.type) for value in carried]
        index.add_incoming(start, before)
        for phi, value in zip(values, carried, strict=True):
            phi.add_incoming(value, before)
        self.cbranch(self.icmp_signed("<", index, stop), inside, after)
        self.position_at_end(inside)
        new = body(index, list(values))
        end = self.block
        index.add_incoming(self.add(index, I64(step)), end)
        for phi, value in zip(values, new, strict=True):
            phi.add_incoming(value, end)
        self.branch(head)
        self.position_at_end(after)
        return values


def function(module: ir.Module, name: str, result: Any, arguments: Sequence[Any]) -> Builder:
    """Begin a function; its arguments are `builder.function.args`."""
    made = ir.Function(module, ir.FunctionType(result, arguments), name)
    return Builder(made.append_basic_block("entry"))
