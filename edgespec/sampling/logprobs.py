"""Log-probabilities of the model's own distribution: temperature 1, before every filter."""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel
from edgespec.sampling.softmax import argmax, softmax

__all__ = ["log_normalizer"]


@kernel
def log_normalizer(
    logits: Float32Array, scratch: Float32Array, ids: Int32Array, values: Float32Array
) -> float:
    """ln of the sum of exp over a row of logits, and the row's most likely tokens.

    The log-probability of a token is its logit less this.

    Args:
        logits: float32 (n_vocab,).
        scratch: float32 (n_vocab,), overwritten.
        ids: int32 (n,), n <= n_vocab; receives the most likely tokens, the first of equals first.
        values: float32 (n,), receives their logits.

    Returns:
        NaN if the row has NaN or +inf.
    """
    best = argmax(logits)
    if best < 0:
        return math.nan
    values[:] = -np.inf
    ids[:] = -1
    last = len(ids) - 1
    if last >= 0:
        for token in range(len(logits)):
            if logits[token] > values[last]:
                _insert(token, logits[token], ids, values)
    largest = logits[best]
    total = softmax(logits, len(logits), largest, np.float32(1.0), scratch)
    return float(largest) + math.log(total)


@kernel
def _insert(token: int, value: np.float32, ids: Int32Array, values: Float32Array) -> None:
    """Put a token where it belongs in a falling list; the last one falls out."""
    at = len(ids) - 1
    while at > 0 and values[at - 1] < value:
        ids[at], values[at] = ids[at - 1], values[at - 1]
        at -= 1
    ids[at], values[at] = token, value
