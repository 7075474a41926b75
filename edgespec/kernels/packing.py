"""Interleaving the rows of weights when a model is loaded, and taking a row out again.

The compiled twin of `formats.pack` and `unpack`, for memory that Python does not own.
"""

from __future__ import annotations

from edgespec.kernels import tables
from edgespec.kernels.formats import ALIGNMENT
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

__all__ = ["group_bytes", "pack_row", "packed_bytes", "row_bytes", "unpack_row"]


@native
def row_bytes(row: int, width: int) -> int:
    """Bytes of a row in the file; `row` is the format's in the table."""
    return width // load64(row + 8 * tables.WEIGHTS) * load64(row + 8 * tables.BLOCK)


@native
def group_bytes(row: int, width: int, rows: int) -> int:
    """Bytes of a packed group of rows."""
    return (rows * row_bytes(row, width) + ALIGNMENT - 1) & -ALIGNMENT


@native
def packed_bytes(row: int, width: int, height: int, rows: int) -> int:
    """Bytes of a packed matrix."""
    return (height + rows - 1) // rows * group_bytes(row, width, rows)


@native
def _transposed(bits: int, forth: bool) -> int:
    """Bit 4 v + i to bit 8 i + v, or back."""
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
                            store32(packed, _transposed(load32(at), True))
                        else:
                            store32(at, _transposed(load32(packed), False))
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
