"""Calls in tags: ``<function=f>`` with its parameters in tags, or as JSON, or in pairs of tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.compat.openai.calls.begun import Calls, Write, object_here
from edgespec.compat.openai.calls.cursor import MalformedError, Wait
from edgespec.compat.openai.calls.marks import PART
from edgespec.compat.openai.calls.values import as_typed, copy_until, is_text, parameter_schema

__all__ = ["PAIR", "parameters", "read_tags"]

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
