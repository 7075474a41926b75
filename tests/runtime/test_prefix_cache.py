"""Caches of earlier texts: bit for bit what reading again gives; bounded; damaged files refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import GenerationLimits, SamplingParameters
from edgespec.errors import EdgespecError
from edgespec.runtime.prefix_cache import PrefixCache, SavedPrefix, read_cache, write_cache

GREEDY = SamplingParameters(temperature=0.0)
LIMITS = GenerationLimits(max_tokens=16)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def prefix(tokens: np.ndarray, size: int = 10) -> SavedPrefix:
    return SavedPrefix(tokens, np.zeros(size, np.uint8))


@pytest.fixture(params=["none", "ngram", "damaged"])
def engine(request: Any, drafts: dict[str, str], open_engine: Any) -> Any:
    return open_engine(draft=drafts[request.param])


@pytest.fixture
def texts(engine: Any) -> list[np.ndarray]:
    """Two long texts with a common beginning."""
    start = np.resize(engine.tokenize("The sea at night, and the ships on it. "), 150)
    ends = ("A lighthouse keeper writes to his sister. ", "Seven sailors count the stars above. ")
    return [np.concatenate([start, np.resize(engine.tokenize(end), 150)]) for end in ends]


def empty(engine: Any) -> None:
    """Forget every text."""
    engine.decoder.prefix_cache.clear()
    engine.target.clear()
    engine.drafter.rewind(0)
    engine.decoder.length = 0


def test_who_comes_back_reads_nothing_again_and_says_the_same(
    engine: Any, texts: list[np.ndarray], plain: Any
) -> None:
    empty(engine)
    first = engine.generate(texts[0], GREEDY, LIMITS)
    expected = first.result.tokens
    assert list(expected) == plain.greedy(texts[0].tolist(), 16)
    other = engine.generate(texts[1], GREEDY, LIMITS)
    assert list(other.result.tokens) == plain.greedy(texts[1].tolist(), 16)
    assert other.statistics.reused_tokens >= 150
    again = engine.generate(texts[0], GREEDY, LIMITS)
    assert again.result.tokens == expected
    assert again.statistics.reused_tokens == len(texts[0]) - 1


def test_interleaved_long_texts_say_what_they_say_alone(
    engine: Any, texts: list[np.ndarray], plain: Any
) -> None:
    streams = [engine.generate(text, GREEDY, LIMITS) for text in texts]
    iterators = [iter(stream) for stream in streams]
    for _ in range(4):
        for iterator in iterators:
            next(iterator, None)
    for text, stream in zip(texts, streams, strict=True):
        assert list(stream.result.tokens) == plain.greedy(text.tolist(), 16)
        # What is brought back at every turn was not there before the first.
        assert stream.statistics.reused_tokens < len(text)


def test_a_cache_in_a_file_is_gone_on_with_by_another_engine(
    engine: Any, texts: list[np.ndarray], tmp_path: Path, default_model: Path
) -> None:
    from edgespec import Engine

    stream = engine.generate(texts[0], GREEDY, LIMITS)
    expected = engine.generate(texts[0], GREEDY, LIMITS).result.tokens
    stream.result  # noqa: B018
    path = tmp_path / "kept.cache"
    assert engine.save_cache(path, stream.sequence) >= len(texts[0])
    assert path.stat().st_mode & 0o077 == 0
    with Engine(default_model, engine.options) as other:
        assert other.load_cache(path) >= len(texts[0])
        again = other.generate(texts[0], GREEDY, LIMITS)
        assert again.result.tokens == expected
        assert again.statistics.reused_tokens == len(texts[0]) - 1


def test_nothing_is_written_of_a_text_that_is_not_known(engine: Any, tmp_path: Path) -> None:
    empty(engine)
    assert engine.save_cache(tmp_path / "none.cache", [5, 6, 7]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cache_of_another_setting_is_not_taken(
    open_engine: Any, texts: list[np.ndarray], tmp_path: Path
) -> None:
    one, other = open_engine(), open_engine(threads=2)
    stream = one.generate(texts[0], GREEDY, LIMITS)
    stream.result  # noqa: B018
    assert one.save_cache(tmp_path / "one.cache", stream.sequence)
    assert other.load_cache(tmp_path / "one.cache") == 0
    assert open_engine(prompt_cache=0).load_cache(tmp_path / "one.cache") == 0
    assert open_engine(context=256).load_cache(tmp_path / "one.cache") == 0


# -- without a model --------------------------------------------------------------------------


def test_a_file_that_was_changed_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    state = np.arange(50, dtype=np.uint8)
    write_cache(path, "key", SavedPrefix(numbers(1, 2, 3), state, 2))
    read = read_cache(path, "key")
    assert read is not None
    assert np.array_equal(read.tokens, [1, 2, 3])
    assert np.array_equal(read.state, state)
    assert read.lowest == 2
    assert read_cache(path, "other key") is None
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        assert read_cache(path, "key") is None, position
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read_cache(path, "key") is None
    path.write_bytes(whole + b"x")
    assert read_cache(path, "key") is None
    path.unlink()
    assert read_cache(path, "key") is None
    with pytest.raises(EdgespecError, match="cannot write"):
        write_cache(tmp_path / "no folder" / "a.cache", "key", prefix(numbers(1)))
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_go_first_and_beginnings_are_not_kept_twice() -> None:
    cache = PrefixCache(30)
    a, b, c = numbers(1, 1), numbers(2, 2), numbers(3, 3)
    for tokens in (a, b, c):
        cache.add(prefix(tokens))
    assert cache.nbytes == 30
    longer = numbers(1, 1, 5)
    cache.add(prefix(longer))
    assert cache.nbytes == 30
    found = cache.find(numbers(1, 1, 9))
    assert found is not None
    assert np.array_equal(found.tokens, longer)
    cache.add(prefix(numbers(4)))
    assert cache.find(b) is None
    assert not cache.add(prefix(numbers(7), 31))
    assert cache.nbytes == 30


def test_a_state_that_cannot_be_cut_is_found_for_a_text_that_has_all_of_it() -> None:
    """As that of a recurrent model: its beginnings are kept beside it."""
    cache = PrefixCache(30)
    start, whole = numbers(1, 2), numbers(1, 2, 3, 4)
    for tokens in (start, whole):
        cache.add(SavedPrefix(tokens, np.zeros(10, np.uint8), lowest=len(tokens)))
    for text, known in (
        (numbers(1, 2, 3, 4, 5), whole),
        (numbers(1, 2, 3, 9), start),
        (start, start),
    ):
        found = cache.find(text)
        assert found is not None
        assert np.array_equal(found.tokens, known)
    assert cache.find(numbers(1, 9)) is None
    cache.add(SavedPrefix(numbers(1, 2, 3, 4, 5), np.zeros(10, np.uint8), lowest=4))
    found = cache.find(numbers(1, 2, 3, 4, 9))
    assert found is not None and len(found.tokens) == 5  # in place of the one of four tokens
    assert cache.nbytes == 20


@pytest.mark.parametrize("engine", ["none"], indirect=True)  # only its vocabulary is used
def test_a_cache_without_memory_keeps_nothing(
    open_engine: Any, texts: list[np.ndarray], plain: Any
) -> None:
    engine = open_engine(prompt_cache=0)
    expected = [plain.greedy(text.tolist(), 16) for text in texts]
    for _ in range(2):
        for text, tokens in zip(texts, expected, strict=True):
            stream = engine.generate(text, GREEDY, LIMITS)
            assert list(stream.result.tokens) == tokens
            assert engine.decoder.prefix_cache.nbytes == 0
