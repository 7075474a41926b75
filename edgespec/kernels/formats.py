"""How each GGUF tensor type lies in a file, and how its bytes are interleaved for the kernels.

A packed matrix has the file's bytes in another order, so that it is as large as in the file and
nothing is lost: `rows` neighbouring rows make a group, a group's fields (codes, scales ...) lie
one after the other, each for the whole width, and within a field the units of the group's rows
alternate. One vector load then brings the same unit of every row.

The block structures are ggml's (ggml-common.h); a unit of codes has 4 bytes, so that one
instruction multiplies 4 codes of each row by 4 activations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import ByteArray
from edgespec.kernels import tables
from edgespec.kernels.native import (
    load8,
    load16,
    load32,
    load64,
    native,
    store8,
    store16,
    store32,
)

__all__ = [
    "FORMATS",
    "Field",
    "Format",
    "group_bytes",
    "pack",
    "pack_row",
    "packed_bytes",
    "packed_size",
    "row_bytes",
    "unpack",
    "unpack_row",
]

ALIGNMENT = 64
"""Bytes: a group begins at a multiple, so that vector loads cross no cache line."""


class Field(NamedTuple):
    """A part of a block that is interleaved.

    Attributes:
        name: "codes", "high", "scale" ...
        offset: bytes from the block's beginning in the file.
        unit: bytes that stay together.
        units: of a block.
        transposed: a unit's 32 bits are rearranged so that bit 8 i + v is what bit 4 v + i was:
            the high bit of element i of unit v then lies in byte i, where the element's code is.
    """

    name: str
    offset: int
    unit: int
    units: int
    transposed: bool = False

    @property
    def size(self) -> int:
        """Bytes in a block."""
        return self.unit * self.units


class Format(NamedTuple):
    """A tensor type.

    Attributes:
        name: as in GGUF.
        type: ggml's number.
        weights: in a block.
        fields: in the order in which they are packed, codes first.
    """

    name: str
    type: int
    weights: int
    fields: tuple[Field, ...]

    @property
    def block(self) -> int:
        """Bytes of a block."""
        return sum(field.size for field in self.fields)

    def field(self, name: str) -> tuple[Field, int]:
        """Return a field, and the bytes of a block that are packed before it."""
        before = 0
        for field in self.fields:
            if field.name == name:
                return field, before
            before += field.size
        raise KeyError(name)


def _format(name: str, number: int, weights: int, *fields: Field) -> Format:
    return Format(name, number, weights, fields)


_SCALE = Field("scale", 0, 2, 1)
_MINIMUM = Field("minimum", 2, 2, 1)

FORMATS: dict[int, Format] = {
    found.type: found
    for found in (
        _format("F16", 1, 1, Field("codes", 0, 2, 1)),
        _format("Q4_0", 2, 32, Field("codes", 2, 4, 4), _SCALE),
        _format("Q4_1", 3, 32, Field("codes", 4, 4, 4), _SCALE, _MINIMUM),
        _format("Q5_0", 6, 32, Field("codes", 6, 4, 4), Field("high", 2, 4, 1, True), _SCALE),
        _format(
            "Q5_1",
            7,
            32,
            Field("codes", 8, 4, 4),
            Field("high", 4, 4, 1, True),
            _SCALE,
            _MINIMUM,
        ),
        _format("Q8_0", 8, 32, Field("codes", 2, 4, 8), _SCALE),
        _format(
            "Q2_K",
            10,
            256,
            Field("codes", 16, 4, 16),
            Field("scales", 0, 4, 4),
            Field("scale", 80, 2, 1),
            Field("minimum", 82, 2, 1),
        ),
        _format(
            "Q3_K",
            11,
            256,
            Field("codes", 32, 4, 16),
            Field("high", 0, 4, 8),
            Field("scales", 96, 4, 3),
            Field("scale", 108, 2, 1),
        ),
        _format(
            "Q4_K", 12, 256, Field("codes", 16, 4, 32), Field("scales", 4, 4, 3), _SCALE, _MINIMUM
        ),
        _format(
            "Q5_K",
            13,
            256,
            Field("codes", 48, 4, 32),
            Field("high", 16, 4, 8),
            Field("scales", 4, 4, 3),
            _SCALE,
            _MINIMUM,
        ),
        _format(
            "Q6_K",
            14,
            256,
            Field("codes", 0, 4, 32),
            Field("high", 128, 4, 16),
            Field("scales", 192, 4, 4),
            Field("scale", 208, 2, 1),
        ),
        _format("IQ4_NL", 20, 32, Field("codes", 2, 4, 4), _SCALE),
        _format(
            "IQ4_XS",
            23,
            256,
            Field("codes", 8, 4, 32),
            Field("scales", 4, 4, 1),
            _SCALE,
            Field("scales_high", 2, 2, 1),
        ),
        _format("BF16", 30, 1, Field("codes", 0, 2, 1)),
        _format("MXFP4", 39, 32, Field("codes", 1, 4, 4), Field("scale", 0, 1, 1)),
    )
}
"""By ggml's type number."""


def group_size(format: Format, width: int, rows: int) -> int:
    """Return the bytes of a group of `rows` rows with `width` weights each."""
    size = rows * (width // format.weights) * format.block
    return -(-size // ALIGNMENT) * ALIGNMENT


def packed_size(format: Format, width: int, height: int, rows: int) -> int:
    """Return the bytes of a packed matrix; the last group is filled up with zero rows."""
    return -(-height // rows) * group_size(format, width, rows)


def pack(format: Format, weights: ByteArray, width: int, rows: int) -> ByteArray:
    """Interleave the rows of a matrix.

    Args:
        weights: uint8 (height, bytes of a row), as in the file.
        width: weights in a row.
        rows: of a group.

    Returns:
        uint8 (groups, group_size).
    """
    height, blocks = len(weights), width // format.weights
    groups = -(-height // rows)
    padded = np.zeros((groups * rows, weights.shape[1]), np.uint8)
    padded[:height] = weights
    source = padded.reshape(groups, rows, blocks, format.block)
    packed = np.zeros((groups, group_size(format, width, rows)), np.uint8)
    start = 0
    for field in format.fields:
        part = source[..., field.offset : field.offset + field.size]
        units = part.reshape(groups, rows, blocks, field.units, field.unit)
        if field.transposed:
            units = _transposed(units, 8)
        end = start + rows * blocks * field.size
        packed[:, start:end] = units.transpose(0, 2, 3, 1, 4).reshape(groups, -1)
        start = end
    return packed


def unpack(format: Format, packed: ByteArray, width: int, height: int, rows: int) -> ByteArray:
    """Undo `pack`: uint8 (height, bytes of a row)."""
    blocks, groups = width // format.weights, len(packed)
    weights = np.empty((groups, rows, blocks, format.block), np.uint8)
    start = 0
    for field in format.fields:
        end = start + rows * blocks * field.size
        units = packed[:, start:end].reshape(groups, blocks, field.units, rows, field.unit)
        units = units.transpose(0, 3, 1, 2, 4)
        if field.transposed:
            units = _transposed(units, 4)
        part = units.reshape(groups, rows, blocks, field.size)
        weights[..., field.offset : field.offset + field.size] = part
        start = end
    return weights.reshape(groups * rows, blocks * format.block)[:height]


def _transposed(units: ByteArray, height: int) -> ByteArray:
    """Transpose the 32 bits of each unit, seen as `height` rows."""
    bits = np.unpackbits(units, axis=-1, bitorder="little")
    table = bits.reshape(*units.shape[:-1], height, 32 // height)
    return np.packbits(np.swapaxes(table, -1, -2).reshape(bits.shape), axis=-1, bitorder="little")


# -- the compiled twins of `pack` and `unpack`, for memory that Python does not own ---------------


@native
def row_bytes(row: int, width: int) -> int:
    """Return the bytes of a row in the file; `row` is the format's in the table."""
    return width // load64(row + 8 * tables.WEIGHTS) * load64(row + 8 * tables.BLOCK)


@native
def group_bytes(row: int, width: int, rows: int) -> int:
    """Return the bytes of a packed group of rows."""
    return (rows * row_bytes(row, width) + ALIGNMENT - 1) & -ALIGNMENT


@native
def packed_bytes(row: int, width: int, height: int, rows: int) -> int:
    """Return the bytes of a packed matrix."""
    return (height + rows - 1) // rows * group_bytes(row, width, rows)


@native
def _moved_bits(bits: int, forth: bool) -> int:
    """Move bit 4 v + i to bit 8 i + v, or back."""
    moved = 0
    for bit in range(32):
        other = (bit & 3) * 8 + (bit >> 2)
        if forth:
            moved |= ((bits >> bit) & 1) << other
        else:
            moved |= ((bits >> other) & 1) << bit
    return moved


@native
def _move(row: int, source: int, group: int, lane: int, width: int, rows: int, forth: bool) -> None:
    """Copy a row between the file's order and its places in a group."""
    blocks = width // load64(row + 8 * tables.WEIGHTS)
    block_bytes = load64(row + 8 * tables.BLOCK)
    for number in range(load64(row + 8 * tables.FIELDS)):
        field = row + 8 * (tables.FIELD + tables.FIELD_SLOTS * number)
        unit, count, transposed = load64(field + 8), load64(field + 16), load64(field + 24)
        plain = source + load64(field)
        packed = group + rows * blocks * load64(field + 32) + lane * unit
        for _ in range(blocks):
            for index in range(count):
                at = plain + index * unit
                if unit == 4:
                    if transposed:
                        if forth:
                            store32(packed, _moved_bits(load32(at), True))
                        else:
                            store32(at, _moved_bits(load32(packed), False))
                    elif forth:
                        store32(packed, load32(at))
                    else:
                        store32(at, load32(packed))
                elif unit == 2:
                    if forth:
                        store16(packed, load16(at))
                    else:
                        store16(at, load16(packed))
                elif forth:
                    store8(packed, load8(at))
                else:
                    store8(at, load8(packed))
                packed += rows * unit
            plain += block_bytes


@native
def pack_row(row: int, source: int, group: int, lane: int, width: int, rows: int) -> None:
    """Put a row of the file into its places in a group."""
    _move(row, source, group, lane, width, rows, True)


@native
def unpack_row(row: int, target: int, group: int, lane: int, width: int, rows: int) -> None:
    """Put a row of a group together again, as it is in the file."""
    _move(row, target, group, lane, width, rows, False)
