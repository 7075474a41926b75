"""Read the arguments of a call while they are written, and write them as JSON.

Models write JSON, Python's literals, or something in between; what they mean is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgespec.compat.openai.calls.cursor import Cursor, MalformedError, Wait

__all__ = [
    "as_typed",
    "copy_until",
    "is_text",
    "parameter_schema",
    "read_arguments",
    "read_key",
    "read_value",
]

_DEPTH = 48
_LARGEST = 1.7976931348623157e308
_WORD = re.compile(r"[\w.+-]*")
_KEY = re.compile(r"[^\W\d][\w.-]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS = {
    "true": "true",
    "True": "true",
    "false": "false",
    "False": "false",
    "null": "null",
    "None": "null",
    "NaN": "null",
    "nan": "null",
    "Infinity": repr(_LARGEST),
    "-Infinity": repr(-_LARGEST),
}
_LITERAL_QUOTES = ("<escape>", '<|"|>')
_PLAIN = {quote: re.compile(rf"[^{quote}\\\x00-\x1f\x7f\"]+") for quote in ('"', "'")}
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"{": "}", "[": "]", "(": ")"}


def read_value(cursor: Cursor, write: Callable[[str], None], depth: int = 0) -> Wait[None]:
    """Read one value, and write its JSON piece by piece.

    Args:
        cursor: stands at the value, or at white space before it.
        write: takes the JSON.
        depth: of lists and objects around it.

    Raises:
        MalformedError: it is no value; a part of it may have been written.
    """
    if depth > _DEPTH:
        raise MalformedError
    yield from cursor.skip()
    char = yield from cursor.peek()
    if char == "{":
        yield from _object(cursor, write, depth)
    elif char and char in "[(":
        yield from _list(cursor, write, depth)
    elif char and char in "\"'":
        yield from _string(cursor, write)
    elif char == "<":
        yield from _literal(cursor, write)
    else:
        yield from _word(cursor, write)


def read_arguments(
    cursor: Cursor, write: Callable[[str], None], positions: Sequence[str] = ()
) -> Wait[None]:
    """Read the arguments of a call in Python, its brackets included, as an object.

    Args:
        cursor: stands at the opening bracket.
        write: takes the JSON.
        positions: names of arguments that are given without one.

    Raises:
        MalformedError: they are not of that form.
    """
    yield from cursor.expect("(")
    write("{")
    count = 0
    while not (yield from _closes(cursor, ")")):
        if count:
            write(", ")
        name = yield from _argument_name(cursor)
        if name is None:
            if count >= len(positions):
                raise MalformedError
            name = positions[count]
        write(json.dumps(name, ensure_ascii=False) + ": ")
        yield from read_value(cursor, write, 1)
        count += 1
    write("}")


_ARGUMENT = re.compile(r"([^\W\d]\w*)\s*=(?!=)\s*")
_NO_ARGUMENT = re.compile(r"[^\W\d]\w*\s*[^\s=\w]|[^\w\s]|\d|[^\W\d]\w*\s+\w")


def _argument_name(cursor: Cursor) -> Wait[str | None]:
    while True:
        found = _ARGUMENT.match(cursor.text, cursor.at)
        if found and (found.end() < len(cursor.text) or cursor.ended):
            cursor.at = found.end()
            return found[1]
        if cursor.ended or _NO_ARGUMENT.match(cursor.text, cursor.at):
            return None
        yield


def _object(cursor: Cursor, write: Callable[[str], None], depth: int) -> Wait[None]:
    cursor.at += 1
    write("{")
    first = True
    while not (yield from _closes(cursor, "}")):
        if not first:
            write(", ")
        first = False
        yield from read_key(cursor, write)
        yield from cursor.expect(":")
        write(": ")
        yield from read_value(cursor, write, depth + 1)
    write("}")


def read_key(cursor: Cursor, write: Callable[[str], None]) -> Wait[None]:
    """Read the key of an object, which may lack its quotes."""
    char = yield from cursor.peek()
    if char and char in "\"'":
        yield from _string(cursor, write)
    elif char == "<":
        yield from _literal(cursor, write)
    else:
        key = yield from cursor.take(_KEY)
        if not key:
            raise MalformedError
        write(json.dumps(key, ensure_ascii=False))


def _list(cursor: Cursor, write: Callable[[str], None], depth: int) -> Wait[None]:
    end = _CLOSING[cursor.text[cursor.at]]
    cursor.at += 1
    write("[")
    first = True
    while not (yield from _closes(cursor, end)):
        if not first:
            write(", ")
        first = False
        yield from read_value(cursor, write, depth + 1)
    write("]")


def _closes(cursor: Cursor, end: str) -> Wait[bool]:
    """Pass over a comma between items; return whether the end came, and pass over that."""
    yield from cursor.skip()
    char = yield from cursor.peek()
    before = _last_before(cursor)
    if char == "," and before not in ("{", "[", "(", ","):
        cursor.at += 1
        yield from cursor.skip()
        char = yield from cursor.peek()
    elif char != end and before not in ("{", "[", "("):
        raise MalformedError
    if not char:
        raise MalformedError
    cursor.at += char == end
    return char == end


def _last_before(cursor: Cursor) -> str:
    """Return the last character before the position that is not blank."""
    at = cursor.at - 1
    while at >= 0 and cursor.text[at].isspace():
        at -= 1
    return cursor.text[at] if at >= 0 else ""


def _string(cursor: Cursor, write: Callable[[str], None]) -> Wait[None]:
    quote = cursor.text[cursor.at]
    cursor.at += 1
    write('"')
    while True:
        char = yield from cursor.peek()
        if char == quote:
            break
        if not char:
            raise MalformedError
        plain = _PLAIN[quote].match(cursor.text, cursor.at)
        if plain:
            write(plain[0])
            cursor.at = plain.end()
        elif char == "\\":
            yield from _escape(cursor, write)
        else:
            write(_quoted(char))
            cursor.at += 1
    cursor.at += 1
    write('"')


def _escape(cursor: Cursor, write: Callable[[str], None]) -> Wait[None]:
    pair = yield from cursor.peek(2)
    if len(pair) < 2:
        raise MalformedError
    kind = pair[1]
    digits = ""
    if kind in _HEX:
        digits = (yield from cursor.peek(2 + _HEX[kind]))[2:]
    if digits and len(digits) == _HEX[kind] and re.fullmatch("[0-9a-fA-F]+", digits):
        cursor.at += 2 + len(digits)
        code = int(digits, 16)
        write(f"\\u{code:04x}" if code < 0x10000 else _quoted(chr(min(code, 0x10FFFF))))
        return
    cursor.at += 2
    if kind in '"\\/bfnrt':
        write(pair)
    elif kind == "'":
        write(kind)
    elif kind != "\n":  # which continues a line
        write("\\\\" + _quoted(kind))


def _literal(cursor: Cursor, write: Callable[[str], None]) -> Wait[None]:
    """Read a text between two marks that stand for quotes."""
    for mark in _LITERAL_QUOTES:
        if (yield from cursor.starts_with(mark)):
            cursor.at += len(mark)
            write('"')
            yield from copy_until(cursor, re.compile(re.escape(mark)), mark, write)
            write('"')
            return
    raise MalformedError


def copy_until(
    cursor: Cursor, end: re.Pattern[str], longest: str, write: Callable[[str], None]
) -> Wait[None]:
    """Write a text as the inside of a JSON string, up to an end, and pass over that.

    Args:
        cursor: stands at the text.
        end: where it ends.
        longest: a text of the greatest length that `end` matches.
        write: takes it.

    Raises:
        MalformedError: the end never comes.
    """
    while True:
        found = end.search(cursor.text, cursor.at)
        if found:
            write(_quoted(cursor.text[cursor.at : found.start()]))
            cursor.at = found.end()
            return
        if cursor.ended:
            raise MalformedError
        safe = max(cursor.at, len(cursor.text) - len(longest))
        write(_quoted(cursor.text[cursor.at : safe]))
        cursor.at = safe
        yield


def _word(cursor: Cursor, write: Callable[[str], None]) -> Wait[None]:
    word = yield from cursor.take(_WORD)
    if word in _WORDS:
        write(_WORDS[word])
        return
    try:
        if not _NUMBER.fullmatch(word):
            number = float(word) if "." in word or "e" in word.lower() else int(word)
            word = json.dumps(number)
        elif abs(float(word)) > _LARGEST:
            word = repr(-_LARGEST if word[0] == "-" else _LARGEST)
    except ValueError:
        raise MalformedError from None
    write(word)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


# -- parameters whose values are plain text ---------------------------------------------------


def parameter_schema(schema: Any, name: str) -> Mapping[str, Any]:
    """Return the schema of one parameter; empty if nothing is known of it."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found = properties.get(name) if isinstance(properties, Mapping) else None
    for _ in range(8):
        reference = found.get("$ref") if isinstance(found, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found = schema
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a parameter's value can only be text."""
    if "type" in schema:
        return bool(schema["type"] == "string" or schema["type"] == ["string"])
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return bool(options) and all(isinstance(one, str) for one in options)


def as_typed(text: str, schema: Mapping[str, Any]) -> Any:
    """Return what a parameter's text means: JSON if it is that and may be that, else text."""
    words = {"True": True, "False": False, "None": None}
    try:
        word = text.strip()
        value = words[word] if word in words else json.loads(text, parse_constant=float)
    except (ValueError, RecursionError):
        return text
    kinds = schema.get("type")
    if isinstance(kinds, list) and "string" in kinds and _kind(value) not in kinds:
        return text
    return text if value != value or value in (float("inf"), -float("inf")) else value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
