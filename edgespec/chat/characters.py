"""Text for a terminal: without characters that would steer it, with lines broken at words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import TextIO

__all__ = ["JOINER", "WordWriter", "printable", "sendable", "unjoined"]

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


# -- lines --------------------------------------------------------------------------------------

_FENCE = "```"


class WordWriter:
    """Writes text to a terminal; a word that does not fit begins the next line.

    A word waits until it is whole, or fills a line. Lines of fenced code are left as they are.

    Args:
        file: where to write.
        width: returns the columns of the terminal.
    """

    def __init__(self, file: TextIO, width: Callable[[], int]) -> None:
        self._file = file
        self._width = width
        self._column = 0
        self._spaces = self._word = ""
        self._beginning = ""  # of the line, as far as a fence may be there
        self._code = False
        self._long = False  # in the middle of a word that fills lines

    def write(self, text: str) -> None:
        """Write what is whole, and keep the rest."""
        for character in text:
            if character == "\n":
                self._end_line()
                continue
            if len(self._beginning) < len(_FENCE):
                self._beginning = (self._beginning + character).lstrip()
            if character in " \t":
                self._place()
                self._spaces += character
                self._long = False
                continue
            self._word += character
            wide, fills = _columns(character) == 2, _columns(self._word) >= self._width()
            if self._code or self._long or wide or fills:
                self._place()
                self._long = (self._long or fills) and not wide
        self._file.flush()

    def finish(self) -> None:
        """Write what was kept."""
        self._place()
        self._file.write(self._spaces)
        self._spaces = ""
        self._file.flush()

    def _end_line(self) -> None:
        self.finish()
        self._file.write("\n")
        if self._beginning.startswith(_FENCE):
            self._code = not self._code
        self._column, self._beginning, self._long = 0, "", False

    def _place(self) -> None:
        if not self._word:
            return
        size, width = _columns(self._spaces) + _columns(self._word), self._width()
        whole = self._code or self._long
        if self._column and self._column + size > width and not whole:
            self._file.write(f"\n{self._word}")
            self._column = _columns(self._word)
        else:
            self._file.write(self._spaces + self._word)
            self._column += size
        if self._column > width:  # the terminal has broken it
            self._column = (self._column - 1) % width + 1
        self._spaces = self._word = ""


def _columns(text: str) -> int:
    """Return how many columns a text takes, about."""
    return sum(map(_column_count, text))


def _column_count(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
