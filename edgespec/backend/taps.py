"""Read hidden states of chosen layers where llama.cpp leaves them: an optional capability.

The functions belong to llama.cpp's unstable interface and are exported under C++ names; a build
that lacks them has `Capabilities.layer_taps` False.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend.context import Context
from edgespec.backend.native import LAYER_TAPS, capabilities, lib
from edgespec.errors import BackendError, UsageError

__all__ = ["LayerTaps", "RecordedInputs", "can_tap"]

# llama.cpp ends the process if a graph without taps is asked for them, and it cannot be asked
# first. These are the architectures whose graphs have taps in the pinned version.
_TAPPED = frozenset(("llama", "qwen3", "qwen3moe", "gpt-oss"))


def can_tap(architecture: str) -> bool:
    """Return whether llama.cpp's graphs of this architecture give the inputs of their layers."""
    return architecture in _TAPPED


class LayerTaps:
    """Makes every evaluation of a context keep the inputs of some layers.

    Args:
        context: an open context.
        layers: 0 is the input of the first layer (the token's embedding).

    Raises:
        BackendError: this build lacks the functions, or the architecture is not tapped.
        UsageError: no such layer.
    """

    def __init__(self, context: Context, layers: Sequence[int]) -> None:
        if not capabilities().layer_taps:
            raise BackendError("this build of llama.cpp has no access to hidden states")
        if not can_tap(context.model.header.architecture):
            raise BackendError(
                f"llama.cpp keeps no hidden states of {context.model.header.architecture} models"
            )
        last = context.model.block_count - 1
        for layer in layers:
            if not 0 <= layer <= last:
                raise UsageError(f"layer is {layer}: it has to be between 0 and {last}")
        self._context = context
        self._layers = tuple(layers)
        self._width = context.model.embedding_length
        self._get = getattr(lib.llama_cpp._lib, LAYER_TAPS[1])
        self._get.argtypes = [lib.llama_context_p_ctypes, ctypes.c_uint32]
        self._get.restype = ctypes.c_void_p
        self._switch(True)

    def rows(self, layer: int, count: int) -> Float32Array:
        """Return the inputs of a layer for the tokens of the last evaluation.

        Args:
            layer: one of the tapped layers.
            count: number of tokens of that evaluation, at most `ContextOptions.batch`.

        Returns:
            float32 (count, embedding_length), a view that the next evaluation invalidates.

        Raises:
            UsageError: the layer is not tapped.
        """
        if layer not in self._layers:
            raise UsageError(f"layer {layer} is not tapped")
        # As it is done for every token: half the time that `np.ctypeslib.as_array` takes.
        memory = ctypes.c_float * (count * self._width)
        found = memory.from_address(self._get(self._context.pointer, layer))
        return np.frombuffer(memoryview(found), np.float32).reshape(count, self._width)

    def close(self) -> None:
        """Stop keeping them."""
        self._switch(False)

    def _switch(self, on: bool) -> None:
        switch = getattr(lib.llama_cpp._lib, LAYER_TAPS[0])
        switch.argtypes = [lib.llama_context_p_ctypes, ctypes.c_uint32, ctypes.c_bool]
        switch.restype = None
        for layer in self._layers:
            switch(self._context.pointer, layer, on)


class RecordedInputs:
    """The inputs of some layers for every token that a context evaluates, by position.

    They are copied after each evaluation, so that no evaluation has to be repeated. Rows of tokens
    that were rolled back stay until they are overwritten.

    Args:
        context: an open context; everything it evaluates from now on is recorded.
        layers: as for `LayerTaps`, whose errors it raises.

    Attributes:
        rows: float32 (capacity, layers * embedding_length), each token's inputs side by side.
        length: all rows before it were recorded, and none after it counts.
    """

    def __init__(self, context: Context, layers: Sequence[int]) -> None:
        self._taps = LayerTaps(context, layers)
        self._context, self._layers = context, tuple(layers)
        width = context.model.embedding_length
        # The system allocates memory for rows when they are written.
        self.rows = np.empty((context.capacity, len(layers) * width), np.float32)
        self.length = 0
        context.on_evaluated, context.on_kept = self._record, self._keep

    def _record(self, start: int, count: int) -> None:
        width = self._context.model.embedding_length
        for index, layer in enumerate(self._layers):
            columns = slice(index * width, (index + 1) * width)
            self.rows[start : start + count, columns] = self._taps.rows(layer, count)
        if start <= self.length:
            self.length = start + count

    def _keep(self, base: int, path: Int32Array) -> None:
        """Nodes of a tree were recorded side by side; bring those of a path together."""
        for depth, node in enumerate(path.tolist()):
            if node != depth:
                self.rows[base + depth] = self.rows[base + node]

    def close(self) -> None:
        """Stop recording."""
        self._context.on_evaluated = self._context.on_kept = None
        self._taps.close()
