"""What a reader finds in an answer: parts of its text and reasoning, and its calls so far."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgespec.compat.openai.calls.cursor import Cursor, MalformedError, Wait
from edgespec.compat.openai.calls.values import read_value

__all__ = [
    "Answer",
    "Arguments",
    "Broken",
    "CallBegin",
    "Calls",
    "Event",
    "Text",
    "Thought",
    "ToolCall",
    "Write",
    "call_id",
    "merged",
    "nothing",
    "object_here",
    "whole_answer",
    "written",
]


class Text(NamedTuple):
    """A part of the answer that is text."""

    text: str


class Thought(NamedTuple):
    """A part of the reasoning in front of it."""

    text: str


class CallBegin(NamedTuple):
    """A call of an offered tool begins."""

    number: int
    name: str


class Arguments(NamedTuple):
    """A part of the JSON of a call's arguments."""

    number: int
    text: str


class Broken(NamedTuple):
    """The arguments of a call ended too early, or are malformed; `text` is all of what was read."""

    number: int
    text: str


Event = Text | Thought | CallBegin | Arguments | Broken


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asks for.

    Attributes:
        name: of a tool that was offered.
        arguments: a JSON text, as in OpenAI's interface; not checked against any schema.
    """

    name: str
    arguments: str

    def as_json(self) -> dict[str, Any]:
        """Return the entry of ``tool_calls``, with a new id."""
        return {
            "id": call_id(),
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def call_id() -> str:
    """Return a new id of a call. Some templates require nine letters or digits."""
    return secrets.token_hex(5)[:9]


class Answer(NamedTuple):
    """A whole answer."""

    text: str
    reasoning: str
    calls: list[ToolCall]


def whole_answer(events: Iterable[Event]) -> Answer:
    """Put together all that a reader told of an answer."""
    shown: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, tuple[str, list[str]]] = {}
    for event in events:
        if isinstance(event, Text):
            shown.append(event.text)
        elif isinstance(event, Thought):
            reasoning.append(event.text)
        elif isinstance(event, CallBegin):
            calls[event.number] = event.name, []
        elif isinstance(event, Arguments):
            calls[event.number][1].append(event.text)
        else:
            del calls[event.number]
            shown.append(event.text)
    found = [ToolCall(name, "".join(parts)) for name, parts in calls.values()]
    answer = "".join(shown)
    return Answer(answer if answer.strip() or not found else "", "".join(reasoning), found)


def merged(events: list[Event]) -> list[Event]:
    """Join events that continue each other; leave out empty ones."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, (Text, Thought)) and not event.text:
            continue
        if type(last) is type(event) and isinstance(event, (Text, Thought)):
            merged[-1] = event._replace(text=last.text + event.text)  # type: ignore[union-attr]
        elif (
            isinstance(event, Arguments)
            and isinstance(last, Arguments)
            and last.number == event.number
        ):
            merged[-1] = event._replace(text=last.text + event.text)
        else:
            merged.append(event)
    return merged


Write = Callable[[str], None]
"""Takes the JSON of a call's arguments, piece by piece."""


class Calls:
    """What the readers of all forms share.

    Args:
        tools: those that were offered, with the schemas of their parameters as far as known.

    Attributes:
        cursor: in the answer.
        events: what was found, and not told yet.
        count: of calls.
        start: where the text begins that is shown if a call is none after all.
        broken: the last call ended too early, or is malformed.
        shown: some text was passed on.
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self.tools = tools
        self.cursor = Cursor()
        self.events: list[Event] = []
        self.count = self.start = 0
        self.broken = self.shown = False

    def begin(self, name: str, read: Callable[[Write], Wait[None]]) -> Wait[None]:
        """Begin a call, and read its arguments with a reader that passes on their JSON.

        Where they end too early, or are malformed, the call is reported as broken.
        """
        index = self.count
        self.count += 1
        self.events.append(CallBegin(index, name))
        try:
            yield from read(lambda text: self.events.append(Arguments(index, text)))
        except MalformedError:
            self.broken = True
            self.events.append(Broken(index, self.cursor.text[self.start : self.cursor.at]))

    def tool_in(self, text: str) -> str | None:
        """Return the tool that a name means, without the number that some models add to it."""
        for name in (text, text.rsplit(":", 1)[0], text.rsplit(".", 1)[-1].rsplit(":", 1)[0]):
            if name in self.tools:
                return name
        return None


def object_here(cursor: Cursor, write: Write) -> Wait[None]:
    """Read arguments that are an object in JSON.

    Raises:
        MalformedError: something else comes.
    """
    yield from cursor.skip()
    if (yield from cursor.peek()) != "{":
        raise MalformedError
    yield from read_value(cursor, write)


def written(text: str, write: Write) -> Wait[None]:
    """Pass on arguments that were read before."""
    write(text)
    yield from ()


def nothing(write: Write) -> Wait[None]:
    """Pass on that there are no arguments."""
    yield from written("{}", write)
