"""Is a token evaluated in a batch bit-identical to the same token evaluated alone?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.backend import Context

__all__ = ["DepthInvariance", "Difference", "compare", "measure_invariance", "stand_at"]


class Difference(NamedTuple):
    """Between rows of a batch of n tokens and the same rows computed alone; 0 if identical.

    Attributes:
        n: tokens of the batch.
        logit: the largest absolute difference of a logit.
        variation: the largest total variation between softmaxes at temperature 1.
    """

    n: int
    logit: float
    variation: float


class DepthInvariance(NamedTuple):
    """Differences behind a prefix of `depth` tokens, for batches of 1, 2, ... tokens."""

    depth: int
    differences: list[Difference]

    @property
    def identical(self) -> int:
        """The largest n up to which every batch is bit-identical."""
        sizes = [d.n for d in self.differences if d.logit > 0.0]
        return min(sizes) - 1 if sizes else self.differences[-1].n


def measure_invariance(
    context: Context, text: Int32Array, depths: Sequence[int], largest: int
) -> Iterator[DepthInvariance]:
    """Compare batches of 1 to `largest` tokens with single tokens, behind several prefixes.

    Args:
        context: any content is lost; opened for as many rows of output.
        text: int32, its tokens are the prefixes and what follows them.
        depths: lengths of the prefixes; shortened to what context and text allow.
        largest: tokens of the largest batch.

    Yields: the figures of each depth, as they are known.
    """
    room = min(context.capacity, len(text)) - largest
    context.clear()
    for depth in sorted({min(depth, room) for depth in depths}):
        stand_at(context, text, depth)
        yield DepthInvariance(depth, _differences(context, text, depth, largest))
    context.clear()


def _differences(context: Context, text: Int32Array, depth: int, largest: int) -> list[Difference]:
    """Batches of 1 to `largest` tokens behind ``text[:depth]`` against one token at a time."""
    alone = np.empty((largest, context.model.vocabulary.size), np.float32)
    for i in range(largest):
        alone[i] = context.evaluate(text[depth + i : depth + i + 1], 1)[0]
    differences = []
    for n in range(1, largest + 1):
        stand_at(context, text, depth)
        differences.append(compare(n, context.evaluate(text[depth : depth + n], n), alone))
    return differences


def stand_at(context: Context, text: Int32Array, depth: int) -> None:
    """Make the cache hold ``text[:depth]``; one that cannot be cut there is filled anew."""
    context.truncate(depth)
    context.prefill(text[context.length : depth])


def compare(n: int, batch: Float32Array, alone: Float32Array) -> Difference:
    """Rows of a batch of n tokens against the same rows computed alone."""
    logit = variation = 0.0
    for row, expected in zip(batch, alone, strict=False):
        if not np.array_equal(row, expected):
            logit = max(logit, float(np.abs(row - expected).max()))
            apart = np.abs(_softmax(row) - _softmax(expected)).sum() / 2
            variation = max(variation, float(apart))
    return Difference(n, logit, variation)


def _softmax(row: Float32Array) -> Float64Array:
    weights = np.exp(row.astype(np.float64) - row.max())
    normalized: Float64Array = weights / weights.sum()
    return normalized
