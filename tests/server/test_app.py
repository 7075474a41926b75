"""Recent answers are looked up for the key that asked, and for no other one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from edgespec.server.app import RecentAnswers
from edgespec.server.guard import Access

QUESTION = "Name the seven days of the week."
SECRET = "Spell the word lighthouse backwards, slowly."


def test_users_and_tokens_are_bounded() -> None:
    recent = RecentAnswers(100, users=2)
    first, second = recent.of("a"), recent.of("b")
    assert first is recent.of("a") and first is not second
    recent.of("c")
    assert recent.of("a") is first
    assert recent.of("b") is not second
    assert all(texts is not None and texts.limit == 100 for texts in (first, second))
    before = recent.nbytes
    first.add(list(range(200)))
    first.settle()
    assert first.size <= 100
    assert recent.nbytes <= before
    assert RecentAnswers(0).of("a") is None


def ask(server: Any, engine: Any, key: str | None, question: str = QUESTION, **more: Any) -> Any:
    """The answer and how many of its tokens had been proposed, with nothing in the caches."""
    engine.forget()
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 40, **more}
    answer = server.post("/v1/chat/completions", body, headers=headers).json()
    return answer["choices"][0]["message"]["content"], answer["edgespec"]["speculation"]


def accepted(*arguments: Any, **more: Any) -> int:
    return int(ask(*arguments, **more)[1]["accepted"])


def test_answers_are_never_shared_between_keys(serve: Any, engine: Any) -> None:
    """Whatever one key asked, another one's requests are proposed and answered as before."""
    access = Access(api_key="one", more_keys=("two",))
    with serve(access=access, recent=2000) as server:
        alone = ask(server, engine, "two")
        ask(server, engine, "two", SECRET)
    with serve(access=access, recent=2000) as server:
        first = ask(server, engine, "one")
        assert accepted(server, engine, "one") > first[1]["accepted"] + 10  # it is looked up
        ask(server, engine, "one", SECRET, stream=False)
        got = ask(server, engine, "two")
        for name in ("proposed", "accepted", "cycles"):
            assert got[1][name] == alone[1][name] == first[1][name]
        assert got[0] == alone[0] == first[0]
        ours = server.service._recent
        one, two = ours.of("one"), ours.of("two")
        one.settle()
        two.settle()
        text = engine.vocabulary.decode(one.tokens[: one.size][one.tokens[: one.size] >= 0])
        assert "lighthouse" in text
        text = engine.vocabulary.decode(two.tokens[: two.size][two.tokens[: two.size] >= 0])
        assert "lighthouse" not in text
        metrics = httpx.get(f"{server.url}/metrics", headers={"X-Api-Key": "two"}).text
        assert "edgespec_recent_answers_bytes" in metrics


@pytest.mark.parametrize("recent", [0, 2000])
def test_only_where_it_is_asked_for(serve: Any, engine: Any, recent: int) -> None:
    with serve(recent=recent) as server:
        first = accepted(server, engine, None)
        again = accepted(server, engine, None)
    assert (again > first + 10) == (recent > 0)
