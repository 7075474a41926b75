"""How each format's bits become codes and scales, as instructions of a kernel.

A `Unit` is 16 or 32 neighbouring weights, each scale * factor * (code - zero) + minimum * least:
scale and minimum are of the block, factor and least of the unit. Blocks of 256 are read in a loop
of a few steps, which keeps the code small and quick to compile. The formulas are those of ggml's
dequantize_row functions (ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from edgespec.kernels.formats import Format
from edgespec.kernels.isa import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Codes,
    InstructionSet,
    Value,
    vector,
)

__all__ = ["Block", "Steps", "Unit", "steps_of"]

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_FP4_ZERO = 12  # added, so that codes are unsigned


class Unit(NamedTuple):
    """Neighbouring weights with one factor.

    Attributes:
        start: of the first weight, in its step.
        codes: a vector for each 4 weights.
        factor: <rows x float>, or None where the unit is the block.
    """

    start: int
    codes: Codes
    factor: Value | None = None

    @property
    def size(self) -> int:
        """Weights."""
        return 4 * len(self.codes.vectors)


class Steps(NamedTuple):
    """How a block is read.

    Attributes:
        total: steps, each with as many weights.
        read: the units of one step, given its number.
        scale: <rows x float>.
        minimum: <rows x float>, or None where codes and scales are all.
        least: what the minimum is multiplied by in each unit, or None where the unit is the block.
    """

    total: int
    read: Callable[[Value], Iterator[Unit]]
    scale: Value
    minimum: Value | None = None
    least: Codes | None = None


class Block:
    """Loads a packed block of a group of rows.

    Args:
        planes: for each field where it begins in the group.
        index: the block's number.
    """

    def __init__(
        self, b: Builder, isa: InstructionSet, format: Format, planes: list[Value], index: Value
    ) -> None:
        self.b, self.isa, self.format = b, isa, format
        self._pointers = {
            field.name: (field, b.gep(plane, [b.mul(index, I64(isa.rows * field.size))]))
            for field, plane in zip(format.fields, planes, strict=True)
        }

    def words(self, name: str, unit: int, base: Value | None = None) -> Value:
        """Return a unit of 4 bytes of each row: <rows x i32>; counted from unit `base` on."""
        return self._load(name, unit, vector(I32, self.isa.rows), base)

    def bytes(self, words: Value) -> Value:
        """Return the same bits as <4 rows x i8>."""
        return self.b.bitcast(words, vector(I8, 4 * self.isa.rows))

    def half(self, name: str) -> Value:
        """Return a float16 of each row: <rows x float>."""
        half = self._load(name, 0, vector(F16, self.isa.rows))
        return self.b.fpext(half, vector(F32, self.isa.rows))

    def integers(self, name: str, kind: object) -> Value:
        """Return an unsigned integer of each row: <rows x i32>."""
        return self.b.zext(
            self._load(name, 0, vector(kind, self.isa.rows)), vector(I32, self.isa.rows)
        )

    def _load(self, name: str, unit: int, kind: object, base: Value | None = None) -> Value:
        field, pointer = self._pointers[name]
        size = field.unit * self.isa.rows
        if base is not None:
            pointer = self.b.gep(pointer, [self.b.mul(base, I64(size))])
        return self.b.load_at(pointer, unit * size, kind)

    def nibbles(self, unit: int, high: bool, base: Value | None = None) -> Value:
        """Return the 4-bit codes of a unit, in bytes of <rows x i32>."""
        words = self.words("codes", unit, base)
        return self.b.masked(self.b.shift(words, 4 * high), 0x0F0F0F0F)

    def moved(self, words: Value, distance: Value) -> Value:
        """Return every lane shifted right by an i64."""
        narrow = self.b.trunc(distance, I32)
        return self.b.lshr(words, self.b.splat(narrow, self.isa.rows))

    def either(self, second: Value, words: list[Value]) -> Value:
        """Return one of two vectors: the second where the i64 is not 0."""
        return self.b.select(self.b.icmp_unsigned("!=", second, I64(0)), words[1], words[0])

    def bits(self, words: Value, right: int, mask: int, left: int) -> Value:
        """Return the bits of every byte, moved to another place: (bytes >> right & mask) << left.

        A byte's neighbour shifted into it is masked out.
        """
        b, distance = self.b, right - left
        return b.masked(b.shift(words, distance), (mask << left) * 0x01010101)

    def as_float(self, integers: Value) -> Value:
        """Convert signed <rows x i32> to float."""
        return self.b.sitofp(integers, vector(F32, self.isa.rows))

    def scaled(self, value: Value, factor: float) -> Value:
        """Multiply by a constant."""
        return self.b.fmul(value, self.b.splat(F32(factor), self.isa.rows))

    def byte(self, words: Value, index: int, signed: bool = False) -> Value:
        """Return one byte of every lane: <rows x i32>."""
        if not signed:
            return self.b.masked(self.b.shift(words, 8 * index), 0xFF)
        up = self.b.shift(words, 8 * index - 24)
        return self.b.ashr(up, self.b.splat(I32(24), self.isa.rows))

    def minus(self, integers: Value, constant: int) -> Value:
        """Return every lane less a constant."""
        return self.b.sub(integers, self.b.splat(I32(constant), self.isa.rows))


def steps_of(block: Block) -> Steps:
    """Return how to read this block."""
    return _READERS[block.format.name](block)


def _one(
    block: Block, codes: Codes, scale: Value | None = None, minimum: Value | None = None
) -> Steps:
    """Return a block that is one unit."""
    return Steps(1, lambda _: iter([Unit(0, codes)]), scale or block.half("scale"), minimum)


def _vectors(block: Block, words: list[Value], most: int, zero: int = 0) -> Codes:
    return Codes([block.bytes(word) for word in words], most, zero)


def _four_bits(block: Block, zero: int = 0) -> Codes:
    return _vectors(block, [block.nibbles(unit % 4, unit >= 4) for unit in range(8)], 15, zero)


def _five_bits(block: Block, zero: int = 0) -> Codes:
    high = block.words("high", 0)
    codes = [
        block.b.or_(block.nibbles(unit % 4, unit >= 4), block.bits(high, unit, 1, 4))
        for unit in range(8)
    ]
    return _vectors(block, codes, 31, zero)


def _from_table(
    block: Block, table: tuple[int, ...], most: int = 0, zero: int = 0, base: Value | None = None
) -> Codes:
    indices = [block.bytes(block.nibbles(unit % 4, unit >= 4, base)) for unit in range(8)]
    return Codes([block.isa.look_up(block.b, table, index) for index in indices], most, zero)


def _q4_0(block: Block) -> Steps:
    return _one(block, _four_bits(block, zero=8))


def _q4_1(block: Block) -> Steps:
    return _one(block, _four_bits(block), minimum=block.half("minimum"))


def _q5_0(block: Block) -> Steps:
    return _one(block, _five_bits(block, zero=16))


def _q5_1(block: Block) -> Steps:
    return _one(block, _five_bits(block), minimum=block.half("minimum"))


def _q8_0(block: Block) -> Steps:
    return _one(block, _vectors(block, [block.words("codes", unit) for unit in range(8)], 0))


def _iq4_nl(block: Block) -> Steps:
    return _one(block, _from_table(block, _IQ4))


def _mxfp4(block: Block) -> Steps:
    b, rows = block.b, block.isa.rows
    exponent = block.integers("scale", I8)
    # 2^(e - 128): the values in the table are doubled. The two least exponents are subnormal.
    normal = b.shift(block.minus(exponent, 1), -23)
    subnormal = b.shl(b.splat(I32(0x00200000), rows), exponent)
    small = b.icmp_unsigned("<", exponent, b.splat(I32(2), rows))
    scale = b.bitcast(b.select(small, subnormal, normal), vector(F32, rows))
    table = tuple(value + _FP4_ZERO for value in _FP4)
    return _one(block, _from_table(block, table, 2 * _FP4_ZERO, _FP4_ZERO), scale)


def _iq4_xs(block: Block) -> Steps:
    b = block.b
    low, high = block.words("scales", 0), block.integers("scales_high", I16)

    def read(step: Value) -> Iterator[Unit]:
        four = b.masked(block.moved(low, b.mul(step, I64(4))), 15)
        two = b.masked(block.moved(high, b.mul(step, I64(2))), 3)
        factor = block.as_float(block.minus(b.or_(four, b.shift(two, -4)), 32))
        yield Unit(0, _from_table(block, _IQ4, base=b.mul(step, I64(4))), factor)

    return Steps(8, read, block.half("scale"))


def _six_bit_scales(block: Block) -> tuple[list[Value], list[Value]]:
    """Factors and minima of Q4_K and Q5_K, four in the bytes of each <rows x i32>."""
    b = block.b
    first, second, third = (block.words("scales", unit) for unit in range(3))
    scales = [
        block.bits(first, 0, 63, 0),
        b.or_(block.bits(third, 0, 15, 0), block.bits(first, 6, 3, 4)),
    ]
    minima = [
        block.bits(second, 0, 63, 0),
        b.or_(block.bits(third, 4, 15, 0), block.bits(second, 6, 3, 4)),
    ]
    return scales, minima


def _q45_k(block: Block, codes_of: Callable[[Value, int], Codes]) -> Steps:
    b = block.b
    scales, minima = _six_bit_scales(block)

    def read(step: Value) -> Iterator[Unit]:
        second, distance = b.lshr(step, I64(1)), b.mul(b.and_(step, I64(1)), I64(16))
        two_scales = block.moved(block.either(second, scales), distance)
        for index in range(2):
            factor = block.as_float(block.byte(two_scales, index))
            yield Unit(32 * index, codes_of(step, index), factor)

    minimum = block.scaled(block.half("minimum"), -1.0)
    return Steps(4, read, block.half("scale"), minimum, _vectors(block, minima, 63))


def _q4_k(block: Block) -> Steps:
    def codes(step: Value, index: int) -> Codes:
        base = block.b.mul(step, I64(8))
        return _vectors(block, [block.nibbles(unit, index == 1, base) for unit in range(8)], 15)

    return _q45_k(block, codes)


def _q5_k(block: Block) -> Steps:
    def codes(step: Value, index: int) -> Codes:
        b = block.b
        base, distance = b.mul(step, I64(8)), b.mul(step, I64(2))
        high = [block.moved(block.words("high", unit), distance) for unit in range(8)]
        words = [
            b.or_(block.nibbles(unit, index == 1, base), block.bits(high[unit], index, 1, 4))
            for unit in range(8)
        ]
        return _vectors(block, words, 31)

    return _q45_k(block, codes)


def _two_bits(block: Block, half: Value, index: int) -> list[Value]:
    """Return the codes of the 16 weights from 16 `index` on in a half, of Q2_K and Q3_K."""
    base = block.b.mul(half, I64(8))
    return [
        block.bits(block.words("codes", 4 * (index % 2) + unit, base), 2 * (index // 2), 3, 0)
        for unit in range(4)
    ]


def _q2_k(block: Block) -> Steps:
    b = block.b

    def read(half: Value) -> Iterator[Unit]:
        for index in range(8):
            packed = block.words("scales", index // 4, b.mul(half, I64(2)))
            factor = block.as_float(block.byte(block.bits(packed, 0, 15, 0), index % 4))
            yield Unit(16 * index, _vectors(block, _two_bits(block, half, index), 3), factor)

    minima = [block.bits(block.words("scales", unit), 4, 15, 0) for unit in range(4)]
    minimum = block.scaled(block.half("minimum"), -1.0)
    return Steps(2, read, block.half("scale"), minimum, _vectors(block, minima, 15))


def _q3_k(block: Block) -> Steps:
    b = block.b
    words = [block.words("scales", unit) for unit in range(3)]
    scales = [
        b.or_(
            block.bits(words[index % 2], 4 * (index // 2), 15, 0),
            block.bits(words[2], 2 * index, 3, 4),
        )
        for index in range(4)
    ]

    def read(half: Value) -> Iterator[Unit]:
        for index in range(8):
            packed = block.either(half, [scales[index // 4], scales[2 + index // 4]])
            factor = block.as_float(block.minus(block.byte(packed, index % 4), 32))
            codes = []
            for unit, low in enumerate(_two_bits(block, half, index)):
                high = block.words("high", 4 * (index % 2) + unit)
                high = block.moved(high, b.mul(half, I64(4)))
                codes.append(b.or_(low, block.bits(high, index // 2, 1, 2)))
            yield Unit(16 * index, _vectors(block, codes, 7, 4), factor)

    return Steps(2, read, block.half("scale"))


def _q6_k(block: Block) -> Steps:
    b = block.b

    def codes(half: Value, index: int) -> Codes:
        part, within = index // 2, 4 * (index % 2)
        words = []
        for unit in range(within, within + 4):
            low = block.nibbles(8 * (part % 2) + unit, part >= 2, b.mul(half, I64(16)))
            high = block.words("high", unit, b.mul(half, I64(8)))
            words.append(b.or_(low, block.bits(high, 2 * part, 3, 4)))
        return _vectors(block, words, 63, 32)

    def read(half: Value) -> Iterator[Unit]:
        for index in range(8):
            packed = block.words("scales", index // 4, b.mul(half, I64(2)))
            factor = block.as_float(block.byte(packed, index % 4, signed=True))
            yield Unit(16 * index, codes(half, index), factor)

    return Steps(2, read, block.half("scale"))


_READERS: dict[str, Callable[[Block], Steps]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
