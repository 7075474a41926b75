"""A meter of what a rendering uses, and the filters and methods that had to be rewritten for it.

Jinja2's have no bound on time or on what they make. Those with a meter account for a value before
they make it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

from jinja2.filters import FILTERS, do_round

__all__ = [
    "LimitError",
    "Meter",
    "batch",
    "center",
    "check_needles",
    "check_widths",
    "escape",
    "format_percent",
    "indent",
    "join",
    "replace",
    "round_number",
    "slices",
    "to_json",
    "trim",
    "word_count",
]

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


# -- filters and methods ------------------------------------------------------------------------

_INDENT = 64
_DECIMALS = 64
_WIDTH = 1024
_NESTED = re.compile(r"%\([^()]*\(")
_FIELD = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"\w+")


def join(meter: Meter, separator: str, items: Iterable[Any]) -> str:
    """Join texts with a separator."""
    parts: list[str] = []
    length = 0
    for item in items:
        meter.tick()
        if not isinstance(item, str):
            raise TypeError(f"cannot join a {type(item).__name__} to a text")
        parts.append(item)
        length += len(item) + len(separator)
        meter.check_length(length)
    meter.made_text(length)
    return str(separator).join(parts)


def replace(meter: Meter, /, text: str, old: str, new: str, count: int | None = None) -> str:
    """Replace `old` by `new` in a text."""
    text, old, new = str(text), str(old), str(new)
    check_needles((old,))
    found = text.count(old)
    if count is not None and count >= 0:
        found = min(found, count)
    meter.made_text(len(text) + found * (len(new) - len(old)))
    return text.replace(old, new, found)


def trim(value: Any, chars: str | None = None) -> str:
    """Strip white space, or these characters, from both ends of a text."""
    if chars is not None:
        check_needles((chars,))
    return str(value).strip(chars)


def indent(
    meter: Meter, /, text: str, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    """Indent the lines of a text."""
    margin = width if isinstance(width, str) else " " * min(width, _INDENT + 1)
    if len(margin) > _INDENT:
        raise LimitError(f"indents by more than {_INDENT}")
    # As in Jinja2: a line break at the end begins one more line.
    lines = f"{text}\n".splitlines()
    meter.made_text(len(text) + len(lines) * len(margin))
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def batch(
    meter: Meter, /, value: Iterable[Any], linecount: int, fill_with: Any = None
) -> Iterator[list[Any]]:
    """Yield lists of so many items; fill the last one."""
    row: list[Any] = []
    for item in value:
        if len(row) == linecount:
            yield meter.made(row)
            row = []
        row.append(item)
    if row:
        yield _filled(meter, row, linecount - len(row), fill_with)


def slices(
    meter: Meter, /, value: Iterable[Any], slices: int, fill_with: Any = None
) -> Iterator[list[Any]]:
    """Yield so many lists of about the same length; fill those that are one shorter."""
    items = list(value)
    meter.made(items)
    meter.check_length(slices)
    length, longer = divmod(len(items), slices)
    start = 0
    for number in range(slices):
        end = start + length + (number < longer)
        yield _filled(meter, items[start:end], int(number >= longer), fill_with)
        start = end


def _filled(meter: Meter, row: list[Any], missing: int, fill: Any) -> list[Any]:
    if fill is not None and missing > 0:
        meter.check_length(missing * meter.size(fill))
        row = row + [fill] * missing
    meter.made(row)
    return row


def center(meter: Meter, /, value: Any, width: int = 80) -> str:
    """Put white space around a text."""
    meter.check_length(width)
    return str(value).center(width)


def word_count(value: Any) -> int:
    """Count the words of a text."""
    return sum(1 for _ in _WORD.finditer(str(value)))


def format_percent(meter: Meter, text: str, values: Any) -> str:
    """Apply the operator ``%`` to a text."""
    if _NESTED.search(text):
        raise LimitError("nests brackets in a format")
    largest = meter.size(values)
    length = len(text)
    for width, precision, kind in _FIELD.findall(text):
        meter.tick()
        if "*" in (width, precision):
            raise LimitError("takes a width of a format from a value")
        check_widths(width)
        check_widths(precision)
        length += _WIDTH + (largest if kind in "sra" else 0)
        meter.check_length(length)
    made: str = text % values
    meter.made_text(len(made))
    return made


def check_widths(form: str) -> None:
    """Refuse a format that widens what it writes beyond reason."""
    if any(int(number[:9]) > _WIDTH for number in _NUMBER.findall(form)):
        raise LimitError(f"formats to more than {_WIDTH} characters")


def to_json(
    meter: Meter,
    /,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON."""
    # As in Hugging Face transformers: Jinja2's own escapes < > & ' for HTML.
    if indent is not None and not 0 <= indent <= _INDENT:
        raise LimitError(f"indents by more than {_INDENT}")
    check_needles(separators or ())
    encoder = json.JSONEncoder(
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=separators,
        sort_keys=bool(sort_keys),
    )
    return join(meter, "", encoder.iterencode(value))


def escape(value: Any) -> str:
    """Escape a text for HTML; the result is a plain str, because a prompt is not HTML."""
    return str(FILTERS["escape"](value))


def round_number(value: Any, precision: int = 0, method: Any = "common") -> float:
    """Round a number to some decimal places."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"cannot round a {type(value).__name__}")
    if abs(precision) > _DECIMALS:
        raise LimitError(f"rounds to more than {_DECIMALS} decimal places")
    return do_round(value, precision, method)
