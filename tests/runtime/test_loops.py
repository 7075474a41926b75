"""An answer that only repeats itself ends, in the same place whatever proposed its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.grammars import grammar_from_schema
from edgespec.runtime.stream import LoopDetector

WORDS = 1000
"""Tokens from here on have letters, those before have none."""


def ends_at(answer: list[int], prompt: list[int] | None = None) -> int | None:
    """The length at which an answer ends, None if it goes on."""
    pieces = LoopDetector(
        np.array(prompt or [], np.int32), lambda token: b" word" if token >= WORDS else b" 0"
    )
    lengths = (n for n in range(1, len(answer) + 1) if pieces.found(answer[:n]))
    return next(lengths, None)


def period(length: int, first: int = WORDS) -> list[int]:
    return [*range(first, first + length)]


def test_words_that_are_repeated_for_400_tokens_are_a_loop() -> None:
    assert ends_at([WORDS] * 416) == 416
    assert ends_at([WORDS] * 415) is None
    assert ends_at(period(7) * 100) == 416
    assert ends_at([*period(50, 5000), *period(7) * 100]) == 480  # 430 tokens, 416 are too few
    assert ends_at(period(80) * 10) == 416


def test_a_long_text_has_to_be_repeated_five_times() -> None:
    assert ends_at(period(200) * 10) == 1024
    assert ends_at(period(256) * 10) == 1280
    assert ends_at(period(257) * 10) is None


def test_what_differs_a_little_each_time_is_no_loop() -> None:
    numbered = [token for line in range(100) for token in (*period(10), 5000 + line)]
    assert ends_at(numbered) is None
    assert ends_at([*period(7) * 50, 9, *period(7) * 50]) is None


def test_data_may_be_repeated_for_longer() -> None:
    row = [*[1, 2] * 16, 3]  # a row of a matrix of zeros, 24 of which are no loop
    assert ends_at(row * 24) is None
    assert ends_at([1] * 2000) == 1216
    assert ends_at(row * 60) == 1216


def test_what_the_prompt_repeats_may_be_copied() -> None:
    line = period(11)
    prompt = [5, *line * 60, 6]
    assert ends_at(line * 60, prompt) is None
    assert ends_at([*line[4:], *line * 59], prompt) is None
    assert ends_at(line * 120, prompt) == 1088  # 660 that were copied, and 400
    assert ends_at(period(11, 3000) * 60, prompt) == 416  # another text


def test_following_tokens_count_as_the_answers_own() -> None:
    detector = LoopDetector(np.zeros(0, np.int32), lambda _: b"word")
    answer = [WORDS] * 416
    assert [detector.found(answer[:n], answer[n:]) for n in (0, 3, 400, 416)] == [True] * 4


OPTIONS = {"threads": 1, "context": 512, "exact": "bitwise"}


@pytest.fixture(scope="module")
def toys(toy_target: Path) -> Iterator[dict[str, Engine]]:
    """A model of random weights, which repeats itself soon."""
    drafts: dict[str, dict[str, Any]] = {
        "plain": {"draft": "none"},
        "ngram": {"draft": "ngram", "k": 15},
        "itself": {"draft": str(toy_target), "k": 4},
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Engine(toy_target, EngineOptions(**OPTIONS, **draft)))
            for name, draft in drafts.items()
        }


def greedy(engine: Engine) -> SamplingParameters:
    ends = dict.fromkeys(engine.vocabulary.end_tokens, float("-inf"))
    return SamplingParameters(temperature=0.0, logit_bias=ends)


@pytest.mark.parametrize("draft", ["ngram", "itself"])
@pytest.mark.parametrize("prompt", ["The sea is", "hi", "One, two"])
def test_the_end_is_the_same_with_and_without_drafts(
    toys: dict[str, Engine], draft: str, prompt: str
) -> None:
    plain, engine = toys["plain"], toys[draft]
    expected = plain.generate(prompt, greedy(plain)).result
    assert expected.finish_reason == "loop"
    for k in range(1, engine.largest_k + 1):
        stream = engine.generate(prompt, greedy(engine), k=k)
        result = stream.result
        assert result.finish_reason == "loop"
        assert (result.tokens, result.text) == (expected.tokens, expected.text)
        assert result.statistics.emitted == len(result.tokens)
        assert engine.target.native_length() == len(stream.sequence) - 1
    limits = GenerationLimits(max_tokens=len(expected.tokens) + 20, allow_loops=True)
    longer = engine.generate(prompt, greedy(engine), limits).result
    assert longer.finish_reason == "length"
    assert longer.tokens[: len(expected.tokens)] == expected.tokens


def test_the_limit_and_a_loop_in_the_same_place(toys: dict[str, Engine]) -> None:
    engine = toys["plain"]
    count = len(engine.generate("hi", greedy(engine)).result.tokens)
    limits = GenerationLimits(max_tokens=count)
    assert engine.generate("hi", greedy(engine), limits).result.finish_reason == "length"


@pytest.mark.slow
def test_a_real_model_that_repeats_itself(open_engine: Any) -> None:
    plain, ngram = open_engine(), open_engine(draft="ngram")
    limits = GenerationLimits(max_tokens=700, allow_loops=True)
    text = plain.generate("The sea is", greedy(plain), limits).result
    result = ngram.generate("The sea is", greedy(ngram)).result
    assert result.finish_reason == "loop"
    assert result.tokens == text.tokens[: len(result.tokens)]


@pytest.mark.parametrize("grammar", ["schema", "gbnf"])
def test_whether_a_constrained_answer_is_whole(toys: dict[str, Engine], grammar: str) -> None:
    engine = toys["ngram"]
    rules = {"schema": grammar_from_schema('{"enum": [12]}'), "gbnf": 'root ::= "12"'}[grammar]
    for limit, whole, reason in ((1, False, "length"), (2, True, "length"), (3, True, "stop")):
        limits = GenerationLimits(max_tokens=limit)
        greedily = SamplingParameters(temperature=0.0)
        result = engine.generate("x", greedily, limits, grammar=rules).result
        assert (result.complete, result.finish_reason) == (whole, reason)
    assert engine.generate("x", greedily, GenerationLimits(max_tokens=1)).result.complete
