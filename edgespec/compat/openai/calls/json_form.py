"""Calls that are an object with a name and arguments, in any order."""

from __future__ import annotations

import json
import re

from edgespec.compat.openai.calls.begun import Calls, nothing, written
from edgespec.compat.openai.calls.cursor import Cursor, MalformedError, Wait
from edgespec.compat.openai.calls.values import parameter_schema, read_key, read_value

__all__ = ["JsonCall"]

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
