from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
import pytest

from edgespec._types import ByteArray, Float32Array
from edgespec.kernels.activations import LARGE_RECORD, SMALL_RECORD, Record, record_of
from edgespec.kernels.compiler import Kernels
from edgespec.kernels.formats import FORMATS, Format, pack
from edgespec.kernels.isa import (
    AVX512VNNI,
    I32,
    INSTRUCTION_SETS,
    Builder,
    InstructionSet,
    Value,
    runnable,
    vector,
)
from tests.kernels.twins import BLOCK, multiplied, quantized, random_weights

HEIGHT, WIDTH = 21, 768


class Emulated512(AVX512VNNI):
    """512-bit kernels on any processor: only the two instructions themselves are replaced."""

    name = "emulated 512 bits"
    columns = 2
    needs = ()
    triple = ""
    look_up = InstructionSet.look_up

    def _accumulate(self, b: Builder, total: Value, codes: Value, x: Value) -> Value:
        def quarters(value: Value, extend: Callable[..., Value], byte: int) -> Value:
            indices = [4 * row + byte for row in range(self.rows)]
            mask = ir.Constant(vector(I32, self.rows), indices)
            return extend(b.shuffle_vector(value, value, mask), vector(I32, self.rows))

        for byte in range(4):
            product = b.mul(quarters(codes, b.zext, byte), quarters(x, b.sext, byte))
            total = b.add(total, product)
        return total


class Emulated256(Emulated512):
    name = "emulated 256 bits"
    rows = 8


SETS = pytest.mark.parametrize(
    "isa", [*INSTRUCTION_SETS.values(), Emulated512(), Emulated256()], ids=lambda isa: isa.name
)
ALL = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)

_compiled: dict[str, Kernels] = {}


def kernels_of(isa: InstructionSet) -> Kernels:
    if not runnable(isa):
        pytest.skip(f"this processor has no {isa.name}")
    if isa.name.startswith("emulated") and not runnable(INSTRUCTION_SETS["avx2"]):
        pytest.skip("fused multiply-add of this processor is not known to be fast")
    if isa.name not in _compiled:
        _compiled[isa.name] = Kernels(isa)
    return _compiled[isa.name]


def activations(columns: int, seed: int = 5) -> Float32Array:
    """Ordinary columns, with blocks that are zero, huge, tiny and of a single value."""
    x = np.random.default_rng(seed).standard_normal((columns, WIDTH)).astype(np.float32)
    x[0, :BLOCK] = 0
    x[0, BLOCK : 2 * BLOCK] *= np.float32(1e20)
    x[-1, :BLOCK] *= np.float32(1e-28)
    x[-1, BLOCK : 2 * BLOCK] = -1
    return x


def quantize(kernels: Kernels, x: Float32Array, record: Record) -> ByteArray:
    records = np.zeros((len(x), WIDTH // record.block, record.size), np.uint8)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function = call(kernels.quantize(record))
    for column, written in zip(x, records, strict=True):
        function(column.ctypes.data, written.ctypes.data, WIDTH // record.block)
    return records


def given_for(kernels: Kernels, format: Format, x: Float32Array) -> Float32Array | ByteArray:
    """The form of activations that a format is multiplied by."""
    return x if format.weights == 1 else quantize(kernels, x, record_of(format))


def multiply(
    kernels: Kernels, format: Format, packed: ByteArray, x: Float32Array | ByteArray
) -> Float32Array:
    """All columns in one call of the kernel for so many."""
    rows = kernels.isa.rows
    out = np.full((len(x), len(packed) * rows), 7, np.float32)
    inputs = np.array([column.ctypes.data for column in x])
    outputs = np.array([column.ctypes.data for column in out])
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
    function = kind(kernels.multiply(format)[len(x) - 1])
    addresses = packed.ctypes.data, inputs.ctypes.data, outputs.ctypes.data
    function(*addresses, WIDTH // format.weights, 0, len(packed))
    return out[:, :HEIGHT]


RECORDS = pytest.mark.parametrize("record", [SMALL_RECORD, LARGE_RECORD], ids=["32", "256"])


@SETS
@RECORDS
def test_activations_are_rounded_as_the_twin_rounds_them(
    isa: InstructionSet, record: Record
) -> None:
    x = activations(3)
    records = quantize(kernels_of(isa), x, record)
    codes, scales = quantized(x, record.block)
    assert np.array_equal(records[..., : record.block].view(np.int8).reshape(x.shape), codes)

    def figures(where: int, kind: type, count: int) -> npt.NDArray[Any]:
        size = count * np.dtype(kind).itemsize
        return records[..., where : where + size].copy().view(kind)

    def sums(unit: int) -> npt.NDArray[np.int64]:
        return codes.reshape(*records.shape[:2], -1, unit).sum(-1)

    assert np.array_equal(figures(record.scale, np.float32, 1)[..., 0], scales)
    if record.sum is not None:
        whole = sums(record.block)[..., 0].astype(np.float32)
        assert np.array_equal(figures(record.sum, np.float32, 1)[..., 0], whole * scales)
    for zero, where in record.starts.items():
        expected = -zero * sums(record.unit(zero))
        assert np.array_equal(figures(where, np.int32, expected.shape[-1]), expected)
    for unit, (low, high) in record.parts.items():
        expected = sums(unit)
        count = expected.shape[-1]
        assert np.array_equal(
            figures(low, np.int8, count) + 128 * figures(high, np.int8, count).astype(int), expected
        )


@SETS
@RECORDS
def test_what_is_not_finite_is_not_a_number_in_its_block_only(
    isa: InstructionSet, record: Record
) -> None:
    x = activations(3)
    x[0, 40], x[1, 300], x[2, 0] = np.nan, np.inf, -np.inf
    records = quantize(kernels_of(isa), x, record)
    scales = records[..., record.scale : record.scale + 4].copy().view(np.float32)[..., 0]
    broken = np.argwhere(np.isnan(scales)).tolist()
    assert broken == [[0, 40 // record.block], [1, 300 // record.block], [2, 0]]


@SETS
@ALL
def test_a_product_is_the_twins_bit_for_bit(isa: InstructionSet, format: Format) -> None:
    kernels = kernels_of(isa)
    raw = random_weights(format, HEIGHT, WIDTH, 3)
    x = activations(isa.columns)
    given = given_for(kernels, format, x)
    expected = multiplied(format, raw, x)
    packed = pack(format, raw, WIDTH, isa.rows)
    for columns in range(1, isa.columns + 1):
        got = multiply(kernels, format, packed, given[:columns])
        if isa.fused:
            assert np.array_equal(got, expected[:columns])
        else:  # products are rounded before they are added
            scale = np.abs(expected).max()
            assert np.abs(got - expected[:columns]).max() < 2e-6 * scale


@SETS
@ALL
def test_a_column_does_not_depend_on_the_others(isa: InstructionSet, format: Format) -> None:
    kernels = kernels_of(isa)
    packed = pack(format, random_weights(format, HEIGHT, WIDTH, 4), WIDTH, isa.rows)
    x = activations(isa.columns)
    given = given_for(kernels, format, x)
    alone = [multiply(kernels, format, packed, given[i : i + 1])[0] for i in range(len(x))]
    for shift in range(isa.columns):
        order = [(i + shift) % isa.columns for i in range(isa.columns)]
        together = multiply(kernels, format, packed, given[order])
        assert all(np.array_equal(got, alone[i]) for got, i in zip(together, order, strict=True))


@SETS
@ALL
def test_the_largest_codes_do_not_overflow(isa: InstructionSet, format: Format) -> None:
    """All bits of the codes are set, or none, and all activations have the largest size."""
    kernels = kernels_of(isa)
    raw = random_weights(format, HEIGHT, WIDTH, 6)
    blocks = raw.reshape(HEIGHT, -1, format.block)
    for field in format.fields:
        if field.name in ("codes", "high") and format.weights > 1:
            part = blocks[..., field.offset : field.offset + field.size]
            part[::2], part[1::2] = 255, 128
    x = np.ones((isa.columns, WIDTH), np.float32) * 127
    x[1::2] *= -1
    x[-1, ::2] = -127
    given = given_for(kernels, format, x)
    got = multiply(kernels, format, pack(format, raw, WIDTH, isa.rows), given)
    expected = multiplied(format, raw, x)
    tolerance = 0 if isa.fused else 2e-6 * np.abs(expected).max()
    assert np.abs(got - expected).max() <= tolerance


@SETS
@ALL
def test_wild_scales_give_what_the_twin_gives(isa: InstructionSet, format: Format) -> None:
    """NaN, infinite and subnormal scales: no crash, and the same rows are not a number."""
    kernels = kernels_of(isa)
    raw = random_weights(format, HEIGHT, WIDTH, 7, wild=True)
    x = activations(2)
    given = given_for(kernels, format, x)
    with np.errstate(all="ignore"):
        expected = multiplied(format, raw, x)
    got = multiply(kernels, format, pack(format, raw, WIDTH, isa.rows), given)
    if isa.fused:
        assert np.array_equal(got, expected, equal_nan=True)
    else:  # without fusing, a product may be infinite that is part of a finite sum
        assert np.isfinite(got[np.abs(expected) < 1e30]).all()
