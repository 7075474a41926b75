"""Is a token evaluated in a batch bit-identical to the same token evaluated alone?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.backend import Context
from edgespec.verification.distributions import softmax, total_variation
from edgespec.verification.result import CheckResult, Progress, silent

__all__ = ["LARGEST_BATCH", "check_invariance"]

LARGEST_BATCH = 16

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class _Difference(NamedTuple):
    """Between rows of a batch of n tokens and the same rows computed alone; 0 if identical."""

    n: int
    logit: float
    variation: float


class _Depth(NamedTuple):
    """Differences behind a prefix of so many tokens, by batch size 1, 2, ..."""

    depth: int
    differences: list[_Difference]

    @property
    def identical(self) -> int:
        """The largest n up to which every batch is bit-identical."""
        sizes = [d.n for d in self.differences if d.logit > 0.0]
        return min(sizes) - 1 if sizes else self.differences[-1].n


def check_invariance(
    context: Context,
    text: Int32Array,
    k: int,
    depths: Sequence[int],
    progress: Progress = silent,
) -> CheckResult:
    """Compare batches of 1 to max(16, k + 1) tokens with single tokens, behind several prefixes.

    Holds if batches of up to k + 1 tokens, which is what speculation evaluates, are identical.

    Args:
        context: any content is lost; opened for as many rows of output.
        text: int32, its tokens are the prefixes and what follows them.
        k: block length in use.
        depths: lengths of the prefixes; shortened to what context and text allow.
        progress: told each depth.
    """
    largest = max(LARGEST_BATCH, k + 1)
    room = min(context.capacity, len(text)) - largest
    measured = []
    for depth in sorted({min(depth, room) for depth in depths}):
        progress(f"at {depth} tokens")
        measured.append(_Depth(depth, _differences(context, text[: depth + largest], depth)))
    identical = min(depth.identical for depth in measured)
    return CheckResult(
        "invariance",
        identical >= k + 1,
        _summary(identical, k, largest, [depth.depth for depth in measured]),
        {
            "largest_identical_batch": identical,
            "largest_batch_in_use": k + 1,
            "contexts": [_figures(depth) for depth in measured],
        },
        tuple(_detail(depth) for depth in measured if depth.identical < largest),
    )


def _differences(context: Context, text: Int32Array, start: int) -> list[_Difference]:
    """Batches of tokens behind the first `start` against the same tokens one at a time."""
    tokens = text[start:]
    context.clear()
    context.prefill(text[:start])
    alone = np.empty((len(tokens), context.model.vocabulary.size), np.float32)
    for i in range(len(tokens)):
        alone[i] = context.evaluate(tokens[i : i + 1], 1)[0]
    differences = []
    for n in range(1, len(tokens) + 1):
        context.truncate(start)
        # A cache that can only go back to a checkpoint may have gone further.
        context.prefill(text[context.length : start])
        differences.append(_compare(n, context.evaluate(tokens[:n], n), alone))
    return differences


def _compare(n: int, batch: Float32Array, alone: Float32Array) -> _Difference:
    logit = variation = 0.0
    for row, expected in zip(batch, alone, strict=False):
        if np.array_equal(row, expected):
            continue
        logit = max(logit, float(np.abs(row - expected).max()))
        variation = max(variation, total_variation(softmax(row), softmax(expected)))
    return _Difference(n, logit, variation)


def _figures(depth: _Depth) -> dict[str, Any]:
    return {
        "depth": depth.depth,
        "largest_identical_batch": depth.identical,
        "batches": [
            {"n": d.n, "logit_difference": d.logit, "total_variation": d.variation}
            for d in depth.differences
        ],
    }


def _summary(identical: int, k: int, largest: int, depths: list[int]) -> str:
    where = f"after {', '.join(map(str, depths))} tokens"
    if identical >= largest:
        return f"batches of 1 to {largest} tokens {where} are bit-identical to single tokens"
    return (
        f"bit-identical to single tokens up to batches of {identical} {where}; k = {k} needs "
        f"{k + 1}"
    )


def _detail(depth: _Depth) -> str:
    worst = max(depth.differences, key=lambda d: d.variation)
    return (
        f"after {depth.depth} tokens: identical up to {depth.identical}; worst at n = {worst.n}, "
        f"logits differ by {worst.logit:.2g}, total variation {worst.variation:.2g}"
    )
