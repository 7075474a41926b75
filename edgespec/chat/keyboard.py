"""The keyboard while an answer comes: Ctrl-C stops it, other keys wait for the next prompt."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["no_echo", "on_interrupt"]


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
