"""What an engine tells of itself, and how its cycles are watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.errors import UsageError
from edgespec.runtime.cycle import CycleReport

TEXT = "one two three one two three one two three"


@pytest.fixture
def engine(open_engine: Callable[..., Engine]) -> Engine:
    return open_engine(draft="ngram")


def generate(engine: Engine, count: int = 12) -> Any:
    return engine.generate(
        TEXT, SamplingParameters(temperature=0.0), GenerationLimits(max_tokens=count)
    ).result


def test_every_cycle_is_told_while_it_is_observed(engine: Engine) -> None:
    reports: list[CycleReport] = []
    with engine.observing(reports.append):
        result = generate(engine)
    generate(engine)
    assert len(reports) == result.statistics.cycles
    assert sum(report.timing.proposed for report in reports) == result.statistics.proposed > 0
    emitted = [token for report in reports for token in report.cycle.tokens]
    assert emitted[: len(result.tokens)] == list(result.tokens)
    for report in reports:
        assert report.drafter == ("ngram" if report.timing.proposed else "none")
        assert 0 < report.timing.draft_s + report.timing.verify_s <= report.seconds


def test_a_forgotten_text_is_read_again(engine: Engine) -> None:
    first = generate(engine)
    assert generate(engine).statistics.reused_tokens == first.prompt_tokens - 1
    engine.forget()
    again = generate(engine)
    assert (again.statistics.reused_tokens, again.tokens) == (0, first.tokens)


def test_caches_forgotten_between_two_cycles_change_nothing(engine: Engine) -> None:
    expected = generate(engine).text
    stream = engine.generate(
        TEXT, SamplingParameters(temperature=0.0), GenerationLimits(max_tokens=12)
    )
    next(iter(stream))
    engine.forget()
    assert stream.result.text == expected


def test_fewer_proposals_may_be_allowed_and_not_more(engine: Engine) -> None:
    assert engine.largest_k == 3
    engine.largest_k = 1
    try:
        assert set(generate(engine).statistics.k_histogram) <= {0, 1}
    finally:
        engine.largest_k = 3
    with pytest.raises(UsageError, match="k is 4: it has to be between 0 and 3"):
        engine.largest_k = 4


def test_what_a_file_lacks_is_said(default_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lacking.gguf"
    reader, writer = GGUFReader(default_model), GGUFWriter(path, "llama")
    gone = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.pre", "tokenizer.ggml.token_type"]
    copy_with_new_metadata(reader, writer, {}, gone)
    with Engine(path, EngineOptions(draft="none", context=64, threads=1)) as engine:
        assert engine.notice is not None
        for words in ("ends a text", "are split", "control tokens"):
            assert words in engine.notice


def test_lengths_beyond_training_are_said(default_model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    length = MetadataDetails(GGUFValueType.UINT32, 128)
    writer = GGUFWriter(short, "llama")
    copy_with_new_metadata(GGUFReader(default_model), writer, {"llama.context_length": length}, [])
    usual: Any = {"threads": 1, "k": 1, "kernels": "llama.cpp"}
    with Engine(short, EngineOptions(draft="none", context=129, **usual)) as engine:
        assert engine.notice is not None and "129 tokens is longer than the 128" in engine.notice
    with Engine(default_model, EngineOptions(draft=str(short), context=129, **usual)) as engine:
        assert engine.notice is not None and "trained on 128 tokens" in engine.notice
    for model, draft in ((short, "none"), (default_model, str(short))):
        with Engine(model, EngineOptions(draft=draft, context=128, **usual)) as engine:
            assert engine.notice is None
