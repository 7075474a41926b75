"""How native handles are freed: by `close` or `with`, at exit, or when they are lost."""

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
        """Free all resources; a second call does nothing."""

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
    """The lifetime of one engine, from its opening on.

    Args:
        engine: closed when the interpreter ends, if it is still open: threads that generate are
            then inside native code, which must not outlive the interpreter.
        free: frees its memory; called if the engine is lost without being closed. Must not refer
            to the engine.
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
        """Refuse to continue in a forked process.

        Raises:
            UsageError: llama.cpp's threads do not survive a fork, and waiting for them would never
                end.
        """
        if self.foreign:
            raise UsageError(
                "the model was loaded before this process was forked: load it in the process "
                "that uses it, started by multiprocessing's 'spawn' or 'forkserver' method"
            )

    def end(self) -> None:
        """Note that the engine was closed."""
        atexit.unregister(self._at_exit)
        self._finalizer.detach()

    def _lost(self, free: Callable[[], object]) -> None:
        atexit.unregister(self._at_exit)
        if not self.foreign:
            free()
            warnings.warn("an engine was not closed", ResourceWarning, stacklevel=2)
