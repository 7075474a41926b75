"""Rules for values as Python writes them: of a JSON Schema, for calls in Python's form.

JSON is Python but for three words, and texts may have single quotes. Where a schema says more than
can be said here, its value is JSON, which obeys it and which readers of calls take as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgespec.grammars.schema import followed

__all__ = ["Literals", "in_order"]

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
