"""Forbidden tokens: a grammar's bits set logits to -inf, in llama.cpp's own memory."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = ["forbid"]


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
