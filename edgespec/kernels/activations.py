"""Rounding activations to 8 bits, in records that the kernels multiply.

A block of 32 has one scale, as ggml does for Q8_1; for weights in blocks of 256 so do 256, as ggml
does for Q8_K: products are then summed as integers through the whole block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import llvmlite.ir as ir

from edgespec.kernels.formats import Format
from edgespec.kernels.isa import F32, I8, I32, I64, POINTER, VOID, Builder, Value, function, vector

__all__ = [
    "BLOCK",
    "FLOATS",
    "LARGE",
    "LARGE_BLOCK",
    "LARGE_RECORD",
    "PART_BITS",
    "RECORD_BYTES",
    "SMALL",
    "SMALL_RECORD",
    "Record",
    "emit_quantize",
    "form_of",
    "record_of",
]

BLOCK, LARGE_BLOCK = 32, 256
"""Activations with one scale."""

RECORD_BYTES = 2
"""For each activation: of a record of either size."""

SMALL, FLOATS, LARGE = 0, 1, 2
"""Forms of activations: records of 32, floats as they are, records of 256."""

_HALF = BLOCK // 2
_SIXTEENS = (32, 4)
"""Codes that stand for 0 in formats with units of 16: Q6_K, Q3_K."""
PART_BITS = 7
"""Of a sum in the first of its two bytes."""

_LEAST, _INFINITE = 0x0DA24260, 0x7F800000
"""Bits of 1e-30 and of infinity: a block with no absolute value between them has codes 0."""


class Record(NamedTuple):
    """How a quantized block lies in memory: its codes, then what these offsets say.

    Attributes:
        block: activations; as many bytes of int8 come first.
        scale: of a float.
        sum: of a float: the scale times the sum of all codes; None where there are parts.
        starts: by a code that stands for 0: of int32, -code times the sum of each unit's codes;
            formats with such codes have units of 32, or of 16 in `_SIXTEENS`.
        parts: by a unit's size: of the sums of units' codes in int8, the low 7 bits and the rest.
    """

    block: int
    scale: int
    sum: int | None
    starts: dict[int, int]
    parts: dict[int, tuple[int, int]]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.block * RECORD_BYTES

    def unit(self, zero: int) -> int:
        """Activations of a unit of the formats with this code for 0."""
        return _HALF if zero in _SIXTEENS else BLOCK

    @property
    def name(self) -> str:
        """The symbol of the kernel that writes such records."""
        return f"quantize_{self.block}"


SMALL_RECORD = Record(32, 32, 36, {128: 40, 8: 44, 16: 48, 12: 52}, {})
LARGE_RECORD = Record(256, 256, None, {128: 320, 32: 352, 4: 416}, {32: (264, 272), 16: (288, 304)})


def form_of(format: Format) -> int:
    """Return what a format is multiplied by."""
    if format.weights == 1:
        return FLOATS
    return LARGE if format.weights == LARGE_BLOCK else SMALL


def record_of(format: Format) -> Record:
    """Return the records that a format is multiplied by; not for 16-bit weights."""
    return LARGE_RECORD if form_of(format) == LARGE else SMALL_RECORD


def emit_quantize(module: ir.Module) -> None:
    """Define ``void quantize_32(x, records, blocks)``, and the same for 256."""
    for record in (SMALL_RECORD, LARGE_RECORD):
        _emit_quantize(module, record)


def _emit_quantize(module: ir.Module, record: Record) -> None:
    b = function(module, record.name, VOID, [POINTER, POINTER, I64])
    x, records, blocks = b.function.args

    def block(index: Value, _: list[Value]) -> list[Value]:
        source = b.gep(x, [b.mul(index, I64(4 * record.block))])
        target = b.gep(records, [b.mul(index, I64(record.size))])
        usable, scale, factor = _scale(b, _largest(b, source, record.block))
        b.store_at(scale, target, record.scale)

        def part(number: Value, _: list[Value]) -> list[Value]:
            codes = _rounded(b, source, number, usable, factor)
            b.store_at(b.trunc(codes, vector(I8, BLOCK)), target, b.mul(number, I64(BLOCK)))
            _store_sums(b, record, target, number, scale, _half_sums(b, codes))
            return []

        b.loop(I64(0), I64(record.block // BLOCK), 1, [], part)
        return []

    b.loop(I64(0), blocks, 1, [], block)
    b.ret_void()


def _values(b: Builder, source: Value, part: Value) -> Value:
    return b.load_at(source, b.mul(part, I64(4 * BLOCK)), vector(F32, BLOCK))


def _largest(b: Builder, source: Value, block: int) -> Value:
    """Return the bits of the largest absolute value."""
    integers = vector(I32, BLOCK)

    def part(number: Value, most: list[Value]) -> list[Value]:
        bits = b.masked(b.bitcast(_values(b, source, number), integers), 0x7FFFFFFF)
        return [b.select(b.icmp_unsigned(">", bits, most[0]), bits, most[0])]

    zero = b.splat(I32(0), BLOCK)
    (most,) = b.loop(I64(0), I64(block // BLOCK), 1, [zero], part)
    return b.intrinsic(f"llvm.vector.reduce.umax.v{BLOCK}i32", I32, most)


def _scale(b: Builder, largest: Value) -> tuple[Value, Value, Value]:
    """Return whether values are neither all tiny nor one is not finite; the scale; its inverse."""
    finite = b.icmp_unsigned("<", largest, I32(_INFINITE))
    usable = b.and_(finite, b.icmp_unsigned(">", largest, I32(_LEAST)))
    most = b.bitcast(largest, F32)
    scale = b.select(usable, b.fdiv(most, F32(127.0)), F32(0.0))
    scale = b.select(finite, scale, F32(float("nan")))
    return usable, scale, b.select(usable, b.fdiv(F32(127.0), most), F32(0.0))


def _rounded(b: Builder, source: Value, part: Value, usable: Value, factor: Value) -> Value:
    floats = vector(F32, BLOCK)
    zeros = ir.Constant(floats, [0.0] * BLOCK)
    values = b.select(b.splat(usable, BLOCK), _values(b, source, part), zeros)
    scaled = b.fmul(values, b.splat(factor, BLOCK))
    return b.fptosi(b.intrinsic(f"llvm.rint.v{BLOCK}f32", floats, scaled), vector(I32, BLOCK))


def _half_sums(b: Builder, codes: Value) -> list[Value]:
    undefined = ir.Constant(codes.type, ir.Undefined)
    sums = []
    for first in (0, _HALF):
        indices = ir.Constant(vector(I32, _HALF), list(range(first, first + _HALF)))
        part = b.shuffle_vector(codes, undefined, indices)
        sums.append(b.intrinsic(f"llvm.vector.reduce.add.v{_HALF}i32", I32, part))
    return sums


def _store_sums(
    b: Builder, record: Record, target: Value, part: Value, scale: Value, halves: Sequence[Value]
) -> None:
    whole = b.add(*halves)
    if record.sum is not None:
        b.store_at(b.fmul(scale, b.sitofp(whole, F32)), target, record.sum)
    for zero, where in record.starts.items():
        sums = [whole] if record.unit(zero) == BLOCK else halves
        for index, one in enumerate(sums):
            at = b.add(b.mul(part, I64(4 * len(sums))), I64(where + 4 * index))
            b.store_at(b.mul(one, I32(-zero)), target, at)
    for size, (low, high) in record.parts.items():
        sums = [whole] if size == BLOCK else halves
        for index, one in enumerate(sums):
            at = b.add(b.mul(part, I64(len(sums))), I64(index))
            least = b.and_(one, I32((1 << PART_BITS) - 1))
            b.store_at(b.trunc(least, I8), target, b.add(at, I64(low)))
            rest = b.ashr(one, I32(PART_BITS))
            b.store_at(b.trunc(rest, I8), target, b.add(at, I64(high)))
