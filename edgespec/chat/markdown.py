"""An answer's text: reasoning told from the answer, and the Markdown blocks of that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from time import perf_counter
from typing import ClassVar, Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock as RichCodeBlock
from rich.markdown import Markdown
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from edgespec.errors import UsageError

__all__ = [
    "OPENING",
    "CodeBlock",
    "Folding",
    "MarkdownLines",
    "chosen_block",
    "code_blocks",
    "split_finished",
    "split_thought",
]

OPENING = "<think>"
_CLOSING = "</think>"


class Folding:
    """Takes the reasoning out of a text that comes in pieces.

    Only at the beginning: an answer may speak of these marks.

    Args:
        thinking: the prompt opened the reasoning already.

    Attributes:
        pieces: of reasoning so far, about one for each token.
        empty: whether all of the reasoning was blank.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self.pieces = 0
        self.empty = True
        self._state: Literal["undecided", "thinking", "between", "answer"]
        self._state = "thinking" if thinking else "undecided"
        self._held = ""
        self._started: float | None = None
        self._ended = 0.0

    @property
    def thinking(self) -> bool:
        """Return whether the text is inside the reasoning at the moment."""
        return self._state == "thinking"

    @property
    def summary(self) -> str:
        """Return how long the reasoning is, and how long it took."""
        seconds = self._ended - (self._started or self._ended)
        return f"{self.pieces} token{'' if self.pieces == 1 else 's'}, {seconds:.0f} s"

    def feed(self, text: str) -> str:
        """Take more text; return the part that certainly belongs to the answer."""
        self._held += text
        self._ended = perf_counter()
        self._started = self._started or self._ended
        if self._state == "undecided":
            self._decide()
        if self._state == "thinking":
            self._think()
        if self._state == "between":
            self._held = self._held.lstrip()
            self._state = "answer" if self._held else "between"
        return self._release() if self._state == "answer" else ""

    def finish(self) -> str:
        """Return the text that was held back because it might have become a mark."""
        return self._release() if self._state == "undecided" else ""

    def _decide(self) -> None:
        start = self._held.lstrip()
        if start.startswith(OPENING):
            self._state, self._held = "thinking", start[len(OPENING) :]
        elif not OPENING.startswith(start):
            self._state = "answer"

    def _think(self) -> None:
        self.pieces += 1
        thought, mark, behind = self._held.partition(_CLOSING)
        if not _CLOSING.startswith(thought.strip()):
            self.empty = False
        if mark:
            self._state, self._held = "between", behind
        else:
            self._held = self._held[1 - len(_CLOSING) :]

    def _release(self) -> str:
        text, self._held = self._held, ""
        return text


def split_thought(text: str) -> tuple[str, str]:
    """Return the reasoning of a finished answer, empty if there is none, and the answer itself."""
    before, mark, answer = text.partition(_CLOSING)
    opened = before.lstrip().startswith(OPENING)
    if opened or (mark and OPENING not in before):
        return before.lstrip().removeprefix(OPENING).strip(), answer.lstrip()
    return "", text


def _parser() -> MarkdownIt:
    # Neither HTML nor link definitions: both would make parts of an answer invisible.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable("reference")


_WORDS = re.compile(r"\s+|\w+|[^\w\s]+")
_WORD, _NEAR = 3, 300

_FULL = _parser()
_BLOCKS = _parser().disable("inline")


def split_finished(text: str) -> tuple[str, str]:
    """Split a growing text into blocks that cannot change any more, and the rest.

    Only whole lines count: a line's beginning may open another block than the whole line.
    """
    whole = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in _parse(whole) if token.map and token.level == 0]
    lines = text.split("\n")
    cut = starts[-1] if starts else 0
    return "\n".join(lines[:cut]), "\n".join(lines[cut:])


class CodeBlock(NamedTuple):
    """What stands between two fences.

    Attributes:
        number: in its answer, from 1 on.
        language: as the fence says, or empty.
        text: ends with a line break.
    """

    number: int
    language: str
    text: str

    @property
    def lines(self) -> str:
        """Return its length in words."""
        count = self.text.count("\n")
        return f"{count} line{'' if count == 1 else 's'}"


def code_blocks(answer: str) -> list[CodeBlock]:
    """Return all fenced blocks of an answer."""
    fences = (token for token in _parse(answer) if token.type == "fence")
    return [
        CodeBlock(number, _language_of(fence), fence.content)
        for number, fence in enumerate(fences, 1)
    ]


def chosen_block(blocks: Sequence[CodeBlock], number: str) -> CodeBlock:
    """Return the block with this number, or the last one without a number.

    Raises:
        UsageError: there is none.
    """
    if not blocks:
        raise UsageError("the last answer has no code block")
    if not number:
        return blocks[-1]
    if number.isdecimal() and 1 <= int(number) <= len(blocks):
        return blocks[int(number) - 1]
    known = ", ".join(f"{b.number} ({b.language or 'text'}, {b.lines})" for b in blocks)
    raise UsageError(f"there is no code block {number[:20]!r}: there is {known}")


class MarkdownLines:
    """Markdown as lines of a terminal, without padding.

    Args:
        text: whole blocks of Markdown.
        before: number of code blocks that come before it.
        styles: of each character of the text, laid over how Markdown shows it.
    """

    def __init__(self, text: str, before: int = 0, styles: Sequence[str] = ()) -> None:
        self._text, self._styles = text, styles
        self._markdown = _Numbered("", code_theme="ansi_dark", hyperlinks=False)
        self._markdown.parsed = _FULL.parse(text)
        self._before = before
        self.blocks = before + sum(token.type == "fence" for token in self._markdown.parsed)
        """Code blocks, those before it included."""
        for token in self._markdown.parsed:
            _keep_line_breaks(token)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of every line."""
        self._markdown.number = self._before
        paint = _Paint(self._text, self._styles) if self._styles else None
        for line in console.render_lines(self._markdown, options, pad=False):
            for segment in _stripped(line):
                yield from paint.over(segment) if paint else (segment,)
            yield Segment.line()


class _Paint:
    """Lays the styles of a source's characters over what was rendered from it, in its order.

    Marks of Markdown are in the source alone, and bullets and frames in what was rendered alone.
    """

    def __init__(self, text: str, styles: Sequence[str]) -> None:
        self._text, self._styles = text, styles
        self._at = 0

    def over(self, segment: Segment) -> Iterator[Segment]:
        """Yield a segment in parts that have one style each."""
        if segment.control:
            yield segment
            return
        for word in _WORDS.findall(segment.text):
            self._find(word)
            for style, characters in groupby(word, self._style):
                both = (segment.style or Style.null()) + Style.parse(style)
                yield Segment("".join(characters), both)

    def _find(self, word: str) -> None:
        """Go to a word that is near: what lies before it was not shown, like a link's address."""
        if len(word) >= _WORD and word.isalnum():
            place = self._text.find(word, self._at, self._at + _NEAR)
            self._at = self._at if place < 0 else place

    def _style(self, character: str) -> str:
        for place in range(self._at, len(self._text)):
            if self._text[place] == character and not character.isspace():
                self._at = place + 1
                return self._styles[place]
            if self._text[place].isalnum():
                break
        return ""


class _NumberedBlock(RichCodeBlock):
    """A code block below its number and language."""

    def __init__(self, lexer_name: str, theme: str, number: int) -> None:
        super().__init__(lexer_name, theme)
        self._number = number

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> RichCodeBlock:
        assert isinstance(markdown, _Numbered)
        markdown.number += 1
        return cls(_language_of(token) or "text", markdown.code_theme, markdown.number)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        language = "" if self.lexer_name == "text" else f" {self.lexer_name}"
        yield Text(f"[{self._number}]{language}", style="dim")
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _Numbered(Markdown):
    """Markdown that counts its code blocks while it is rendered."""

    elements: ClassVar = {**Markdown.elements, "fence": _NumberedBlock}
    number = 0


def _keep_line_breaks(token: Token) -> None:
    """Keep single line breaks, because models mean them, in verse for example."""
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"


def _stripped(line: list[Segment]) -> Iterator[Segment]:
    """Yield a line without the spaces at its end."""
    length = len("".join(segment.text for segment in line).rstrip())
    for segment in line:
        if length > 0:
            yield Segment(segment.text[:length], segment.style, segment.control)
        length -= len(segment.text)


def _parse(text: str) -> list[Token]:
    """Return its blocks, without what is inside of paragraphs."""
    return _BLOCKS.parse(text)


def _language_of(fence: Token) -> str:
    """Return the language that a fence names, or an empty text."""
    return next(iter(fence.info.split()), "")
