"""The forms that models write calls in: JSON objects, tags, the tool's name, harmony's channels."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from edgespec.compat.openai.calls.answer import (
    Calls,
    Event,
    Text,
    Thought,
    Write,
    nothing,
    object_here,
    written,
)
from edgespec.compat.openai.calls.cursor import LONGEST_NAME, PART, Cursor, MalformedError, Wait
from edgespec.compat.openai.calls.values import (
    as_typed,
    copy_until,
    is_text,
    parameter_schema,
    read_arguments,
    read_key,
    read_value,
)

__all__ = [
    "PAIR",
    "JsonCall",
    "name_comes",
    "parameters",
    "read_message",
    "read_named",
    "read_tags",
]

_NAME_KEYS = frozenset(("name", "function", "tool", "tool_name", "function_name", "action"))
_ARGUMENT_KEYS = frozenset(
    (
        *("arguments", "parameters", "args", "params", "input", "kwargs", "tool_input"),
        *("action_input", "tool_arguments", "function_arguments", "tool_parameters"),
    )
)
_OTHER_KEYS = frozenset(("id", "type", "call_id", "tool_call_id", "index", "thought", "reason"))
_SCHEMA = re.compile(
    r'\s*\{\s*(?:"(?:type|\$schema)"\s*:\s*"(?:object"|http)|"properties"\s*:\s*\{)'
)
_FIRST_PAIR = re.compile(
    r'\s*(?:[^{\s]|\{\s*(?:[^"\s]|"(?!(?:type|\$schema|properties)")[^"]*"'
    r'|"[^"]*"\s*(?:[^:\s]|:\s*(?:"[^"]*"|[^"\s]))))'
)
_BETWEEN = re.compile(r"[ \t;,]*")


class JsonCall:
    """Reads a call that is an object with a name and arguments, in any order.

    Args:
        calls: of the answer.
        marked: whether a mark says that this is a call; then other keys may come first.
    """

    def __init__(self, calls: Calls, *, marked: bool) -> None:
        self._calls, self._cursor, self._marked = calls, calls.cursor, marked
        self._name: str | None = None
        self._arguments: list[str] | None = None  # that came before the name
        self._done = False
        self._strange = False

    def read(self) -> Wait[None]:
        """Read it.

        Raises:
            MalformedError: it is none.
        """
        try:
            yield from self._object()
        except MalformedError:
            if not self._done:
                raise
            return
        if not self._done:
            yield from self._without_arguments()

    def _object(self) -> Wait[None]:
        cursor = self._cursor
        yield from cursor.expect("{")
        while True:
            yield from cursor.skip()
            char = yield from cursor.peek()
            if char == ",":
                cursor.at += 1
                continue
            if char == "}":
                cursor.at += 1
                return
            key: list[str] = []
            yield from read_key(cursor, key.append)
            yield from cursor.expect(":")
            yield from cursor.skip()
            yield from self._pair(json.loads("".join(key)))

    def _pair(self, key: str) -> Wait[None]:
        cursor = self._cursor
        char = yield from cursor.peek()
        if self._name is None and key in _NAME_KEYS and char == "{":
            yield from self._object()
        elif self._name is None and key in _NAME_KEYS:
            yield from self._named()
        elif not self._done and key in _ARGUMENT_KEYS:
            yield from self._argued()
        else:
            if key == "description" or not (
                self._done or self._marked or self._name is not None or key in _OTHER_KEYS
            ):
                raise MalformedError
            self._strange = self._strange or key not in _OTHER_KEYS
            yield from read_value(cursor, lambda text: None)

    def _named(self) -> Wait[None]:
        value: list[str] = []
        yield from read_value(self._cursor, value.append)
        name = json.loads("".join(value))
        self._name = self._calls.tool_in(name) if isinstance(name, str) else None
        if self._name is None:
            raise MalformedError
        if self._arguments is not None:
            arguments = "".join(self._arguments)
            self._done = True
            yield from self._calls.begin(self._name, lambda write: written(arguments, write))

    def _argued(self) -> Wait[None]:
        """Read arguments: an object, an object's JSON in a text, or null."""
        cursor = self._cursor
        yield from self._check_schema()
        char = yield from cursor.peek()
        if char == "{" and self._name is not None:
            self._done = True
            yield from self._calls.begin(self._name, lambda write: read_value(cursor, write))
            if self._calls.broken:
                raise MalformedError
            return
        value: list[str] = []
        yield from read_value(cursor, value.append)
        arguments = _as_object("".join(value))
        if self._name is None:
            self._arguments = [arguments]
        else:
            self._done = True
            yield from self._calls.begin(self._name, lambda write: written(arguments, write))

    def _check_schema(self) -> Wait[None]:
        """Refuse the description of a tool: its parameters are a schema."""
        cursor = self._cursor
        while not _FIRST_PAIR.match(cursor.text, cursor.at) and not cursor.ended:
            yield
        known = parameter_schema(self._calls.tools.get(self._name or ""), "type")
        known = known or parameter_schema(self._calls.tools.get(self._name or ""), "properties")
        if not known and _SCHEMA.match(cursor.text, cursor.at):
            raise MalformedError

    def _without_arguments(self) -> Wait[None]:
        if self._name is None or self._strange or self._arguments is not None:
            raise MalformedError
        if not self._marked:  # it has to stand alone in its line
            yield from self._cursor.skip(_BETWEEN)
            char = yield from self._cursor.peek()
            if char and not char.isspace() and char != "{":
                raise MalformedError
        yield from self._calls.begin(self._name, lambda write: nothing(write))


def _as_object(value: str) -> str:
    """Return the object in a JSON text, or in the text that it holds.

    Raises:
        MalformedError: there is none.
    """
    found = json.loads(value)
    if isinstance(found, str):
        if not found.strip():
            return "{}"
        inner = Cursor()
        parts: list[str] = []
        inner.text, inner.ended = found, True
        for _ in read_value(inner, parts.append):
            pass
        found = json.loads("".join(parts))
    if found is None:
        return "{}"
    if not isinstance(found, dict):
        raise MalformedError
    return json.dumps(found, ensure_ascii=False)


_INVOKED = re.compile(
    r"<(?:｜DSML｜)?(?:function=|(?:function|invoke)\s+name=)[\"']?([\w./:-]+)[\"']?\s*>\s*"
)
_PARAMETER = re.compile(
    r"<(?:｜DSML｜)?(?:parameter=|param(?:eter)?\s+name=)[\"']?([^\"'>\n]+)[\"']?([^>\n]*)>\n?"
)
PAIR = re.compile(r"<arg_key>\s*([^<\n]+?)\s*</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"\n?</(?:｜DSML｜)?param(?:eter)?>|</arg_value>")
_LONGEST_END = "\n</｜DSML｜parameter>"


def read_tags(calls: Calls) -> Wait[None]:
    """Read a call in tags, ``<function=f>``, with its parameters in tags or as JSON."""
    cursor = calls.cursor
    if not (yield from _part_comes(calls)):
        raise MalformedError
    while not (found := _INVOKED.match(cursor.text, cursor.at)):
        if cursor.ended or ">" in cursor.text[cursor.at :]:
            raise MalformedError
        yield
    name = calls.tool_in(found[1])
    if name is None:
        raise MalformedError
    cursor.at = found.end()
    yield from cursor.skip()
    if (yield from cursor.peek()) == "{":
        yield from calls.begin(name, lambda write: object_here(cursor, write))
    else:
        yield from calls.begin(name, lambda write: parameters(calls, name, write, _PARAMETER))


def _part_comes(calls: Calls) -> Wait[bool]:
    for part in PART:
        if (yield from calls.cursor.starts_with(part)):
            return True
    return False


def parameters(calls: Calls, name: str, write: Write, opening: re.Pattern[str]) -> Wait[None]:
    """Read parameters, each behind a tag with its name, and pass them on as an object.

    Args:
        calls: of the answer.
        name: of the tool.
        write: takes the object.
        opening: the tag; its first group is the name of the parameter.

    Raises:
        MalformedError: they break off.
    """
    cursor, count = calls.cursor, 0
    write("{")
    while True:
        yield from cursor.skip()
        found = opening.match(cursor.text, cursor.at)
        if not found or (found.end() == len(cursor.text) and not cursor.ended):
            rest = cursor.text[cursor.at :]
            if rest.startswith("</") or (rest and rest[0] != "<"):
                break
            if found is None and ">" in rest and opening is not PAIR:
                break
            if cursor.ended:
                if not rest:
                    break
                raise MalformedError
            yield
            continue
        cursor.at = found.end()
        write((", " if count else "") + json.dumps(found[1], ensure_ascii=False) + ": ")
        count += 1
        as_text = opening is _PARAMETER and 'string="true"' in found[2]
        yield from _parameter(calls, parameter_schema(calls.tools[name], found[1]), write, as_text)
    write("}")


def _parameter(calls: Calls, schema: Mapping[str, Any], write: Write, as_text: bool) -> Wait[None]:
    if as_text or is_text(schema):
        write('"')
        yield from copy_until(calls.cursor, _VALUE_END, _LONGEST_END, write)
        write('"')
        return
    parts: list[str] = []
    yield from copy_until(calls.cursor, _VALUE_END, _LONGEST_END, parts.append)
    text = json.loads('"' + "".join(parts) + '"')
    write(json.dumps(as_typed(text, schema), ensure_ascii=False))


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
