"""One engine in many threads: the same texts as alone, ended by anyone, closed at any moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters, Session, load
from edgespec.errors import BackendError, CancelledError, UsageError

LONG_S = 60
GREEDY = SamplingParameters(temperature=0.0)
SHORT, LONG = GenerationLimits(max_tokens=6), GenerationLimits(max_tokens=1500)


def endless(engine: Any) -> SamplingParameters:
    ends = dict.fromkeys(engine.vocabulary.end_tokens, float("-inf"))
    return SamplingParameters(temperature=0.0, logit_bias=ends)


@pytest.fixture
def engine(open_engine: Any) -> Any:
    return open_engine(draft="ngram")


@pytest.fixture
def own_engine(default_model: Path) -> Iterator[Engine]:
    """One that a test may close."""
    with load(default_model, EngineOptions(threads=2, context=2048, k=0, draft="none")) as engine:
        yield engine


def in_threads(*work: Callable[[], object]) -> list[Any]:
    with ThreadPoolExecutor(len(work)) as pool:
        return [one.result(LONG_S) for one in [pool.submit(one) for one in work]]


def test_conversations_in_many_threads_say_what_they_say_alone(engine: Any) -> None:
    def converse(number: int) -> list[str]:
        session = Session(engine, f"You are number {number}.", GREEDY, SHORT)
        for text in ("Name a river.", "Another one."):
            session.send(text).result  # noqa: B018
        return [message.content for message in session.messages]

    alone = [converse(number) for number in range(5)]
    together = in_threads(*(lambda n=n: converse(n) for n in range(5)))  # type: ignore[misc]
    assert together == alone


def test_any_mixture_of_cancelled_forgotten_and_finished_ones(engine: Any) -> None:
    expected = {
        number: engine.generate(f"{number}, {number + 1},", GREEDY, SHORT).result.tokens
        for number in range(4)
    }

    def work(seed: int) -> None:
        choice = random.Random(seed)
        for _ in range(4):
            number, way = choice.randrange(4), choice.choice(["finish", "forget", "cancel"])
            if way == "finish":
                stream = engine.generate(f"{number}, {number + 1},", GREEDY, SHORT)
                assert stream.result.tokens == expected[number]
                continue
            stream = engine.generate(f"{number}", endless(engine), LONG)
            for _ in zip(range(1 + choice.randrange(4)), stream, strict=False):
                pass
            if way == "cancel":
                stream.cancel()
                assert stream.result.finish_reason == "cancelled"

    in_threads(*(lambda seed=seed: work(seed) for seed in range(4)))  # type: ignore[misc]
    assert engine.waiting == 0


@pytest.mark.parametrize("prompt", ["The sea", "The sea is wide. " * 300])
def test_closing_ends_what_others_read_and_wait_for(own_engine: Engine, prompt: str) -> None:
    streams = [own_engine.generate(prompt, endless(own_engine), LONG) for _ in range(3)]
    begun, closed = threading.Event(), threading.Event()
    streams[0].progress = lambda *_: begun.set()

    def read(stream: Any) -> Any:
        if stream is not streams[0]:
            begun.wait(LONG_S)
        for _ in stream:
            begun.set()
        closed.wait(LONG_S)
        return stream.result  # of what was there already

    def close() -> None:
        begun.wait(LONG_S)
        own_engine.close()
        closed.set()

    *results, _ = in_threads(*(lambda s=s: read(s) for s in streams), close)  # type: ignore[misc]
    for result, stream in zip(results, streams, strict=True):
        assert result.finish_reason == "cancelled"
        assert len(result.tokens) == len(stream.emitted) < 1500
    assert streams[0].cancelled is False


def test_a_closed_engine_says_so(own_engine: Engine, tmp_path: Path) -> None:
    session = Session(own_engine, sampling=GREEDY, limits=SHORT)
    stream = own_engine.generate("The sea", endless(own_engine), LONG)
    pieces = iter(stream)
    next(pieces)
    own_engine.close()
    assert list(pieces) == []
    assert stream.result.finish_reason == "cancelled"
    for use in (
        lambda: own_engine.generate("The sea"),
        lambda: own_engine.chat([{"role": "user", "content": "Hello"}]),
        lambda: own_engine.tokenize("The sea"),
        lambda: own_engine.save_cache(tmp_path / "cache", stream.sequence),
        lambda: session.send("Hello"),
    ):
        with pytest.raises(UsageError, match="closed"):
            use()
    for ask in (
        lambda: own_engine.vocabulary.tokenize("The sea"),
        lambda: own_engine.vocabulary.piece(5),
        lambda: own_engine.vocabulary.bos,
    ):
        with pytest.raises(BackendError, match="closed"):
            ask()
    assert session.messages == []


def test_closing_in_many_threads_at_once(own_engine: Engine) -> None:
    stream = own_engine.generate("The sea", endless(own_engine), LONG)
    begun = threading.Event()

    def close() -> None:
        begun.wait(LONG_S)
        own_engine.close()

    def read() -> Any:
        for _ in stream:
            begun.set()
        return stream.result.finish_reason

    assert in_threads(read, *[close] * 4)[0] == "cancelled"


def test_a_callback_may_cancel_and_close_but_not_generate(own_engine: Engine) -> None:
    prompt = "The sea is wide. " * 90
    refused: list[Exception] = []

    def generate(done: int, total: int) -> None:
        try:
            own_engine.generate("Another", GREEDY, SHORT).result  # noqa: B018
        except UsageError as error:
            refused.append(error)

    reading = own_engine.generate(prompt, GREEDY, SHORT, progress=generate)
    assert len(reading.result.tokens) == 6
    assert "callback" in str(refused[0])
    cancelled = own_engine.generate("Now: " + prompt, GREEDY, SHORT)
    cancelled.progress = lambda *_: cancelled.cancel()
    assert cancelled.result.finish_reason == "cancelled"
    closing = own_engine.generate("Then: " + prompt, GREEDY, SHORT)
    closing.progress = lambda *_: own_engine.close()
    assert closing.result.finish_reason == "cancelled"
    with pytest.raises(BackendError, match="closed"):
        own_engine.target.state_size()  # it was freed as soon as that was possible


def test_an_error_of_a_callback_is_raised_and_nothing_is_lost(engine: Any) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    expected = engine.generate("The sea", GREEDY, SHORT).result.tokens
    with pytest.raises(ZeroDivisionError):
        engine.generate("Quite new. " * 100, GREEDY, SHORT, progress=fail).result  # noqa: B018
    assert engine.generate("The sea", GREEDY, SHORT).result.tokens == expected


def test_a_load_that_is_cancelled_leaves_nothing(default_model: Path) -> None:
    def cancel(what: str, fraction: float) -> None:
        raise CancelledError("cancelled")

    with pytest.raises(CancelledError):
        load(default_model, EngineOptions(context=256, draft="none"), progress=cancel)
