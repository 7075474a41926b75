"""Stop a running evaluation from another thread.

At every node of its graph, llama.cpp asks a callback whether to stop. A Python callback would take
the interpreter lock a thousand times per token; this one is native code that reads one byte.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba import carray, types

from edgespec.sampling.kernel import native_callback

__all__ = ["CancelFlag"]


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
