"""Check that a token evaluated in a batch is bit-identical to one evaluated alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Int32Array
from edgespec.backend import Context
from edgespec.tuning.measure import Difference, compare, stand_at
from edgespec.verification.checks import CheckResult, Progress, silent

__all__ = ["LARGEST_BATCH", "DepthInvariance", "check_invariance", "measure_invariance"]

LARGEST_BATCH = 16


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
    """Compare batches of 1 to `largest` tokens behind ``text[:depth]`` with single tokens."""
    alone = np.empty((largest, context.model.vocabulary.size), np.float32)
    for i in range(largest):
        alone[i] = context.evaluate(text[depth + i : depth + i + 1], 1)[0]
    differences = []
    for n in range(1, largest + 1):
        stand_at(context, text, depth)
        differences.append(compare(n, context.evaluate(text[depth : depth + n], n), alone))
    return differences


def check_invariance(
    context: Context,
    text: Int32Array,
    k: int,
    depths: Sequence[int],
    progress: Progress = silent,
) -> CheckResult:
    """Compare batches of 1 to max(16, k + 1) tokens with single tokens, after several prefixes.

    The check holds if batches of up to k + 1 tokens, as speculation evaluates, are identical.

    Args:
        context: any content is lost; opened for as many rows of output.
        text: int32, its tokens are the prefixes and what follows them.
        k: block length in use.
        depths: lengths of the prefixes; shortened to what context and text allow.
        progress: told each depth.
    """
    largest = max(LARGEST_BATCH, k + 1)
    measured = []
    for depth in measure_invariance(context, text, depths, largest):
        progress(f"{depth.depth} tokens done")
        measured.append(depth)
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


def _figures(depth: DepthInvariance) -> dict[str, Any]:
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


def _detail(depth: DepthInvariance) -> str:
    worst = max(depth.differences, key=lambda d: d.variation)
    return (
        f"after {depth.depth} tokens: identical up to {depth.identical}; worst at n = {worst.n}, "
        f"logits differ by {worst.logit:.2g}, total variation {worst.variation:.2g}"
    )
