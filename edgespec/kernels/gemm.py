"""The kernels: packed weights times a few columns of activations.

A unit's products with a column are summed as integers, its units as floats, and the block joins the
column's sum, one float accumulator (two for 16-bit weights): what comes out for a column does not
depend on how many others there are, or which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ir

from edgespec.kernels.activations import PART_BITS, Record, record_of
from edgespec.kernels.codes import Block, Steps, Unit, steps_of
from edgespec.kernels.formats import ALIGNMENT, Format
from edgespec.kernels.isa import (
    F16,
    F32,
    I16,
    I32,
    I64,
    LINE,
    POINTER,
    VOID,
    Builder,
    Codes,
    InstructionSet,
    Value,
    function,
    vector,
)

__all__ = ["AHEAD", "emit_multiply", "is_float", "multiply_name"]

AHEAD = 32768
"""Bytes: how far ahead weights are asked for. Hardware looks less far, and stops at each page."""
_INTO = 2
"""The second-level cache: in the first they would drive out each other, and the activations."""


def is_float(format: Format) -> bool:
    """Return whether weights are floats, that activations need not be quantized for."""
    return format.weights == 1


def multiply_name(format: Format, columns: int) -> str:
    """Return the symbol of a kernel."""
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

    record, zero = record_of(format), ir.Constant(vector(F32, isa.rows), [0.0] * isa.rows)

    def block(index: Value, sums: list[Value]) -> list[Value]:
        steps = steps_of(Block(b, isa, format, planes, index))
        records = [b.gep(x, [b.mul(index, I64(record.size))]) for x in inputs]
        weights = format.weights // steps.total

        def step(number: Value, products: list[Value]) -> list[Value]:
            size = isa.rows * format.block // steps.total
            behind = b.gep(start, [b.mul(b.add(b.mul(index, I64(steps.total)), number), I64(size))])
            for unit in steps.read(number):
                # A few at a time: a processor that waits for many lines loads nothing else.
                first, last = (size * at // weights for at in (unit.start, unit.start + unit.size))
                _ask_ahead(b, behind, first, last)
                begin = b.add(b.mul(number, I64(weights)), I64(unit.start))
                products = _add_unit(b, isa, record, unit, begin, records, products)
            return products

        products = [zero] * len(inputs)
        if steps.total == 1:
            products = step(I64(0), products)
        else:
            products = b.loop(I64(0), I64(steps.total), 1, products, step)
        return _add_block(b, isa, record, steps, records, products, sums)

    return b.loop(I64(0), blocks, 1, [zero] * len(inputs), block)


def _ask_ahead(b: Builder, weights: Value, first: int, last: int) -> None:
    """Have the memory fetch the lines that begin in these bytes, so far ahead."""
    for offset in range((first + LINE - 1) // LINE * LINE, last, LINE):
        address = b.gep(weights, [I64(AHEAD + offset)])
        b.intrinsic("llvm.prefetch.p0", VOID, address, I32(0), I32(_INTO), I32(1))


def _add_unit(
    b: Builder,
    isa: InstructionSet,
    record: Record,
    unit: Unit,
    begin: Value,
    records: Sequence[Value],
    totals: list[Value],
) -> list[Value]:
    """Add factor x integer sum to each column's products; begin: of the unit's activations.

    Factor and sum have at most 24 bits together: only the addition is rounded.
    """
    shift = unit.size.bit_length() - 1
    where = b.shl(b.lshr(begin, I64(shift)), I64(2))

    def start_of(each: Value) -> Callable[[int], Value]:
        return lambda zero: b.load_at(each, b.add(where, I64(record.starts[zero])), I32)

    integers = _dots(b, isa, unit.codes, records, begin, start_of)
    products = [b.sitofp(found, vector(F32, isa.rows)) for found in integers]
    if unit.factor is None:
        return products
    return [
        isa.multiply_add(b, product, unit.factor, total)
        for total, product in zip(totals, products, strict=True)
    ]


def _dots(
    b: Builder,
    isa: InstructionSet,
    codes: Codes,
    records: Sequence[Value],
    begin: Value,
    start_of: Callable[[Value], Callable[[int], Value]],
) -> list[Value]:
    """Return the products of codes with each column's bytes from `begin` of its record on."""
    products: list[Value] = []
    for first in range(0, len(records), isa.tile):
        tile = records[first : first + isa.tile]
        fours = range(0, 4 * len(codes.vectors), 4)
        x = [[b.load_at(b.gep(each, [begin]), four, I32) for four in fours] for each in tile]
        products += isa.dots(b, codes, x, [start_of(each) for each in tile])
    return products


def _add_block(
    b: Builder,
    isa: InstructionSet,
    record: Record,
    steps: Steps,
    records: Sequence[Value],
    products: list[Value],
    sums: list[Value],
) -> list[Value]:
    """Add x scale (scale . products + minimum . sums of x) to each column's sum."""
    minima: Sequence[Value | None] = [None] * len(records)
    if steps.least is not None:
        minima = _sums_of_x(b, isa, record, steps.least, records)
    added = []
    for each, product, least, total in zip(records, products, minima, sums, strict=True):
        scale = b.splat(b.load_at(each, record.scale, F32), isa.rows)
        if least is not None:
            value = isa.multiply_add(b, least, steps.minimum, b.fmul(product, steps.scale))
            added.append(isa.multiply_add(b, value, scale, total))
            continue
        total = isa.multiply_add(b, b.fmul(product, scale), steps.scale, total)
        if steps.minimum is not None:
            whole = b.splat(b.load_at(each, record.sum, F32), isa.rows)
            total = isa.multiply_add(b, whole, steps.minimum, total)
        added.append(total)
    return added


def _sums_of_x(
    b: Builder, isa: InstructionSet, record: Record, least: Codes, records: Sequence[Value]
) -> list[Value]:
    """Return each unit's sum of activations times its code in `least`, summed: <rows x float>."""
    units = 4 * len(least.vectors)
    low, high = (
        _dots(b, isa, least, records, I64(where), lambda _: I32)  # 0 stands for 0: never asked
        for where in record.parts[record.block // units]
    )
    distance = b.splat(I32(PART_BITS), isa.rows)
    integers = [b.add(b.shl(top, distance), rest) for top, rest in zip(high, low, strict=True)]
    return [b.sitofp(found, vector(F32, isa.rows)) for found in integers]


def _float_group(
    b: Builder,
    isa: InstructionSet,
    format: Format,
    start: Value,
    inputs: Sequence[Value],
    width: Value,
) -> list[Value]:
    """Sum even and odd weights apart, so that no addition waits for the other."""
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
