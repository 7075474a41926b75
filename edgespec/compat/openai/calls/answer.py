"""What a reader tells of an answer: parts of its text and reasoning, and its calls."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "Answer",
    "Arguments",
    "Broken",
    "CallBegin",
    "Event",
    "Text",
    "Thought",
    "ToolCall",
    "call_id",
    "merged",
    "whole_answer",
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
