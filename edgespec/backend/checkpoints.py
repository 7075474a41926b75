"""Copies of a recurrent state, for caches that cannot be truncated.

A recurrent layer folds every token into one state and cannot remove one again. But an earlier state
can be kept and restored.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgespec._types import ByteArray
from edgespec.backend.native import lib
from edgespec.errors import BackendError

__all__ = ["Checkpoints", "byte_pointer"]

_RECURRENT_ONLY = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Checkpoints:
    """The most recent states of sequence 0, each with its number of tokens.

    Only recurrent layers are copied: the attention layers of a hybrid model can be truncated.

    Args:
        pointer: an open llama_context.
        count: how many are kept; 0 for none, as for a model that has no recurrent layer.
    """

    def __init__(self, pointer: Any, count: int) -> None:
        self._pointer = pointer
        self._memory = lib.llama_get_memory(pointer)
        self._count = count
        self._saved: list[tuple[int, ByteArray]] = []  # by length, ascending
        self._free: list[ByteArray] = []

    @property
    def kept(self) -> bool:
        """Whether any are kept at all."""
        return self._count > 0

    def save(self, length: int) -> None:
        """Copy the current state, which holds `length` tokens.

        Raises:
            BackendError: llama.cpp could not copy it.
        """
        self.forget(length - 1)
        if len(self._saved) == self._count:
            self._free.append(self._saved.pop(0)[1])
        size = int(lib.llama_state_seq_get_size_ext(self._pointer, 0, _RECURRENT_ONLY))
        buffer = self._free.pop() if self._free else np.empty(size, np.uint8)
        if len(buffer) != size:
            buffer = np.empty(size, np.uint8)
        written = lib.llama_state_seq_get_data_ext(
            self._pointer, byte_pointer(buffer), size, 0, _RECURRENT_ONLY
        )
        if written != size:
            raise BackendError("llama.cpp could not copy the state of a recurrent model")
        self._saved.append((length, buffer))

    def restore(self, length: int) -> int:
        """Restore the newest state of at most `length` tokens, or none; return its length."""
        self.forget(length)
        saved, buffer = self._saved[-1] if self._saved else (0, None)
        if buffer is not None:
            read = lib.llama_state_seq_set_data_ext(
                self._pointer, byte_pointer(buffer), len(buffer), 0, _RECURRENT_ONLY
            )
            # The attention layers of a hybrid model are truncated to the same length.
            if read == len(buffer) and lib.llama_memory_seq_rm(self._memory, 0, saved, -1):
                return saved
        self.forget(-1)
        lib.llama_memory_clear(self._memory, False)
        return 0

    def forget(self, length: int) -> None:
        """Drop the states of more than `length` tokens."""
        while self._saved and self._saved[-1][0] > length:
            self._free.append(self._saved.pop()[1])


def byte_pointer(buffer: ByteArray) -> Any:
    """Return a pointer to the buffer's memory, as llama.cpp's functions for states take it."""
    return ctypes.cast(buffer.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
