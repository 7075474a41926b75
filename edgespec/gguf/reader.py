"""The gguf package's reader, made safe for untrusted files and fast for large ones.

GGUFReader slices a memory map and accepts what it gets: a length that points past the end gives a
short array, and a hostile count keeps it busy for hours. It also makes an array object for every
token and every merge, which takes two seconds for a vocabulary of 49,152. Here every read is
checked against the file's end, counts are bounded, and an array of strings is read as one block,
decoded on demand.

Before anything else is read, the first 24 bytes tell a foreign file, an older format or a nonsense
count from a GGUF.
"""

from __future__ import annotations

import math
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField

from edgespec._types import AnyArray
from edgespec.errors import ModelFileError

__all__ = [
    "BoundedReader",
    "MalformedError",
    "Metadata",
    "TruncatedError",
    "damaged",
    "open_gguf",
    "split_strings",
]

_U64 = struct.Struct("<Q")
_MAX_STRINGS = 1 << 22
_MAX_DIMENSIONS = 4
_SMALLEST_ALIGNMENT = 4
_MAX_ELEMENTS = 1 << 53


class MalformedError(ValueError):
    """The file contradicts itself or the format."""


class TruncatedError(MalformedError):
    """The file ends before what it announces."""


class BoundedReader(GGUFReader):  # type: ignore[misc]  # gguf is not followed by the type checker
    """A GGUFReader that raises MalformedError or TruncatedError where that one would continue."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._strings_left = _MAX_STRINGS
        super().__init__(path, "r")

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: str | None = None
    ) -> AnyArray:
        # The caller has made sure that file and machine are both little-endian.
        kind = np.dtype(dtype)
        offset, count = int(offset), int(count)
        end = offset + kind.itemsize * count
        if end > len(self.data):
            raise TruncatedError(f"it ends at byte {len(self.data):,}, and should reach {end:,}")
        return np.asarray(self.data[offset:end]).view(kind)

    def _push_field(self, field: ReaderField, skip_sum: bool = False) -> int:
        if field.name in self.fields:
            raise MalformedError(f"the key {field.name!r} occurs twice")
        if field.name == "general.alignment":
            _check_alignment(field)
        return int(super()._push_field(field, skip_sum))

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[AnyArray], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[AnyArray], list[int], list[Any]]
            parts = super()._get_field_parts(orig_offs, raw_type)
            return parts
        item, length = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        block = self._array(orig_offs + 12, GGUFValueType(item[0]), int(length[0]))
        types = [GGUFValueType.ARRAY, GGUFValueType(item[0])]
        return 12 + block.nbytes, [item, length, block], [2], types

    def _array(self, offset: int, item: Any, length: int) -> AnyArray:
        """Return an array's items as one array; strings as the bytes they occupy."""
        if item == GGUFValueType.STRING:
            self._strings_left -= length
            if self._strings_left < 0:
                raise MalformedError(f"it has more than {_MAX_STRINGS:,} strings in arrays")
            return self._get(offset, np.uint8, self._strings_size(offset, length))
        if item not in self.gguf_scalar_to_np:
            raise MalformedError("it has an array of arrays")
        return self._get(offset, self.gguf_scalar_to_np[item], length)

    def _strings_size(self, offset: int, length: int) -> int:
        read, data = _U64.unpack_from, self.data
        position, last = offset, len(data) - 8
        for _ in range(length):
            if position > last:
                raise TruncatedError("it ends inside a list of strings")
            position += 8 + read(data, position)[0]
        return position - offset

    def _get_tensor_info_field(self, orig_offs: int) -> ReaderField:
        field = super()._get_tensor_info_field(orig_offs)
        dimensions = field.parts[3]
        if not 1 <= len(dimensions) <= _MAX_DIMENSIONS:
            raise MalformedError(f"tensor {field.name!r} has {len(dimensions):,} dimensions")
        # With Python's unbounded integers: the reader's own product and sum wrap around.
        shape, offset = dimensions.tolist(), int(field.parts[5][0])
        if not 0 < prod(shape) <= _MAX_ELEMENTS:
            raise MalformedError(f"tensor {field.name!r} has the absurd shape {shape}")
        if offset > len(self.data):
            raise TruncatedError(f"tensor {field.name!r} begins at byte {offset:,} of its data")
        return field


def _check_alignment(field: ReaderField) -> None:
    # The reader of gguf 0.17 divides by it, and llama.cpp asserts on the lowest two.
    value = int(field.parts[-1][0]) if field.types == [GGUFValueType.UINT32] else 0
    if value < _SMALLEST_ALIGNMENT or value & (value - 1):
        raise MalformedError("general.alignment is not a power of two from 4 on")


def split_strings(block: bytes) -> list[bytes]:
    """Split an array of strings that `BoundedReader` read as one block."""
    read, found, position, end = _U64.unpack_from, [], 0, len(block)
    while position < end:
        start = position + 8
        position = start + read(block, position)[0]
        found.append(block[start:position])
    return found


_FIXED = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8
# Real models have some dozens of keys and some hundreds or thousands of tensors.
_MOST_PAIRS = 1 << 13
_MOST_TENSORS = 1 << 15
_FOREIGN = (
    (b"lmgg", "an old GGML file: convert it to GGUF"),
    (b"tjgg", "an old GGML file: convert it to GGUF"),
    (b"fmgg", "an old GGML file: convert it to GGUF"),
    (b"PK\x03\x04", "a zip archive or a PyTorch file: convert it to GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` where it came from"),
    (b"<", "a web page or XML, as a failed download leaves behind: download it again"),
    (b"{", "a JSON file: name the .gguf file instead"),
)


def open_gguf(path: Path) -> BoundedReader:
    """Read the header of *path*.

    Raises ModelFileError if it is missing, not a readable file, empty, not a GGUF, of another
    version or byte order, truncated, or if its counts and sizes are absurd.
    """
    size = _size(path)
    try:
        with path.open("rb") as file:
            start = file.read(_FIXED.size)
        _check_fixed(path, start, size)
        return BoundedReader(path)
    except TruncatedError as error:
        raise ModelFileError(f"{path} is truncated: {error}: download it again") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(f"{path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise damaged(path, MalformedError("a name in it is not valid UTF-8")) from None
    except (
        ArithmeticError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        # It is not specified what the reader raises on nonsense: all of it means the same.
        raise damaged(path, error) from None


def damaged(path: Path, error: BaseException) -> ModelFileError:
    """Return the error for a file whose content makes no sense."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ModelFileError(f"{path} is damaged: {reason}: download it again or choose another file")


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a folder: name the .gguf file in it")
        if not path.exists():
            raise ModelFileError(f"no such file: {path}")
        if not path.is_file():
            raise ModelFileError(f"{path} is not a regular file")
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{path} cannot be read: {reason}") from None
    if size == 0:
        raise ModelFileError(f"{path} is empty: download it again")
    return size


def _check_fixed(path: Path, start: bytes, size: int) -> None:
    if not start.startswith(b"GGUF"):
        raise ModelFileError(f"{path} is not a GGUF file{_guess(start)}")
    if len(start) < _FIXED.size:
        raise TruncatedError(f"it has {size} bytes")
    _, version, tensors, pairs = _FIXED.unpack(start)
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(f"{path} is big-endian: get or convert a little-endian GGUF")
    if version not in _VERSIONS:
        raise ModelFileError(
            f"{path} is GGUF version {version}, and only 2 and 3 are known: convert it again"
        )
    if tensors == 0:
        raise ModelFileError(f"{path} holds no tensors: it is a vocabulary or metadata only")
    if pairs > _MOST_PAIRS or tensors > _MOST_TENSORS:
        raise MalformedError(f"it claims {pairs:,} keys and {tensors:,} tensors")
    if pairs * _SMALLEST_PAIR + tensors * _SMALLEST_TENSOR > size - _FIXED.size:
        raise TruncatedError(f"{size:,} bytes cannot hold {pairs:,} keys and {tensors:,} tensors")


def _guess(start: bytes) -> str:
    known = next((what for magic, what in _FOREIGN if start.startswith(magic)), None)
    return f" but {known}" if known else ": choose a file in GGUF format"


# -- typed access to pairs of key and value -----------------------------------------------------

_INTEGERS = frozenset(kind for kind in GGUFValueType if kind.name.startswith(("INT", "UINT")))
# What converters write if a model has no such token.
_NO_TOKEN = (-1, 0xFFFFFFFF)


class Metadata:
    """The pairs of one file.

    Every getter returns None if there is no such key, and raises MalformedError if the value has
    another type or is out of range.
    """

    def __init__(self, reader: BoundedReader) -> None:
        self._fields: dict[str, Any] = reader.fields

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def text(self, key: str) -> str | None:
        """Return a string."""
        field = self._typed(key, GGUFValueType.STRING)
        if field is None:
            return None
        try:
            return str(field.parts[-1].tobytes(), "utf-8")
        except UnicodeDecodeError:
            raise MalformedError(f"{key} is not valid UTF-8") from None

    def flag(self, key: str) -> bool | None:
        """Return a boolean."""
        field = self._typed(key, GGUFValueType.BOOL)
        return None if field is None else bool(field.parts[-1][0])

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number from *low* to *high*."""
        field = self._fields.get(key)
        if field is None:
            return None
        if len(field.types) != 1 or field.types[0] not in _INTEGERS:
            raise MalformedError(f"{key} is not a whole number")
        return _within(key, int(field.parts[-1][0]), low, high)

    def required(self, key: str, low: int, high: int) -> int:
        """Return a whole number; raise MalformedError if there is none."""
        value = self.integer(key, low, high)
        if value is None:
            raise MalformedError(f"it has no {key}")
        return value

    def per_layer(self, key: str, layers: int, high: int) -> tuple[int, ...] | None:
        """Return a whole number for each layer; the file may have one for all."""
        field = self._fields.get(key)
        if field is None:
            return None
        if not field.types or field.types[-1] not in _INTEGERS:
            raise MalformedError(f"{key} is not a whole number for each layer")
        values = [_within(key, int(value), 0, high) for value in field.parts[-1][: layers + 1]]
        if len(field.types) == 1:
            return (values[0],) * layers
        if len(field.parts[-1]) != layers:
            raise MalformedError(f"{key} has {len(field.parts[-1])} entries for {layers} layers")
        return tuple(values)

    def pattern(self, key: str, layers: int) -> int | tuple[bool, ...] | None:
        """Return a period of layers, or whether each layer is meant."""
        field = self._fields.get(key)
        if field is None or len(field.types) == 1:
            return self.integer(key, 0, 1 << 31)
        if field.types[1] not in (*_INTEGERS, GGUFValueType.BOOL):
            raise MalformedError(f"{key} is not a list of yes and no")
        if len(field.parts[-1]) < layers:
            raise MalformedError(f"{key} has {len(field.parts[-1])} entries for {layers} layers")
        return tuple(bool(value) for value in field.parts[-1][:layers])

    def finite(self, key: str, *, zero: bool = False) -> float | None:
        """Return a finite positive number; *zero* allows 0."""
        field = self._typed(key, GGUFValueType.FLOAT32)
        if field is None:
            return None
        value = float(field.parts[-1][0])
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise MalformedError(f"{key} is {value:g}, not a positive number")
        return value

    def token(self, key: str, vocabulary_size: int) -> int | None:
        """Return a token's id."""
        value = self.integer(key, -1, 0xFFFFFFFF)
        if value is None or value in _NO_TOKEN:
            return None
        if value >= vocabulary_size:
            raise MalformedError(f"{key} is {value}, past the vocabulary of {vocabulary_size:,}")
        return value

    def numbers(self, key: str) -> AnyArray | None:
        """Return an array of numbers."""
        field = self._fields.get(key)
        if field is None:
            return None
        if len(field.types) != 2 or field.types[1] == GGUFValueType.STRING:
            raise MalformedError(f"{key} is not a list of numbers")
        values: AnyArray = np.array(field.parts[-1])
        return values

    def strings(self, key: str) -> tuple[int, bytes] | None:
        """Return an array of strings: their number, and a block for `split_strings`."""
        field = self._fields.get(key)
        if field is None:
            return None
        if field.types != [GGUFValueType.ARRAY, GGUFValueType.STRING]:
            raise MalformedError(f"{key} is not a list of strings")
        return int(field.parts[-2][0]), field.parts[-1].tobytes()

    def _typed(self, key: str, kind: Any) -> Any:
        field = self._fields.get(key)
        if field is not None and field.types != [kind]:
            raise MalformedError(f"{key} is not of the type {kind.name.lower()}")
        return field


def _within(key: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise MalformedError(f"{key} is {value:,}, which must be from {low:,} to {high:,}")
    return value
