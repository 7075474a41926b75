"""What evaluating n tokens costs on this machine: the curve v(n), and a draft's two costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from edgespec.backend import Context, HeadContext

__all__ = [
    "HEAD_BATCH",
    "MEASURED_DEPTH",
    "DraftCost",
    "draft_reader",
    "head_reader",
    "measure_cost",
    "measure_draft",
    "measure_head",
]

HEAD_BATCH = 32
"""Tokens of one evaluation of an EAGLE-3 head, which computes logits for each of them."""

MEASURED_DEPTH = 128
_STEPS = 7


class DraftCost(NamedTuple):
    """Seconds of drafting one token, and of reading one that the draft has not seen."""

    step_s: float
    reading_s: float


def measure_draft(context: Context) -> DraftCost:
    """What a draft costs in an open context, whose content is lost. Takes a few steps."""
    return _measure_steps(context, draft_reader(context))


def measure_head(context: HeadContext) -> DraftCost:
    """As `measure_draft`, of an EAGLE-3 head; the fusion of features belongs to reading."""
    return _measure_steps(context, head_reader(context))


def draft_reader(context: Context) -> Callable[[int], object]:
    """Appends up to `MEASURED_DEPTH` tokens and computes the logits behind the last."""
    tokens = np.full(MEASURED_DEPTH, context.model.vocabulary.bos or 0, np.int32)
    return lambda count: context.evaluate(tokens[:count], 1)


def head_reader(context: HeadContext) -> Callable[[int], object]:
    """As `draft_reader`, with features fused for more than one token."""
    head = context.model.header.eagle
    assert head is not None
    tokens = np.zeros(MEASURED_DEPTH, np.int32)
    features = np.ones((MEASURED_DEPTH, len(head.layers) * head.target_width), np.float32)
    state = np.ones((1, context.model.embedding_length), np.float32)

    def read(count: int) -> object:
        states = state if count == 1 else context.fuse(features[:count])
        return context.step(tokens[:count], states)

    return read


def _measure_steps(context: Context, read: Callable[[int], object]) -> DraftCost:
    """Times `read`, which appends so many tokens and computes the logits behind the last."""
    depth = max(1, min(MEASURED_DEPTH, context.capacity - _STEPS - 1))
    context.clear()
    read(1)  # plans and buffers of the first call
    context.clear()
    started = perf_counter()
    read(depth)
    reading_s = (perf_counter() - started) / depth
    steps = []
    for _ in range(max(1, min(_STEPS, context.capacity - depth))):
        started = perf_counter()
        read(1)
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
