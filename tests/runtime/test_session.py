"""Conversations: reuse of the caches, retry, overflow, and nothing lost on errors."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec import GenerationLimits, SamplingParameters, Session
from edgespec.errors import ContextFullError, UsageError
from edgespec.runtime.session import Message

GREEDY = SamplingParameters(temperature=0.0)


def make(engine: Any, count: int = 12, **options: Any) -> Session:
    limits = GenerationLimits(max_tokens=count, overflow="shift")
    return Session(engine, sampling=GREEDY, limits=limits, **options)


@pytest.fixture(params=["none", "ngram", "damaged"])
def engine(request: Any, drafts: dict[str, str], open_engine: Any) -> Any:
    return open_engine(draft=drafts[request.param])


def test_a_later_turn_reuses_the_cache_and_says_the_same_as_a_fresh_engine(
    engine: Any, plain: Any
) -> None:
    session = make(engine, system="You are brief.")
    first = session.send("Name a river.").result
    turn = session.send("Another one.")
    second = turn.result
    assert [m.role for m in session.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert session.messages[2].content == first.text
    assert turn.stream.statistics.reused_tokens > 20
    rendered = engine.template.render(
        [{"role": m.role, "content": m.content} for m in session.messages[:-1]]
    )
    expected = plain.greedy(engine.tokenize(rendered).tolist(), 12)
    assert list(second.tokens) == expected


def test_retry_answers_the_last_message_again_with_the_next_seed(open_engine: Any) -> None:
    session = make(open_engine())
    session.sampling = SamplingParameters(temperature=1.0, seed=3)
    with pytest.raises(UsageError, match="no message"):
        session.retry()
    first = session.send("Tell me something.").result
    second = session.retry().result
    assert session.sampling.seed == 4
    assert first.tokens != second.tokens
    assert [m.role for m in session.messages] == ["user", "assistant"]
    assert session.messages[-1].content == second.text


def test_a_retry_that_says_nothing_keeps_the_old_answer(open_engine: Any) -> None:
    session = make(open_engine())
    session.send("Tell me something.").result  # noqa: B018
    before = list(session.messages)
    turn = session.retry()
    turn.cancel()
    assert turn.result.text == ""
    assert session.messages == before
    assert session.unanswered is None
    assert session.retry().result.text
    assert [m.role for m in session.messages] == ["user", "assistant"]


def test_a_revised_message_takes_the_place_of_the_last_one(engine: Any, plain: Any) -> None:
    session = make(engine)
    with pytest.raises(UsageError, match="no message"):
        session.revise("Hello")
    session.send("Name a river.").result  # noqa: B018
    session.send("Another one.").result  # noqa: B018
    revised = session.revise("And a lake.").result
    asked = [message.content for message in session.messages if message.role == "user"]
    assert asked == ["Name a river.", "And a lake."]
    rendered = engine.template.render(
        [{"role": m.role, "content": m.content} for m in session.messages[:-1]]
    )
    assert list(revised.tokens) == plain.greedy(engine.tokenize(rendered).tolist(), 12)


def test_a_revised_message_without_an_answer_is_the_one_to_retry(open_engine: Any) -> None:
    session = make(open_engine())
    session.send("Name a river.").result  # noqa: B018
    kept = list(session.messages)
    session.send("Another one.").result  # noqa: B018
    turn = session.revise("And a lake.")
    turn.cancel()
    assert turn.result.text == ""
    assert (session.messages, session.unanswered) == (kept, "And a lake.")
    session.revise("And a sea.").result  # noqa: B018
    assert session.messages[:3] == [*kept, Message("user", "And a sea.")]
    with pytest.raises(ContextFullError):
        session.revise("word " * 3000)
    assert session.messages[2] == Message("user", "And a sea.")


def test_a_conversation_moves_to_another_engine(open_engine: Any) -> None:
    session = make(open_engine(), system="You are brief.")
    session.send("Name a river.").result  # noqa: B018
    session.unanswered = "Another one."
    moved = session.moved_to(open_engine(draft="ngram"))
    assert moved.engine is not session.engine
    assert (moved.messages, moved.unanswered) == (session.messages, "Another one.")
    assert moved.retry().result.tokens == session.retry().result.tokens
    assert len(moved.messages) == len(session.messages) == 5


def test_what_would_be_dropped_is_what_is_dropped(open_engine: Any) -> None:
    session = make(open_engine(context=256), count=8, system="You are brief.")
    assert session.would_drop(1000) == session.size() == 0
    while session.size() < 170:
        session.send("Tell me something about a river.").result  # noqa: B018
    assert session.would_drop(10) == 0
    message = "river " * 100
    expected = session.would_drop(len(session.engine.tokenize(message)) + 6)
    assert expected > 0
    session.send(message).result  # noqa: B018
    assert session.dropped == expected
    assert session.would_drop(10_000) == len(session.messages) - 1


def test_what_was_dropped_stays_dropped_so_that_the_cache_is_of_use(open_engine: Any) -> None:
    session = make(open_engine(context=256), count=8)
    dropped, reused = [], []
    while len(dropped) < 3:
        turn = session.send("Tell me something about a river, please.")
        turn.result  # noqa: B018
        if session.dropped:
            dropped.append(session.dropped)
            reused.append(turn.stream.statistics.reused_tokens)
    assert dropped == dropped[:1] * 3
    assert min(reused[1:]) > 128


def test_a_cancelled_answer_stays_and_an_unsaid_one_can_be_retried(open_engine: Any) -> None:
    session = make(open_engine(), count=200)
    turn = session.send("Tell me a long story.")
    for count, _ in enumerate(turn):
        if count == 3:
            turn.cancel()
    assert turn.result.finish_reason == "cancelled"
    assert session.messages[-1].role == "assistant"
    assert session.messages[-1].content

    turn = session.send("Go on.")
    turn.cancel()
    assert turn.result.text == ""
    assert session.messages[-1].role == "assistant"
    assert session.unanswered == "Go on."
    session.limits = GenerationLimits(max_tokens=5)
    assert session.retry().result.text
    assert [m.role for m in session.messages] == ["user", "assistant"] * 2


def test_an_error_loses_nothing(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    session = make(engine)
    session.send("Name a river.").result  # noqa: B018
    before = list(session.messages)
    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "evaluate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.send("Another one.").result  # noqa: B018
    assert session.messages == before
    assert session.retry().result.text
    assert session.messages[-2] == Message("user", "Another one.")


@pytest.mark.slow
def test_a_conversation_longer_than_the_context_loses_its_oldest_turns(
    open_engine: Any,
) -> None:
    engine = open_engine(context=256, draft="ngram")
    session = make(engine, count=30, system="You are brief.")
    for turn in range(12):
        session.send(f"Message number {turn}: what do you think of it, in many words?").result  # noqa: B018
    assert session.dropped > 0
    assert session.dropped % 2 == 0
    assert len(session.messages) == 1 + 24
    assert session.messages[0] == Message("system", "You are brief.")


def test_a_conversation_longer_than_the_context_is_an_error_when_asked_for(
    open_engine: Any,
) -> None:
    engine = open_engine(context=256)
    session = make(engine)
    session.limits = GenerationLimits(max_tokens=8, overflow="stop")
    session.send("Short.").result  # noqa: B018
    before = list(session.messages)
    with pytest.raises(ContextFullError, match="--ctx"):
        session.send("word " * 300)
    assert session.messages == before


def test_a_message_that_fits_no_context_is_refused(open_engine: Any) -> None:
    session = make(open_engine(context=256))
    with pytest.raises(ContextFullError):
        session.send("word " * 400)
    assert session.messages == []


def test_system_prompt_and_reset(open_engine: Any) -> None:
    session = make(open_engine(), system="You are brief.")
    session.send("Hello").result  # noqa: B018
    session.system = "You are verbose."
    assert session.messages[0] == Message("system", "You are verbose.")
    session.reset()
    assert session.messages == [Message("system", "You are verbose.")]
    session.system = None
    assert session.system is None
    assert session.messages == []
    with pytest.raises(UsageError, match="empty"):
        session.send("  ")
