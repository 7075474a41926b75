"""Stopping native code: by Ctrl-C and other signals, and from another thread.

llama.cpp asks a callback at every node of its graph whether to go on. A Python callback would
take the interpreter lock a thousand times a token; this one is native code that reads one byte.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import carray, types

from edgespec.sampling.kernel import native_callback

__all__ = ["CancelFlag", "beside"]

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
