"""How an answer appears while it comes: redrawn in a terminal, or plain text."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from edgespec.chat.bodies import Body, Lines
from edgespec.chat.reasoning import Folding
from edgespec.runtime.stream import TokenChunk

__all__ = ["AnswerView", "LiveView", "PlainView"]

_SHORTEST_PAUSE = 0.06
_RENDERING_SHARE = 0.1
"""Of the time, at most: processors are there to decode."""

_OTHER_LINES = 4  # the status, and what a terminal needs below


class AnswerView(Protocol):
    """Shows one answer: enter it, then call it with every piece."""

    def __call__(self, piece: TokenChunk) -> None:
        """Take one piece."""

    def reading(self, done: int, total: int) -> None:
        """So many tokens of the prompt have been read; from any thread."""

    def __enter__(self) -> AnswerView:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End, with whole lines."""


class LiveView:
    """Prints finished parts for good; redraws what still grows, and a line below it.

    What is redrawn never fills the screen, since a terminal cannot take back lines that have
    scrolled away: of a long part the last lines are shown until it is finished.

    Args:
        console: of the terminal.
        body: makes the parts.
        status: the line below, in the width that there is.
    """

    def __init__(self, console: Console, body: Body, status: Callable[[], str]) -> None:
        self._console = console
        self._body = body
        self._status = status
        self._reading: str | None = "..."
        self._due = 0.0
        self._live = Live(
            self._frame(),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __call__(self, piece: TokenChunk) -> None:
        """Take one piece of the answer."""
        self._reading = None
        for finished in self._body.feed(piece):
            self._live.update(self._frame())
            self._console.print(finished, end="")
        started = perf_counter()
        if started >= self._due:
            self._live.update(self._frame(), refresh=True)
            now = perf_counter()
            self._due = now + max(_SHORTEST_PAUSE, (now - started) / _RENDERING_SHARE)

    def reading(self, done: int, total: int) -> None:
        """Say how much of the prompt has been read, as long as there is more."""
        if done >= total:
            return
        self._reading = f"reading {done:,} of {total:,} tokens"
        self._live.update(self._frame(), refresh=True)

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(Text(""))
        self._live.stop()
        for finished in self._body.finish():
            self._console.print(finished, end="")

    def _frame(self) -> Group:
        growing = self._body.growing()
        status = self._status() if self._reading is None else self._reading
        line = Text(status, style="dim", no_wrap=True, overflow="ellipsis")
        if growing is None:
            return Group(line)
        return Group(Lines(growing, max(1, self._console.height - _OTHER_LINES)), line)


class PlainView:
    """Writes pieces as they come, and ends the last line.

    Args:
        file: where to.
        text: what is written for a piece.
        folding: takes reasoning out; without it the text stays as it is.
    """

    def __init__(
        self, file: TextIO, text: Callable[[TokenChunk], str], folding: Folding | None = None
    ) -> None:
        self._file = file
        self._text = text
        self._folding = folding
        self._folded = False
        self._last = ""

    def __call__(self, piece: TokenChunk) -> None:
        """Write one piece."""
        text = self._text(piece)
        if self._folding is not None:
            text = self._fold(self._folding, text)
        self._write(text)

    def reading(self, done: int, total: int) -> None:
        """Nothing: what is written stays."""

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folding is not None:
            self._write(self._folding.finish())
        self._write("" if self._last.endswith("\n") else "\n")

    def _fold(self, folding: Folding, text: str) -> str:
        text = folding.feed(text)
        if folding.thinking and not self._folded and not folding.empty:
            self._folded = True
            return "thinking ... "
        if self._folded and not folding.thinking:
            self._folded = False
            return f"{folding.summary}: /think shows it\n{text}"
        return text

    def _write(self, text: str) -> None:
        self._last = text or self._last
        self._file.write(text)
        self._file.flush()
