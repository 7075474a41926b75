"""Markdown of a growing answer: what is final already, and how it looks."""

from __future__ import annotations

from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment

__all__ = ["MarkdownLines", "split_finished"]


def _parser() -> MarkdownIt:
    # Neither HTML nor link definitions: both would make parts of an answer invisible.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable("reference")


_FULL = _parser()
_BLOCKS = _parser().disable("inline")


def split_finished(text: str) -> tuple[str, str]:
    """Split a growing text into blocks that cannot change any more, and the rest.

    Only whole lines count: a line's beginning may open another block than the whole line.
    """
    whole = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in _BLOCKS.parse(whole) if token.map and token.level == 0]
    lines = text.split("\n")
    cut = starts[-1] if starts else 0
    return "\n".join(lines[:cut]), "\n".join(lines[cut:])


class MarkdownLines:
    """Markdown as lines of a terminal, without padding; only the `last` ones if given."""

    def __init__(self, text: str, last: int | None = None) -> None:
        self._markdown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
        self._markdown.parsed = _FULL.parse(text)
        for token in self._markdown.parsed:
            _keep_line_breaks(token)
        self._last = last

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of every line."""
        lines = console.render_lines(self._markdown, options, pad=False)
        for line in lines if self._last is None else lines[-self._last :]:
            yield from _stripped(line)
            yield Segment.line()


def _keep_line_breaks(token: Token) -> None:
    """Models break lines where they mean it, in verse for example."""
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"


def _stripped(line: list[Segment]) -> Iterator[Segment]:
    """A line without the spaces at its end."""
    length = len("".join(segment.text for segment in line).rstrip())
    for segment in line:
        if length > 0:
            yield Segment(segment.text[:length], segment.style, segment.control)
        length -= len(segment.text)
