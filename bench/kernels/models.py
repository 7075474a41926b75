"""Whole models on both kinds of kernels: a token, a block, a prompt; and what the logits lose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np

from bench.kernels.texts import token_ids
from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model, ModelOptions, formats_of
from edgespec.benchmark.results import median_interval
from edgespec.gguf.header import read_header

__all__ = ["SIDES", "SIZES", "ModelFigures", "Side", "measure_divergence", "measure_model"]

OURS = "edgespec"
SIDES = (OURS, "llama.cpp", "llama.cpp flash")
"""The last one has flash attention on, and is not exact."""
SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_PROMPT = 512
_KL_TOKENS = 256


@dataclass
class Side:
    """One kind of kernels.

    Attributes:
        seconds: of an evaluation, by its number of tokens, one for each round.
        prefill: prompt tokens per second, one for each round.
        identical: the largest measured batch up to which all have the rows of single tokens.
    """

    seconds: dict[int, list[float]] = field(default_factory=dict)
    prefill: list[float] = field(default_factory=list)
    identical: int = 0

    def relative(self) -> dict[int, dict[str, float]]:
        """v(n) with its interval: each round's evaluation over the same round's single token."""
        return {
            n: median_interval(np.array(times) / np.array(self.seconds[1]))
            for n, times in self.seconds.items()
        }


@dataclass
class ModelFigures:
    """All sides of one model, measured in turns."""

    model: str
    depth: int
    threads: int
    sides: dict[str, Side]

    def time_ratio(self, n: int) -> dict[str, float]:
        """Our time for n tokens over the shorter of llama.cpp's two, round by round."""
        ours, *theirs = (np.array(self.sides[name].seconds[n]) for name in SIDES)
        return median_interval(ours / np.minimum(*theirs))

    def prefill_ratio(self) -> dict[str, float]:
        """Our prompt tokens per second over the higher of llama.cpp's two, round by round."""
        ours, *theirs = (np.array(self.sides[name].prefill) for name in SIDES)
        return median_interval(ours / np.maximum(*theirs))


def open_side(stack: ExitStack, path: Path, name: str, threads: int, length: int) -> Context:
    """A context of one of `SIDES`."""
    formats = formats_of(read_header(path)) if name == OURS else frozenset()
    model = stack.enter_context(Model(path, ModelOptions(formats, threads)))
    options = ContextOptions(
        length=length,
        threads=threads,
        outputs=max(SIZES),
        flash_attention=model.exact_attention or name == SIDES[2],
    )
    return stack.enter_context(Context(model, options))


def measure_model(
    path: Path, *, depth: int, threads: int, rounds: int, note: Callable[[str], None]
) -> ModelFigures:
    """Measure all sides in turns."""
    with ExitStack() as stack:
        length = max(depth, _PROMPT) + max(SIZES)
        contexts = {name: open_side(stack, path, name, threads, length) for name in SIDES}
        sides = {name: Side({n: [] for n in SIZES}) for name in contexts}
        text = token_ids(contexts[OURS].model, length)
        for name, context in contexts.items():
            sides[name].identical = _identical(context, text, depth)
        for number in range(rounds):
            note(f"{path.name}: round {number + 1} of {rounds}")
            for name, context in contexts.items():
                _look(context, text, depth, sides[name])
    return ModelFigures(path.name, depth, threads, sides)


def _identical(context: Context, text: Int32Array, depth: int) -> int:
    context.clear()
    context.prefill(text[:depth])
    alone = [
        context.evaluate(text[depth + i : depth + i + 1], 1)[0].copy() for i in range(max(SIZES))
    ]
    for before, n in pairwise(SIZES):
        context.truncate(depth)
        if not np.array_equal(context.evaluate(text[depth : depth + n], n), alone[:n]):
            return before
    return SIZES[-1]


def _look(context: Context, text: Int32Array, depth: int, side: Side) -> None:
    context.clear()
    started = perf_counter()
    context.prefill(text[:_PROMPT])
    side.prefill.append(_PROMPT / (perf_counter() - started))
    context.clear()
    context.prefill(text[:depth])
    for n in SIZES:
        best = 1e9
        for _ in range(3):  # the first of a size plans its graph
            started = perf_counter()
            context.evaluate(text[depth : depth + n], n)
            best = min(best, perf_counter() - started)
            context.truncate(depth)
        side.seconds[n].append(best)


def measure_divergence(path: Path, exact: Path, *, threads: int) -> dict[str, float]:
    """Mean KL divergence in nats from the same weights in float32, over ordinary text.

    Args:
        exact: the model with all weights dequantized to float32.
    """
    logs: dict[str, Float64Array] = {}
    for name, file in (("float32", exact), *((side, path) for side in SIDES)):
        with ExitStack() as stack:
            context = open_side(stack, file, name, threads, _KL_TOKENS)
            text = token_ids(context.model, _KL_TOKENS)
            rows = [
                context.evaluate(text[start : start + 16], 16).copy()
                for start in range(0, _KL_TOKENS, 16)
            ]
        logs[name] = _log_softmax(np.concatenate(rows))
    true = np.exp(logs["float32"])
    return {name: float((true * (logs["float32"] - logs[name])).sum(-1).mean()) for name in SIDES}


def _log_softmax(rows: Float32Array) -> Float64Array:
    shifted = rows.astype(np.float64) - rows.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
