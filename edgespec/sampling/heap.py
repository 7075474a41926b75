"""Selection of the largest few out of many without sorting them all.

A binary max-heap over parallel arrays (keys, tokens): built in O(n), popped in O(log n). Ties
go to the smaller token id, so that a selection never depends on the order of its input.
"""

from __future__ import annotations

from edgespec.sampling.kernel import kernel

__all__ = ["heapify", "keep_largest", "pop"]


@kernel
def _before(key_a, token_a, key_b, token_b):
    return key_a > key_b or (key_a == key_b and token_a < token_b)


@kernel
def _sift_down(keys, tokens, start, size):
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
def heapify(keys, tokens, size):
    """Make the first `size` entries a max-heap: O(size)."""
    for start in range(size // 2 - 1, -1, -1):
        _sift_down(keys, tokens, start, size)


@kernel
def pop(keys, tokens, size):
    """Move the largest of the first `size` entries to index ``size - 1``: O(log size)."""
    last = size - 1
    keys[0], keys[last] = keys[last], keys[0]
    tokens[0], tokens[last] = tokens[last], tokens[0]
    _sift_down(keys, tokens, 0, last)


@kernel
def keep_largest(values, limit, keys, tokens):
    """Put the `limit` largest entries of `values` into keys and tokens, in no order.

    One pass with a min-heap of `limit` entries: nearly every value loses against its top.

    Args:
        values: float32 (n,).
        limit: 1 <= limit <= n.
        keys, tokens: float32 and int32, at least `limit` long; overwritten.
    """
    # Negated on the way in, so that the same max-heap has the entry to drop next on top: the
    # smallest value and, among equal values, the largest token id.
    for token in range(limit):
        keys[token], tokens[token] = -values[token], -token
    heapify(keys, tokens, limit)
    for token in range(limit, len(values)):
        if values[token] > -keys[0]:
            keys[0], tokens[0] = -values[token], -token
            _sift_down(keys, tokens, 0, limit)
    for i in range(limit):
        keys[i], tokens[i] = -keys[i], -tokens[i]
