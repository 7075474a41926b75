"""A model with sliding-window attention: exact inside the window and beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.backend import Context, ContextOptions, Model, ModelOptions

GREEDY = SamplingParameters(temperature=0.0)
COUPLED = SamplingParameters(temperature=1.0, seed=11)
TEXT = "The lock keeper writes the level of the river into his book every evening at six. "


@pytest.fixture(scope="module")
def gemma(other_model: Any) -> Path:
    path: Path = other_model("gemma3-270m.gguf")
    return path


@pytest.fixture(scope="module")
def context(gemma: Path) -> Iterator[Context]:
    # Repacked, its matrix kernels round a batch differently.
    with (
        Model(gemma, ModelOptions(repack=False)) as model,
        Context(model, ContextOptions(length=1024, threads=1)) as context,
    ):
        assert model.header.sliding_window == 512
        assert not model.has_state
        yield context


def row(context: Context, token: np.ndarray) -> np.ndarray:
    values: np.ndarray = context.evaluate(token, 1)[0].copy()
    return values


def test_the_cache_can_be_cut_beyond_the_window(context: Context) -> None:
    """By a block, and by more than a window: nothing that slid out of it is missing."""
    assert context.can_truncate()
    tokens = np.resize(context.model.vocabulary.tokenize(TEXT), 760)
    context.prefill(tokens[:100])
    early = row(context, tokens[100:101])
    context.prefill(tokens[101:700])
    late = row(context, tokens[700:701])
    for _ in range(3):
        context.truncate(701)
        context.evaluate(tokens[20:25], 5)
    context.truncate(700)
    assert context.native_length() == context.length == 700
    assert np.array_equal(row(context, tokens[700:701]), late)
    context.truncate(100)
    assert np.array_equal(row(context, tokens[100:101]), early)
    context.prefill(tokens[101:700])
    assert np.array_equal(row(context, tokens[700:701]), late)


def test_text_equals_plain_decoding(gemma: Path) -> None:
    prompts = ("List five fruits: apple,", TEXT * 36)
    texts = {}
    for draft in ("none", "ngram", str(gemma)):
        options = EngineOptions(
            draft=draft, k=3, threads=1, context=1024, repack=False, exact="bitwise"
        )
        with Engine(gemma, options) as engine:
            assert engine.notice is None
            assert len(engine.tokenize(prompts[1])) > 550
            streams = [
                engine.generate(prompt, sampling, GenerationLimits(max_tokens=16), accept=accept)
                for prompt in prompts
                for sampling, accept in ((GREEDY, "auto"), (COUPLED, "coupled"))
            ]
            texts[draft] = [stream.result.tokens for stream in streams]
            accepted = sum(stream.statistics.accepted for stream in streams)
            assert (accepted > 0) == (draft != "none")
    assert texts["none"] == texts["ngram"] == texts[str(gemma)]
