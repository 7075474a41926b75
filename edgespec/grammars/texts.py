"""Texts of grammars: those that llguidance understands, made from schemas and expressions.

A text that begins with ``%llguidance`` is in the library's own language, as in llama.cpp's
programs. Any other is GBNF.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from time import monotonic
from typing import Any

from llguidance import regex_to_lark

from edgespec.errors import GrammarError
from edgespec.grammars.limits import validation_error
from edgespec.grammars.schema import parse_schema, parts_of

__all__ = [
    "HEAD",
    "choice_of_calls",
    "grammar_from_regex",
    "grammar_from_schema",
    "grammar_of_json",
    "is_lark",
    "schema_rule",
]

HEAD = "%llguidance {}\n"
"""What begins a text in the library's language."""
_MAX_CHARACTERS = 1 << 18
_SPACE = "[ ]"
_LINES = r"[ ]|\n[ \t]{0,20}"
"""Between the tokens of JSON, or nothing: small models would write line breaks for ever."""
_SEARCH_S = 1.0


def is_lark(text: str) -> bool:
    """Return whether a grammar is in llguidance's language, rather than GBNF."""
    return text.lstrip("\ufeff \t\r\n").startswith("%llguidance")


def grammar_from_schema(schema: str | Mapping[str, Any] | bool) -> str:
    """Return the grammar of JSON that obeys a JSON Schema. Nothing is fetched.

    Args:
        schema: its text, or what that text stands for.

    Raises:
        GrammarError: it is not JSON, or asks for what cannot be enforced; the message has the
            keyword and its JSON path.
    """
    return f"{HEAD}start: {schema_rule(_as_text(schema))}"


def grammar_of_json() -> str:
    """Return the grammar of any JSON object."""
    return f"{HEAD}start: {_unchecked({'type': 'object'}, _LINES)}"


def grammar_from_regex(pattern: str) -> str:
    """Return the grammar of texts that match a regular expression from beginning to end.

    The syntax is that of Rust's crate ``regex``: no look-around, no back references. The classes
    ``\\d``, ``\\w`` and ``\\s`` are ASCII's.

    Raises:
        GrammarError: it is none, or too complex.
    """
    if len(pattern) > _MAX_CHARACTERS:
        raise GrammarError(f"the regular expression is longer than {_MAX_CHARACTERS} characters")
    if not pattern:
        raise GrammarError("the regular expression is empty")
    text = f"{HEAD}start: /{regex_to_lark(pattern, 'dws')}/"
    if error := validation_error(text):
        raise GrammarError(f"the regular expression does not compile: {error}")
    return text


def choice_of_calls(opening: str, calls: Iterable[tuple[str, Any]], closing: str) -> str:
    """Return the grammar of one call: each is a head before its arguments, and their schema.

    Raises:
        GrammarError: as of `grammar_from_schema`.
    """
    branches, rules = [], []
    for number, (head, schema) in enumerate(calls):
        rules.append(f"call_{number}: {schema_rule(_as_text(schema))}")
        branches.append(f"{_literal(head)} call_{number}")
    parts = [_literal(opening), f"( {' | '.join(branches)} )", _literal(closing)]
    return "\n".join([f"{HEAD}start: {' '.join(part for part in parts if part)}", *rules])


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _as_text(schema: str | Mapping[str, Any] | bool) -> str:
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from None


@lru_cache(maxsize=256)
def schema_rule(text: str) -> str:
    """Return the right side of a rule for JSON of this schema.

    Raises:
        GrammarError: as of `grammar_from_schema`.
    """
    schema = parse_schema(text)
    rule = _unchecked(schema)
    if error := validation_error(f"{HEAD}start: {rule}"):
        where = _place_of(schema, error)
        raise GrammarError(f"the JSON schema cannot be enforced{where}: {error}")
    return rule


def _unchecked(schema: Mapping[str, Any], space: str = _SPACE) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': space}})}"


def _place_of(schema: Mapping[str, Any], error: str) -> str:
    """Return where the smallest part stands that has this error."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    began = monotonic()
    for path, part in reversed(list(parts_of(schema))):
        if monotonic() > began + _SEARCH_S:
            break
        if validation_error(f"{HEAD}start: {_unchecked({**definitions, **part})}") == error:
            return f" at {path}"
    return ""
