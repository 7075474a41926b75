"""Where a conversation is printed: answers while they are written, lines around them, status."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from types import FrameType
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from edgespec.chat.characters import printable
from edgespec.chat.markdown import OPENING, Folding, MarkdownLines, split_thought
from edgespec.chat.view import (
    AnswerView,
    Lines,
    LiveView,
    MarkdownBody,
    PlainView,
    marked,
    print_legend,
)
from edgespec.errors import EdgespecError
from edgespec.interrupts import consume
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Session, Turn
from edgespec.runtime.stream import Result

__all__ = [
    "Figures",
    "Forecast",
    "Meter",
    "Screen",
    "begins_thinking",
    "no_echo",
    "notices",
    "on_interrupt",
    "show_answer",
    "statistics_lines",
    "status_line",
    "summary_line",
]

_ENOUGH_TOKENS = 32
"""For a speedup: fewer say nothing."""


@dataclass(frozen=True)
class Figures:
    """An answer at a moment.

    Attributes:
        tokens: emitted.
        per_second: of decoding, prefill left out.
        speedup: over this answer's own steps without proposals; None if that is not known.
        acceptance: share of the proposed tokens; None if none was proposed.
        used, capacity: tokens of the context.
        exactness: what speculation keeps of plain decoding: "bitwise", "distribution",
            or "lossy".
    """

    tokens: int
    per_second: float
    speedup: float | None
    acceptance: float | None
    drafter: str
    used: int
    capacity: int
    exactness: str = "bitwise"

    @property
    def plain_per_second(self) -> float | None:
        """Return tokens per second that plain decoding would have reached."""
        return self.per_second / self.speedup if self.speedup else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a stored answer."""
        return {
            "tokens": self.tokens,
            "tokens_per_second": round(self.per_second, 2),
            "speedup": self.speedup and round(self.speedup, 3),
            "acceptance_rate": self.acceptance and round(self.acceptance, 4),
            "drafter": self.drafter,
            "context": self.used,
        }


class Meter:
    """Reads the figures of a turn, from any thread and at any time."""

    def __init__(self, turn: Turn, engine: Engine) -> None:
        self._stream = turn.stream
        self._engine = engine

    def read(self) -> Figures:
        """Return the figures now."""
        statistics = self._stream.statistics
        return Figures(
            tokens=len(self._stream.emitted),
            per_second=statistics.tokens_per_second,
            speedup=statistics.speedup if statistics.emitted >= _ENOUGH_TOKENS else None,
            acceptance=statistics.acceptance_rate,
            drafter=self._engine.drafter_name,
            used=len(self._stream.sequence),
            capacity=self._engine.context_length,
            exactness=self._engine.exactness_of(self._stream).mode,
        )


_SHORTEST_NAME = 8
_FILES_WIDTH = 15
_log = logging.getLogger("edgespec.chat")
_NEARLY_FULL = 0.85


def status_line(figures: Figures, width: int = 80) -> str:
    """Return one line within `width` columns: speed, acceptance, drafter, context.

    What does not fit is left out: the plain speed, the end of the drafter's name, all of it, ...
    """
    speed = [_count(figures.tokens, "token"), f"{figures.per_second:.1f}/s"]
    accepted = [] if figures.acceptance is None else [f"{figures.acceptance:.0%} accepted"]
    context = [f"context {figures.used}/{figures.capacity}"]
    if figures.exactness == "lossy":
        context.insert(0, "lossy")
    gain, compared = [], []
    if figures.speedup is not None:
        gain = [f"{figures.speedup:.1f}x plain"]
        compared = [f"{gain[0]} ({figures.plain_per_second:.1f}/s)"]
    for before in ([*speed, *compared, *accepted], [*speed, *gain, *accepted]):
        room = width - 1 - len(", ".join([*before, "", *context]))
        if room >= min(cell_len(figures.drafter), _SHORTEST_NAME):
            return ", ".join([*before, _shortened(figures.drafter, room), *context])
    for parts in ([*speed, *gain, *accepted], [*speed, *gain], speed):
        line = ", ".join([*parts, *context])
        if len(line) < width:
            return line
    return ", ".join(context)[: width - 1]


def summary_line(
    model: str, drafter: str, used: int, capacity: int, files: Sequence[str], width: int
) -> str:
    """Return one line within `width` columns: what will answer, and the files that wait.

    Names of files, and then of models, are shortened if they have to be.
    """
    context = f"context {used}/{capacity}"
    with_files = f", with {', '.join(files)}" if files else ""
    room = width - 1 - len(f", draft , {context}") - min(cell_len(with_files), _FILES_WIDTH)
    drafter = _shortened(drafter, max(room // 2, room - cell_len(model)))
    line = f"{_shortened(model, room - cell_len(drafter))}, draft {drafter}, {context}"
    return line + _shortened(with_files, width - 1 - cell_len(line))


def notices(result: Result, dropped: int, newly_dropped: int, shifted: int) -> Iterator[str]:
    """Yield what the user should know about how an answer came about and ended.

    Args:
        dropped: messages that the model no longer sees.
        newly_dropped: those of them that it still saw before this answer.
        shifted: tokens that were dropped in the middle of the answer.
    """
    if newly_dropped > 0:
        yield f"the context is full: the model no longer sees the first {dropped} messages"
    if shifted > 0:
        yield f"the context became full: the oldest {shifted} tokens were dropped meanwhile"
    if result.finish_reason == "length":
        yield f"cut off at {len(result.tokens)} tokens: /set max-tokens changes that"
    if result.finish_reason == "loop":
        yield "ended, it only repeated itself: /retry, or /set allow-loops on"
    if result.finish_reason == "context":
        yield "cut off, the context is full: /reset, or start again with a larger --ctx"
    if result.finish_reason == "cancelled":
        yield "stopped" if result.text else "stopped before the first word: /retry asks again"
    elif not result.text:
        yield "the model said nothing: /retry asks again"


_KEPT = {
    "bitwise": "the logits of plain decoding bit for bit",
    "distribution": "the distribution of plain decoding but for rounding",
    "lossy": "by typical acceptance not the distribution",
}


def statistics_lines(result: Result, figures: Figures) -> Iterator[str]:
    """Yield everything that was measured for one answer."""
    statistics = result.statistics
    reused = min(statistics.reused_tokens, result.prompt_tokens)
    plain = figures.plain_per_second
    facts = {
        "model": result.model,
        "drafter": result.drafter,
        "prompt": f"{result.prompt_tokens} tokens, {reused} of them from the cache",
        "prefill": f"{statistics.prefill_s:.2f} s",
        "answer": f"{_count(len(result.tokens), 'token')}, ended by {result.finish_reason}",
        "decoding": f"{statistics.decode_s:.2f} s, {statistics.tokens_per_second:.1f} tokens/s",
        "plain": "not known here"
        if plain is None
        else f"{plain:.1f} tokens/s by its steps without proposals: {figures.speedup:.2f}x",
        "of that": f"draft {statistics.draft_s:.2f} s, verify {statistics.verify_s:.2f} s, "
        f"sample {statistics.sample_s:.2f} s",
        "cycles": f"{statistics.cycles}, {statistics.fallback_cycles} of them without a proposal "
        "from the drafter",
        "proposed": f"{_count(statistics.proposed, 'token')}, {statistics.accepted} accepted, "
        f"{_count(statistics.bonus, 'bonus token')}",
        "block length": ", ".join(
            f"{k}: {_count(n, 'cycle')}" for k, n in sorted(statistics.k_histogram.items())
        ),
    }
    facts["exactness"] = f"{figures.exactness}, {_KEPT[figures.exactness]}"
    width = max(map(len, facts))
    for name, value in facts.items():
        yield f"{name:{width}}  {value}"


class Forecast:
    """Warns before the context is full, taking the next turn to be like those before."""

    def __init__(self) -> None:
        self._said = False

    def after(self, session: Session, used: int) -> str | None:
        """Return a line if the next message will probably not fit, once until that has happened.

        Args:
            used: tokens that the context holds after an answer.
        """
        capacity = session.engine.context_length
        seen = sum(message.role == "user" for message in session.messages) - session.dropped // 2
        room = max(used // max(1, seen), round(capacity * (1 - _NEARLY_FULL)))
        if used + room <= capacity:
            self._said = False
            return None
        if self._said:
            return None
        self._said = True
        state = f"the context is {used / capacity:.0%} full"
        if session.limits.overflow == "stop":
            return f"{state}: it ends soon; /reset starts over, a larger --ctx holds more"
        dropped = self._dropped(session, max(room, capacity - used))
        return f"{state}: soon the model will not see the oldest {dropped} messages any more"

    def _dropped(self, session: Session, tokens: int) -> int:
        try:
            return max(session.would_drop(tokens), session.dropped + 2)
        except EdgespecError as error:
            _log.info("no forecast: %s", error)
            return session.dropped + 2


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"


def _shortened(name: str, room: int) -> str:
    if cell_len(name) <= room:
        return name
    return set_cell_size(name, max(0, room - 3)).rstrip() + "..."


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
