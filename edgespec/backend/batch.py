"""The input of one evaluation: tokens, positions, and which of them get logits."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgespec._types import AnyArray, Int32Array
from edgespec.backend.native import lib

__all__ = ["Batch"]


class Batch:
    """A llama_batch over fixed arrays, filled in place for every evaluation."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        sequence = np.zeros(1, np.int32)
        self._sequence = sequence
        self._sequences = np.full(capacity, sequence.ctypes.data, np.uint64)
        self._steps = np.arange(capacity, dtype=np.int32)
        self._native = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, lib.llama_token),
            embd=None,
            pos=_pointer(self._positions, lib.llama_pos),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=ctypes.cast(
                self._sequences.ctypes.data,
                ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id)),
            ),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def fill(self, tokens: Int32Array, start: int, outputs: int) -> Any:
        """Set a chain of tokens at positions start.., with logits for the last `outputs`."""
        count = len(tokens)
        self._native.n_tokens = count
        self._tokens[:count] = tokens
        np.add(self._steps[:count], start, out=self._positions[:count])
        self._outputs[:count] = 0
        self._outputs[count - outputs : count] = 1
        return self._native


def _pointer(array: AnyArray, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
