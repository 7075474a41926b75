"""Where a conversation is printed: answers while they are written, and the lines around them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType

from rich.console import Console
from rich.text import Text

from edgespec.chat.characters import printable
from edgespec.chat.markdown import OPENING, Folding, MarkdownLines, split_thought
from edgespec.chat.status import Meter, status_line
from edgespec.chat.view import (
    AnswerView,
    Lines,
    LiveView,
    MarkdownBody,
    PlainView,
    marked,
    print_legend,
)
from edgespec.interrupts import consume
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Turn
from edgespec.runtime.stream import Result

__all__ = ["Screen", "begins_thinking", "no_echo", "on_interrupt", "show_answer"]

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
            print_legend()

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


# -- an answer while it is written --------------------------------------------------------------

_LAST_TOKENS = 4  # of a prompt, among which a mark would be


def show_answer(turn: Turn, meter: Meter, engine: Engine, screen: Screen) -> Result:
    """Run a turn to its end; Ctrl-C ends it early.

    Raises: what the turn raises.
    """

    def status() -> str:
        return status_line(meter.read(), screen.width)

    thinking = begins_thinking(engine, turn)
    with (
        no_echo(),
        on_interrupt(turn.cancel),
        screen.answer(status, thinking=thinking) as view,
    ):
        turn.stream.progress = view.reading
        return consume(turn, view)


def begins_thinking(engine: Engine, turn: Turn) -> bool:
    """Return whether the prompt ends inside of reasoning: some templates begin it for the model."""
    stream = turn.stream
    end = stream.sequence[: stream.prompt_tokens][-_LAST_TOKENS:]
    text = b"".join(engine.vocabulary.piece(token, special=True) for token in end)
    return text.rstrip().endswith(OPENING.encode())


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `stop`; a second one raises KeyboardInterrupt as usual.

    A KeyboardInterrupt at any instruction could leave half of a screen update behind.
    """

    def stop_once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        stop()

    previous = signal.signal(signal.SIGINT, stop_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def no_echo() -> Iterator[None]:
    """Keep keys from appearing in the middle of an answer, where the terminal has such a mode."""
    try:
        import termios
    except ImportError:
        yield
        return
    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):
        yield
        return
    silent = [*before]
    silent[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
