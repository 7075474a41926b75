"""What evaluating n tokens costs on this machine: the curve v(n)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from edgespec.backend import Context

__all__ = ["measure_cost"]


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
