"""Contexts for other work than an answer: many sequences at a time, and embeddings.

Weights are read once for all sequences, so text is several times cheaper than with one answer after
the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import AnyArray, Float32Array, Int32Array
from edgespec.backend.context import Context, ContextOptions
from edgespec.backend.hidden_states import LayerTaps
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
from edgespec.errors import BackendError, CancelledError, ContextFullError, UsageError

__all__ = ["POOLINGS", "EmbeddingContext", "ParallelContext", "Rows"]

_BATCH = 256


class Rows(NamedTuple):
    """The results of one step; views that the next evaluation invalidates.

    Attributes:
        logits: float32 (n, n_vocab).
        hidden: float32 (n, width), the state that the output matrix is applied to.
        layers: float32 (n, layers * width), inputs of the tapped layers side by side.
    """

    logits: Float32Array
    hidden: Float32Array
    layers: Float32Array


class ParallelContext(Context):
    """Sequences 0, 1, 2 ... that share one cache; each is begun, stepped, and begun again.

    `longest` is how many tokens each can hold.

    Args:
        model: a model whose cache can be truncated.
        sequences: how many.
        length: number of tokens that each can hold.
        threads: of an evaluation.
        layers: those whose inputs are wanted; see `LayerTaps`.

    Raises:
        UsageError: a recurrent model, or a layer that does not exist.
        BackendError: llama.cpp could not open the context, or cannot tap the layers.
    """

    def __init__(
        self,
        model: Model,
        sequences: int,
        length: int,
        *,
        threads: int,
        layers: Sequence[int] = (),
    ) -> None:
        if model.has_state:
            raise UsageError(f"{model.path.name} is a recurrent model: it has to be a transformer")
        rows = max(_BATCH, sequences)
        options = ContextOptions(
            length=(sequences + 1) * length,
            threads=threads,
            flash_attention=True,
            batch=rows,
            outputs=sequences + 1,
            sequences=sequences + 1,
            unified=False,
        )
        super().__init__(model, options)
        try:
            self._taps = LayerTaps(self, layers) if layers else None
        except BaseException:
            self.close()
            raise
        self._layers = tuple(layers)
        self._lengths = np.zeros(sequences + 1, np.int32)
        self._row_batch = _RowBatch(rows)
        self.sequences, self.longest = sequences, length
        self._shared = np.zeros(0, np.int32)  # in the last sequence
        self._shared_layers = np.zeros((0, len(layers) * model.embedding_length), np.float32)

    def share(self, tokens: Int32Array) -> None:
        """Set a common beginning of texts: sequences that have it start with a copy of it.

        Raises: as `step`.
        """
        self._shared = np.zeros(0, np.int32)
        self._shared_layers = self._read(self.sequences, tokens)
        self._shared = tokens.copy()

    def begin(self, sequence: int, tokens: Int32Array) -> Float32Array:
        """Make a sequence hold these tokens and nothing else.

        Args:
            sequence: which one.
            tokens: int32 (n,).

        Returns:
            float32 (n, layers * width), a copy: inputs of the tapped layers.

        Raises: as `step`.
        """
        count = len(self._shared)
        if count and len(tokens) >= count and np.array_equal(tokens[:count], self._shared):
            self.copy_sequence(self.sequences, sequence)
            self._lengths[sequence] = count
            return np.concatenate((self._shared_layers, self._append(sequence, tokens[count:])))
        return self._read(sequence, tokens)

    def step(self, sequences: Int32Array, tokens: Int32Array) -> Rows:
        """Append one token to each of some sequences.

        Args:
            sequences: int32 (n,), distinct.
            tokens: int32 (n,).

        Raises:
            ContextFullError: a sequence is full.
            CancelledError: `cancel` was called.
            BackendError: llama.cpp failed.
        """
        self._evaluate(sequences, self._lengths[sequences], tokens, outputs=True)
        count, width = len(tokens), self.model.embedding_length
        logits = lib.llama_get_logits(self.pointer)
        hidden = lib.llama_get_embeddings(self.pointer)
        if not logits or not hidden:
            raise BackendError("llama.cpp keeps no final states of this model")
        return Rows(
            np.ctypeslib.as_array(logits, (count, self._n_vocab)),
            np.ctypeslib.as_array(hidden, (count, width)),
            self._inputs(count),
        )

    def _read(self, sequence: int, tokens: Int32Array) -> Float32Array:
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._lengths[sequence] = 0
        return self._append(sequence, tokens)

    def _append(self, sequence: int, tokens: Int32Array) -> Float32Array:
        parts = [self._shared_layers[:0]]
        for start in range(0, len(tokens), _BATCH):
            part = tokens[start : start + _BATCH]
            places = self._lengths[sequence] + np.arange(len(part), dtype=np.int32)
            self._evaluate(np.full(len(part), sequence, np.int32), places, part, outputs=False)
            parts.append(self._inputs(len(part)))
        return np.concatenate(parts)

    def _evaluate(
        self, sequences: Int32Array, positions: Int32Array, tokens: Int32Array, *, outputs: bool
    ) -> None:
        if len(positions) and int(positions.max()) >= self.longest:
            raise ContextFullError(f"a sequence is longer than the {self.longest} tokens allowed")
        # If final states are wanted, llama.cpp computes the logits of every token.
        lib.llama_set_embeddings(self.pointer, outputs)
        batch = self._row_batch.fill(sequences, positions, tokens, outputs=outputs)
        status = lib.llama_decode(self.pointer, batch)
        if status != 0:
            self._raise(status)
        np.add.at(self._lengths, sequences, 1)

    def _inputs(self, count: int) -> Float32Array:
        if self._taps is None:
            return np.zeros((count, 0), np.float32)
        return np.concatenate([self._taps.rows(i, count) for i in self._layers], axis=1)


class _RowBatch:
    """A llama_batch over fixed arrays, with a sequence for every token."""

    def __init__(self, capacity: int) -> None:
        self._tokens, self._positions, self._sequences, self._counts = (
            np.ones(capacity, np.int32) for _ in range(4)
        )
        self._outputs = np.ones(capacity, np.int8)
        addresses = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self._pointers = addresses.astype(np.uint64)
        self._native = lib.llama_batch(
            n_tokens=0,
            token=_as(self._tokens, lib.llama_token),
            embd=None,
            pos=_as(self._positions, lib.llama_pos),
            n_seq_id=_as(self._counts, ctypes.c_int32),
            seq_id=_as(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=_as(self._outputs, ctypes.c_int8),
        )

    def fill(
        self,
        sequences: Int32Array,
        positions: Int32Array,
        tokens: Int32Array,
        *,
        outputs: bool,
    ) -> Any:
        """Set one token for each of these sequences, at its position."""
        count = len(tokens)
        self._native.n_tokens = count
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        return self._native


def _as(array: AnyArray, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


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
