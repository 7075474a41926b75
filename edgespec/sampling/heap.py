"""Select the largest few of many values without sorting them all.

A binary max-heap over parallel arrays (keys, tokens): built in O(n), popped in O(log n). Among
equal keys the smaller token id comes first, so a selection never depends on the input's order.
"""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = ["collect", "heapify", "keep_largest", "pop"]

_BLOCK = 64  # values compared together, with vector instructions, before any is looked at alone


@kernel
def _before(key_a: float, token_a: int, key_b: float, token_b: int) -> bool:
    return key_a > key_b or (key_a == key_b and token_a < token_b)


@kernel
def _sift_down(keys: Float32Array, tokens: Int32Array, start: int, size: int) -> None:
    key, token = keys[start], tokens[start]
    hole = start
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _before(
            keys[child + 1], tokens[child + 1], keys[child], tokens[child]
        ):
            child += 1
        if not _before(keys[child], tokens[child], key, token):
            break
        keys[hole], tokens[hole] = keys[child], tokens[child]
        hole = child
    keys[hole], tokens[hole] = key, token


@kernel
def heapify(keys: Float32Array, tokens: Int32Array, size: int) -> None:
    """Make the first `size` entries a max-heap: O(size)."""
    for start in range(size // 2 - 1, -1, -1):
        _sift_down(keys, tokens, start, size)


@kernel
def pop(keys: Float32Array, tokens: Int32Array, size: int) -> None:
    """Move the largest of the first `size` entries to index ``size - 1``: O(log size)."""
    last = size - 1
    keys[0], keys[last] = keys[last], keys[0]
    tokens[0], tokens[last] = tokens[last], tokens[0]
    _sift_down(keys, tokens, 0, last)


@kernel
def _count_not_below(values: Float32Array, start: int, stop: int, floor: np.float32) -> int:
    """Count the entries of ``values[start:stop]`` that are `floor` or more, or NaN."""
    hits = np.int32(0)
    for i in range(start, stop):
        hits = np.int32(hits + np.int32(not (values[i] < floor)))
    return int(hits)


@kernel
def keep_largest(values: Float32Array, limit: int, keys: Float32Array, tokens: Int32Array) -> bool:
    """Put the `limit` largest entries of `values` into keys and tokens, in no order.

    One pass with a min-heap of `limit` entries: nearly every block of values lies below the
    heap's top as a whole and is skipped.

    Args:
        values: float32 (n,).
        limit: 1 <= limit <= n.
        keys, tokens: float32 and int32, at least `limit` long; overwritten.

    Returns:
        False if one of the values is NaN; keys and tokens are then undefined.
    """
    # Negated on the way in, so that the top of the max-heap is the entry to drop next: the
    # smallest value and, among equal values, the largest token id.
    for token in range(limit):
        if np.isnan(values[token]):
            return False
        keys[token], tokens[token] = -values[token], -token
    heapify(keys, tokens, limit)
    for start in range(limit, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        if _count_not_below(values, start, stop, -keys[0]) == 0:
            continue
        for token in range(start, stop):
            if values[token] > -keys[0]:
                keys[0], tokens[0] = -values[token], -token
                _sift_down(keys, tokens, 0, limit)
            elif np.isnan(values[token]):
                return False
    for i in range(limit):
        keys[i], tokens[i] = -keys[i], -tokens[i]
    return True


@kernel
def collect(values: Float32Array, floor: np.float32, keys: Float32Array, tokens: Int32Array) -> int:
    """Put the entries of `values` that are `floor` or more into keys and tokens; count them.

    A block of which all or no entries are wanted, the usual case, is handled as a whole. No value
    may be NaN.
    """
    count = 0
    for start in range(0, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        hits = _count_not_below(values, start, stop, floor)
        if hits == stop - start:
            for i in range(hits):
                keys[count + i] = values[start + i]
                tokens[count + i] = start + i
            count += hits
        elif hits > 0:
            for token in range(start, stop):
                if values[token] >= floor:
                    keys[count], tokens[count] = values[token], token
                    count += 1
    return count
