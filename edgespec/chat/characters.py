"""Keep out characters that would steer a terminal, or that a tokenizer cannot take."""

from __future__ import annotations

import re

__all__ = ["JOINER", "printable", "sendable", "unjoined"]

JOINER = "\u200d"
_JOINED = re.compile(f"{JOINER}(?=[\u2190-\u2bff\U0001f000-\U0001faff])")

_CONTROLS = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in ("\n", "\t")
}


def printable(text: str) -> str:
    """Return the text without control characters: a model's output must not steer the terminal."""
    return unjoined(text.translate(_CONTROLS))


def unjoined(text: str) -> str:
    """Return the text with joined emoji side by side: terminals differ in how wide one is."""
    return _JOINED.sub("", text) if JOINER in text else text


def sendable(text: str) -> str:
    """Return the text with a replacement character for each typed byte that was not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
