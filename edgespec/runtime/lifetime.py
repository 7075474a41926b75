"""Engines and the life of their process: closed at its end, refused after a fork."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable

from edgespec.errors import UsageError

__all__ = ["Lifetime"]


class Lifetime:
    """Of one engine, from its opening on.

    Args:
        close: closes it; called when the interpreter ends, if the engine is still there. Threads
            that generate are inside native code then, which must not outlive the interpreter.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._process = os.getpid()
        method = weakref.WeakMethod(close)
        self._at_exit = lambda: (method() or _nothing)()
        atexit.register(self._at_exit)

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that opened the engine."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Refuse to go on in a forked process.

        Raises:
            UsageError: threads of llama.cpp's do not survive a fork, and waiting for them would
                never end.
        """
        if self.foreign:
            raise UsageError(
                "the model was loaded before this process was forked: load it in the process "
                "that uses it, started by multiprocessing's 'spawn' or 'forkserver' method"
            )

    def end(self) -> None:
        """The engine was closed."""
        atexit.unregister(self._at_exit)


def _nothing() -> None:
    pass
