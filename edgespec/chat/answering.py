"""Show an answer while the model writes it: Ctrl-C stops it, other keys wait."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from edgespec.chat.reasoning import OPENING
from edgespec.chat.screen import Screen
from edgespec.chat.status import Meter, status_line
from edgespec.runtime.engine import Engine
from edgespec.runtime.reading import consume
from edgespec.runtime.session import Turn
from edgespec.runtime.stream import Result

__all__ = ["begins_thinking", "no_echo", "on_interrupt", "show_answer"]

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
