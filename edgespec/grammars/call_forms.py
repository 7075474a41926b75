"""How calls are written, where their arguments begin, and the grammars of these arguments.

A form is known by what a chat template shows of it. Arguments come in the order in which the
schema lists them, as in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edgespec.grammars.schema import followed, parse_schema
from edgespec.grammars.texts import (
    HEAD,
    Literals,
    PartGrammars,
    in_order,
    schema_rule,
    validation_error,
)

__all__ = ["grammars_of_arguments", "taught_forms"]

_REST = "REST: /(?s:.+)/"
"""What the token that ends a part has behind it."""
_GAP = r"GAP: /[ \n\t]{0,40}/"
_NAME_KEYS = "name|tool_name|function_name|function|tool"
_ARGUMENT_KEYS = "arguments|parameters|args|tool_arguments|tool_input"
_SIMPLE = re.compile(r"[^\"'<>&\s][^\"'<>&\n]{0,120}(?<!\s)|[^\"'<>&\s]")
_KEYWORD = re.compile(r"[A-Za-z_]\w{0,120}", re.ASCII)


class _Form(NamedTuple):
    """A way to write calls.

    Attributes:
        taught: matches a template's text that shows it.
        begins: matches what stands before the arguments; NAMES are those of the tools.
        write: returns the grammar of the arguments of one tool; None where they have no such form.
    """

    taught: re.Pattern[str]
    begins: str
    write: Callable[[Mapping[str, Any]], str | None]


class _Tags(NamedTuple):
    """The tags around a parameter, and what ends a call.

    Attributes:
        opening, closing: around a value; ``%s`` is the parameter's name.
        end: of the call.
        before: a tag between the opening and the value.
        lines: whether a line break beside a text is none of it.
        json: whether the arguments may be JSON instead.
    """

    opening: str
    closing: str
    end: str
    before: str = ""
    lines: bool = True
    json: bool = False


def _json(before: str) -> Callable[[Mapping[str, Any]], str]:
    def write(schema: Mapping[str, Any]) -> str:
        return _joined(f"start: {before} arguments REST?", f"arguments: {_as_json(schema)}", _REST)

    return write


def _tagged(tags: _Tags) -> Callable[[Mapping[str, Any]], str | None]:
    """Write parameters between tags: texts as they are, other values as JSON."""

    def write(schema: Mapping[str, Any]) -> str | None:
        properties = _listed(schema)
        if properties is None or not all(_SIMPLE.fullmatch(name) for name in properties):
            return None
        required = schema.get("required") or ()
        text = f"text[suffix={_quoted(tags.closing)}]: /(?s:.*)/"
        lines = [_GAP, _REST, text]
        order = []
        for number, (name, value) in enumerate(properties.items()):
            opening = _quoted(tags.opening % name)
            if tags.before:
                opening += f" GAP {_quoted(tags.before)}"
            lines.append(f"part_{number}: {opening} {_between(schema, value, tags)} GAP")
            order.append(f"part_{number}" + ("" if name in required else "?"))
        body = " ".join(order)
        if tags.json:
            lines.append(f"arguments: {_as_json(schema)}")
            body = f"({body or _quoted('')}) | arguments GAP"
        return _joined(f"start: GAP ({body or _quoted('')}) {_quoted(tags.end)} REST?", *lines)

    return write


def _between(root: Mapping[str, Any], value: Any, tags: _Tags) -> str:
    """Return what stands between the tags of a parameter, with the closing one."""
    schema, closing = followed(root, value, "$"), tags.closing
    kinds = _kinds(root, schema)
    if kinds is None or "string" in kinds:
        options = _options(schema) or ()
        if not options or any(closing in one or one != one.strip() for one in options):
            return "text"
        line, side = '"\\n"?' if tags.lines else "", " | ".join(map(_quoted, options))
        return f"{line} ({side}) {line} {_quoted(closing)}"
    side = _as_json(_rooted(root, value))
    words = {"boolean": '"True" | "False"', "null": '"None"'}
    more = [words[kind] for kind in words if kind in kinds and schema.get("type") == kind]
    if more and not schema.keys() & {"enum", "const"}:
        return f"GAP ({' | '.join(more)} | {side}) GAP {_quoted(closing)}"
    return f"GAP ({side}) GAP {_quoted(closing)}"


def _kinds(root: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str] | None:
    """Return the types that a value may have; None if that is not said."""
    kind = schema.get("type")
    if kind is not None:
        return set(kind) if isinstance(kind, list) else {kind}
    if "enum" in schema or "const" in schema:
        return {"string"} if _options(schema) else None
    for keyword, described in (("properties", "object"), ("items", "array")):
        if keyword in schema:
            return {described}
    options = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(options, list):
        found = [_kinds(root, followed(root, one, "$")) for one in options]
        return None if None in found else {kind for one in found if one for kind in one}
    return None


def _options(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the texts that a value may be, if it may only be one of some."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    texts = isinstance(values, list) and all(isinstance(one, str) for one in values)
    return values if texts else None


def _python(schema: Mapping[str, Any]) -> str | None:
    """Write keyword arguments, behind the opening bracket."""
    properties = _listed(schema)
    if properties is None or not all(_KEYWORD.fullmatch(name) for name in properties):
        return None
    literals = Literals(schema, lambda part: _as_json(_rooted(schema, part)))
    required = schema.get("required") or ()
    parts = [
        (f"{_quoted(name)} EQUALS {literals.rule(value)}", name in required)
        for name, value in properties.items()
    ]
    start = in_order("part", parts, literals.lines)
    lines = [*literals.lines, r"EQUALS: /[ ]?=[ ]?/", _GAP, _REST]
    return _joined(f'start: GAP {start} GAP ")" REST?', *lines)


_FORMS = {
    "json": _Form(
        re.compile(""),  # models fall back to it
        # Without the key's closing quote: a token may have that and the beginning of the arguments.
        rf'"(?:{_NAME_KEYS})"\s*:\s*"(?P<json>NAMES)"\s*,\s*"(?:{_ARGUMENT_KEYS})',
        _json(r'/"[ \n\t]*:[ \n\t]*/'),
    ),
    "function": _Form(
        re.compile(r"<function="),
        r"<function=(?P<function>NAMES)>",
        _tagged(_Tags("<parameter=%s>", "</parameter>", "</function>", json=True)),
    ),
    "invoke": _Form(
        re.compile(r"<invoke name="),
        r'<invoke name="(?P<invoke>NAMES)">',
        _tagged(_Tags('<parameter name="%s">', "</parameter>", "</invoke>")),
    ),
    "pairs": _Form(
        re.compile(r"<arg_key>"),
        r"<tool_call>\s*(?P<pairs>NAMES)(?=[\s<])",
        _tagged(
            _Tags(
                "<arg_key>%s</arg_key>", "</arg_value>", "</tool_call>", "<arg_value>", lines=False
            )
        ),
    ),
    "python": _Form(
        re.compile(r"\[\s*\w+\((?:\w+\s*=|\.\.\.|\))|probe_name\("),
        r"(?:\A|\n|<\|tool_call_start\|>|<\|python_tag\|>)[\s,]*\[?\s*(?P<python>NAMES)\(",
        _python,
    ),
    "args": _Form(
        re.compile(r"\[ARGS\]"),
        r"\[TOOL_CALLS\]\s*(?P<args>NAMES)(?:\[CALL_ID\]\s*[\w-]+)?\[ARGS\]",
        _json("/[ \\n]?/"),
    ),
    "channel": _Form(
        re.compile(r"to=functions\."),
        r"to=functions\.(?P<channel>NAMES)(?=[\s<])(?:[^<]|<\|(?:channel|constrain)\|>)*<\|message\|>",
        _json("/[ \\n]?/"),
    ),
    "separated": _Form(
        re.compile(r"<｜tool▁sep｜>"),
        r"(?:<｜tool▁sep｜>(?P<separated>NAMES)\n```json\n|"
        r"<｜tool▁call▁begin｜>(?P<separated_too>NAMES)<｜tool▁sep｜>)",
        _json("/[ \\n]?/"),
    ),
    "numbered": _Form(
        re.compile(r"<\|tool_call_argument_begin\|>"),
        r"functions\.(?P<numbered>NAMES):\d+\s*<\|tool_call_argument_begin\|>",
        _json("/[ \\n]?/"),
    ),
}
_ARGUMENTS_FIRST = "first"
_MARKS = r"(?:<tool_call>|<\|tool_call\|>|\[TOOL_CALLS\])"
_FIRST_TAUGHT = re.compile(rf'"(?:{_ARGUMENT_KEYS})"\s*:[^\n]{{0,200}}"(?:{_NAME_KEYS})"\s*:')


def taught_forms(text: str) -> frozenset[str]:
    """Return the forms that a template shows, and that of JSON.

    Args:
        text: what it writes of tools, and of a call of ``probe_name``.
    """
    found = {name for name, form in _FORMS.items() if form.taught.search(text)}
    return frozenset(found | ({_ARGUMENTS_FIRST} if _FIRST_TAUGHT.search(text) else set()))


def grammars_of_arguments(
    schemas: Mapping[str, Any],
    asides: Mapping[str, str],
    forms: frozenset[str] = frozenset(("json",)),
) -> PartGrammars | None:
    """Return what holds the arguments of calls.

    Args:
        schemas: of the arguments of each tool, which can be enforced.
        asides: openings and closings of reasoning.
        forms: of `taught_forms`, in which they may be written.
    """
    grammars: dict[tuple[str, bytes], str] = {}
    begins = []
    parsed = {name: parse_schema(json.dumps(schema)) for name, schema in schemas.items()}
    for key in _FORMS.keys() & forms:
        form, held = _FORMS[key], []
        for name, schema in parsed.items():
            text = form.write(schema)
            if text is not None and not validation_error(text):
                held.append(name)
                for group in re.findall(r"\?P<(\w+)>", form.begins):
                    grammars[group, name.encode()] = text
        names = "|".join(re.escape(name) for name in sorted(held, key=len, reverse=True))
        if names:
            begins.append(form.begins.replace("NAMES", names))
    if _ARGUMENTS_FIRST in forms and parsed and (text := _name_last(parsed)):
        begins.append(rf'{_MARKS}[\s\[]*\{{\s*"(?P<{_ARGUMENTS_FIRST}>{_ARGUMENT_KEYS})')
        grammars[_ARGUMENTS_FIRST, b""] = text
    if not begins:
        return None
    return PartGrammars(re.compile("|".join(begins).encode()), grammars, asides)


def _name_last(schemas: Mapping[str, Any]) -> str | None:
    """Write arguments in JSON, and the name of the tool whose they are."""
    keys = " | ".join(_quoted(f'"{key}"') for key in _NAME_KEYS.split("|"))
    space = r"[ \n]{0,20}"
    lines = [f"key: {keys}", f"COLON: /{space}:{space}/", f"COMMA: /{space},{space}/", _REST]
    calls = []
    for number, (name, schema) in enumerate(schemas.items()):
        lines.append(f"arguments_{number}: {_as_json(schema)}")
        calls.append(f"arguments_{number} COMMA key COLON {_quoted(json.dumps(name))}")
    text = _joined(f'start: "\\"" COLON ({" | ".join(calls)}) REST?', *lines)
    return None if validation_error(text) else text


def _listed(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the properties of an object that has no others; None if it is no such object."""
    properties = schema.get("properties")
    if properties is None and schema.get("additionalProperties") is False:
        return {}
    said = schema.keys() & {"anyOf", "oneOf", "allOf", "patternProperties", "minProperties", "$ref"}
    closed = schema.get("additionalProperties") is False or not properties
    return properties if isinstance(properties, dict) and closed and not said else None


def _rooted(root: Mapping[str, Any], part: Any) -> Any:
    """Return a part of a schema with the definitions that it may refer to."""
    if not isinstance(part, Mapping):
        return part
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **part}


def _as_json(schema: Any) -> str:
    return schema_rule(json.dumps(schema))


def _joined(*lines: str) -> str:
    return HEAD + "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
