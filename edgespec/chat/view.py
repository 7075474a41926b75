"""How an answer appears while it is written: redrawn, as plain text, or marked by origin."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Protocol, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from edgespec.backend import Vocabulary
from edgespec.backend.lifetime import Closing
from edgespec.chat.characters import JOINER, printable, unjoined
from edgespec.chat.markdown import Folding, MarkdownLines, split_finished
from edgespec.runtime.cycle import CycleReport, Origin
from edgespec.runtime.stream import TokenChunk

__all__ = [
    "ORIGIN_STYLES",
    "AnswerView",
    "Body",
    "Lines",
    "LiveView",
    "MarkdownBody",
    "OriginPrinter",
    "PlainView",
    "marked",
    "print_legend",
]

_SHORTEST_PAUSE = 0.06
_RENDERING_SHARE = 0.1
"""Most of the time that drawing may take: processors are there to decode."""
_OTHER_LINES = 4  # the status, and what a terminal needs below
ORIGIN_STYLES = {
    Origin.ACCEPTED: "green",
    Origin.CORRECTED: "bold red",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "",
}
_MARKS = {
    Origin.ACCEPTED: ("[", "]"),
    Origin.CORRECTED: ("{", "}"),
    Origin.BONUS: ("<", ">"),
    Origin.PLAIN: ("", ""),
}
_REFUSED = "dim strike"


class AnswerView(Closing):
    """Shows one answer: enter it, then call it with every chunk. Closing it ends the last line."""

    @abstractmethod
    def __call__(self, piece: TokenChunk) -> None:
        """Take one chunk."""

    @abstractmethod
    def reading(self, done: int, total: int) -> None:
        """Note that `done` tokens of the prompt have been read; any thread may call this."""


class LiveView(AnswerView):
    """Prints finished parts for good; redraws what still grows, and a line below it.

    What is redrawn never fills the screen, since a terminal cannot take back lines that have
    scrolled away: of a long part the last lines are shown until it is finished.

    Args:
        console: the terminal.
        body: turns chunks into parts.
        status: returns the line below, which fits the width.
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
        """Take one chunk of the answer."""
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
        """Show how much of the prompt has been read, while there is more."""
        if done >= total:
            return
        self._reading = f"reading {done:,} of {total:,} tokens"
        self._live.update(self._frame(), refresh=True)

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def close(self) -> None:
        """Print what was still growing for good, and take the line below it away."""
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


class PlainView(AnswerView):
    """Writes chunks as they come, and ends the last line.

    Args:
        file: where to write.
        text: returns what to write for a chunk.
        folding: takes reasoning out; None leaves the text as it is.
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
        """Write one chunk."""
        text = self._text(piece)
        if self._folding is not None:
            text = self._fold(self._folding, text)
        self._write(text)

    def reading(self, done: int, total: int) -> None:
        """Do nothing: what is written stays."""

    def close(self) -> None:
        """Write what was held back, and end the last line."""
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


class OriginPrinter(Closing):
    """Prints chunks as they come, and ends the last line.

    What was proposed and refused stands struck out before the token that ends its cycle. Without
    colours (NO_COLOR, a pipe) brackets tell the origins apart, and refused branches.

    Args:
        vocabulary: that of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._colours = self._console.is_terminal and not self._console.no_color
        self._vocabulary = vocabulary
        self._cycles: deque[tuple[int, list[list[int]]]] = deque()

    def watch(self, report: CycleReport) -> None:
        """Take what a cycle tried: called in the thread that decodes, before its text is here."""
        self._cycles.append((report.cycle.tokens[-1], report.tried.refused()))

    def __call__(self, piece: TokenChunk) -> None:
        """Print one chunk."""
        if piece.origin is not Origin.ACCEPTED:
            self._strike(piece.token)
        self._console.print(self._marked(self._shown(piece.text), piece.origin), end="")
        self._console.file.flush()

    def _strike(self, token: int) -> None:
        """Print what was refused in the cycles up to the one that this token ended."""
        while self._cycles:
            last, branches = self._cycles.popleft()
            if branches:
                text = "|".join(self._shown(self._text(branch)) for branch in branches)
                struck = Text(text, style=_REFUSED) if self._colours else Text(f"~{text}~")
                self._console.print(struck, end="")
            if last == token:
                return

    def _text(self, tokens: list[int]) -> str:
        data = b"".join(self._vocabulary.piece(token) for token in tokens)
        return data.decode("utf-8", "replace").replace("\n", "\\n")

    def _shown(self, text: str) -> str:
        return printable(text) if self._console.is_terminal else text

    def close(self) -> None:
        """End the last line."""
        self._console.print()

    def legend(self) -> None:
        """Say on standard error what the colours mean."""
        print_legend(Text("refused", style=_REFUSED) if self._colours else Text("~refused~"))

    def _marked(self, text: str, origin: Origin) -> Text:
        return _in_colours_or_brackets(text, origin, self._colours)


def print_legend(*more: Text) -> None:
    """Say on standard error what colours, or brackets without them, mean."""
    out = Console(highlight=False)
    colours = out.is_terminal and not out.no_color
    names = [_in_colours_or_brackets(origin.value, origin, colours) for origin in Origin]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text("origin of each token: ") + Text(" ").join([*names, *more]))


def _in_colours_or_brackets(text: str, origin: Origin, colours: bool) -> Text:
    if colours:
        return Text(text, style=ORIGIN_STYLES[origin])
    before, after = _MARKS[origin]
    return Text(f"{before}{text}{after}")


def marked(piece: TokenChunk) -> str:
    """Return a chunk between brackets that tell its origin, for output without colours."""
    before, after = _MARKS[piece.origin]
    return f"{before}{piece.text}{after}"


class Body(Protocol):
    """The parts of an answer. A final part ends its last line."""

    def feed(self, piece: TokenChunk) -> Iterator[RenderableType]:
        """Yield the parts that are final with this chunk."""

    def growing(self) -> RenderableType | None:
        """Return what is not final yet, if there is anything."""

    def finish(self) -> Iterator[RenderableType]:
        """Yield the rest."""


class MarkdownBody:
    """Blocks of Markdown, with the reasoning folded into a line.

    Args:
        folding: takes reasoning out.
        origins: colour the text by where each token came from.
    """

    def __init__(self, folding: Folding, *, origins: bool = False) -> None:
        self._folding = folding
        self._origins = origins
        self._told = False  # about the reasoning
        self._text = ""  # of the blocks that are not final yet
        self._styles: list[str] = []  # of its characters, with origins
        self._blocks = 0
        self._first = True

    def feed(self, piece: TokenChunk) -> Iterator[RenderableType]:
        """Yield the blocks that are whole with this chunk."""
        text = printable(self._folding.feed(piece.text))
        if not self._folding.thinking:
            yield from self._thought(f"thought for {self._folding.summary}")
        self._take(text, ORIGIN_STYLES[piece.origin])
        if "\n" in text:
            finished, rest = split_finished(self._text)
            yield from self._final(finished)
            self._styles = self._styles[len(self._text) - len(rest) :]
            self._text = rest

    def growing(self) -> RenderableType | None:
        """Return the block that is not whole, or a line that says that the model is thinking."""
        if self._folding.thinking:
            return Text(f"thinking ... {self._folding.summary}", style="dim")
        if not self._text.strip():
            return None
        block = self._lines(self._text)
        return block if self._first else Group(Text(""), block)

    def finish(self) -> Iterator[RenderableType]:
        """Yield the last block, whole or not."""
        if self._folding.thinking:
            yield from self._thought(f"thinking ended after {self._folding.summary}")
        self._take(printable(self._folding.finish()), "")
        yield from self._final(self._text)
        self._text, self._styles = "", []

    def _take(self, text: str, style: str) -> None:
        if self._origins:
            text = text.replace(JOINER, "")  # of emoji, whole or not
            self._styles += [style] * len(text)
        self._text += text

    def _lines(self, text: str) -> MarkdownLines:
        """Render the beginning of the text."""
        return MarkdownLines(unjoined(text), self._blocks, self._styles[: len(text)])

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
        lines = self._lines(text)
        self._blocks = lines.blocks
        yield lines


class Lines:
    """Shows something as lines of a terminal.

    Args:
        last: show at most this many lines, the last ones.
        mark: show a line of dots where lines are left out.
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
