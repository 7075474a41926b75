"""A grammar's bits: they set logits to -inf in llama.cpp's own memory, and name what is allowed."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = ["allowed_set", "forbid"]

_PRIME = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)


@kernel
def forbid(logits: Float32Array, bits: Int32Array) -> None:
    """Set the logits of tokens whose bit is 0 to -inf, in place.

    Args:
        logits: float32 (n, V).
        bits: int32 (n or more, V / 32 rounded up or more): token t is bit t % 32 of word t // 32.
    """
    size = logits.shape[1]
    for row in range(logits.shape[0]):
        for word in range((size + 31) // 32):
            allowed = bits[row, word]
            if allowed == -1:
                continue
            first = word * 32
            for bit in range(min(32, size - first)):
                if not (allowed >> bit) & 1:
                    logits[row, first + bit] = -np.inf


@kernel
def allowed_set(bits: Int32Array, most: int) -> tuple[int, int, int]:
    """Return what a small set of allowed tokens is, to be told from others.

    Args:
        bits: int32 words, as in `forbid`: one row.
        most: larger sets are of no interest.

    Returns:
        (count, key, first): how many tokens are allowed, 0 if none or over `most`; a hash
        of which (FNV-1a over the words that are not 0, and their places); the first of them.
    """
    count, first, key = 0, -1, _BASIS
    for place in range(len(bits)):
        word = np.uint64(np.uint32(bits[place]))
        if word == 0:
            continue
        key = ((key ^ word) * _PRIME ^ np.uint64(place)) * _PRIME
        for bit in range(32):
            if (word >> np.uint64(bit)) & np.uint64(1):
                count += 1
                if first < 0:
                    first = place * 32 + bit
        if count > most:
            return 0, 0, -1
    return count, np.int64(key), first
