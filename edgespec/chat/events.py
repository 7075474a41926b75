"""A stored conversation: the events of its file, their state, and how it is found and listed.

Every message has a place. One at a place that is taken replaces what was there, and everything
after it: that is what `/edit` and `/retry` write, and nothing has to be erased for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from edgespec.chat.characters import printable

__all__ = [
    "FACTS",
    "LOST",
    "ROLES",
    "Conversation",
    "Entry",
    "Hit",
    "encode",
    "header",
    "hit_lines",
    "hits",
    "list_lines",
    "matches",
    "replay",
]

FORMAT = "edgespec-conversation"
VERSION = 1

FACTS = ("model", "settings", "system")
"""Events that record the circumstances in which the conversation continues."""

ROLES = ("user", "assistant")

LOST = "(lost: this message cannot be read any more)"


@dataclass(frozen=True)
class Entry:
    """One message, of the user or of the model.

    Attributes:
        content: what the model was given, or what it said.
        time: ISO 8601, in UTC.
        typed: the part of a message that the user typed, if files stand before it.
        details: how an answer came about, or the names of a message's files.
    """

    role: str
    content: str
    time: str = ""
    typed: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """Return what was typed, or answered."""
        return self.content if self.typed is None else self.typed

    def event(self, at: int) -> dict[str, Any]:
        """Return the event that puts this entry at a place."""
        kind = "message" if self.role == "user" else "answer"
        event: dict[str, Any] = {"type": kind, "time": self.time, "at": at, "content": self.content}
        if self.typed is not None:
            event["typed"] = self.typed
        return {**event, "details": dict(self.details)} if self.details else event


@dataclass
class Conversation:
    """The state after the events so far.

    Attributes:
        id: name of its file.
        created, updated: times of the first and of the last event.
        origin: id of the conversation that this one branched from.
        facts: the latest event for each name in `FACTS`.
        entries: user and model in turn. A message at the end has no answer yet.
        replaced: entries that later ones replaced, with their places.
        damaged: what is wrong with each line that cannot be read.
    """

    id: str
    created: str
    origin: str | None = None
    updated: str = ""
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    replaced: list[tuple[int, Entry]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Return the first line of the first message."""
        lines = self.entries[0].said.split("\n") if self.entries else []
        return next((line.strip() for line in lines if line.strip()), "")

    @property
    def model(self) -> str:
        """Return the name of the model that answered last; empty if it is not known."""
        return str(self.facts.get("model", {}).get("name", ""))

    @property
    def system(self) -> str | None:
        """Return the system prompt, or None."""
        text = self.facts.get("system", {}).get("text")
        return text if isinstance(text, str) and text else None

    @property
    def unanswered(self) -> bool:
        """Return whether the last message has no answer."""
        return len(self.entries) % 2 == 1

    @property
    def messages(self) -> int:
        """Return how many messages are the user's."""
        return (len(self.entries) + 1) // 2

    def everything(self) -> Iterator[tuple[int, Entry]]:
        """Yield all that was ever said, with its place; what was replaced comes last."""
        yield from enumerate(self.entries)
        yield from self.replaced

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply one more event.

        Raises:
            ValueError: it is not one.
        """
        kind = event.get("type")
        if kind in FACTS:
            self.facts[kind] = {k: v for k, v in event.items() if k not in ("type", "time")}
        elif kind in ("message", "answer"):
            self._say("user" if kind == "message" else "assistant", event)
        else:
            raise ValueError(f"{str(kind)[:40]!r} is no kind of event")
        self.updated = _text(event, "time")

    def _say(self, role: str, event: Mapping[str, Any]) -> None:
        at, typed, details = event.get("at"), event.get("typed"), event.get("details", {})
        _require(type(at) is int and at >= 0, "its place is wrong")
        assert isinstance(at, int)
        lost = at - len(self.entries)
        _require(lost <= len(self.damaged), "its place is wrong")
        _require(role == ROLES[at % 2], f"{role} and place do not go together")
        _require(isinstance(details, dict), "its details are not an object")
        typed = None if typed is None else _text(event, "typed")
        entry = Entry(role, _text(event, "content"), _text(event, "time"), typed, details)
        for place in range(len(self.entries), at):  # in the lines that cannot be read
            self.entries.append(Entry(ROLES[place % 2], LOST))
        self.replaced += enumerate(self.entries[at:], at)
        self.entries[at:] = [entry]


def header(id: str, time: str, origin: str | None) -> dict[str, Any]:
    """Return the first line of a file."""
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "id": id, "created": time}
    return head if origin is None else {**head, "origin": origin}


def encode(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Return events as lines of a file."""
    lines = (json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def replay(id: str, lines: Sequence[bytes]) -> Conversation:
    """Return the conversation in these lines, all of which are whole.

    A line that cannot be read is left out; `LOST` stands for a message that was in it.

    Raises:
        ValueError: they are not one; the message names the line.
    """
    if not lines:
        raise ValueError("it has no header")
    with _line(1):
        conversation = _begun(id, _object(lines[0]))
    for number, line in enumerate(lines[1:], 2):
        try:
            with _line(number):
                conversation.apply(_object(line))
        except ValueError as error:
            conversation.damaged.append(str(error))
    return conversation


def _begun(id: str, head: Mapping[str, Any]) -> Conversation:
    _require(head.get("format") == FORMAT, f"it has no {FORMAT!r} format")
    version = head.get("version")
    _require(version == VERSION, f"version {str(version)[:20]} is not known, only {VERSION}")
    origin = head.get("origin")
    created = _text(head, "created")
    return Conversation(id, created, None if origin is None else _text(head, "origin"), created)


@contextmanager
def _line(number: int) -> Iterator[None]:
    """Name the line in errors."""
    try:
        yield
    except RecursionError:
        raise ValueError(f"line {number} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(line, parse_constant=_refuse)
    except ValueError:
        raise ValueError("it is not JSON") from None
    _require(isinstance(data, dict), "it is not an object")
    return data  # type: ignore[no-any-return]


def _text(event: Mapping[str, Any], name: str) -> str:
    text = event.get(name)
    _require(isinstance(text, str), f"its {name} is not text")
    assert isinstance(text, str)
    _require(not any("\ud800" <= c <= "\udfff" for c in text), f"its {name} is not Unicode")
    return text


def _refuse(name: str) -> None:
    raise ValueError(name)


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


# -- finding and listing ------------------------------------------------------------------------

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
