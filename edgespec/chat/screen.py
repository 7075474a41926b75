"""Where a conversation is printed: answers, and the lines around them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from edgespec.chat.characters import printable
from edgespec.chat.origins import OriginPrinter
from edgespec.chat.view import MarkdownView, plain_view
from edgespec.runtime.piece import Piece

__all__ = ["Screen"]

_WIDEST = 80


class Screen:
    """Prints answers to standard output.

    In a terminal everything else goes there too; otherwise it goes to standard error, so that
    standard output holds the answers and nothing else.

    Args:
        interactive: standard input and output are a terminal.
        show: mark every token by its origin.
    """

    def __init__(self, *, interactive: bool, show: bool = False) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not every terminal speaks UTF-8
        self._console = Console(highlight=False, stderr=not interactive)
        self._interactive = interactive
        self._show = show
        if show:
            OriginPrinter().legend()

    @property
    def width(self) -> int:
        """Columns that a line should fit."""
        return min(self._console.width, _WIDEST)

    @property
    def colours(self) -> bool:
        """Whether styles may be used at all."""
        return (
            self._console.is_terminal
            and self._console.color_system is not None
            and not (self._console.no_color or self._console.is_dumb_terminal)
        )

    def answer(self) -> AbstractContextManager[Callable[[Piece], None]]:
        """A view of the next answer: enter it, then call it with every piece."""
        if self._show:
            return OriginPrinter()
        if not self._interactive:
            return plain_view(sys.stdout)
        if not self.colours:
            return plain_view(sys.stdout, printable)
        return MarkdownView(self._console)

    def note(self, line: str) -> None:
        """Print a line about the conversation."""
        self._print(line, "dim")

    def error(self, error: Exception) -> None:
        """Print an error as one line."""
        self._print("edgespec: " + " ".join(str(error).split()), "red")

    def _print(self, line: str, style: str) -> None:
        text = Text(printable(line), style=style if self.colours else "")
        self._console.print(text, soft_wrap=True)
