"""What evaluating n tokens costs on this machine: the curve v(n), and a draft's two costs."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from edgespec.backend import Context

__all__ = ["DraftCost", "measure_cost", "measure_draft"]

_DEPTH = 128
_STEPS = 7


class DraftCost(NamedTuple):
    """Seconds of drafting one token, and of reading one that the draft has not seen."""

    step_s: float
    reading_s: float


def measure_draft(context: Context) -> DraftCost:
    """What a draft costs in an open context, whose content is lost. Takes a few steps."""
    depth = min(_DEPTH, context.capacity - _STEPS - 1)
    tokens = np.full(depth, context.model.vocabulary.bos or 0, np.int32)
    context.clear()
    context.evaluate(tokens[:1], 1)  # plans and buffers of the first call
    context.clear()
    started = perf_counter()
    context.prefill(tokens)
    reading_s = (perf_counter() - started) / depth
    steps = []
    for _ in range(_STEPS):
        started = perf_counter()
        context.evaluate(tokens[:1], 1)
        steps.append(perf_counter() - started)
    context.clear()
    return DraftCost(float(np.median(steps)), reading_s)


def measure_cost(
    context: Context, depth: int, sizes: Sequence[int], repetitions: int = 5
) -> dict[int, float]:
    """Median seconds of one evaluation of n tokens, all of whose logits are wanted.

    The sizes take turns, so that a machine that slows down slows all of them down; each is
    evaluated twice in a row and timed the second time, as llama.cpp plans anew for a new size.

    Args:
        context: any content is lost; opened for as many rows of output as the largest size.
        depth: tokens in the cache before each evaluation.
        sizes: the n to measure.
        repetitions: of each size.
    """
    token = context.model.vocabulary.bos or 0
    tokens = np.full(max(depth, *sizes), token, np.int32)
    times: dict[int, list[float]] = {n: [] for n in sizes}
    context.clear()
    for _ in range(repetitions):
        for n in sizes:
            for timed in (False, True):
                context.truncate(depth)
                context.prefill(tokens[context.length : depth])
                started = perf_counter()
                context.evaluate(tokens[:n], n)
                if timed:
                    times[n].append(perf_counter() - started)
    context.clear()
    return {n: float(np.median(seconds)) for n, seconds in times.items()}
