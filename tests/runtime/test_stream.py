"""What ends a generation, inside a block too; interleaving, cancelling, errors."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from edgespec import GenerationLimits, SamplingParameters
from edgespec.errors import ContextFullError, UsageError
from edgespec.runtime.stream import TextAssembler

GREEDY = SamplingParameters(temperature=0.0)


@pytest.fixture(params=["none", "ngram", "itself"])
def engine(request: Any, drafts: dict[str, str], open_engine: Any) -> Any:
    """ "itself" accepts every block whole, so that every end falls inside one."""
    return open_engine(draft=drafts[request.param], context=512)


def assert_in_step(engine: Any, stream: Any) -> None:
    """Both caches hold what was returned, but for its last token."""
    assert engine.decoder.length == len(stream.sequence)
    assert engine.target.native_length() == len(stream.sequence) - 1
    cache = getattr(engine.drafter, "context", None)
    if cache is not None:
        assert cache.native_length() == cache.length <= len(stream.sequence) - 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_length(engine: Any, prompts: tuple[str, ...], count: int) -> None:
    stream = engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=count))
    result = stream.result
    assert result.finish_reason == "length"
    assert len(result.tokens) == count
    assert_in_step(engine, stream)


def test_end_token(engine: Any, plain: Any) -> None:
    prompt = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi there!"
    expected = plain.greedy(engine.tokenize(prompt).tolist(), 200)
    assert expected[-1] in engine.vocabulary.end_tokens
    stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=200))
    result = stream.result
    assert list(result.tokens) == expected
    assert result.finish_reason == "stop"
    assert "<|im_end|>" not in result.text
    assert_in_step(engine, stream)


def test_stop_strings_that_span_tokens(engine: Any, prompts: tuple[str, ...]) -> None:
    text = engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=40)).result.text
    for start in range(5, 25, 4):
        stop = text[start : start + 7]
        stream = engine.generate(
            prompts[0], GREEDY, GenerationLimits(max_tokens=40, stop=("never", stop))
        )
        pieces = [piece.text for piece in stream]
        result = stream.result
        assert result.finish_reason == "stop"
        assert result.text == "".join(pieces) == text[: text.index(stop)]
        assert_in_step(engine, stream)


def assert_counted(stream: Any) -> None:
    """The figures are of the tokens that were handed out, and of nothing else."""
    figures, tokens = stream.statistics, len(stream.emitted)
    assert figures.emitted == tokens
    assert figures.cycles + figures.accepted == tokens
    assert figures.accepted <= figures.proposed
    assert figures.proposed == sum(k * n for k, n in figures.k_histogram.items())
    assert sum(figures.k_histogram.values()) == figures.cycles
    assert figures.tokens_per_second == tokens / figures.decode_s


def test_figures_count_nothing_behind_the_end(engine: Any, prompts: tuple[str, ...]) -> None:
    text = engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=40)).result.text
    ends = [GenerationLimits(max_tokens=n) for n in (1, 2, 5, 6)]
    ends += [GenerationLimits(stop=(text[at : at + 3],)) for at in (0, 7, 20, 33)]
    for limits in ends:
        stream = engine.generate(prompts[0], GREEDY, limits)
        reports: list[Any] = []
        with engine.observing(reports.append):
            origins = [piece.origin.value for piece in stream]
        assert_counted(stream)
        assert sum(report.timing.emitted for report in reports) == len(stream.emitted)
        assert origins.count("accepted") <= stream.statistics.accepted
    prompt = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi there!"
    stream = engine.generate(prompt, GREEDY)
    assert stream.result.finish_reason == "stop"
    assert_counted(stream)


def test_text_is_the_pieces_of_the_tokens(engine: Any, prompts: tuple[str, ...]) -> None:
    stream = engine.generate(prompts[19], GREEDY, GenerationLimits(max_tokens=60))
    result = stream.result
    assert result.text == engine.vocabulary.decode(result.tokens)


def test_full_context_stops(engine: Any) -> None:
    capacity = engine.decoder.capacity
    prompt = np.resize(engine.tokenize("one two three four"), capacity - 6)
    stream = engine.generate(prompt, GREEDY, GenerationLimits())
    result = stream.result
    assert result.finish_reason in ("context", "stop")
    assert len(stream.sequence) <= capacity
    assert_in_step(engine, stream)


def test_full_context_shifts_and_keeps_the_front(engine: Any) -> None:
    capacity = engine.decoder.capacity
    ends = dict.fromkeys(engine.vocabulary.end_tokens, -np.inf)
    sampling = SamplingParameters(temperature=0.0, logit_bias=ends)
    prompt = np.resize(engine.tokenize("one two three four"), capacity - 6)
    limits = GenerationLimits(max_tokens=16, overflow="shift", keep=10)
    stream = engine.generate(prompt, sampling, limits)
    result = stream.result
    assert result.finish_reason == "length"
    assert stream.sequence[:10] == prompt[:10].tolist()
    assert len(stream.sequence) < capacity
    assert_in_step(engine, stream)
    # After the shift the text is the one that a prompt of what was left gives.
    answer = list(result.tokens)
    before = capacity - len(prompt)
    left = stream.sequence[: len(stream.sequence) - (len(answer) - before)]
    again = engine.generate(left, sampling, GenerationLimits(max_tokens=len(answer) - before))
    assert list(again.result.tokens) == answer[before:]


def test_prompt_longer_than_the_context(engine: Any) -> None:
    prompt = np.ones(engine.decoder.capacity, np.int32)
    with pytest.raises(ContextFullError):
        engine.generate(prompt, GREEDY).result  # noqa: B018
    assert len(engine.generate("sea", GREEDY, GenerationLimits(max_tokens=3)).result.tokens) == 3


def test_interleaved_streams_do_not_disturb_each_other(
    engine: Any, prompts: tuple[str, ...]
) -> None:
    def start(index: int) -> Any:
        return engine.generate(prompts[index], GREEDY, GenerationLimits(max_tokens=12))

    expected = [start(i).result.tokens for i in (0, 5)]
    streams = [start(i) for i in (0, 5)]
    iterators = [iter(stream) for stream in streams]
    for _ in range(4):
        for iterator in iterators:
            next(iterator, None)
    assert [stream.result.tokens for stream in streams] == expected


def test_cancel_from_another_thread(engine: Any, prompts: tuple[str, ...]) -> None:
    ends = dict.fromkeys(engine.vocabulary.end_tokens, -np.inf)
    sampling = SamplingParameters(temperature=0.0, logit_bias=ends)
    reference = engine.generate(prompts[0], sampling, GenerationLimits(max_tokens=30)).result
    stream = engine.generate(prompts[0], sampling, GenerationLimits(max_tokens=1500))
    seen = threading.Event()

    def cancel() -> None:
        seen.wait()
        stream.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    for count, _ in enumerate(stream):
        if count == 5:
            seen.set()
    thread.join()
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert len(result.tokens) < 1500
    common = min(30, len(result.tokens))
    assert result.tokens[:common] == reference.tokens[:common]
    again = engine.generate(prompts[0], sampling, GenerationLimits(max_tokens=30)).result
    assert again.tokens == reference.tokens


def test_cancel_before_the_start(engine: Any, prompts: tuple[str, ...]) -> None:
    stream = engine.generate(prompts[0], GREEDY)
    stream.cancel()
    result = stream.result
    assert (result.text, result.tokens, result.finish_reason) == ("", (), "cancelled")


def test_cancel_during_prefill_leaves_a_usable_engine(engine: Any) -> None:
    prompt = np.resize(engine.tokenize("the quick brown fox"), engine.decoder.capacity - 20)
    short = engine.tokenize("the quick brown")
    expected = engine.generate(short, GREEDY, GenerationLimits(max_tokens=4)).result.tokens
    stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=4))
    timer = threading.Timer(0.2, stream.cancel)
    timer.start()
    assert stream.result.finish_reason in ("cancelled", "length")
    timer.join()
    again = engine.generate(short, GREEDY, GenerationLimits(max_tokens=4)).result
    assert again.tokens == expected


def test_an_error_in_a_cycle_leaves_a_usable_engine(
    engine: Any, prompts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = GenerationLimits(max_tokens=12)
    expected = engine.generate(prompts[1], GREEDY, limits).result.tokens
    stream = iter(engine.generate(prompts[1], GREEDY, limits))
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "evaluate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(stream)
    assert engine.generate(prompts[1], GREEDY, limits).result.tokens == expected


def test_repeated_seeds_repeat_the_text(engine: Any, prompts: tuple[str, ...]) -> None:
    def text(seed: int) -> str:
        sampling = SamplingParameters(temperature=1.0, seed=seed)
        return str(
            engine.generate(prompts[0], sampling, GenerationLimits(max_tokens=16)).result.text
        )

    assert text(2**64 - 1) == text(2**64 - 1)
    assert len({text(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tokens": 0}, "max-tokens"),
        ({"stop": ("",)}, "empty"),
        ({"overflow": "x"}, "overflow"),
    ],
)
def test_bad_limits(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationLimits(**limits)


def test_bad_rules(open_engine: Any) -> None:
    engine = open_engine()
    with pytest.raises(UsageError, match="one of"):
        engine.generate("sea", accept="hopeful")
    with pytest.raises(UsageError, match="temperature 0"):
        engine.generate("sea", SamplingParameters(temperature=1.0), accept="greedy")


@pytest.mark.parametrize(
    "text", ["plain", "👩‍👩‍👧‍👦🇨🇭", "汉字かな한글", "e\u0301a\u0308", "\U00010348", "\t\r\n  end"]
)
def test_characters_that_span_tokens_are_shown_whole(open_engine: Any, text: str) -> None:
    vocabulary = open_engine().vocabulary
    assembler = TextAssembler()
    tokens = vocabulary.tokenize(text, add_special=False)
    shown = [assembler.feed(vocabulary.piece(int(token))) for token in tokens]
    assert all("\ufffd" not in piece for piece in shown)
    assert "".join(shown) + assembler.finish() == text


def test_a_half_character_at_the_end_is_a_replacement_character(open_engine: Any) -> None:
    vocabulary = open_engine().vocabulary
    tokens = vocabulary.tokenize("\U00010348", add_special=False)
    assert len(tokens) > 1
    assembler = TextAssembler()
    assert assembler.feed(vocabulary.piece(int(tokens[0]))) == ""
    assert assembler.finish() == "\ufffd"


def test_a_half_stop_string_is_shown_at_the_end() -> None:
    assembler = TextAssembler(("END OF TEXT",))
    assert "".join(map(assembler.feed, (b"so", b" E", b"ND", b" OF"))) == "so "
    assert assembler.finish() == "END OF"
    assert not assembler.stopped
