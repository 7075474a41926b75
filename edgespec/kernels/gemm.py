"""The kernels: packed weights times a few columns of activations, and the quantizing of these.

Activations are rounded to 8 bits by blocks of 32, each with a float scale, as ggml does for Q8_1.
A column's sum is one float accumulator (two for 16-bit weights) that takes the blocks in order:
what comes out for a column does not depend on how many others there are, or which.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from edgespec.kernels.codes import Block, Unit, steps_of
from edgespec.kernels.emit import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    VOID,
    Builder,
    Value,
    function,
    vector,
)
from edgespec.kernels.formats import ALIGNMENT, Format
from edgespec.kernels.isa import InstructionSet

__all__ = ["BLOCK", "RECORD", "emit_multiply", "emit_quantize", "is_float", "multiply_name"]

BLOCK = 32
"""Activations with one scale."""

RECORD = 64
"""Bytes of a quantized block: 32 of int8; then float scale, scale times the sum of all, of the
first and of the second half; then int32, -128 times the sum; the rest unused."""

_SCALE, _SUM, _HALVES, _OFFSET = 32, 36, (40, 44), 48

_AHEAD = 32768
"""Bytes: how far ahead weights are asked for. Hardware looks less far, and stops at each page."""
_INTO = 2
"""The second-level cache: in the first they would drive out each other, and the activations."""

_LINE = 64

_LEAST, _INFINITE = 0x0DA24260, 0x7F800000
"""Bits of 1e-30 and of infinity: a block with no absolute value between them has codes 0."""


def is_float(format: Format) -> bool:
    """Whether weights are floats, that activations need not be quantized for."""
    return format.weights == 1


def multiply_name(format: Format, columns: int) -> str:
    """The symbol of a kernel."""
    return f"multiply_{format.name}_{columns}"


def emit_multiply(module: ir.Module, isa: InstructionSet, format: Format, columns: int) -> None:
    """Define ``void (weights, x, out, blocks, first, last)`` for so many columns.

    weights: the packed matrix. x, out: arrays of addresses, one for each column: of its records
    (of its floats, for 16-bit weights), of its results. blocks: in a row. first, last: groups of
    rows; the results of all rows of a group are written.
    """
    name = multiply_name(format, columns)
    b = function(module, name, VOID, [POINTER, POINTER, POINTER, I64, I64, I64])
    weights, x, out, blocks, first, last = b.function.args
    inputs = [_address(b, x, column) for column in range(columns)]
    outputs = [_address(b, out, column) for column in range(columns)]
    group_size = b.mul(blocks, I64(isa.rows * format.block))
    group_size = b.and_(b.add(group_size, I64(ALIGNMENT - 1)), I64(-ALIGNMENT))

    def group(index: Value, _: list[Value]) -> list[Value]:
        start = b.gep(weights, [b.mul(index, group_size)])
        if is_float(format):
            sums = _float_group(b, isa, format, start, inputs, blocks)
        else:
            sums = _group(b, isa, format, start, inputs, blocks)
        where = b.mul(index, I64(4 * isa.rows))
        for pointer, total in zip(outputs, sums, strict=True):
            b.store_at(total, pointer, where)
        return []

    b.loop(first, last, 1, [], group)
    b.ret_void()


def _address(b: Builder, array: Value, index: int) -> Value:
    return b.inttoptr(b.load_at(array, 8 * index, I64), POINTER)


def _group(
    b: Builder,
    isa: InstructionSet,
    format: Format,
    start: Value,
    inputs: Sequence[Value],
    blocks: Value,
) -> list[Value]:
    planes, before = [], 0
    for field in format.fields:
        planes.append(b.gep(start, [b.mul(blocks, I64(isa.rows * before))]))
        before += field.size

    def block(index: Value, sums: list[Value]) -> list[Value]:
        steps = steps_of(Block(b, isa, format, planes, index))
        weights = format.weights // steps.total

        def step(number: Value, sums: list[Value]) -> list[Value]:
            position = b.add(b.mul(index, I64(steps.total)), number)
            records = [b.gep(x, [b.mul(position, I64(weights // BLOCK * RECORD))]) for x in inputs]
            size = isa.rows * format.block // steps.total
            behind = b.gep(start, [b.mul(position, I64(size))])
            for unit in steps.read(number):
                # A few at a time: a processor that waits for many lines loads nothing else.
                first, last = (size * at // weights for at in (unit.start, unit.start + unit.size))
                _ask_ahead(b, behind, first, last)
                sums = _add_unit(b, isa, unit, records, sums)
            return sums

        if steps.total == 1:
            return step(I64(0), sums)
        return b.loop(I64(0), I64(steps.total), 1, sums, step)

    zero = ir.Constant(vector(F32, isa.rows), [0.0] * isa.rows)
    return b.loop(I64(0), blocks, 1, [zero] * len(inputs), block)


def _ask_ahead(b: Builder, weights: Value, first: int, last: int) -> None:
    """Have the memory fetch the lines that begin in these bytes, so far ahead."""
    for offset in range((first + _LINE - 1) // _LINE * _LINE, last, _LINE):
        address = b.gep(weights, [I64(_AHEAD + offset)])
        b.intrinsic("llvm.prefetch.p0", VOID, address, I32(0), I32(_INTO), I32(1))


def _add_unit(
    b: Builder, isa: InstructionSet, unit: Unit, records: Sequence[Value], sums: list[Value]
) -> list[Value]:
    """Add scale (x scale . integer sum) + minimum (x scale . x sum) to each column's sum."""
    record, within = divmod(unit.start, BLOCK)
    record *= RECORD
    fours = range(record + within, record + within + unit.size, 4)
    added: list[Value] = []
    for first in range(0, len(records), isa.tile):
        tile = records[first : first + isa.tile]
        x = [[b.load_at(each, four, I32) for four in fours] for each in tile]
        offsets = [b.load_at(each, record + _OFFSET, I32) for each in tile]
        for each, product in zip(tile, isa.dots(b, unit.codes, x, offsets), strict=True):
            block = b.gep(each, [I64(record)])
            added.append(_scaled(b, isa, unit, block, product, sums[len(added)]))
    return added


def _scaled(
    b: Builder, isa: InstructionSet, unit: Unit, record: Value, product: Value, total: Value
) -> Value:
    products = b.sitofp(product, vector(F32, isa.rows))
    scale = b.splat(b.load_at(record, _SCALE, F32), isa.rows)
    total = isa.multiply_add(b, b.fmul(products, scale), unit.scale, total)
    if unit.minimum is None:
        return total
    half = unit.start % BLOCK // (BLOCK // 2)
    where = _SUM if unit.size == BLOCK else _HALVES[half]
    sums = b.splat(b.load_at(record, where, F32), isa.rows)
    return isa.multiply_add(b, sums, unit.minimum, total)


def _float_group(
    b: Builder,
    isa: InstructionSet,
    format: Format,
    start: Value,
    inputs: Sequence[Value],
    width: Value,
) -> list[Value]:
    """Even and odd weights are summed apart, so that one addition need not wait for the other."""
    floats = vector(F32, isa.rows)

    def weight(index: Value) -> Value:
        where = b.mul(index, I64(2 * isa.rows))
        if format.name == "F16":
            return b.fpext(b.load_at(start, where, vector(F16, isa.rows)), floats)
        bits = b.zext(b.load_at(start, where, vector(I16, isa.rows)), vector(I32, isa.rows))
        return b.bitcast(b.shift(bits, -16), floats)

    def add(index: Value, sums: Sequence[Value]) -> list[Value]:
        one, where = weight(index), b.mul(index, I64(4))
        return [
            isa.multiply_add(b, b.splat(b.load_at(x, where, F32), isa.rows), one, total)
            for x, total in zip(inputs, sums, strict=True)
        ]

    def two(index: Value, sums: list[Value]) -> list[Value]:
        size = 2 * isa.rows * format.block
        _ask_ahead(b, b.gep(start, [b.mul(index, I64(size // 2))]), 0, size)
        half = len(sums) // 2
        return [*add(index, sums[:half]), *add(b.add(index, I64(1)), sums[half:])]

    zero = ir.Constant(floats, [0.0] * isa.rows)
    even_width = b.and_(width, I64(-2))
    sums = b.loop(I64(0), even_width, 2, [zero] * (2 * len(inputs)), two)
    half = len(inputs)
    first = b.loop(even_width, width, 1, sums[:half], add)
    return [b.fadd(even, odd) for even, odd in zip(first, sums[half:], strict=True)]


def emit_quantize(module: ir.Module, isa: InstructionSet) -> None:
    """Define ``void quantize(x, records, blocks)``: floats to records of `RECORD` bytes."""
    b = function(module, "quantize", VOID, [POINTER, POINTER, I64])
    x, records, blocks = b.function.args
    floats, integers = vector(F32, BLOCK), vector(I32, BLOCK)

    def block(index: Value, _: list[Value]) -> list[Value]:
        values = b.load_at(x, b.mul(index, I64(4 * BLOCK)), floats)
        bits = b.masked(b.bitcast(values, integers), 0x7FFFFFFF)
        largest = b.intrinsic(f"llvm.vector.reduce.umax.v{BLOCK}i32", I32, bits)
        finite = b.icmp_unsigned("<", largest, I32(_INFINITE))
        usable = b.and_(finite, b.icmp_unsigned(">", largest, I32(_LEAST)))
        most = b.bitcast(largest, F32)
        scale = b.select(usable, b.fdiv(most, F32(127.0)), F32(0.0))
        scale = b.select(finite, scale, F32(float("nan")))
        factor = b.select(usable, b.fdiv(F32(127.0), most), F32(0.0))
        values = b.select(b.splat(usable, BLOCK), values, ir.Constant(floats, [0.0] * BLOCK))
        scaled = b.fmul(values, b.splat(factor, BLOCK))
        rounded = b.intrinsic(f"llvm.rint.v{BLOCK}f32", floats, scaled)
        codes = b.fptosi(rounded, integers)
        _store_record(b, b.gep(records, [b.mul(index, I64(RECORD))]), codes, scale)
        return []

    b.loop(I64(0), blocks, 1, [], block)
    b.ret_void()


def _store_record(b: Builder, record: Value, codes: Value, scale: Value) -> None:
    half = BLOCK // 2
    undefined = ir.Constant(codes.type, ir.Undefined)
    sums = []
    for first in (0, half):
        indices = ir.Constant(vector(I32, half), list(range(first, first + half)))
        part = b.shuffle_vector(codes, undefined, indices)
        sums.append(b.intrinsic(f"llvm.vector.reduce.add.v{half}i32", I32, part))
    total = b.add(*sums)
    b.store_at(b.trunc(codes, vector(I8, BLOCK)), record, 0)
    b.store_at(scale, record, _SCALE)
    for where, integer in zip((_SUM, *_HALVES), (total, *sums), strict=True):
        b.store_at(b.fmul(scale, b.sitofp(integer, F32)), record, where)
    b.store_at(b.mul(total, I32(-128)), record, _OFFSET)
