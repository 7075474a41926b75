"""How a cycle's cost grows with the number of its proposals, k.

Prompt lookup copies a text. Its threshold is 0, so that nearly every cycle has all k proposals.
Cycles with fewer count in the tokens per cycle, and are left out of the times.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from bench.scaling.chart import LINE, Chart, Series, Setup
from edgespec._types import Float64Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model
from edgespec.benchmark.measuring import WORKLOADS
from edgespec.drafters import PromptLookupDrafter
from edgespec.errors import UsageError
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.runtime.loading import warm_up
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import draw_settings
from edgespec.templates import ChatTemplate

__all__ = ["PARTS", "Copying", "copy", "measure_k"]

BLOCKS = tuple(range(1, 9))
PARTS = ("draft", "verify", "sample", "rest")
_MOST_TOKENS = 128  # about what there is to copy


class Copying(NamedTuple):
    """One answer.

    Attributes:
        seconds: float64 (cycles, 4), by `PARTS`, of each cycle with all its proposals.
        tokens, cycles: of the whole answer.
    """

    seconds: Float64Array
    tokens: int
    cycles: int


def measure_k(setup: Setup) -> list[Chart]:
    """Measure milliseconds of a cycle, by part, and tokens per cycle."""
    warm_up()
    most = min(setup.tokens, _MOST_TOKENS)
    with ExitStack() as stack:
        model = stack.enter_context(Model(setup.model))
        prompt = _prompt(model)
        options = ContextOptions(
            length=len(prompt) + most + BLOCKS[-1] + 1,
            threads=setup.threads,
            flash_attention=setup.flash_attention,
            outputs=BLOCKS[-1] + 1,
        )
        context = stack.enter_context(Context(model, options))
        decoders = {k: _decoder(context, k) for k in BLOCKS}
        copy(decoders[1], prompt, most)  # a warm-up
        seconds = np.empty((setup.rounds, len(BLOCKS), len(PARTS)))
        tokens = np.empty((setup.rounds, len(BLOCKS)))
        for turn in range(setup.rounds):
            for index in random.sample(range(len(BLOCKS)), len(BLOCKS)):
                copying = copy(decoders[BLOCKS[index]], prompt, most)
                seconds[turn, index] = copying.seconds.mean(axis=0)
                tokens[turn, index] = copying.tokens / copying.cycles
    return _charts(seconds, tokens)


def copy(decoder: Decoder, prompt: Int32Array, most: int) -> Copying:
    """Answer from empty caches, up to an end token, or to `most` tokens and a block.

    Raises:
        UsageError: no cycle had k proposals.
    """
    decoder.forget()
    statistics = Statistics()
    ends = decoder.target.model.vocabulary.end_tokens
    settings = draw_settings(SamplingParameters(temperature=0.0), "auto")
    decoder.begin(prompt, settings, statistics)
    rows, before = [], _spent(statistics)
    while statistics.emitted < most:
        proposed = statistics.proposed
        tokens = decoder.cycle(decoder.k + 1).tokens
        after = _spent(statistics)
        if statistics.proposed - proposed == decoder.k:
            rows.append(after - before)
        before = after
        if not ends.isdisjoint(tokens):
            break
    if not rows:
        raise UsageError(f"no cycle proposed {decoder.k} tokens: give more --tokens")
    return Copying(np.array(rows), statistics.emitted, statistics.cycles)


def _spent(statistics: Statistics) -> Float64Array:
    """Return the seconds so far, by `PARTS`."""
    parts = (statistics.draft_s, statistics.verify_s, statistics.sample_s)
    return np.array([*parts, statistics.decode_s - sum(parts)])


def _decoder(context: Context, k: int) -> Decoder:
    return Decoder(context, PromptLookupDrafter(context.capacity, threshold=0.0), k)


def _prompt(model: Model) -> Int32Array:
    message = {"role": "user", "content": WORKLOADS["copying"][0][0]}
    text = ChatTemplate.from_model(model.header, model.vocabulary).render([message])
    return model.vocabulary.tokenize(text, add_special=True, parse_special=True)


def _charts(seconds: Float64Array, tokens: Float64Array) -> list[Chart]:
    sizes = [k + 1 for k in BLOCKS]

    def chart(title: str, *series: Series) -> Chart:
        return Chart(title, "tokens evaluated, n = k + 1", "n", sizes, series)

    parts = [
        Series(name, (1e3 * seconds[:, :, i]).tolist(), LINE if name == "verify" else ())
        for i, name in enumerate(PARTS)
    ]
    return [
        chart("Milliseconds of a cycle of k proposals, copying", *parts),
        chart("Tokens per cycle, copying", Series("tokens", tokens.tolist())),
    ]
