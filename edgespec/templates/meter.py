"""Limits on time and memory, and a meter of what one rendering has used."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

__all__ = ["LimitError", "Meter", "check_needles"]

_VALUE = 1 << 20  # characters and items of one value, besides those of the input
_MEMORY = 1 << 25  # the same, of all values made in one rendering
_SECONDS = 1.0
_SECONDS_A_MESSAGE = 0.002
_DEPTH = 64
_INTEGER_BITS = 4096
_NEEDLE = 256
_SHORT = 1 << 14
_ITEM = 32  # bytes of a reference and of what every object has besides its content
_TICKS = 16  # hooks between two looks at the clock


class LimitError(Exception):
    """The template took too much time or memory."""


class Meter:
    """What one rendering may use, and has used.

    A template can nest one list in another, so that a value of a few bytes becomes terabytes when
    it is printed or compared. The size of a value is therefore its size when written out.

    Args:
        messages, variables: what the template is given; larger ones may take more.
        began: this thread's processor time at which the rendering began; now by default.
    """

    def __init__(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        began: float | None = None,
    ) -> None:
        self._sizes: dict[int, tuple[Any, int, int]] = {}
        self._largest = 1 << 62
        given = self.size((messages, variables))
        self._largest = _VALUE + 4 * given
        self._left = _MEMORY + (16 + len(messages)) * given
        self._output = 0
        self._ticks = 0
        # Processor time, so that a busy machine does not make a template fail.
        began = time.thread_time() if began is None else began
        self._deadline = began + _SECONDS + _SECONDS_A_MESSAGE * len(messages)

    def tick(self) -> None:
        """Stop when time is up, or soon after."""
        self._ticks += 1
        if self._ticks % _TICKS == 0:
            self.check_time()

    def check_time(self) -> None:
        """Stop when time is up; for calls that take much longer than looking at the clock."""
        if time.thread_time() > self._deadline:
            raise LimitError("takes too long")

    def made(self, value: Any) -> Any:
        """Account for a new value and return it."""
        if isinstance(value, str):
            self.made_text(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.size(value)
            self._spend(_ITEM * (4 + len(value)))
        elif isinstance(value, int):
            self.check_integer(value)
        return value

    def made_text(self, length: int) -> None:
        """Account for a new text, preferably before it is made."""
        self.check_length(length)
        self._spend(length)

    def put_aside(self, length: int) -> None:
        """Account for a part of a text that is being made, whose other parts are not known yet."""
        self._spend(length)

    def put_out(self, length: int) -> None:
        """Account for one more piece of the output."""
        self._output += length
        self.check_length(self._output)

    def check_length(self, length: int) -> None:
        """Refuse a text that is too long."""
        if length > self._largest:
            raise LimitError("makes too long a text")

    def check_short(self, values: Iterable[Any]) -> None:
        """Refuse values that are long for a function whose time grows fast."""
        if sum(map(self.size, values)) > _SHORT:
            raise LimitError(f"passes more than {_SHORT} characters where fewer are expected")

    def check_integer(self, value: int) -> None:
        """Refuse a number whose arithmetic would take long."""
        self.check_bits(value.bit_length())

    def check_bits(self, bits: int) -> None:
        """Refuse a number of so many bits, preferably before it is made."""
        if bits > _INTEGER_BITS:
            raise LimitError("makes too large a number")

    def check_arguments(self, values: Iterable[Any]) -> None:
        """Refuse arguments that are too large together."""
        if sum(map(self.size, values)) > self._largest:
            raise LimitError("makes too large a list")

    def size(self, value: Any) -> int:
        """Return the characters and items of a value written out."""
        return self._measure(value)[0]

    def _measure(self, value: Any) -> tuple[int, int]:
        """Return size and depth; containers cannot change here, so each is measured once."""
        if isinstance(value, str):
            return len(value) + 1, 0
        if not isinstance(value, (list, tuple, dict)):
            return _scalar_size(value), 0
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1:]
        size, depth = 1, 0
        for item in _flat(value):
            item_size, item_depth = self._measure(item)
            size += item_size
            depth = max(depth, item_depth + 1)
        if size > self._largest:
            raise LimitError("makes too large a list")
        if depth > _DEPTH:
            raise LimitError("nests lists too deeply")
        self._sizes[id(value)] = (value, size, depth)  # the reference keeps the id taken
        return size, depth

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise LimitError("takes too much memory")


def check_needles(values: Iterable[Any]) -> None:
    """Refuse long arguments of functions that would take long for them."""
    if any(isinstance(value, str) and len(value) > _NEEDLE for value in values):
        raise LimitError(f"passes more than {_NEEDLE} characters where a few are expected")


def _scalar_size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length() // 3 + 2
    return 24 if value is None or isinstance(value, float) else len(repr(value))


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (item for pair in value.items() for item in pair)
    items: Iterable[Any] = value
    return items
