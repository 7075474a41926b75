"""How the cost of evaluations grows with the tokens in the cache, and of a prompt by length.

The cache is filled step by step. At each depth the sizes take turns in random order; each is
evaluated twice in a row and timed the second time, as llama.cpp plans anew for a new size.
"""

from __future__ import annotations

import random
from time import perf_counter

import numpy as np

from bench.scaling.chart import LINE, Chart, Series, Setup, sizes_up_to
from edgespec._types import Float64Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model
from edgespec.errors import UsageError
from edgespec.tuning.measure import measuring_text

__all__ = ["measure_context"]

SIZES = (1, 2, 4, 8)
DEPTHS = (256, 512, 1024, 2048, 4096)


def measure_context(setup: Setup) -> list[Chart]:
    """Measure milliseconds of an evaluation, the same in single tokens, and seconds of a prompt.

    Raises:
        UsageError: the model's cache cannot be cut back.
    """
    with Model(setup.model) as model:
        deepest = min(setup.deepest, model.context_length - SIZES[-1])
        depths = sizes_up_to(deepest, DEPTHS)
        options = ContextOptions(
            length=deepest + SIZES[-1],
            threads=setup.threads,
            flash_attention=setup.flash_attention,
            outputs=SIZES[-1],
        )
        with Context(model, options) as context:
            if not context.can_truncate():
                raise UsageError(f"the cache of {setup.model.name} cannot be cut back")
            reading_s, seconds = _deepen(context, depths, setup.rounds)
    return _charts(depths, reading_s, seconds)


def _deepen(context: Context, depths: list[int], rounds: int) -> tuple[list[float], Float64Array]:
    """Return seconds of reading up to each depth, and of evaluations (rounds, depths, sizes)."""
    text = measuring_text(context, context.capacity)
    context.prefill(text[: min(context.options.batch, depths[0])])  # buffers of the first call
    context.clear()
    seconds = np.empty((rounds, len(depths), len(SIZES)))
    reading_s, total_s = [], 0.0
    for index, depth in enumerate(depths):
        started = perf_counter()
        context.prefill(text[context.length : depth])
        total_s += perf_counter() - started
        reading_s.append(total_s)
        for row in seconds:
            for size in random.sample(range(len(SIZES)), len(SIZES)):
                row[index, size] = _evaluation_s(context, text, depth, SIZES[size])
    return reading_s, seconds


def _evaluation_s(context: Context, text: Int32Array, depth: int, n: int) -> float:
    """Return the seconds of evaluating n tokens, with their logits, after the first `depth`."""
    for _ in range(2):
        started = perf_counter()
        context.evaluate(text[depth : depth + n], n)
        took_s = perf_counter() - started
        context.truncate(depth)
    return took_s


def _charts(depths: list[int], reading_s: list[float], seconds: Float64Array) -> list[Chart]:
    def chart(title: str, *series: Series) -> Chart:
        return Chart(title, "tokens in the cache, d", "d", depths, series)

    times = [
        Series(f"n = {n}", (1e3 * seconds[:, :, i]).tolist(), LINE) for i, n in enumerate(SIZES)
    ]
    ratios = seconds / seconds[:, :, :1]
    costs = [Series(f"v({n}, d)", ratios[:, :, i].tolist()) for i, n in enumerate(SIZES) if i]
    return [
        chart("Milliseconds of an evaluation of n tokens", *times),
        chart("An evaluation of n tokens in single tokens, v(n, d) = t(n, d) / t(1, d)", *costs),
        chart(
            "Seconds of reading a prompt of d tokens, once", Series("prompt", [reading_s], (1, 2))
        ),
    ]
