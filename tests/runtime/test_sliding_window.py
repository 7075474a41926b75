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


# -- kept caches, on a tiny model ---------------------------------------------------------------

LIMITS = GenerationLimits(max_tokens=12)


def random_text(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(33, 127, count)]


@pytest.fixture(scope="module", params=["none", "ngram", "itself"])
def open_tiny(request: Any, windowed_model: Path) -> Any:
    """Open an engine on the tiny model."""
    draft = str(windowed_model) if request.param == "itself" else request.param

    def open_one(**options: Any) -> Engine:
        usual = {"draft": draft, "k": 3, "threads": 1, "context": 1024, "exact": "bitwise"}
        return Engine(windowed_model, EngineOptions(**{**usual, **options}))

    return open_one


def said(engine: Engine, tokens: list[int], sampling: SamplingParameters = COUPLED) -> list[int]:
    accept = "coupled" if sampling is COUPLED else "auto"
    return list(engine.generate(tokens, sampling, LIMITS, accept=accept).result.tokens)


def test_a_kept_cache_that_is_cut_says_what_a_fresh_one_says(
    open_tiny: Any, tmp_path: Path
) -> None:
    long, other = random_text(700, 1), random_text(300, 2)
    lengths = (699, 640, 400, 90, 63, 2, 700)
    expected = {}
    with open_tiny(prompt_cache=0) as engine:
        for length in lengths:
            engine.forget()
            expected[length] = said(engine, long[:length])
    with open_tiny() as engine:
        for length in lengths:
            for text in (long, other):  # the long one is put away
                said(engine, text)
            stream = engine.generate(long[:length], COUPLED, LIMITS, accept="coupled")
            assert list(stream.result.tokens) == expected[length], length
            if length > 90:
                assert stream.statistics.reused_tokens == length - 1
        stream = engine.generate(long, COUPLED, LIMITS, accept="coupled")
        stream.result  # noqa: B018
        assert engine.save_cache(tmp_path / "kept", stream.sequence) >= 700
    for length in lengths:
        with open_tiny() as engine:
            assert engine.load_cache(tmp_path / "kept") >= 700
            assert said(engine, long[:length]) == expected[length], length


def test_conversations_that_take_turns_say_what_they_say_alone(open_tiny: Any) -> None:
    texts = [random_text(500, 3), random_text(200, 3) + random_text(250, 4), random_text(120, 5)]
    with open_tiny(prompt_cache=0) as engine:
        alone = [said(engine, text) for text in texts]
    with open_tiny() as engine:
        streams = [engine.generate(text, COUPLED, LIMITS, accept="coupled") for text in texts]
        iterators = [iter(stream) for stream in streams]
        for _ in range(4):
            for iterator in iterators:
                next(iterator, None)
        assert [list(stream.result.tokens) for stream in streams] == alone


def test_a_full_context_goes_on_as_after_a_prompt_of_what_is_left(open_tiny: Any) -> None:
    limits = GenerationLimits(max_tokens=120, overflow="shift", keep=40)
    with open_tiny(context=256) as engine:
        stream = engine.generate(random_text(200, 6), GREEDY, limits)
        tokens = list(stream.result.tokens)
        assert len(tokens) == 120
        left = stream.sequence
        assert len(left) < 256
        # 56 tokens filled the context: half of what lay behind the front was dropped then.
        since = len(left) - 148
        engine.forget()
        again = said(engine, list(left[:148]), GREEDY)
        assert again == list(left[148 : 148 + min(since, 12)])


@pytest.mark.model
def test_gemma_restored_and_cut_says_what_it_says_anew(gemma: Path, tmp_path: Path) -> None:
    options = EngineOptions(draft="none", threads=1, context=1536, repack=False)
    with Engine(gemma, options) as engine:
        long = engine.tokenize(TEXT * 60)[:1100]
        other = engine.tokenize("Numbers: " + " ".join(str(n * n) for n in range(60)))
        expected = {length: said(engine, list(long[:length])) for length in (1099, 700, 300)}
    with Engine(gemma, options) as engine:
        for length, tokens in expected.items():
            said(engine, list(long))
            said(engine, list(other))
            assert said(engine, list(long[:length])) == tokens, length
        stream = engine.generate(long, GREEDY, LIMITS)
        stream.result  # noqa: B018
        engine.save_cache(tmp_path / "kept", stream.sequence)
    for length, tokens in expected.items():
        with Engine(gemma, options) as engine:
            assert engine.load_cache(tmp_path / "kept")
            assert said(engine, list(long[:length])) == tokens, length
