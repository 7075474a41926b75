"""What a growing answer consists of: parts that are final, and the one that still grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from edgespec.chat.characters import printable
from edgespec.chat.markdown import MarkdownLines, split_finished
from edgespec.chat.origins import ORIGIN_STYLES
from edgespec.chat.reasoning import Folding
from edgespec.runtime.stream import TokenChunk

__all__ = ["Body", "Lines", "MarkdownBody", "OriginBody"]


class Body(Protocol):
    """Parts of an answer. Those that are final end their last line."""

    def feed(self, piece: TokenChunk) -> Iterator[RenderableType]:
        """Parts that are final with this piece."""

    def growing(self) -> RenderableType | None:
        """What is not final yet, if there is anything."""

    def finish(self) -> Iterator[RenderableType]:
        """The rest."""


class Lines:
    """Something as lines of a terminal.

    Args:
        last: show no more than so many, the last ones.
        mark: say so with a line of dots.
    """

    def __init__(
        self, content: RenderableType, last: int | None = None, *, mark: bool = False
    ) -> None:
        self._content = content
        self._last = last
        self._mark = mark

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of every line."""
        lines = console.render_lines(self._content, options, pad=False)
        if self._last is not None and len(lines) > self._last:
            lines = lines[-self._last :]
            if self._mark:
                yield from (Segment("..."), Segment.line())
        for line in lines:
            yield from line
            yield Segment.line()


class MarkdownBody:
    """Blocks of Markdown, with the reasoning folded into a line."""

    def __init__(self, folding: Folding) -> None:
        self._folding = folding
        self._told = False  # about the reasoning
        self._text = ""  # of the blocks that are not final yet
        self._blocks = 0
        self._first = True

    def feed(self, piece: TokenChunk) -> Iterator[RenderableType]:
        """Blocks that are whole with this piece."""
        text = printable(self._folding.feed(piece.text))
        if not self._folding.thinking:
            yield from self._thought(f"thought for {self._folding.summary}")
        self._text += text
        if "\n" in text:
            finished, self._text = split_finished(self._text)
            yield from self._final(finished)

    def growing(self) -> RenderableType | None:
        """The block that is not whole, or that the model is thinking."""
        if self._folding.thinking:
            return Text(f"thinking ... {self._folding.summary}", style="dim")
        if not self._text.strip():
            return None
        block = MarkdownLines(self._text, self._blocks)
        return block if self._first else Group(Text(""), block)

    def finish(self) -> Iterator[RenderableType]:
        """The last block, whole or not."""
        if self._folding.thinking:
            yield from self._thought(f"thinking ended after {self._folding.summary}")
        text, self._text = self._text + printable(self._folding.finish()), ""
        yield from self._final(text)

    def _thought(self, line: str) -> Iterator[RenderableType]:
        if self._folding.empty or self._told:
            return
        self._told, self._first = True, False
        yield Lines(Text(f"{line}: /think shows it", style="dim"))

    def _final(self, text: str) -> Iterator[RenderableType]:
        if not text.strip():
            return
        if not self._first:
            yield Lines(Text(""))
        self._first = False
        lines = MarkdownLines(text, self._blocks)
        self._blocks = lines.blocks
        yield lines


class OriginBody:
    """Lines of plain text, coloured by where each token came from."""

    def __init__(self) -> None:
        self._line = Text()

    def feed(self, piece: TokenChunk) -> Iterator[RenderableType]:
        """Lines that are whole with this piece."""
        self._line.append(printable(piece.text), ORIGIN_STYLES[piece.origin])
        if "\n" in piece.text:
            *whole, self._line = self._line.split("\n", allow_blank=True)
            yield Lines(Text("\n").join(whole))

    def growing(self) -> RenderableType | None:
        """The line that is not whole."""
        return self._line if self._line else None

    def finish(self) -> Iterator[RenderableType]:
        """That line, as it is."""
        if self._line:
            yield Lines(self._line)
