"""What a cache holds: copies beyond llama.cpp's own, and the branches of a tree in its cells.

A recurrent layer folds every token into one state and cannot remove one again. But an earlier state
can be kept and restored. And a copy of a cache with a sliding window has to be one that can be cut.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgespec._types import ByteArray, Int32Array, Int64Array
from edgespec.backend.lifetime import lib
from edgespec.errors import BackendError
from edgespec.kernels import tables

__all__ = ["MOST_NODES", "Branches", "Checkpoints", "WholeState", "byte_pointer"]

_RECURRENT_ONLY = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_LENGTH_BYTES = 4  # of the architecture's name, which the state of all sequences begins with


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


class WholeState:
    """Copies the cache of a context that has one sequence, with what has left its sliding window.

    llama.cpp leaves that out of the state of one sequence, so that a cache which is restored and
    then cut lacks what the window sees there. The state of all sequences has it, in the same form
    but for the head; but restored as such, the next tokens overwrite the oldest ones. So it is
    given the head of a single sequence's state, and restored as one.

    Args:
        pointer: an open llama_context.
        head: what the state of a sequence begins with.
        skipped: bytes that the state of all sequences begins with.
    """

    def __init__(self, pointer: Any, head: ByteArray, skipped: int) -> None:
        self._pointer = pointer
        self._head = head
        self._skipped = skipped

    @classmethod
    def of(cls, pointer: Any) -> WholeState | None:
        """Return it for a context whose cache is empty; None where the two forms differ."""
        if lib.llama_n_seq_max(pointer) != 1:
            return None
        every, one = _every(pointer), _one(pointer)
        skipped = _LENGTH_BYTES + int.from_bytes(every[:_LENGTH_BYTES].tobytes(), "little")
        head = len(one) - (len(every) - skipped)
        if not 0 <= head <= skipped or not np.array_equal(one[head:], every[skipped:]):
            return None
        return cls(pointer, one[:head].copy(), skipped)

    def size(self) -> int:
        """Return the number of bytes of a copy."""
        size = int(lib.llama_state_get_size(self._pointer))
        return size - self._skipped + len(self._head)

    def copy(self) -> ByteArray:
        """Copy the cache, in the form of a single sequence's state.

        Raises:
            BackendError: llama.cpp could not copy it.
        """
        state = _every(self._pointer)[self._skipped - len(self._head) :]
        state[: len(self._head)] = self._head
        return state


def _every(pointer: Any) -> ByteArray:
    state = np.empty(int(lib.llama_state_get_size(pointer)), np.uint8)
    return _complete(state, lib.llama_state_get_data(pointer, byte_pointer(state), len(state)))


def _one(pointer: Any) -> ByteArray:
    state = np.empty(int(lib.llama_state_seq_get_size(pointer, 0)), np.uint8)
    return _complete(
        state, lib.llama_state_seq_get_data(pointer, byte_pointer(state), len(state), 0)
    )


def _complete(state: ByteArray, written: int) -> ByteArray:
    if written != len(state):
        raise BackendError("llama.cpp could not copy its cache")
    return state


def byte_pointer(buffer: ByteArray) -> Any:
    """Return a pointer to the buffer's memory, as llama.cpp's functions for states take it."""
    return ctypes.cast(buffer.ctypes.data, ctypes.POINTER(ctypes.c_uint8))


MOST_NODES = tables.MOST_NODES
"""The most tokens of a tree, with those above it that are evaluated with it."""


class Branches:
    """What our device is told of the trees of one context.

    llama.cpp takes a tree for a chain, so that node i lies in the i-th cell; see
    `edgespec.kernels.branches` for what the device makes of it.

    Args:
        device: that computes the context's attention.
        states: addresses of the context's states there.
    """

    def __init__(self, device: Any, states: Sequence[int]) -> None:
        self._move = device.cell_mover()
        self._tree: Int64Array = np.zeros(tables.TREE_SLOTS, np.int64)
        self._slots = [ctypes.c_int64.from_address(state + 8 * tables.TREE) for state in states]
        self._depths = self._tree[tables.TREE_DEPTHS :][:MOST_NODES]
        self._rows = self._tree[tables.TREE_ROWS :][:MOST_NODES]
        paths = self._tree[tables.TREE_PATHS :][: MOST_NODES * MOST_NODES]
        self._paths = paths.reshape(MOST_NODES, MOST_NODES)
        self._known: Int64Array = np.zeros(MOST_NODES, np.int64)
        self._known_paths: Int64Array = np.zeros((MOST_NODES, MOST_NODES), np.int64)
        self._moves: Int64Array = np.zeros((MOST_NODES, 2), np.int64)

    @contextlib.contextmanager
    def laid(self, base: int, parents: Int32Array, start: int) -> Iterator[None]:
        """Take evaluations inside for nodes of a tree that grows behind the first `base` cells.

        Args:
            parents: int32 (n,), of each node so far: an earlier one, or -1 for none.
            start: the first node that is evaluated next; those before it were.
        """
        self.lay(base, parents, start)
        try:
            yield
        finally:
            self._tell(0)

    def lay(self, base: int, parents: Int32Array, start: int) -> None:
        """Tell the device of a tree, as `laid` does for as long as it is entered."""
        tree, count = self._tree, len(parents) - start
        tree[tables.TREE_COUNT], tree[tables.TREE_BASE] = count, base
        tree[tables.TREE_CACHES] = 0
        for index, parent in enumerate(parents[start:].tolist()):
            node, depth = start + index, 0
            if parent >= 0:
                depth = int(self._known[parent]) + 1
                self._known_paths[node, :depth] = self._known_paths[parent, :depth]
            self._known[node], self._known_paths[node, depth] = depth, base + node
            self._depths[index], self._paths[index] = depth, self._known_paths[node]
            # The chain that llama.cpp sees has a token of the same position there.
            self._rows[index] = max(0, depth - start)
        self._tell(tree.ctypes.data)

    def _tell(self, tree: int) -> None:
        for slot in self._slots:
            slot.value = tree

    def keep(self, base: int, path: Int32Array) -> None:
        """Move a path's cells together, behind the first `base`.

        Args:
            path: int32 (n,), its nodes from the top.
        """
        count = 0
        for depth, node in enumerate(path.tolist()):
            if node != depth:
                self._moves[count] = base + node, base + depth
                count += 1
        if count:
            self._move(self._tree.ctypes.data, self._moves.ctypes.data, count)
