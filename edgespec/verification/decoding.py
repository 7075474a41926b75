"""Decoding for the checks: whole answers from an empty cache, and logits one token at a time."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.speculation.settings import DrawSettings

__all__ = ["decode", "plain_logits"]


def decode(
    decoder: Decoder,
    prompt: Int32Array,
    settings: DrawSettings,
    count: int,
    end_tokens: Set[int] = frozenset(),
) -> tuple[list[int], Statistics]:
    """Return up to `count` tokens after a prompt, an end token included, and statistics.

    The target's cache is emptied first.
    """
    decoder.target.clear()
    statistics = Statistics()
    decoder.begin(prompt, settings, statistics)
    tokens: list[int] = []
    while len(tokens) < count and end_tokens.isdisjoint(tokens):
        tokens += decoder.cycle(count - len(tokens)).tokens
    ends = [i for i, token in enumerate(tokens) if token in end_tokens]
    return tokens[: ends[0] + 1] if ends else tokens, statistics


def plain_logits(context: Context, prompt: Int32Array, answer: list[int]) -> Float32Array:
    """Return the logits after prompt and answer: float32 (n_vocab,), a view.

    They are computed as in plain decoding: all of the prompt but its last token is a prefill, the
    other tokens are evaluated one at a time.
    """
    context.clear()
    context.prefill(prompt[:-1])
    logits = context.evaluate(prompt[-1:], 1)
    for token in answer:
        logits = context.evaluate(np.array([token], np.int32), 1)
    row: Float32Array = logits[0]
    return row
