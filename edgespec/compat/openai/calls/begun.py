"""The calls of an answer so far, and how another one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgespec.compat.openai.calls.answer import Arguments, Broken, CallBegin, Event
from edgespec.compat.openai.calls.cursor import Cursor, MalformedError, Wait
from edgespec.compat.openai.calls.values import read_value

__all__ = ["Calls", "Write", "nothing", "object_here", "written"]

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
