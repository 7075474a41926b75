"""Hidden states: read where llama.cpp leaves them, and fed to what drafts from them.

Those before a layer, for EAGLE-3 heads, and the last one, for Medusa heads. Reading the former is
optional. The functions belong to llama.cpp's unstable interface and are exported under
C++ names; a build that lacks them has `Capabilities.layer_taps` False.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend.context import Context, ContextOptions
from edgespec.backend.lifetime import FINAL_TAP, LAYER_TAPS, capabilities, lib
from edgespec.backend.model import Model
from edgespec.errors import BackendError, ContextFullError, UsageError

__all__ = [
    "FinalStates",
    "HeadContext",
    "LayerTaps",
    "MTPContext",
    "RecordedInputs",
    "RecordedOutputs",
    "RecordedStates",
    "StateContext",
    "can_tap",
]

# llama.cpp ends the process if a graph without taps is asked for them, and it cannot be asked
# first. These are the architectures whose graphs have taps in the pinned version.
_TAPPED = frozenset(("llama", "qwen3", "qwen3moe", "gpt-oss"))


_NOWHERE: Int32Array = np.zeros(0, np.int32)


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


class RecordedStates(ABC):
    """Hidden states of every token that a context evaluates, by position.

    They are copied after each evaluation, so that no evaluation has to be repeated. Rows of tokens
    that were rolled back stay until they are overwritten.

    Args:
        context: an open context; everything it evaluates from now on is recorded.
        width: numbers for a token.

    Attributes:
        rows: float32 (capacity, width).
        first, length: the rows from `first` to before `length` were recorded, and no other counts.
            What a restored cache holds was evaluated at another time.
    """

    def __init__(self, context: Context, width: int) -> None:
        self._context = context
        # The system allocates memory for rows when they are written.
        self.rows = np.empty((context.capacity, width), np.float32)
        self.first = self.length = 0
        context.on_evaluated, context.on_kept = self._record, self._keep

    @abstractmethod
    def read(self, rows: Float32Array) -> None:
        """Copy the states of the tokens of the last evaluation."""

    def _record(self, start: int, count: int) -> None:
        if count == 0:  # another cache was restored
            self.first = self.length = self._context.length
            return
        self.read(self.rows[start : start + count])
        if not self.first <= start <= self.length:
            self.first = start
        self.length = start + count

    def _keep(self, base: int, path: Int32Array) -> None:
        """Bring the nodes of a path together; those of a tree were recorded side by side."""
        for depth, node in enumerate(path.tolist()):
            if node != depth:
                self.rows[base + depth] = self.rows[base + node]

    def close(self) -> None:
        """Stop recording."""
        self._context.on_evaluated = self._context.on_kept = None


class RecordedInputs(RecordedStates):
    """The inputs of some layers, for each token side by side.

    Args:
        context: an open context.
        layers: as for `LayerTaps`, whose errors it raises.
    """

    def __init__(self, context: Context, layers: Sequence[int]) -> None:
        self._taps, self._layers = LayerTaps(context, layers), tuple(layers)
        super().__init__(context, len(layers) * context.model.embedding_length)

    def read(self, rows: Float32Array) -> None:
        """Copy the inputs."""
        width = self._context.model.embedding_length
        for index, layer in enumerate(self._layers):
            columns = slice(index * width, (index + 1) * width)
            rows[:, columns] = self._taps.rows(layer, len(rows))

    def close(self) -> None:
        """Stop recording."""
        super().close()
        self._taps.close()


class FinalStates:
    """What a context's output matrix was applied to in its last evaluation, by position.

    Reading it costs a copy of so many rows as there were rows of logits. It is there after
    evaluations that had logits of all their tokens, as those of a cycle have; not after a prompt
    was read, or another text's cache was restored.

    Args:
        context: an open context; everything it evaluates from now on is recorded.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        width = context.model.embedding_length
        self._rows = np.zeros((context.options.outputs, width), np.float32)
        self._start, self._path = 0, _NOWHERE
        self._steps = np.arange(context.options.outputs, dtype=np.int32)
        context.keep_states(True)
        context.on_evaluated, context.on_kept = self._record, self._keep

    def at(self, position: int) -> Float32Array | None:
        """Return the state after the token at a position, float32 (width,), if it is there."""
        index = position - self._start
        return self._rows[self._path[index]] if 0 <= index < len(self._path) else None

    def _record(self, start: int, count: int) -> None:
        states = self._context.final_states(count)
        self._start, self._path = start, self._steps[: len(states)]
        self._rows[: len(states)] = states

    def _keep(self, base: int, path: Int32Array) -> None:
        """Know the nodes of a path by their positions; they were recorded as they lay."""
        self._path = path.copy() if base == self._start else _NOWHERE

    def close(self) -> None:
        """Stop recording."""
        self._context.on_evaluated = self._context.on_kept = None
        self._context.keep_states(False)


class MTPStates:
    """Makes every evaluation of a context keep what its graph gives to MTP layers, for each token.

    That is the last layer's result, in most architectures after the model's last norm.

    Args:
        context: an open context of a model whose header has `mtp`, or one of its MTP layers.

    Attributes:
        width: numbers for a token.

    Raises:
        BackendError: this build lacks the functions.
    """

    def __init__(self, context: Context) -> None:
        if not capabilities().mtp:
            raise BackendError("this build of llama.cpp cannot run MTP layers")
        self._context = context
        self.width = int(lib.llama_model_n_embd_out(context.model.pointer))
        switch, _, self._get = (getattr(lib.llama_cpp._lib, name) for name in FINAL_TAP)
        switch.argtypes, switch.restype = [lib.llama_context_p_ctypes, *2 * [ctypes.c_bool]], None
        self._get.argtypes = [lib.llama_context_p_ctypes]
        self._get.restype = ctypes.c_void_p
        self._switch = switch
        switch(context.pointer, True, False)  # of all tokens

    def rows(self, count: int) -> Float32Array:
        """Return those of the `count` tokens of the last evaluation.

        Returns:
            float32 (count, width), a view that the next evaluation invalidates.
        """
        memory = ctypes.c_float * (count * self.width)
        found = memory.from_address(self._get(self._context.pointer))
        return np.frombuffer(memoryview(found), np.float32).reshape(count, self.width)

    def close(self) -> None:
        """Stop keeping them."""
        self._switch(self._context.pointer, False, False)


class RecordedOutputs(RecordedStates):
    """What MTP layers read of each token.

    Args:
        context: as for `MTPStates`, whose errors it raises.
    """

    def __init__(self, context: Context) -> None:
        self._states = MTPStates(context)
        super().__init__(context, self._states.width)

    def read(self, rows: Float32Array) -> None:
        """Copy them."""
        rows[:] = self._states.rows(len(rows))

    def close(self) -> None:
        """Stop recording."""
        super().close()
        self._states.close()


class StateContext(Context):
    """The KV cache of a draft that reads the target's hidden states.

    Entry P combines the token at P + 1 with a state at P: the target's or, if the target has not
    evaluated that token yet, the one that `step` returned for entry P - 1.
    """

    @abstractmethod
    def step(self, tokens: Int32Array, states: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Append entries.

        Args:
            tokens: int32 (n,), 1 <= n, of the draft's vocabulary.
            states: float32 (n, width), contiguous.

        Returns:
            Logits after the last entry, float32 (n_vocab,), -inf for what is never proposed; and
            its state, float32 (1, width). Views, valid until the next call.

        Raises:
            ContextFullError: fewer than n free positions.
            CancelledError: `cancel` was called; what was evaluated before it stays in the cache.
            BackendError: llama.cpp failed.
        """

    @abstractmethod
    def extend_head_tree(
        self, base: int, tokens: Int32Array, states: Float32Array, parents: Int32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Append entries of a tree that grows level by level; see `Context.extend_tree`.

        Args:
            base: entries in the cache before the tree.
            tokens: int32 (n,), n <= `options.outputs`, of the draft's vocabulary.
            states: float32 (n, width), those that their parents' entries returned.
            parents: int32 (m + n,), of all entries of the tree so far.

        Returns:
            Logits after each, float32 (n, n_vocab), and their states, float32 (n, width). Views,
            valid until the next call.

        Raises: as `step`, and UsageError as `Context.extend_tree`.
        """

    def skip_to(self, position: int) -> None:
        """Go on at a position behind the last, with nothing before it."""
        self.clear()
        self.length = position


class MTPContext(StateContext):
    """The KV cache of a model's own layers for multi-token prediction, of which the first is used.

    Args:
        model: opened with `ModelOptions.mtp`; its header has `mtp`.
        options: `outputs` bounds the width of a tree.

    Attributes:
        state_width: numbers of a state.

    Raises:
        BackendError: this build of llama.cpp cannot run MTP layers.
    """

    def __init__(self, model: Model, options: ContextOptions) -> None:
        super().__init__(model, options, mtp=True)
        self._states = MTPStates(self)
        self.state_width = self._states.width

    def step(self, tokens: Int32Array, states: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Append entries."""
        count, most = len(tokens), self.options.batch
        for start in range(0, count, most):
            end = min(start + most, count)
            self._decode(tokens[start:end], int(end == count), states[start:end])
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self.pointer), (self._n_vocab,))
        return logits, self._states.rows((count - 1) % most + 1)[-1:]

    def extend_head_tree(
        self, base: int, tokens: Int32Array, states: Float32Array, parents: Int32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Append entries of a tree."""
        count = len(tokens)
        with self.tree(base, parents, count, self.options.outputs):
            self._decode(tokens, count, states)
        logits = lib.llama_get_logits(self.pointer)
        return np.ctypeslib.as_array(logits, (count, self._n_vocab)), self._states.rows(count)


class HeadContext(StateContext):
    """The KV cache of an EAGLE-3 head, to which `fuse` gives the target's states.

    Args:
        model: a file whose header has `eagle`, checked against the target by `check_pairing`.
        options: `outputs` is how many tokens are evaluated at a time. llama.cpp computes a row of
            logits for each of them.
        target: an open context of the target; it has to outlive this one.

    Attributes:
        alone: threads of a single entry, which is so little work that they often wait for each
            other longer than they compute; batches have all of `options.threads`.

    Raises:
        BackendError: this build of llama.cpp cannot run such a head.
    """

    def __init__(self, model: Model, options: ContextOptions, target: Context) -> None:
        if not capabilities().eagle:
            raise BackendError("this build of llama.cpp cannot run EAGLE-3 heads")
        head = model.header.eagle
        assert head is not None
        self._features = len(head.layers) * head.target_width
        self._width = model.embedding_length
        self._batch_ext: Any = None
        self.alone = options.threads
        super().__init__(model, options, other=target)
        self._batch_ext = lib.llama_batch_ext_init(self.pointer)
        switch, self._get_state = (getattr(lib.llama_cpp._lib, name) for name in FINAL_TAP[:2])
        switch.argtypes = [lib.llama_context_p_ctypes, ctypes.c_bool, ctypes.c_bool]
        switch.restype = None
        self._get_state.argtypes = [lib.llama_context_p_ctypes, ctypes.c_int32]
        self._get_state.restype = ctypes.POINTER(ctypes.c_float)
        switch(self.pointer, True, True)  # of output tokens only

    def fuse(self, features: Float32Array) -> Float32Array:
        """Compute the states of tokens that the target has evaluated.

        Args:
            features: float32 (n, features per token), contiguous.

        Returns:
            float32 (n, width).

        Raises:
            CancelledError: `cancel` was called.
            BackendError: llama.cpp failed.
        """
        assert features.shape[1:] == (self._features,)
        states = np.empty((len(features), self._width), np.float32)
        most = self.options.outputs
        for start in range(0, len(features), most):
            part = features[start : start + most]
            self._begin()
            for row, entry in enumerate(_entries(part)):
                index = lib.llama_batch_ext_add_embd(self._batch_ext, 0, entry)
                # Positions have no effect here, but they have to start where the cache ends.
                self._place(index, self.length + row, True)
            self._process(lib.LLAMA_PROCESS_TYPE_ENCODE, len(part))
            states[start : start + len(part)] = self._states(0, len(part))
        return states

    def step(self, tokens: Int32Array, states: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Append entries."""
        count = self._append(tokens, states)
        last = count - 1
        logits = lib.llama_get_logits_ith(self.pointer, last)
        row_of_logits = np.ctypeslib.as_array(logits, (self.model.vocabulary.size,))
        return row_of_logits, self._states(last, 1)

    def extend_head_tree(
        self, base: int, tokens: Int32Array, states: Float32Array, parents: Int32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Append entries of a tree."""
        with self.tree(base, parents, len(tokens), self.options.outputs):
            count = self._append(tokens, states)
        logits = lib.llama_get_logits_ith(self.pointer, 0)
        rows = np.ctypeslib.as_array(logits, (count, self.model.vocabulary.size))
        return rows, self._states(0, count)

    def _append(self, tokens: Int32Array, states: Float32Array) -> int:
        """Append entries; how many the last evaluation had."""
        assert len(tokens) == len(states) > 0
        assert states.shape[1] == self._width
        if self.length + len(tokens) > self.capacity:
            raise ContextFullError("the context of the EAGLE-3 head is full")
        count, most = len(tokens), self.options.outputs
        entries = list(_entries(states))
        for start in range(0, count, most):
            end = min(start + most, count)
            self._begin()
            for row in range(start, end):
                index = lib.llama_batch_ext_add_token(self._batch_ext, 0, int(tokens[row]))
                # llama.cpp returns results of the first tokens, whichever were marked: mark all.
                self._place(index, self.length + row - start, end == count)
                lib.llama_batch_ext_set_embd_token(self._batch_ext, index, entries[row])
            self._process(lib.LLAMA_PROCESS_TYPE_DECODE, end - start)
            self.length += end - start
        return (count - 1) % most + 1

    def close(self) -> None:
        """Free the cache."""
        batch, self._batch_ext = self._batch_ext, None
        if batch is not None:
            lib.llama_batch_ext_free(batch)
        super().close()

    def _begin(self) -> None:
        lib.llama_batch_ext_clear(self._batch_ext)

    def _place(self, index: int, position: int, output: bool) -> None:
        """Set the position of the entry that was added, and whether it has results."""
        if index < 0:
            raise BackendError(f"llama.cpp refused a token of the EAGLE-3 head ({index})")
        lib.llama_batch_ext_set_pos(self._batch_ext, index, ctypes.byref(lib.llama_pos(position)))
        lib.llama_batch_ext_set_output_logits(self._batch_ext, index, output)

    def _process(self, kind: int, entries: int) -> None:
        self.use_threads(self.options.threads)
        self._make_room()
        if entries == 1:
            self.use_threads(min(self._threads, self.alone))
        status = lib.llama_process(self.pointer, kind, self._batch_ext)
        if status != 0:
            self.length = self.native_length()
            self._raise(status)

    def _states(self, index: int, count: int) -> Float32Array:
        """Return the states of `count` output tokens, from `index` of the batch on."""
        first = self._get_state(self.pointer, index)
        if not first:
            raise BackendError("llama.cpp gave no hidden states of the EAGLE-3 head")
        return np.ctypeslib.as_array(first, (count, self._width))


def _entries(rows: Float32Array) -> Iterator[Any]:
    """Yield each row as llama.cpp takes it; `rows` has to live as long as they are used."""
    assert rows.flags.c_contiguous and rows.dtype == np.float32
    for row in range(len(rows)):
        address = rows.ctypes.data + row * rows.strides[0]
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        yield lib.llama_embd(pointer, 1, rows.shape[1])
