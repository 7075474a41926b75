"""How native handles end: closed by hand or a `with` block, at exit, or when they are lost."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from edgespec.errors import UsageError

__all__ = ["Closing", "Lifetime"]

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """A context manager that calls `close`."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held; a second call does nothing."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Lifetime:
    """Of one engine, from its opening on.

    Args:
        engine: closed when the interpreter ends, if it is still there: threads that generate are
            inside native code then, which must not outlive the interpreter.
        free: frees its memory; called if it is forgotten without being closed. Must not refer to
            the engine.
    """

    def __init__(self, engine: Closing, free: Callable[[], object]) -> None:
        self._process = os.getpid()
        reference = weakref.ref(engine)

        def close() -> None:
            if (alive := reference()) is not None:
                alive.close()

        self._at_exit = close
        atexit.register(close)
        self._finalizer = weakref.finalize(engine, self._lost, free)
        self._finalizer.atexit = False

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
        self._finalizer.detach()

    def _lost(self, free: Callable[[], object]) -> None:
        atexit.unregister(self._at_exit)
        if not self.foreign:
            free()
            warnings.warn("an engine was not closed", ResourceWarning, stacklevel=2)
