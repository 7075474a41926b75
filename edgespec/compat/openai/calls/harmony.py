"""Messages of the harmony form (gpt-oss): reasoning, text and calls, each in its channel."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from edgespec.compat.openai.calls.answer import Event, Text, Thought
from edgespec.compat.openai.calls.begun import Calls, object_here
from edgespec.compat.openai.calls.cursor import MalformedError, Wait
from edgespec.compat.openai.calls.marks import LONGEST_NAME

__all__ = ["read_message"]

_CHANNEL_HEAD = re.compile(r"(?:<\|(?:start|channel|constrain)\|>|[^<])*<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|call)\|>|(?=<\|start\|>)")
_CALLED = re.compile(r"to=(?:functions\.)?([\w./:-]+)")
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")


def read_message(calls: Calls) -> Wait[bool]:
    """Read a message: reasoning, text, or a call; return whether there was one."""
    cursor, start = calls.cursor, calls.cursor.at
    while not (found := _CHANNEL_HEAD.match(cursor.text, cursor.at)):
        if cursor.ended or len(cursor.text) - start > 2 * LONGEST_NAME:
            return False
        yield
    head, cursor.at = found[0], found.end()
    called = _CALLED.search(head)
    if called and called[1] in calls.tools:
        with contextlib.suppress(MalformedError):
            yield from calls.begin(called[1], lambda write: object_here(cursor, write))
    elif "analysis" in head or (called and not calls.shown):
        yield from _message(calls, Thought)
    else:
        yield from _message(calls, Text)
    yield from cursor.skip(_CHANNEL_END)
    return True


def _message(calls: Calls, kind: Callable[[str], Event]) -> Wait[None]:
    cursor = calls.cursor
    while True:
        end = _CHANNEL_END.search(cursor.text, cursor.at)
        stop = end.start() if end else cursor.held_from(_ENDS)
        if stop > cursor.at:
            calls.events.append(kind(cursor.text[cursor.at : stop]))
            calls.shown = calls.shown or kind is Text
        cursor.at = stop
        if end or cursor.ended:
            return
        yield
