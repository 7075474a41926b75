"""Native code in a Python process: how its handles are freed, and how it is stopped.

Handles are freed by `close` or `with`, at exit, or when they are lost. Evaluations are stopped by
Ctrl-C and other signals, and from another thread: llama.cpp asks a callback at every node of its
graph whether to continue. A Python callback would take the interpreter lock a thousand times per
token; this one is native code that reads one byte.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numba import carray, types

from edgespec.errors import UsageError
from edgespec.sampling.kernel import native_callback

__all__ = ["CancelFlag", "Closing", "Lifetime", "beside"]

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


T = TypeVar("T")


def beside(call: Callable[[], T], stop: Callable[[], object]) -> T:
    """Make a long native call and return its result, handling signals while it runs.

    Python handles signals in the main thread, between its instructions. So in the main thread, the
    call is made in another thread.

    Args:
        call: must not raise.
        stop: makes `call` return soon. It is called if a signal handler raises; the exception is
            raised here after `call` has returned.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    returned: list[T] = []
    done = threading.Lock()
    done.acquire()

    def work() -> None:
        try:
            returned.append(call())
        finally:
            done.release()

    worker = threading.Thread(target=work, name="edgespec-evaluation", daemon=True)
    try:
        worker.start()
        done.acquire()
    except BaseException:
        stop()
        if worker.ident is not None:
            done.acquire()
        raise
    return returned[0]


@native_callback(types.boolean(types.voidptr))
def _is_set(flag: Any) -> bool:
    return carray(flag, 1, np.uint8)[0] != 0  # type: ignore[no-any-return]


class CancelFlag:
    """One byte that any thread may set and that native code polls."""

    def __init__(self) -> None:
        self._byte = np.zeros(1, np.uint8)

    @property
    def callback(self) -> Any:
        """Address of ``bool (*)(void *)``, for llama.cpp."""
        return _is_set.address

    @property
    def data(self) -> ctypes.c_void_p:
        """The argument that llama.cpp passes to the callback."""
        return ctypes.c_void_p(self._byte.ctypes.data)

    def set(self) -> None:
        """Ask the running evaluation to stop."""
        self._byte[0] = 1

    def clear(self) -> None:
        """Allow evaluations again."""
        self._byte[0] = 0

    def is_set(self) -> bool:
        """Return whether a stop was asked for."""
        return bool(self._byte[0])
