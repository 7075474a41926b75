"""Typed access to a GGUF's key-value pairs; errors name the key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gguf import GGUFValueType

from edgespec._types import AnyArray
from edgespec.gguf.reader import BoundedReader, MalformedError

__all__ = ["Metadata"]

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
