"""Filters and methods rewritten because Jinja2's have no bound on time or on what they make.

Those with a meter account for a value before they make it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from jinja2.filters import FILTERS, do_round

from edgespec.templates.meter import LimitError, Meter, check_needles

__all__ = ["escape", "indent", "join", "replace", "round_number", "to_json", "trim"]

_INDENT = 64
_DECIMALS = 64


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
    lines = str(text).splitlines() or [""]
    meter.made_text(len(text) + len(lines) * len(margin))
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


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
