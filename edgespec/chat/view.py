"""How an answer appears while it comes: plain text, or Markdown as far as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from edgespec.chat.characters import printable
from edgespec.chat.markdown import MarkdownLines, split_finished
from edgespec.runtime.piece import Piece

__all__ = ["MarkdownView", "plain_view"]

_SHORTEST_PAUSE = 0.06
_RENDERING_SHARE = 0.1
"""Of the time, at most: processors are there to decode."""


@contextmanager
def plain_view(
    file: TextIO, change: Callable[[str], str] = str
) -> Iterator[Callable[[Piece], None]]:
    """Writes pieces as they come, and ends the last line."""
    last = ""

    def show(piece: Piece) -> None:
        nonlocal last
        last = change(piece.text) or last
        file.write(change(piece.text))
        file.flush()

    try:
        yield show
    finally:
        file.write("" if last.endswith("\n") else "\n")
        file.flush()


class MarkdownView:
    """Prints finished blocks for good and redraws only the block that still grows.

    What is redrawn never fills the screen, since a terminal cannot take back lines that have
    scrolled away: of a long block the last lines are shown until it is finished.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""  # of the blocks that are not printed yet
        self._printed = False
        self._due = 0.0
        self._live = Live(
            Text("...", style="dim"),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __call__(self, piece: Piece) -> None:
        """Take one piece of the answer."""
        self._text += printable(piece.text)
        if "\n" in piece.text:
            finished, self._text = split_finished(self._text)
            if finished.strip():
                self._live.update(self._tail())
                self._print(finished)
        started = perf_counter()
        if started >= self._due:
            self._live.update(self._tail(), refresh=True)
            now = perf_counter()
            self._due = now + max(_SHORTEST_PAUSE, (now - started) / _RENDERING_SHARE)

    def __enter__(self) -> MarkdownView:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.update(Text(""))
        self._live.stop()
        if self._text.strip():
            self._print(self._text)

    def _tail(self) -> MarkdownLines:
        return MarkdownLines(self._text, last=max(1, self._console.height - 3))

    def _print(self, text: str) -> None:
        if self._printed:
            self._console.print()
        self._printed = True
        self._console.print(MarkdownLines(text), end="")
