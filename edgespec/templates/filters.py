"""Filters and methods rewritten because Jinja2's have no bound on time or on what they make.

Those with a meter account for a value before they make it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from jinja2.filters import FILTERS, do_round

from edgespec.templates.meter import LimitError, Meter, check_needles

__all__ = [
    "batch",
    "center",
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
