from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.events import (
    LOST,
    ROLES,
    Conversation,
    Entry,
    encode,
    header,
    hits,
    matches,
    replay,
)

HEAD = header("1ngtwrt", "2026-11-30T12:00:00+00:00", None)


def _message(at: int, content: str = "hi", **more: Any) -> dict[str, Any]:
    kind = "message" if at % 2 == 0 else "answer"
    return {"type": kind, "time": f"t{at}", "at": at, "content": content, **more}


def _replayed(*events: dict[str, Any]) -> Conversation:
    return replay("1ngtwrt", encode([HEAD, *events]).split(b"\n")[:-1])


def test_a_conversation() -> None:
    read = _replayed(
        {"type": "model", "time": "t", "name": "test", "file": "test", "draft": "auto"},
        {"type": "system", "time": "t", "text": "Be brief."},
        _message(0, "\n  First line \nsecond"),
        _message(1, "one", details={"tokens": 3}),
        {"type": "system", "time": "t", "text": None},
        _message(2, "whole", typed="part"),
    )
    assert (read.title, read.model, read.system) == ("First line", "test", None)
    assert (read.messages, read.unanswered, read.updated) == (2, True, "t2")
    assert [entry.role for entry in read.entries] == ["user", "assistant", "user"]
    assert read.entries[1].details == {"tokens": 3}
    assert (read.entries[2].said, read.entries[2].content) == ("part", "whole")


def test_what_takes_a_place_replaces_all_behind_it_and_nothing_is_gone() -> None:
    read = _replayed(*(_message(at, f"old {at}") for at in range(4)), _message(2, "new"))
    assert [entry.content for entry in read.entries] == ["old 0", "old 1", "new"]
    assert [entry.content for _, entry in read.everything()][3:] == ["old 2", "old 3"]
    assert [at for at, _ in read.everything()] == [0, 1, 2, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 9), st.text(st.characters(codec="utf-8")))))
def test_any_texts_survive_in_any_order_of_places(told: list[tuple[int, str]]) -> None:
    expected: list[str] = []
    events = []
    for place, text in told:
        at = min(place, len(expected))
        expected[at:] = [text]
        events.append(Entry(ROLES[at % 2], text, "t").event(at))
    assert [entry.content for entry in _replayed(*events).entries] == expected


def _line(**changes: Any) -> bytes:
    return json.dumps({**_message(0), **changes}).encode()


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"no json"],
        [b"{}"],
        [b"[" * 100_000],
        [json.dumps({**HEAD, "version": 2}).encode()],
        [json.dumps({**HEAD, "format": "other"}).encode()],
        [json.dumps({**HEAD, "created": 1}).encode()],
        [json.dumps({**HEAD, "origin": 1}).encode()],
    ],
)
def test_what_is_not_a_conversation_is_refused_in_one_line(lines: list[bytes]) -> None:
    with pytest.raises(ValueError, match=f"line {len(lines)}" if lines else "no header") as caught:
        replay("1ngtwrt", lines)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    "lines",
    [
        [encode([HEAD]), b"\xff"],
        [encode([HEAD]), b"[]"],
        [encode([HEAD]), b""],
        [encode([HEAD]), b"{" + b'"a":{' * 50_000],
        [encode([HEAD]), b'{"at": ' + b"9" * 5000 + b"}"],
        [encode([HEAD]), _line(type="other")],
        [encode([HEAD]), _line(type=["message"])],
        [encode([HEAD]), _line(at=-1)],
        [encode([HEAD]), _line(at=2)],
        [encode([HEAD]), _line(at=True)],
        [encode([HEAD]), _line(at=0.0)],
        [encode([HEAD]), _line(type="answer")],
        [encode([HEAD]), _line(content=None)],
        [encode([HEAD]), _line(content="\ud800")],
        [encode([HEAD]), _line(typed=1)],
        [encode([HEAD]), _line(details=[])],
        [encode([HEAD]), _line(details={"x": float("nan")})],
        [encode([HEAD]), _line(time=None)],
    ],
)
def test_a_line_that_cannot_be_read_is_left_out_and_told(lines: list[bytes]) -> None:
    conversation = replay("1ngtwrt", [*lines, _line(content="hello")])
    assert [entry.content for entry in conversation.entries] == ["hello"]
    (problem,) = conversation.damaged
    assert problem.startswith("line 2")
    assert "\n" not in problem and len(problem) < 120


def test_what_stands_behind_a_lost_message_is_kept() -> None:
    said = [_line(content="one"), b"{", _line(content="three", at=2)]
    said.append(_line(content="four", at=3, type="answer"))
    conversation = replay("1ngtwrt", [encode([HEAD]), *said])
    assert [entry.content for entry in conversation.entries] == ["one", LOST, "three", "four"]
    assert [entry.role for entry in conversation.entries] == [*ROLES, *ROLES]
    assert conversation.damaged == ["line 3: it is not JSON"]


ONE = Conversation(
    "1ngtwrt",
    "t",
    entries=[Entry("user", "Where is the\nStraße to Rome?"), Entry("assistant", "In Italy. " * 9)],
    replaced=[(0, Entry("user", "An older question about Paris"))],
)


def test_all_words_somewhere() -> None:
    assert matches(ONE, ["STRASSE", "italy"])
    assert matches(ONE, ["paris"])
    assert not matches(ONE, ["rome", "berlin"])


def test_all_words_in_one_message() -> None:
    assert [(hit.number, hit.role) for hit in hits(ONE, ["the", "rome"])] == [(1, "user")]
    assert next(hits(ONE, ["the rome"]), None) is None
    assert next(hits(ONE, ["rome", "italy"]), None) is None
    assert next(hits(ONE, ["older"])).excerpt == "An older question about Paris"


def test_an_excerpt_begins_shortly_before_the_word() -> None:
    text = "far away " * 20 + "needle in it"
    found = next(hits(Conversation("1ngtwrt", "t", entries=[Entry("user", text)]), ["needle"]))
    assert found.excerpt.startswith("...")
    assert 10 < found.excerpt.index("needle") < 40
