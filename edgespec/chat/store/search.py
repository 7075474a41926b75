"""Finding words in conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edgespec.chat.store.events import Conversation

__all__ = ["Hit", "hits", "matches"]

_AROUND = 24  # characters before the first word


class Hit(NamedTuple):
    """A message that has all words.

    Attributes:
        number: of the user's message; its answer has the same.
        role: whose it is.
        excerpt: one line of it, from shortly before the first word on.
    """

    number: int
    role: str
    excerpt: str


def matches(conversation: Conversation, words: Sequence[str]) -> bool:
    """Whether all words occur somewhere in it, in upper or lower case."""
    text = "\n".join(entry.content for _, entry in conversation.everything()).casefold()
    return all(word.casefold() in text for word in words)


def hits(conversation: Conversation, words: Sequence[str]) -> Iterator[Hit]:
    """Messages in which all words occur, also those that were replaced later."""
    wanted = [word.casefold() for word in words]
    for at, entry in conversation.everything():
        text = " ".join(entry.content.split())
        folded = text.casefold()
        if all(word in folded for word in wanted):
            start = max(0, folded.find(wanted[0]) - _AROUND)
            excerpt = text[start:] if start == 0 else f"...{text[start:]}"
            yield Hit(at // 2 + 1, entry.role, excerpt)
