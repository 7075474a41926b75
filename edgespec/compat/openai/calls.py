"""Read tool calls from a model's answer while it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from edgespec.compat.openai.tools import ToolCall

__all__ = ["CallReader", "read_calls"]

_TAG, _LIST, _PYTHON = "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
_MARKERS = (_TAG, _LIST, _PYTHON)
_MARKER = re.compile("|".join(map(re.escape, _MARKERS)))
_BETWEEN = re.compile(r"(?:[\s,;]|</tool_call>)*")
_NAMED = re.compile(r"([\w.-]+)(?:\[ARGS\])?\s*(?=\{)")
_LARGEST = 1.7976931348623157e308


class CallReader:
    """Passes on text that is certainly no call, and holds the rest back until the answer ends.

    It knows these forms: ``<tool_call>{...}</tool_call>``, ``[TOOL_CALLS]`` with a list or as
    ``name{...}``, and an answer that is nothing but the JSON of calls. An object has "name" and
    "arguments" or "parameters". Anything that names no offered tool, or is not JSON, is text.

    Args:
        names: of the tools that were offered.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._began = False  # some text was passed on

    def feed(self, text: str) -> str:
        """Take the next text; return what may be shown now."""
        self._held += text
        cut = self._hold_from()
        shown, self._held = self._held[:cut], self._held[cut:]
        self._began = self._began or bool(shown.strip())
        return shown

    def finish(self) -> tuple[str, list[ToolCall]]:
        """End the answer; return the held text that is no call after all, and the calls."""
        held, self._held = self._held, ""
        if not self._began:
            calls, end = _calls_from(held, 0, self._names)
            if calls and end == len(held):
                return "", calls
        texts, calls, position = [], [], 0
        while marker := _MARKER.search(held, position):
            found, end = _calls_from(held, marker.end(), self._names)
            calls += found
            texts.append(held[position : marker.start() if found else marker.end()])
            position = end if found else marker.end()
        text = "".join([*texts, held[position:]])
        return text if text.strip() or not calls else "", calls

    def _may_be_bare(self) -> bool:
        """Return whether the answer so far may be a call without a marker."""
        text = self._held.lstrip()
        if text[:1] in ("", "{", "["):
            return True
        for name in self._names:
            if name.startswith(text):
                return True
            if text.startswith(name):
                return text[len(name) :].lstrip()[:1] in ("", "{", "[")
        return False

    def _hold_from(self) -> int:
        if not self._began and self._may_be_bare():
            return 0
        marker = _MARKER.search(self._held)
        if marker:
            return marker.start()
        longest = max(map(len, _MARKERS))
        for start in range(max(0, len(self._held) - longest), len(self._held)):
            if any(one.startswith(self._held[start:]) for one in _MARKERS):
                return start
        return len(self._held)


def read_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """Split a whole answer into its text and the calls in it; see `CallReader`."""
    reader = CallReader(names)
    shown = reader.feed(text)
    rest, calls = reader.finish()
    return shown + rest, calls


def _calls_from(text: str, position: int, names: Collection[str]) -> tuple[list[ToolCall], int]:
    """Read the calls at a position, one after the other; return them and where they end."""
    calls: list[ToolCall] = []
    end = position
    while (read := _call_at(text, _skip(text, end), names)) is not None:
        calls += read[0]
        end = _skip(text, read[1])
    return calls, end


def _skip(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return match.end() if match else position


def _call_at(text: str, position: int, names: Collection[str]) -> tuple[list[ToolCall], int] | None:
    named = _NAMED.match(text, position)
    try:
        value, end = _DECODER.raw_decode(text, named.end() if named else position)
        if named:
            value = {"name": named[1], "arguments": value}
        items = value if isinstance(value, list) else [value]
        calls = [_as_call(item, names) for item in items]
    except (ValueError, RecursionError):
        return None
    return (calls, end) if calls else None


def _as_call(value: Any, names: Collection[str]) -> ToolCall:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        raise ValueError("no call of an offered tool")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are no object")
    return ToolCall(name, json.dumps(arguments))


def _finite(text: str) -> float:
    return max(-_LARGEST, min(float(text), _LARGEST))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Models write raw line breaks into strings, which JSON forbids.
_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_refuse)
