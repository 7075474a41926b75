"""Where a conversation is printed: answers, and the lines around them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from edgespec.chat.characters import printable
from edgespec.chat.markdown import MarkdownLines
from edgespec.chat.reasoning import Folding, split_thought
from edgespec.chat.view import (
    AnswerView,
    Lines,
    LiveView,
    MarkdownBody,
    OriginPrinter,
    PlainView,
    marked,
)

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
        self.interactive = interactive
        self._show = show
        if show:
            OriginPrinter().legend()

    @property
    def width(self) -> int:
        """Return the columns that a line should fit."""
        return min(self._console.width, _WIDEST)

    @property
    def dumb(self) -> bool:
        """Return whether the output takes nothing but text."""
        return not self._console.is_terminal or self._console.is_dumb_terminal

    @property
    def colours(self) -> bool:
        """Return whether the output shows styles."""
        console = self._console
        return not self.dumb and console.color_system is not None and not console.no_color

    def answer(self, status: Callable[[], str], *, thinking: bool = False) -> AnswerView:
        """Return a view of the next answer.

        Args:
            status: a line about it, asked for now and then.
            thinking: the prompt has opened the reasoning already.
        """
        folding = Folding(thinking=thinking)
        if not self.interactive:
            return PlainView(sys.stdout, marked if self._show else lambda piece: piece.text)
        if self.colours:
            body = MarkdownBody(folding, origins=self._show)
            return LiveView(self._console, body, status)
        if self._show:
            return PlainView(sys.stdout, lambda piece: printable(marked(piece)))
        return PlainView(sys.stdout, lambda piece: printable(piece.text), folding)

    def exchange(self, number: int, said: str, answer: str | None, last: int | None = None) -> None:
        """Print an earlier message and its answer, or the `last` lines of that."""
        self.note(f"message {number}")
        self.message(said)
        if answer is None:
            return
        text = printable(split_thought(answer)[1]).strip()
        content = MarkdownLines(text) if self.colours else Text(text)
        self._console.print(Lines(content, last, mark=True), end="")

    def message(self, said: str) -> None:
        """Print a message as it looks when it is typed."""
        first, *others = printable(said).strip().split("\n")
        self._print("\n".join([f"> {first}", *(f"  {line}" for line in others)]), "")

    def note(self, line: str) -> None:
        """Print a line about the conversation."""
        self._print(line, "dim")

    def error(self, error: Exception) -> None:
        """Print an error as one line."""
        self._print("edgespec: " + " ".join(str(error).split()), "red")

    def send(self, sequence: str) -> None:
        """Send a control sequence to the terminal."""
        self._console.file.write(sequence)
        self._console.file.flush()

    def _print(self, line: str, style: str) -> None:
        text = Text(printable(line), style=style if self.colours else "")
        self._console.print(text, soft_wrap=True)
