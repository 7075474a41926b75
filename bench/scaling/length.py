"""How the time of decoding grows with the length of an answer, in and outside llama.cpp.

A plain engine and an adaptive one answer the same question with the same number of tokens; a bias
forbids end tokens. What a token costs outside evaluations (filters, acceptance, bookkeeping, the
text) must not grow with the answer: that is the slope to look at.
"""

from __future__ import annotations

import math
import random
from contextlib import ExitStack
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bench.scaling.chart import LINE, Chart, Series, Setup
from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec._types import Float64Array
from edgespec.benchmark.measuring import WORKLOADS

__all__ = ["Answer", "answer", "endless", "lengths_up_to", "measure_length"]

SIDES = {"plain": "none", "--k auto": "ngram"}
_HALVINGS = 5
_PROMPT = 256  # room for the question


class Answer(NamedTuple):
    """How long an answer took, in seconds.

    Attributes:
        decode_s: decoding, without the prompt.
        loop_s: the part of it outside drafting and evaluations of the target.
        reader_s: the reader's wait for the stream, without evaluations, drafting and prompt.
    """

    tokens: int
    decode_s: float
    loop_s: float
    reader_s: float


def measure_length(setup: Setup) -> list[Chart]:
    """Measure seconds of decoding, and microseconds per token outside llama.cpp."""
    lengths = lengths_up_to(setup.tokens)
    shape = (setup.rounds, len(lengths))
    figures = {name: [np.empty(shape) for _ in range(3)] for name in SIDES}
    with ExitStack() as stack:
        engines = {name: stack.enter_context(_open(setup, draft)) for name, draft in SIDES.items()}
        for engine in engines.values():
            answer(engine, lengths[0])  # a warm-up
        for turn in range(setup.rounds):
            runs = [(index, name) for index in range(len(lengths)) for name in SIDES]
            for index, name in random.sample(runs, len(runs)):
                found = answer(engines[name], lengths[index])
                decode, loop, reader = figures[name]
                decode[turn, index] = found.decode_s
                loop[turn, index] = 1e6 * found.loop_s / found.tokens
                reader[turn, index] = 1e6 * found.reader_s / found.tokens
    return _charts(lengths, figures)


def answer(engine: Engine, tokens: int) -> Answer:
    """Answer with so many tokens, from empty caches."""
    engine.forget()
    message = {"role": "user", "content": WORKLOADS["prose"][0][0]}
    stream = engine.chat([message], endless(engine), GenerationLimits(max_tokens=tokens))
    started = perf_counter()
    for _ in stream:
        pass
    took_s = perf_counter() - started
    statistics = stream.statistics
    elsewhere_s = statistics.verify_s + statistics.draft_s
    return Answer(
        len(stream.emitted),
        statistics.decode_s,
        statistics.decode_s - elsewhere_s,
        took_s - statistics.prefill_s - elsewhere_s,
    )


def endless(engine: Engine) -> SamplingParameters:
    """Return greedy sampling with a bias that forbids every end token of this model."""
    bias = dict.fromkeys(engine.vocabulary.end_tokens, -math.inf)
    return SamplingParameters(temperature=0.0, logit_bias=bias)


def lengths_up_to(longest: int) -> list[int]:
    """Return the longest, its half, and so on, in ascending order."""
    return sorted({max(1, longest >> halving) for halving in range(_HALVINGS + 1)})


def _open(setup: Setup, draft: str) -> Engine:
    options = EngineOptions(
        draft=draft,
        context=setup.tokens + _PROMPT,
        threads=setup.threads,
        flash_attention=setup.flash_attention,
    )
    return Engine(setup.model, options)


def _charts(lengths: list[int], figures: dict[str, list[Float64Array]]) -> list[Chart]:
    titles = (
        "Seconds of decoding",
        "Microseconds per token outside llama.cpp, in the decoding loop",
        "Microseconds per token outside llama.cpp, until the reader has the text",
    )
    return [
        Chart(
            title,
            "tokens of the answer, n",
            "n",
            lengths,
            [Series(name, each[i].tolist(), LINE) for name, each in figures.items()],
        )
        for i, title in enumerate(titles)
    ]
