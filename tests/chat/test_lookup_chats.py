"""Stored conversations that are looked up: the answers stay what they are."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.chat.conversation import Chat
from tests.chat.conftest import say_to

QUESTION = "Name the seven days of the week."


def test_an_earlier_conversation_is_copied_from(new_chat: Callable[..., Chat]) -> None:
    def accepted(chat: Chat) -> tuple[str, int]:
        chat.session.engine.forget()
        say_to(chat, "/set temperature 0", QUESTION)
        assert chat.last is not None
        result, _ = chat.last
        return result.text, result.statistics.accepted

    first, alone = accepted(new_chat(tokens=40))
    assert accepted(new_chat(tokens=40)) == (first, alone)
    text, more = accepted(new_chat(tokens=40, lookup=True))
    assert text == first
    assert more > alone + 10
