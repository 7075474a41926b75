"""An open context: the KV cache of a model and the evaluation of tokens in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec._types import ByteArray, Float32Array, Int32Array
from edgespec.backend.checkpoints import MOST_NODES, Branches, Checkpoints, WholeState, byte_pointer
from edgespec.backend.kernels import opened_device
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

__all__ = ["Context", "ContextOptions"]


_KV_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "f32": lib.GGML_TYPE_F32}
_NO_SLOT, _ABORTED = 1, 2
_TRIED_TREE, _TRIED_PATH = (-1, 0, 0, 1, 2), (0, 2, 4)
"""Parents of a small tree, and a path of it whose cells do not lie side by side."""
_LONG = 32
"""An evaluation of this many tokens may take seconds."""


@dataclass(frozen=True)
class ContextOptions:
    """How a context is opened; fixed for its lifetime.

    Attributes:
        length: number of tokens that the KV cache can hold.
        threads: for single tokens and batches alike, because a sum that is split over another
            number of threads may round differently.
        flash_attention: llama.cpp's splits the keys over threads for one token and not for a
            batch, so that batches are not bit-identical to single tokens; ours is exact
            (`Model.exact_attention`).
        batch: number of tokens of a prompt that are evaluated at once.
        outputs: most rows of logits of one evaluation (a block and one more).
        sequences: how many sequences share the cache.
        unified: whether any sequence may use any part of the cache; otherwise each has an equal
            part, which is faster if all of them are evaluated together.
        kv_type: "f16", "q8_0" (needs flash attention) or "f32".
        checkpoints: for a model with recurrent layers, how many evaluations `truncate` can undo;
            each costs a copy of its state. Ignored for other models.
        snapshots: for such a model, how many of an evaluation's last tokens llama.cpp itself shall
            be able to take back, where it can: it keeps a state behind each of them. A copy is
            then made only where these are too few.
        room: asked before every evaluation how many threads the machine has room for.
    """

    length: int = 4096
    threads: int = 1
    flash_attention: bool = False
    batch: int = 256
    outputs: int = 33
    sequences: int = 1
    unified: bool = True
    kv_type: str = "f16"
    checkpoints: int = 0
    snapshots: int = 0
    room: Callable[[], int] | None = None


class Context(Closing):
    """A KV cache, with methods to extend, truncate, copy, save and restore it.

    The cache of sequence 0 holds `length` tokens; `evaluate` appends to it.
    Not thread-safe, except `cancel`. Close it, or use it as a context manager.

    Attributes:
        on_evaluated: called after every evaluation with the position of its first token and the
            number of tokens, to read results that the next evaluation overwrites; with 0 and 0
            after another cache was restored.
        on_kept: called when a path of a tree is kept, with the position of its first token and
            its nodes.

    Raises:
        UsageError: an option is out of range; or the process is a fork of one that used a model.
        BackendError: llama.cpp could not open the context.
    """

    def __init__(
        self,
        model: Model,
        options: ContextOptions,
        *,
        other: Context | None = None,
        mtp: bool = False,
    ) -> None:
        _check(options)
        self.model = model
        self.options = options
        self.length = 0
        self._cancel = CancelFlag()
        self._pointer: Any = None
        self._branches: Branches | None = None
        device = opened_device() if model.exact_attention and options.flash_attention else None
        if device is not None:
            device.opened_states()  # what others left
        self._pointer = _open(model, options, self._cancel, other, mtp)
        self._recurrent = model.has_state and not mtp  # layers for MTP attend
        if device is not None and not self._recurrent:
            self._branches = Branches(device, device.opened_states())
        self.on_evaluated: Callable[[int, int], None] | None = None
        self.on_kept: Callable[[int, Int32Array], None] | None = None
        self._keeps_states = self._has_states = False
        self._memory = lib.llama_get_memory(self._pointer)
        self._window = 0 if self._recurrent else model.window
        self._whole = WholeState.of(self._pointer) if self._window else None
        self._checkpoints = Checkpoints(
            self._pointer, options.checkpoints if self._recurrent else 0
        )
        self._snapshots = int(lib.llama_n_rs_seq(self._pointer)) if self._recurrent else 0
        self._lowest = 0  # where the snapshots of the last evaluation begin
        self._taken_back = False  # `length` is less than llama.cpp knows
        self._stoppable = True
        self.capacity = min(options.length, int(lib.llama_n_ctx_seq(self._pointer)))
        self._threads = options.threads
        self._batch = Batch(max(options.batch, options.outputs))
        self._n_vocab = model.vocabulary.size
        self._rows: dict[tuple[int, int], Float32Array] = {}

    @property
    def pointer(self) -> Any:
        """The native handle, for the other modules of this package.

        Raises:
            BackendError: the context was closed.
        """
        if self._pointer is None:
            raise BackendError("the context was closed")
        return self._pointer

    # -- evaluation -------------------------------------------------------------------------

    def prefill(self, tokens: Int32Array) -> None:
        """Append tokens without asking for logits, in evaluations of `options.batch` tokens.

        Raises: as `evaluate`; tokens that were appended before an error stay.
        """
        step = self.options.batch
        for start in range(0, len(tokens), step):
            self._decode(tokens[start : start + step], 0)

    def evaluate(self, tokens: Int32Array, outputs: int) -> Float32Array:
        """Append tokens and return the logits after each of the last `outputs`.

        Args:
            tokens: int32 (n,), 1 <= n.
            outputs: number of rows, 1 <= outputs <= min(n, options.outputs).

        Returns:
            float32 (outputs, n_vocab), a view into llama.cpp's memory: valid until the next
            evaluation, never copied.

        Raises:
            UsageError: too many outputs.
            ContextFullError: fewer than n free positions.
            CancelledError: `cancel` was called; what was evaluated before it stays in the cache.
            BackendError: llama.cpp failed.
        """
        if outputs > self.options.outputs:  # llama.cpp ends the process
            raise UsageError(f"{outputs} rows of logits are asked for: {self.options.outputs} fit")
        copies = self._checkpoints.kept and not self._snapped(tokens)
        if len(tokens) > (outputs if copies else self.options.batch):
            self.prefill(tokens[:-outputs])
            tokens = tokens[-outputs:]
        if not self._snapped(tokens):
            self._save()
        self._decode(tokens, outputs)
        address = ctypes.addressof(lib.llama_get_logits(self.pointer).contents)
        rows = self._rows.get((address, outputs))
        if rows is None:
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            rows = np.ctypeslib.as_array(pointer, shape=(outputs, self._n_vocab))
            self._rows[address, outputs] = rows
        return rows

    def evaluate_tree(self, tokens: Int32Array, parents: Int32Array, outputs: int) -> Float32Array:
        """Append a tree; return the logits after each of the last `outputs` nodes.

        A node's logits are bit for bit those of its path evaluated as a chain. Follow it by
        `keep_path` or `truncate`: until then the cache can be used for nothing else.

        Args:
            tokens: int32 (n,), 1 <= n <= `MOST_NODES`.
            parents: int32 (n,), of each node the number of an earlier one; -1 where it follows
                the tokens in the cache.
            outputs: as for `evaluate`, and so are result and errors.

        Raises:
            UsageError: not with this context; see `can_branch`.
        """
        with self.tree(self.length, parents, len(tokens), self.options.batch):
            return self.evaluate(tokens, outputs)

    def extend_tree(self, base: int, tokens: Int32Array, parents: Int32Array) -> Float32Array:
        """Append nodes to a tree that grows level by level; return the logits after each.

        Their bits may be others than in a tree that is evaluated at once, where the model has a
        sliding window. Follow the last level by `truncate`.

        Args:
            base: tokens in the cache before the tree.
            tokens: int32 (n,), the new nodes.
            parents: int32 (m + n,), of all nodes so far: the number of an earlier one, or -1.

        Raises: as `evaluate_tree`.
        """
        with self.tree(base, parents, len(tokens), self.options.batch):
            return self.evaluate(tokens, len(tokens))

    def tree(
        self, base: int, parents: Int32Array, count: int, most: int
    ) -> AbstractContextManager[None]:
        """Take evaluations inside for the last `count` nodes of a tree, of which `most` fit.

        Raises:
            UsageError: too many nodes, or trees cannot be evaluated.
        """
        if self._branches is None or count > most or len(parents) > MOST_NODES:
            raise UsageError("this context cannot evaluate such a tree")
        return self._branches.laid(base, parents, len(parents) - count)

    def keep_path(self, base: int, path: Int32Array) -> None:
        """Keep a path of the tree that was just evaluated, and nothing else of it.

        Args:
            base: number of tokens in the cache before.
            path: int32 (n,), its nodes from the top.
        """
        assert self._branches is not None
        self._branches.keep(base, path)
        if self.on_kept is not None:
            self.on_kept(base, path)
        self.truncate(base + len(path))

    @property
    def branches(self) -> bool:
        """Whether trees can be evaluated; `can_branch` tries if their bits are those of chains."""
        return self._branches is not None

    def can_branch(self) -> bool:
        """Try whether a tree's nodes have the bits of chains; empty the cache."""
        if self._branches is None:
            return False
        tokens = np.arange(1, len(_TRIED_TREE) + 1, dtype=np.int32) % self._n_vocab
        before, path = tokens[:2], np.array(_TRIED_PATH, np.int32)
        self.clear()
        self.prefill(before)
        found = [self.evaluate_tree(tokens, np.array(_TRIED_TREE, np.int32), 1).copy()]
        self.keep_path(len(before), path)
        found.append(self.evaluate(tokens[:1], 1).copy())
        self.truncate(len(before))
        expected = [self.evaluate(tokens[path], 1).copy(), self.evaluate(tokens[:1], 1)]
        possible = np.array_equal(found, expected, equal_nan=True)
        self.clear()
        return possible

    def _decode(self, tokens: Int32Array, outputs: int, states: Float32Array | None = None) -> None:
        count = len(tokens)
        if self.length + count > self.capacity:
            raise ContextFullError(
                f"{self.length + count} tokens do not fit into a context of {self.capacity}: "
                "open a longer one (--ctx) or shorten the text"
            )
        self._make_room()
        self._settle()
        if self._snapshots:
            self._guard(count)
        pointer, batch = self.pointer, self._batch.fill(tokens, self.length, outputs, states)
        if self._keeps_states:
            # llama.cpp then computes the logits of every token, and ends the process if there are
            # more than fit.
            self._has_states = outputs == count
            lib.llama_set_embeddings(pointer, self._has_states)
        try:
            status = _evaluate(pointer, batch, count, self.cancel)
        except BaseException:  # a signal handler raised it
            self._find_length()
            raise
        if status == 0:
            self.length += count
            self._lowest = self.length - min(count - 1, self._snapshots)
            if self.on_evaluated is not None:
                self.on_evaluated(self.length - count, count)
            return
        self._find_length()
        self._raise(status)

    def keep_states(self, on: bool) -> None:
        """Have evaluations leave what `final_states` returns from now on, or no longer."""
        self._keeps_states, self._has_states = on, False
        lib.llama_set_embeddings(self.pointer, False)

    def final_states(self, count: int) -> Float32Array:
        """Return what the output matrix was applied to in the last evaluation.

        Returns:
            float32 (count, embedding_length), a view that the next evaluation invalidates; no rows
            where it was not kept.
        """
        found = lib.llama_get_embeddings(self.pointer) if self._has_states and count else None
        if not found:
            return np.zeros((0, self.model.embedding_length), np.float32)
        memory = ctypes.c_float * (count * self.model.embedding_length)
        states = memory.from_address(ctypes.addressof(found.contents))
        return np.frombuffer(memoryview(states), np.float32).reshape(count, -1)

    def _snapped(self, tokens: Int32Array) -> bool:
        """Return whether there will be a snapshot behind each of these tokens."""
        return 0 < self._snapshots >= len(tokens) - 1

    def _guard(self, count: int) -> None:
        """Make an evaluation that cannot be undone safe: the state is lost where it is stopped.

        A short one is not stopped, and before a long one the state is copied.

        Raises:
            CancelledError: `cancel` was called.
        """
        if count >= _LONG:
            self._save()
        elif self._cancel.is_set():
            raise CancelledError("cancelled")
        if self._stoppable != (count >= _LONG):
            self._stoppable = count >= _LONG
            address = self._cancel.callback if self._stoppable else 0
            callback = ctypes.cast(address, lib.ggml_abort_callback)
            lib.llama_set_abort_callback(self.pointer, callback, self._cancel.data)

    def _save(self) -> None:
        """Copy the state, if copies are kept."""
        if self._checkpoints.kept:
            self._settle()
            self._checkpoints.save(self.length)

    def _settle(self) -> None:
        """Let llama.cpp take back what `truncate` did: it can do so once for each evaluation."""
        if self._taken_back:
            self._taken_back = False
            if not lib.llama_memory_seq_rm(self._memory, 0, self.length, -1):
                self.length = self._checkpoints.restore(self.length)
                raise BackendError("llama.cpp could not take back rejected tokens")

    def _find_length(self) -> None:
        """Find the length after an evaluation that failed."""
        if self._recurrent:
            # Some layers have processed the tokens and some have not.
            self.length = self._checkpoints.restore(self.length)
        else:
            self.length = self.native_length()

    def _raise(self, status: int) -> None:
        if status == _ABORTED:
            raise CancelledError("cancelled")
        if status == _NO_SLOT:
            raise ContextFullError("the KV cache has no room for another batch")
        raise BackendError(
            f"llama.cpp could not evaluate a batch (status {status}): {recent_errors()}"
        )

    def use_threads(self, threads: int) -> None:
        """Evaluate with so many threads from now on, at most `options.threads`."""
        threads = max(1, min(threads, self.options.threads))
        if threads != self._threads:
            lib.llama_set_n_threads(self.pointer, threads, threads)
            self._threads = threads

    def _make_room(self) -> None:
        if self.options.room is not None:
            self.use_threads(self.options.room())

    # -- cancellation -----------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the running evaluation, from any thread; it raises CancelledError."""
        self._cancel.set()

    def resume(self) -> None:
        """Allow evaluations again after `cancel`."""
        self._cancel.clear()

    # -- the cache --------------------------------------------------------------------------

    def native_length(self, sequence: int = 0) -> int:
        """Return the length of a sequence according to llama.cpp."""
        if self._taken_back and sequence == 0:
            return self.length
        return int(lib.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def truncate(self, length: int) -> None:
        """Roll sequence 0 back to its first `length` tokens, or fewer.

        A cache that cannot be truncated (see `can_truncate`) restores its newest checkpoint of at
        most `length` tokens; without one, it is emptied. So is a cache that lacks what a sliding
        window sees at `length` (see `lowest`). `self.length` is then its length, and the tokens
        after that have to be evaluated again.
        """
        if length >= self.length:
            return
        if self._window and length < self.lowest:
            self.clear()
        elif self._snapshots and length >= self._lowest:
            self.length, self._taken_back = length, True
            self._checkpoints.forget(length)
        elif not self._snapshots and lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            self.length = length
            self._checkpoints.forget(length)
        else:
            self._taken_back = False
            self.length = self._lowest = self._checkpoints.restore(length)

    @property
    def lowest(self) -> int:
        """The fewest tokens that `truncate` leaves without emptying the cache.

        Checkpoints aside: they are not saved with a state.
        """
        if self._recurrent:
            return self.length
        first = int(lib.llama_memory_seq_pos_min(self._memory, 0)) if self._window else 0
        return first + self._window - 1 if first > 0 else 0

    def can_truncate(self) -> bool:
        """Try whether the last evaluation can be rolled back; empty the cache.

        Either the cache can be truncated, or it has checkpoints and gives the same logits after
        restoring one.
        """
        self.clear()
        token = np.full(1, self.model.vocabulary.bos or 0, np.int32)
        if self._snapshots:
            return self._can_take_back(token)
        self._decode(np.repeat(token, 3), 0)
        possible = bool(lib.llama_memory_seq_rm(self._memory, 0, 1, -1))
        self.clear()
        if not possible and self._checkpoints.kept:
            self.evaluate(token, 1)
            expected = self.evaluate(token, 1).copy()
            self.truncate(1)
            possible = self.length == 1 and np.array_equal(
                self.evaluate(token, 1), expected, equal_nan=True
            )
            self.clear()
        return possible

    def _can_take_back(self, token: Int32Array) -> bool:
        """Try the same with a snapshot."""
        expected = self.evaluate(np.repeat(token, 2), 2)[1].copy()
        self.truncate(1)
        possible = self.length == 1 and np.array_equal(
            self.evaluate(token, 1)[0], expected, equal_nan=True
        )
        self.clear()
        return possible

    def clear(self) -> None:
        """Forget everything."""
        lib.llama_memory_clear(self._memory, False)
        self._checkpoints.forget(-1)
        self.length = self._lowest = 0
        self._taken_back = False

    def copy_sequence(self, source: int, destination: int) -> None:
        """Make `destination` hold what `source` holds; they share the memory."""
        lib.llama_memory_seq_rm(self._memory, destination, -1, -1)
        lib.llama_memory_seq_cp(self._memory, source, destination, -1, -1)

    def state_size(self) -> int:
        """Return the number of bytes that `save_state` would take."""
        if self._whole is not None:
            return self._whole.size()
        return int(lib.llama_state_seq_get_size(self.pointer, 0))

    def save_state(self) -> ByteArray:
        """Copy the cache of sequence 0 for `restore_state` of this model and build: uint8 (bytes,).

        With what has left a sliding window: whoever restores it may cut it.

        Raises:
            BackendError: llama.cpp could not copy it.
        """
        self._settle()
        if self._whole is not None:
            return self._whole.copy()
        state = np.empty(self.state_size(), np.uint8)
        written = lib.llama_state_seq_get_data(self.pointer, byte_pointer(state), len(state), 0)
        if written != len(state):
            raise BackendError("llama.cpp could not copy its cache")
        return state

    def restore_state(self, state: ByteArray) -> None:
        """Replace the cache of sequence 0 by what `save_state` returned.

        Raises:
            BackendError: llama.cpp refused it; the cache is then empty.
        """
        self.clear()
        if lib.llama_state_seq_set_data(self.pointer, byte_pointer(state), len(state), 0) == 0:
            self.clear()
            raise BackendError("a saved cache does not belong to this model, build or context")
        self.length = self._lowest = self.native_length()
        if self.on_evaluated is not None:
            self.on_evaluated(0, 0)

    # -- life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the cache; logits views become invalid."""
        pointer, self._pointer = self._pointer, None
        self._rows.clear()
        if pointer is not None:
            lib.llama_free(pointer)


def _evaluate(pointer: Any, batch: Any, count: int, stop: Callable[[], None]) -> int:
    if count < _LONG:
        return int(lib.llama_decode(pointer, batch))
    return beside(lambda: int(lib.llama_decode(pointer, batch)), stop)


def _check(options: ContextOptions) -> None:
    if options.length < 1:
        raise UsageError(f"context length is {options.length}: it has to be 1 or more")
    if options.threads < 1:
        raise UsageError(f"threads is {options.threads}: it has to be 1 or more")
    if options.kv_type not in _KV_TYPES:
        raise UsageError(f"KV type is {options.kv_type!r}: it is one of {', '.join(_KV_TYPES)}")
    if options.kv_type == "q8_0" and not options.flash_attention:
        raise UsageError("a q8_0 KV cache needs flash attention")


def _open(
    model: Model, options: ContextOptions, cancel: CancelFlag, other: Context | None, mtp: bool
) -> Any:
    claim_process()
    parameters = lib.llama_context_default_params()
    parameters.n_batch = parameters.n_ubatch = max(options.batch, options.outputs)
    # llama.cpp cuts a batch to the context's length, and ends the process on a longer one.
    parameters.n_ctx = max(options.length, parameters.n_batch)
    parameters.n_seq_max = options.sequences
    parameters.n_outputs_max = max(options.outputs, options.sequences)
    parameters.n_threads = parameters.n_threads_batch = options.threads
    parameters.flash_attn_type = int(options.flash_attention)
    parameters.type_k = parameters.type_v = _KV_TYPES[options.kv_type]
    parameters.kv_unified = options.sequences > 1 and options.unified
    # Keep entries that have left a sliding window: a rollback or a new prompt may need them again.
    parameters.swa_full = True
    parameters.no_perf = True
    if mtp:
        parameters.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
    elif model.has_state:
        parameters.n_rs_seq = options.snapshots
    if other is not None:
        parameters.ctx_other = other.pointer
    parameters.abort_callback = ctypes.cast(cancel.callback, lib.ggml_abort_callback)
    parameters.abort_callback_data = cancel.data
    return open_context(
        model.pointer, parameters, f"a context of {options.length} tokens for {model.path.name}"
    )
