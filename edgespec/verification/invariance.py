"""Check that a token evaluated in a batch is bit-identical to one evaluated alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgespec._types import Int32Array
from edgespec.backend import Context
from edgespec.tuning.invariance import DepthInvariance, measure_invariance
from edgespec.verification.result import CheckResult, Progress, silent

__all__ = ["LARGEST_BATCH", "check_invariance"]

LARGEST_BATCH = 16


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
