"""JSON Schemas: what cannot be enforced is refused by name, with where it stands.

Keywords that change nothing where they stand are left out, and ways to write a thing that the
library does not know are replaced by those that it knows. Definitions that nothing refers to are
not looked at. An object that lists its properties has no others unless the schema says
``additionalProperties``: all of its texts obey the schema, and models come to an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from edgespec.errors import GrammarError

__all__ = ["Part", "followed", "parse_schema", "parts_of"]

_MAX_CHARACTERS = 1 << 18
_MAX_PROPERTIES = 5000
"""Of a whole schema: preparing it takes time that grows with their square."""

_MAPS = ("properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("additionalProperties", "items", "additionalItems")
_DEFINITIONS = ("$defs", "definitions")
_BOUNDS = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const")
)
_LARGEST = 2**62
"""Of an integer that has no bounds: small models would write digits for ever."""
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

_UNENFORCED = {
    "$dynamicRef": None,
    "$recursiveRef": None,
    "not": None,
    "if": None,
    "contains": "array",
    "uniqueItems": "array",
    "unevaluatedItems": "array",
    "propertyNames": "object",
    "unevaluatedProperties": "object",
    "dependencies": "object",
    "dependentRequired": "object",
    "dependentSchemas": "object",
}
"""Keywords that restrict a value and cannot be enforced, and the type that they restrict."""

_WITHOUT_EFFECT = ("then", "else", "minContains", "maxContains", "$dynamicAnchor", "x-guidance")
"""On their own: what gives them an effect is not enforced."""

_FORMATS = {
    *("date-time", "time", "date", "duration"),
    *("email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
}
_OTHER_FORMATS = {
    *("regex", "json-pointer", "relative-json-pointer", "idn-email", "idn-hostname"),
    *("iri", "iri-reference", "uri-reference", "uri-template"),
}
"""Formats of JSON Schema that cannot be enforced; any other name is an annotation."""

Part = tuple[str, Any]
"""A schema inside a schema: its JSON path, and itself."""


def parse_schema(text: str) -> Any:
    """Read a JSON Schema and return it as the library takes it.

    Raises:
        GrammarError: it is no JSON, no schema, too large, or asks for what cannot be enforced.
    """
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"the JSON schema is longer than {_MAX_CHARACTERS} characters")
    try:
        schema = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant)
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise GrammarError("the JSON schema has to be an object")
        properties = 0
        for path, part in list(parts_of(schema)):
            _check(path, part)
            listed = part.get("properties")
            properties += len(listed) if isinstance(listed, dict) else 0
        if properties > _MAX_PROPERTIES:
            raise GrammarError(
                f"the JSON schema has {properties} properties: {_MAX_PROPERTIES} are the most"
            )
        for path, part in list(parts_of(schema)):
            _replace_one_of(schema, path, part)
        _close_objects(schema)
        json.dumps(schema, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise GrammarError(
            f"the JSON schema is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply") from None
    except UnicodeEncodeError:
        raise GrammarError("the JSON schema has half a character: a lone surrogate") from None
    return schema


def parts_of(schema: Any) -> Iterator[Part]:
    """Yield the objects that take part in a schema, each once: itself, then those inside."""
    seen: set[int] = set()
    waiting: list[Part] = [("$", schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield path, part
        inside = list(_inside(path, part))
        if isinstance(reference := part.get("$ref"), str):
            inside.append(_resolve(schema, reference, path))
        waiting += reversed(inside)


def _inside(path: str, part: dict[str, Any]) -> Iterator[Part]:
    for keyword, value in part.items():
        place = f"{path}.{keyword}"
        if keyword in _MAPS and isinstance(value, dict):
            for name, one in value.items():
                yield place + _step(name), one
        elif keyword in (*_LISTS, "items") and isinstance(value, list):
            for number, one in enumerate(value):
                yield f"{place}[{number}]", one
        elif keyword in _SINGLE:
            yield place, value


def _step(name: str) -> str:
    return f".{name}" if re.fullmatch(r"[A-Za-z_$]\w{0,80}", name) else f"[{_short(name)}]"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _resolve(schema: Any, reference: str, path: str) -> Part:
    """Return what a reference refers to."""
    if not reference.startswith("#"):
        if "$id" in schema or "id" in schema:
            return reference, None  # it may be itself, by its name: the library knows
        raise GrammarError(
            f"$ref {_short(reference)} at {path} leads out of the JSON schema, and nothing is "
            "fetched: copy it into $defs"
        )
    if reference != "#" and not reference.startswith("#/"):
        return reference, _anchored(schema, reference[1:])
    found, place = schema, "$"
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found, place = found[key], place + _step(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found, place = found[int(key)], f"{place}[{key}]"
        else:
            raise GrammarError(f"$ref {_short(reference)} at {path} leads to nothing")
    return place, found


def _anchored(schema: Any, name: str) -> Any:
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value.get("$anchor") == name:
                return value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return None


def _check(path: str, part: dict[str, Any]) -> None:
    """Refuse what cannot be enforced; leave out what changes nothing."""
    for keyword, kind in _UNENFORCED.items():
        if keyword in part:
            if not _changes_nothing(part, keyword) and (kind is None or _may_be(part, kind)):
                raise GrammarError(
                    f"the JSON schema has {keyword} at {path}, which cannot be enforced: leave it "
                    "out, or say it in another way"
                )
            del part[keyword]
    for keyword in _WITHOUT_EFFECT:
        part.pop(keyword, None)
    for keyword in _COUNTS:
        if isinstance(count := part.get(keyword), float) and count.is_integer():
            part[keyword] = int(count)
    if part.get("type") == "integer" and not part.keys() & _BOUNDS:
        part |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    if isinstance(name := part.get("format"), str) and name not in _FORMATS:
        if name in _OTHER_FORMATS and _may_be(part, "string"):
            raise GrammarError(f"the format {name} at {path} cannot be enforced: leave it out")
        del part["format"]
    least, required = part.get("minProperties"), part.get("required")
    names = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > names + 1 and _may_be(part, "object"):
        raise GrammarError(
            f"minProperties {least} at {path} cannot be enforced, as a name might come twice: "
            f"list the names in required, or ask for {names + 1} at most"
        )


def _changes_nothing(part: dict[str, Any], keyword: str) -> bool:
    value = part[keyword]
    if keyword == "if":
        return "then" not in part and "else" not in part
    if keyword == "contains":
        return part.get("minContains") == 0 and "maxContains" not in part
    if keyword == "uniqueItems":
        most = part.get("maxItems")
        return value is False or (isinstance(most, (int, float)) and most <= 1)
    if keyword == "not":
        return value is False
    if keyword.startswith("dependen"):
        return isinstance(value, dict) and not value
    return value is True or (isinstance(value, dict) and not value)


def _may_be(part: dict[str, Any], kind: str) -> bool:
    types = part.get("type", kind)
    return types == kind or (isinstance(types, list) and kind in types)


# -- objects that list their properties -----------------------------------------------------

_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
_OF_OBJECTS = (
    *("properties", "required", "additionalProperties", "patternProperties"),
    *("minProperties", "maxProperties"),
)


def _close_objects(schema: Any) -> None:
    """Let objects have no other properties than those they list, where nothing says otherwise.

    Not where several schemas describe one object: each would forbid what the others list.
    """
    alone: dict[int, dict[str, Any]] = {}
    shared: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(schema, False)]
    while waiting:
        part, joined = waiting.pop()
        if not isinstance(part, dict) or id(part) in (shared if joined else alone):
            continue
        alone[id(part)] = part
        if joined:
            shared.add(id(part))
        combining = [keyword for keyword in _COMBINING if keyword in part]
        several = part.get("allOf")
        inside = (
            joined
            or len(combining) > 1
            or (bool(combining) and any(keyword in part for keyword in _OF_OBJECTS))
            or (isinstance(several, list) and len(several) > 1)
        )
        waiting += [(one, inside) for _, one in _inside("", part)]
        if isinstance(reference := part.get("$ref"), str):
            waiting.append((_resolve(schema, reference, "")[1], inside))
    for key, part in alone.items():
        if key not in shared and _lists_all(part):
            part["additionalProperties"] = False


def _lists_all(part: dict[str, Any]) -> bool:
    properties, least = part.get("properties"), part.get("minProperties", 0)
    open_keywords = (*_COMBINING, "additionalProperties", "patternProperties")
    return (
        isinstance(properties, dict)
        and not any(keyword in part for keyword in open_keywords)
        and all(name in properties for name in _required(part))
        and isinstance(least, int)
        and least <= len(properties)
    )


# -- oneOf ----------------------------------------------------------------------------------


def _replace_one_of(schema: Any, path: str, part: dict[str, Any]) -> None:
    """Make anyOf of a oneOf whose alternatives exclude each other, which the library needs."""
    options = part.get("oneOf")
    if not isinstance(options, list) or "anyOf" in part or "/oneOf/" in json.dumps(schema):
        return
    objects = [followed(schema, option, path) for option in options]
    if len(objects) == 1 or _have_own_types(objects) or _have_a_mark(schema, objects, path):
        # In its place: the order of keywords is that of properties.
        changed = {"anyOf" if key == "oneOf" else key: value for key, value in part.items()}
        part.clear()
        part.update(changed)


def followed(schema: Any, value: Any, path: str) -> dict[str, Any]:
    """Return the object that a chain of references leads to; empty if it leads to none."""
    for _ in range(20):
        if not isinstance(value, dict):
            break
        if not isinstance(reference := value.get("$ref"), str):
            return value
        value = _resolve(schema, reference, path)[1]
    return {}


def _have_own_types(options: list[dict[str, Any]]) -> bool:
    types = [option.get("type") for option in options]
    flat = [t for one in types for t in (one if isinstance(one, list) else [one])]
    mixed = "integer" in flat and "number" in flat
    return None not in flat and len(set(map(str, flat))) == len(flat) and not mixed


def _have_a_mark(schema: Any, options: list[dict[str, Any]], path: str) -> bool:
    """Return whether a required property tells the alternatives apart, all of them objects."""
    names = set.intersection(*({*_required(option)} for option in options)) if options else set()
    if any(option.get("type") != "object" for option in options):
        return False
    for name in names:
        values: list[str] = []
        for option in options:
            properties = option.get("properties")
            mark = properties.get(name) if isinstance(properties, dict) else None
            mark = followed(schema, mark, path)
            found = [mark["const"]] if "const" in mark else mark.get("enum")
            if not isinstance(found, list) or not all(isinstance(v, str) for v in found):
                break
            values += set(found)
        else:
            if len(set(values)) == len(values):
                return True
    return False


def _required(option: dict[str, Any]) -> list[str]:
    required = option.get("required")
    return (
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )


def _refuse_constant(name: str) -> None:
    raise GrammarError(f"the JSON schema is not JSON: it has the number {name}")
