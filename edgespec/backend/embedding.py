"""An open context for embeddings: a text's hidden states, pooled into one vector by llama.cpp."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend.lifetime import (
    Batch,
    CancelFlag,
    Closing,
    beside,
    claim_process,
    lib,
    open_context,
    recent_errors,
)
from edgespec.backend.model import Model
from edgespec.errors import BackendError, CancelledError, ContextFullError

__all__ = ["POOLINGS", "EmbeddingContext"]

POOLINGS = {
    "none": lib.LLAMA_POOLING_TYPE_NONE,
    "mean": lib.LLAMA_POOLING_TYPE_MEAN,
    "cls": lib.LLAMA_POOLING_TYPE_CLS,
    "last": lib.LLAMA_POOLING_TYPE_LAST,
}
"""How one vector is made of those of all tokens: their mean, the first, the last, or not at all."""

_ABORTED = 2


class EmbeddingContext(Closing):
    """Evaluates one text at a time, whole; what was evaluated before changes nothing.

    Not thread-safe, except `cancel`. Close it, or use it as a context manager.

    Args:
        model: it stays open for as long as this does.
        pooling: one of `POOLINGS`.
        length: most tokens of a text. All are evaluated together, as pooling needs them.
        threads: to evaluate with.

    Raises:
        BackendError: llama.cpp could not open the context.
    """

    def __init__(self, model: Model, pooling: str, *, length: int, threads: int) -> None:
        self.model, self.pooling, self.length = model, pooling, length
        self.width = int(lib.llama_model_n_embd_out(model.pointer))
        self._cancel = CancelFlag()
        self._pointer: Any = None
        self._pointer = _open(model, pooling, length, threads, self._cancel)
        self._memory = lib.llama_get_memory(self._pointer)
        self._batch = Batch(length)

    def embed(self, tokens: Int32Array) -> Float32Array:
        """Return the vector of a text: float32 (width,); with pooling "none" (n, width).

        Raises:
            ContextFullError: it is longer than `length`, or empty.
            CancelledError: `cancel` was called.
            BackendError: llama.cpp failed.
        """
        pointer, count = self._pointer, len(tokens)
        if pointer is None:
            raise CancelledError("the model was closed")
        if not 1 <= count <= self.length:
            raise ContextFullError(
                f"a text of {count} tokens cannot be embedded: from 1 to {self.length} can here "
                "(--ctx changes it)"
            )
        if self._memory:  # encoders have none
            lib.llama_memory_clear(self._memory, False)
        batch = self._batch.fill(tokens, 0, count)
        status = beside(lambda: int(lib.llama_decode(pointer, batch)), self.cancel)
        if status == _ABORTED:
            raise CancelledError("cancelled")
        if status:
            raise BackendError(
                f"llama.cpp could not embed a text (status {status}): {recent_errors()}"
            )
        shape: tuple[int, ...] = (self.width,)
        if self.pooling == "none":
            found, shape = lib.llama_get_embeddings(pointer), (count, self.width)
        else:
            found = lib.llama_get_embeddings_seq(pointer, 0)
        if not found:
            raise BackendError(f"{self.model.path.name} gives no embeddings: {recent_errors()}")
        vector: Float32Array = np.ctypeslib.as_array(found, shape=shape).copy()
        return vector

    def cancel(self) -> None:
        """Stop the running evaluation, from any thread; it raises CancelledError."""
        self._cancel.set()

    def resume(self) -> None:
        """Allow evaluations again after `cancel`."""
        self._cancel.clear()

    def close(self) -> None:
        """Free the context."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            lib.llama_free(pointer)


def _open(model: Model, pooling: str, length: int, threads: int, cancel: CancelFlag) -> Any:
    claim_process()
    parameters = lib.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
    parameters.n_seq_max = 1
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.embeddings = True
    parameters.pooling_type = POOLINGS[pooling]
    parameters.no_perf = True
    parameters.abort_callback = ctypes.cast(cancel.callback, lib.ggml_abort_callback)
    parameters.abort_callback_data = cancel.data
    return open_context(
        model.pointer,
        parameters,
        f"a context for embeddings of {length} tokens for {model.path.name}",
    )
