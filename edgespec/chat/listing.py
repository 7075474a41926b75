"""Find stored conversations by words, and list them within the width of the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from edgespec.chat.characters import printable
from edgespec.chat.events import Conversation

__all__ = ["Hit", "hit_lines", "hits", "list_lines", "matches"]

_AROUND = 24  # characters before the first word
_MODEL_WIDTH = 12
_TIME_WIDTH = 12
_BEGINNING = 16  # of a title that is not enough
_MOST_HITS = 3


class Hit(NamedTuple):
    """A message that has all the words.

    Attributes:
        number: of the user's message; its answer has the same number.
        role: who wrote it.
        excerpt: one line of it, from shortly before the first word.
    """

    number: int
    role: str
    excerpt: str


def matches(conversation: Conversation, words: Sequence[str]) -> bool:
    """Return whether all words occur somewhere in it, in upper or lower case."""
    text = "\n".join(entry.content for _, entry in conversation.everything()).casefold()
    return all(word.casefold() in text for word in words)


def hits(conversation: Conversation, words: Sequence[str]) -> Iterator[Hit]:
    """Yield messages in which all words occur, also those that were replaced later."""
    wanted = [word.casefold() for word in words]
    for at, entry in conversation.everything():
        text = " ".join(entry.content.split())
        folded = text.casefold()
        if all(word in folded for word in wanted):
            start = max(0, folded.find(wanted[0]) - _AROUND)
            excerpt = text[start:] if start == 0 else f"...{text[start:]}"
            yield Hit(at // 2 + 1, entry.role, excerpt)


def list_lines(
    conversations: Sequence[Conversation],
    width: int,
    current: str | None = None,
    *,
    number: bool = True,
) -> Iterator[str]:
    """Yield a line for each: id, time, messages, model, title.

    Those with the same title, as branches have, are told apart by their last message.

    Args:
        current: id of the one that is running; it is marked.
        number: begin each line with its number in this list.
    """
    titles = Counter(one.title for one in conversations)
    for place, one in enumerate(conversations, 1):
        mark = "*" if one.id == current else " "
        start = f"{place:3}{mark} " if number else ""
        model = _fitting(one.model, _MODEL_WIDTH)
        start += f"{one.id}  {_when(one.updated)} {one.messages:3}  {model}  "
        title = one.title if titles[one.title] == 1 else _from_to(one)
        end = " (no answer)" if one.unanswered else ""
        yield _cut(start + title, width - len(end)) + end


def hit_lines(conversation: Conversation, words: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines for the messages of one conversation that have all the words."""
    found = hits(conversation, words)
    for hit in islice(found, _MOST_HITS):
        who = "you" if hit.role == "user" else "answer"
        yield _cut(f"     message {hit.number}, {who}: {hit.excerpt}", width)
    if next(found, None) is not None:
        yield "     and more"


def _from_to(one: Conversation) -> str:
    said = [entry.said for entry in one.entries if entry.role == "user"]
    if len(said) < 2:
        return one.title
    return f"{_fitting(one.title, _BEGINNING).rstrip()} -> {said[-1].strip()}"


def _when(time: str) -> str:
    """Return day and minute, or day and year if it is another year."""
    try:
        then = datetime.fromisoformat(time).astimezone()
    except (ValueError, OverflowError, OSError):
        return " " * _TIME_WIDTH
    this_year = then.year == datetime.now().astimezone().year
    return f"{then:%d %b %H:%M}" if this_year else f"{then:%d %b  %Y}"


def _cut(line: str, width: int) -> str:
    line = printable(line).replace("\n", " ").replace("\t", " ")
    return line if cell_len(line) < width else set_cell_size(line, width - 4).rstrip() + "..."


def _fitting(text: str, width: int) -> str:
    text = " ".join(printable(text).split())
    if cell_len(text) > width:
        text = set_cell_size(text, width - 3).rstrip() + "..."
    return set_cell_size(text, width)
