"""Texts of grammars for llguidance: of schemas, of expressions, and of values as Python has them.

A text that begins with ``%llguidance`` is in the library's own language, as in llama.cpp's
programs. Any other is GBNF. The library counts its work and gives up at limits, so that nothing has
to be stopped from outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Any

from llguidance import LLMatcher, LLParserLimits, regex_to_lark

from edgespec.errors import GrammarError
from edgespec.grammars.schema import followed, parse_schema, parts_of

__all__ = [
    "HEAD",
    "LIMITS",
    "Literals",
    "PartGrammars",
    "choice_of_calls",
    "grammar_from_regex",
    "grammar_from_schema",
    "grammar_of_json",
    "in_order",
    "is_lark",
    "reason_of",
    "schema_rule",
    "validation_error",
]

LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    step_max_items=200_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)


def validation_error(text: str) -> str:
    """Return what is wrong with a grammar in the library's language, in one line; or nothing."""
    wrong, said = LLMatcher.validate_grammar_with_warnings(text, None, limits=LIMITS)
    return reason_of(said[0]) if wrong else ""


def reason_of(message: str) -> str:
    """Return the library's message as one line, without what it quotes."""
    if message.startswith("panic"):
        return "it is too large"
    if message.startswith("lexer error: too many"):
        return "it is too complex"
    if "recursion limit" in message:
        return "it is nested too deeply"
    if (
        said := re.search(r"regex parse error:.*^error: ([^\n]*)", message, re.M | re.S)
    ) is not None:
        return f"wrong regular expression: {said[1]}"
    line = message.strip().partition("\n")[0]
    line = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"in line \1, column \2: ", line)
    line = re.sub(r"^in line \d+, column \d+: failed to compile JSON schema: ", "", line)
    if line.startswith("Unable to determine if regex is empty") or "Regex is empty" in line:
        line = line.partition(":")[0] if "Unable" in line else "no text is allowed"
    return line[:300].rstrip(" :") or "unknown"


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


@dataclass(frozen=True)
class PartGrammars:
    """What holds parts of a text, and where these begin.

    Attributes:
        begins: matches the text before a part. One of its groups matches; the group's name and its
            text name the grammar; where there is none of that text, the empty one does.
        grammars: in llguidance's language. A part ends where its grammar may end.
        asides: openings and closings of passages in which no part begins.
        aside: the closing of the passage in which the text begins; empty if it begins in none.
    """

    begins: re.Pattern[bytes]
    grammars: Mapping[tuple[str, bytes], str]
    asides: Mapping[str, str] = field(default_factory=dict)
    aside: str = ""

    def forms(self, name: str) -> set[str]:
        """Return the forms in which parts of this name are held."""
        groups = {group for group, held in self.grammars if held in (name.encode(), b"")}
        return {group.partition("_")[0] for group in groups}


_TERMINALS = (
    r'TEXT: /"([^"\\\n]|\\.)*"/ | /\'([^\'\\\n]|\\.)*\'/',
    r"NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/",
    r"COMMA: /,[ \n]?[ ]{0,8}/",
    r"COLON: /:[ ]?/",
    'word: "True" | "False" | "None" | "true" | "false" | "null"',
    'any: TEXT | NUMBER | word | "[" (any (COMMA any)*)? "]" | "{" (pair (COMMA pair)*)? "}"',
    "pair: TEXT COLON any",
)
_ABOUT_TEXTS = frozenset(("pattern", "minLength", "maxLength", "format"))
_ABOUT_NUMBERS = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
)
_REMARKS = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly"))
_WORDS = {True: ("True", "true"), False: ("False", "false"), None: ("None", "null")}


class Literals:
    """Writes the rules of values, as parts of one grammar.

    Args:
        schema: of all arguments, as `parse_schema` returns it; references lead into it.
        as_json: returns the right side of a rule for JSON of a schema.
    """

    def __init__(self, schema: Mapping[str, Any], as_json: Callable[[Any], str]) -> None:
        self._schema, self._as_json = schema, as_json
        self._names: dict[int, str] = {}
        self._parts: list[Any] = []  # which keeps the keys of `_names` valid
        self.lines = list(_TERMINALS)

    def rule(self, schema: Any) -> str:
        """Return the name of a rule for a value of this schema, which is in `lines`."""
        if id(schema) not in self._names:
            name = self._names[id(schema)] = f"value_{len(self._names)}"
            self._parts.append(schema)
            self.lines.append(f"{name}: {self._side(schema)}")
        return self._names[id(schema)]

    def _side(self, schema: Any) -> str:
        if not isinstance(schema, Mapping):
            return "any" if schema is True else self._as_json(schema)
        said = schema.keys() - _REMARKS
        if not said:
            return "any"
        if said == {"$ref"}:
            return self.rule(followed(self._schema, schema, "$"))
        if "const" in said or "enum" in said:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            plain = said <= {"const", "enum", "type"} and isinstance(values, list)
            return " | ".join(map(_written, values)) if plain else self._as_json(schema)
        if said in ({"anyOf"}, {"oneOf"}):
            return " | ".join(self.rule(one) for one in schema.get("anyOf") or schema["oneOf"])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return " | ".join(self.rule({**schema, "type": kind}) for kind in kinds)
        return self._typed(schema, kinds, said - {"type"})

    def _typed(self, schema: Mapping[str, Any], kind: Any, said: set[str]) -> str:
        if kind == "string" and not said & _ABOUT_TEXTS:
            return "TEXT"
        if kind in ("integer", "number"):
            kept = _ABOUT_NUMBERS | {"type"}
            return self._as_json({key: schema[key] for key in schema.keys() & kept})
        if kind in ("boolean", "null"):
            values = (True, False) if kind == "boolean" else (None,)
            return " | ".join(map(_written, values))
        if kind == "array" and said <= {"items", "minItems", "maxItems"}:
            return self._list(schema)
        if kind == "object" and said <= {"properties", "required", "additionalProperties"}:
            return self._object(schema)
        return self._as_json(schema)

    def _list(self, schema: Mapping[str, Any]) -> str:
        item = self.rule(schema.get("items", True))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[" "]"'
        end = "" if most is None else most - 1
        several = f"{item} (COMMA {item}){{{max(0, least - 1)},{end}}}"
        return f'"[" {several} "]"' if least else f'"[" ({several})? "]"'

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties", True)
        if properties and others is not False:
            return self._as_json(schema)
        if not properties:
            value = "any" if others is True else self.rule(others)
            return (
                '"{" "}"'
                if others is False
                else f'"{{" (TEXT COLON {value} (COMMA TEXT COLON {value})*)? "}}"'
            )
        required = schema.get("required") or ()
        pairs = [
            (f"({_written(name)}) COLON {self.rule(value)}", name in required)
            for name, value in properties.items()
        ]
        start = in_order(f"keys_{len(self.lines)}", pairs, self.lines)
        return f'"{{" {start} "}}"'


def in_order(name: str, parts: Iterable[tuple[str, bool]], lines: list[str]) -> str:
    """Write rules for parts with a COMMA between them, in this order; return the first one's name.

    Args:
        name: what the names of the rules begin with.
        parts: the right side of each, and whether it has to be there.
        lines: of the grammar; they are added here.
    """
    first, later = f"{name}_first", f"{name}_later"
    several = list(parts)
    for number, (part, required) in enumerate(several):
        behind = f"{later}_{number + 1}"
        alone = f"{part} {behind}"
        more = f"COMMA {part} {behind}"
        lines.append(
            f"{first}_{number}: {alone}" + ("" if required else f" | {first}_{number + 1}")
        )
        lines.append(f"{later}_{number}: {more}" + ("" if required else f" | {behind}"))
    lines.append(f'{first}_{len(several)}: ""')
    lines.append(f'{later}_{len(several)}: ""')
    return f"{first}_0"


def _written(value: Any) -> str:
    """Return what stands for a value that is known."""
    if isinstance(value, bool) or value is None:
        texts: tuple[str, ...] = _WORDS[value]
    elif isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        simple = value.isprintable() and not set(value) & set("'\"\\")
        texts = (quoted, f"'{value}'") if simple else (quoted,)
    else:
        texts = (json.dumps(value, ensure_ascii=False),)
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
