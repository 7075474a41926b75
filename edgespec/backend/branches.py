"""Trees of tokens in a context: which cells a token sees, and how a path is kept."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgespec._types import Int32Array, Int64Array
from edgespec.kernels import tables

__all__ = ["MOST_NODES", "Branches"]

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
