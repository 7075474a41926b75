"""Calls that begin with the tool's name: ``f{...}``, ``f(...)``, and what else models write."""

from __future__ import annotations

import re

from edgespec.compat.openai.calls.begun import Calls, nothing, object_here
from edgespec.compat.openai.calls.cursor import MalformedError, Wait
from edgespec.compat.openai.calls.marks import LONGEST_NAME
from edgespec.compat.openai.calls.tag_form import PAIR, parameters
from edgespec.compat.openai.calls.values import read_arguments

__all__ = ["name_comes", "read_named"]

_FUNCTION = "function<｜tool▁sep｜>"
_HEAD = re.compile(r"(?:functions?[.:]|call:|tool:|<\|plugin\|>)?\s*([\w./:-]*)")
_BEFORE_ARGUMENTS = re.compile(
    r"(?:\s|\[ARGS\]|\[CALL_ID\]\s*[\w-]+|<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|```\w*\n)*"
)


def name_comes(calls: Calls) -> Wait[bool]:
    """Return whether the name of a tool comes, and behind it a bracket."""
    cursor = calls.cursor
    while True:
        there = cursor.text[cursor.at :]
        open_end = False
        for name in calls.tools:
            if there.startswith(name):
                behind = there[len(name) :].lstrip()
                if behind[:1] in ("{", "(") and not (
                    behind[0] == "{" and behind[1:].lstrip()[:1] not in ('"', "}", "")
                ):
                    return True
                open_end = open_end or (not behind and len(there) < 2 * LONGEST_NAME)
            open_end = open_end or name.startswith(there)
        if cursor.ended or not open_end:
            return False
        yield


def read_named(calls: Calls, *, marked: bool) -> Wait[None]:
    """Read a call that begins with its name: ``f{...}``, ``f(...)``, and what others write."""
    cursor = calls.cursor
    if (yield from cursor.starts_with(_FUNCTION)):
        cursor.at += len(_FUNCTION)
    head = yield from cursor.match(_HEAD)
    name = calls.tool_in(head[1]) if head else None
    if head is None or name is None or len(head[0]) > LONGEST_NAME:
        raise MalformedError
    cursor.at = head.end()
    if marked:
        yield from cursor.skip(_BEFORE_ARGUMENTS)
    else:
        yield from cursor.skip()
    char = yield from cursor.peek()
    if char == "{":
        yield from calls.begin(name, lambda write: object_here(cursor, write))
    elif char == "(":
        properties = (calls.tools[name] or {}).get("properties") or {}
        yield from calls.begin(name, lambda write: read_arguments(cursor, write, tuple(properties)))
    elif marked and (yield from cursor.starts_with("<arg_key>")):
        yield from calls.begin(name, lambda write: parameters(calls, name, write, PAIR))
    elif marked and (not char or (yield from cursor.starts_with("</"))):
        yield from calls.begin(name, lambda write: nothing(write))
    else:
        raise MalformedError
