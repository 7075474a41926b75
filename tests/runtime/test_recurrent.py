"""Speculation with a model whose cache cannot be cut back, against plain decoding of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.backend import Context

PROMPTS = ("the lock keeper", "abc abc abc abc abc abc", "Überlingen, 日本", "x")
GREEDY = SamplingParameters(temperature=0.0)


@pytest.fixture(scope="module")
def open_engine(recurrent_model: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def open_one(**options: Any) -> Engine:
        options = {"threads": 1, "context": 512, "draft": "none", **options}
        engines.append(Engine(recurrent_model, EngineOptions(**options)))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def sampled(seed: int) -> SamplingParameters:
    return SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)


def emitted(engine: Engine, prompt: str, sampling: SamplingParameters, accept: str) -> list[int]:
    limits = GenerationLimits(max_tokens=80)
    return list(engine.generate(prompt, sampling, limits, accept=accept).result.tokens)


@pytest.mark.parametrize("draft", ["ngram", "itself"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_text_equals_plain_decoding(
    open_engine: Callable[..., Engine], recurrent_model: Path, draft: str, k: int
) -> None:
    plain = open_engine()
    engine = open_engine(draft=str(recurrent_model) if draft == "itself" else draft, k=k)
    assert engine.notice is None
    proposed = accepted = 0
    for seed, prompt in enumerate(PROMPTS):
        for sampling, accept in ((GREEDY, "auto"), (sampled(seed), "coupled")):
            stream = engine.generate(
                prompt, sampling, GenerationLimits(max_tokens=80), accept=accept
            )
            assert list(stream.result.tokens) == emitted(plain, prompt, sampling, accept)
            proposed += stream.statistics.proposed
            accepted += stream.statistics.accepted
    assert accepted == proposed > 0 if draft == "itself" else 0 < accepted < proposed


def test_rejections_at_every_place(
    open_engine: Callable[..., Engine], built_models: Any, tmp_path: Path
) -> None:
    """A draft of other weights is right now and then only; its own state goes back as well."""
    other = built_models.write_mamba(tmp_path / "other.gguf", seed=1)
    plain, engine = open_engine(), open_engine(draft=str(other), k=4)
    for seed, prompt in enumerate(PROMPTS):
        expected = emitted(plain, prompt, sampled(seed), "coupled")
        assert emitted(engine, prompt, sampled(seed), "coupled") == expected


def test_a_rejection_costs_only_what_was_accepted(
    open_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(draft="ngram", k=4)
    sizes: list[int] = []
    decode = Context._decode

    def counted(self: Context, tokens: np.ndarray, outputs: int) -> None:
        sizes.append(len(tokens))
        decode(self, tokens, outputs)

    monkeypatch.setattr(Context, "_decode", counted)
    stream = engine.generate(PROMPTS[1], sampled(1), GenerationLimits(max_tokens=60))
    emitted = len(stream.result.tokens)
    statistics = stream.statistics
    prompt = len(engine.tokenize(PROMPTS[1])) - 1
    evaluated = prompt + statistics.cycles + statistics.proposed
    assert evaluated <= sum(sizes) <= evaluated + emitted


def test_another_prompt_and_one_that_goes_on(open_engine: Callable[..., Engine]) -> None:
    plain, engine = open_engine(), open_engine(draft="ngram", k=3)
    for engine_of_two in (plain, engine):
        first = engine_of_two.generate(PROMPTS[1], GREEDY, GenerationLimits(max_tokens=20))
        answer = list(first.result.tokens)
        follow_up = [*engine_of_two.tokenize(PROMPTS[1]).tolist(), *answer, 65, 66, 67]
        second = engine_of_two.generate(follow_up, GREEDY, GenerationLimits(max_tokens=20))
        again = list(second.result.tokens)
        assert second.statistics.reused_tokens >= len(follow_up) - 3 - 5
        # Half of what the cache holds, then something else: nothing of it can be used.
        changed = [*follow_up[: len(follow_up) // 2], 90, 90]
        third = engine_of_two.generate(changed, GREEDY, GenerationLimits(max_tokens=20))
        assert third.result.tokens
        assert third.statistics.reused_tokens == 0
        fresh = engine_of_two.generate(follow_up, GREEDY, GenerationLimits(max_tokens=20))
        assert list(fresh.result.tokens) == again


def test_interleaved_streams_and_ends_inside_a_block(
    open_engine: Callable[..., Engine], recurrent_model: Path
) -> None:
    plain = open_engine()
    engine = open_engine(draft=str(recurrent_model), k=5)
    expected = [emitted(plain, prompt, GREEDY, "auto")[:33] for prompt in PROMPTS[:2]]
    streams = [engine.generate(p, GREEDY, GenerationLimits(max_tokens=33)) for p in PROMPTS[:2]]
    iterators = [iter(stream) for stream in streams]
    for _ in range(3):
        for iterator in iterators:
            next(iterator, None)
    assert [list(stream.result.tokens) for stream in streams] == expected
    for count in range(1, 8):
        stream = engine.generate(PROMPTS[0], GREEDY, GenerationLimits(max_tokens=count))
        assert list(stream.result.tokens) == expected[0][:count]


def test_without_checkpoints_it_decodes_plainly_and_says_so(
    open_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "can_truncate", lambda _self: False)
    engine = open_engine(draft="ngram")
    assert engine.notice is not None
    assert "mamba" in engine.notice and "without speculation" in engine.notice
    assert engine.drafter_name == "none"
    assert emitted(engine, PROMPTS[1], GREEDY, "auto") == emitted(
        open_engine(), PROMPTS[1], GREEDY, "auto"
    )
