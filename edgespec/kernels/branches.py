"""Trees of tokens: each token's path is evaluated as if it were a chain.

llama.cpp is given a chain, so that the tokens of a tree lie in cells side by side. Positions are
set right here before anything is computed, and attention reads the cells of a token's path in the
places that they would have in a chain. So a token has the bits of its path evaluated as a chain,
and the path that is kept is moved together: nothing is evaluated again.
"""

from __future__ import annotations

from edgespec.kernels import ggml, tables
from edgespec.kernels.native import call, load16, load32, load64, native, store16, store32, store64

__all__ = ["copy_bytes", "move_cells", "path_cell", "prepare_tree"]


@native
def prepare_tree(state: int, graph: int) -> None:
    """Set positions right, and note where caches lie, before a graph is computed."""
    tree, table = load64(state + 8 * tables.TREE), load64(state + 8 * tables.TABLE)
    if tree == 0:
        return
    for index in range(call(load64(table + 8 * tables.GRAPH_COUNT), graph) & 0x7FFFFFFF):
        node = call(load64(table + 8 * tables.GRAPH_NODE), graph, index)
        if load32(node + ggml.OPERATION) == load64(table + 8 * tables.ROPE):
            _set_positions(tree, load64(node + ggml.SOURCES + 8))
        elif load32(node + ggml.OPERATION) == load64(table + 8 * tables.SET_ROWS):
            _note_cache(tree, node)


@native
def _set_positions(tree: int, positions: int) -> None:
    """Set a tree's positions; llama.cpp was told those of a chain."""
    count, base = load64(tree + 8 * tables.TREE_COUNT), load64(tree + 8 * tables.TREE_BASE)
    if load64(positions + ggml.SIZES) != count:
        return
    for token in range(count):
        depth = load64(tree + 8 * (tables.TREE_DEPTHS + token))
        store32(load64(positions + ggml.DATA) + 4 * token, base + depth)


@native
def path_cell(tree: int, token: int, depth: int) -> int:
    """Return the cell of a token's path at this depth."""
    return load64(tree + 8 * (tables.TREE_PATHS + tables.MOST_NODES * token + depth))


@native
def _note_cache(tree: int, node: int) -> None:
    """Remember a cache that rows are written to, for `move_cells`."""
    number = load64(tree + 8 * tables.TREE_CACHES)
    if load64(node + ggml.SIZES) > 1 and number < tables.MOST_CACHES:
        slot = tree + 8 * (tables.TREE_CACHE + 2 * number)
        store64(slot, load64(node + ggml.DATA))
        store64(slot + 8, load64(node + ggml.STRIDES + 8))
        store64(tree + 8 * tables.TREE_CACHES, number + 1)


@native
def move_cells(tree: int, moves: int, count: int) -> None:
    """Copy cells of all caches: so many pairs of where from and where to, in this order."""
    for number in range(load64(tree + 8 * tables.TREE_CACHES)):
        slot = tree + 8 * (tables.TREE_CACHE + 2 * number)
        first, size = load64(slot), load64(slot + 8)
        for move in range(count):
            source, target = load64(moves + 16 * move), load64(moves + 16 * move + 8)
            copy_bytes(first + source * size, first + target * size, size)


@native
def copy_bytes(source: int, target: int, size: int) -> None:
    """Copy an even number of bytes."""
    whole = size // 8 * 8
    for at in range(0, whole, 8):
        store64(target + at, load64(source + at))
    for at in range(whole, size, 2):
        store16(target + at, load16(source + at))
