"""Arguments of calls in every form: what a grammar lets through is read back, and obeys its schema.

The reader of calls and jsonschema know nothing of the grammars.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgespec.backend import Model, ModelOptions
from edgespec.compat.openai.calls import read_calls
from edgespec.grammars import Guide, PartGrammars, grammars_of_arguments, taught_forms

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 20},
        "unit": {"enum": ["C", "F"]},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "place": {"$ref": "#/$defs/place"},
        "note": {"type": ["integer", "null"]},
    },
    "required": ["city", "unit"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "open": {"type": "boolean"}},
            "required": ["x"],
        }
    },
}
SCHEMAS: dict[str, Any] = {"weather": SCHEMA, "clock": {"type": "object", "properties": {}}}

HEADS = {
    "json": '<tool_call>\n{"name": "weather", "arguments',
    "first": '<tool_call>\n{"arguments',
    "function": "<tool_call>\n<function=weather>",
    "invoke": '<minimax:tool_call>\n<invoke name="weather">',
    "pairs": "<tool_call>weather\n",
    "python": "<|tool_call_start|>[weather(",
    "args": "[TOOL_CALLS]weather[ARGS]",
    "channel": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
    "separated": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n",
    "numbered": "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>",
}
ENDS = {"json": "}\n</tool_call>", "first": "}\n</tool_call>", "invoke": "\n</minimax:tool_call>"}
ALLOWED = {
    "json": ['": {"city": "Oslo", "unit": "C"}', '": {"city": "a", "days": 3, "unit": "F"}'],
    "first": ['": {"city": "Oslo", "unit": "C"}, "name": "weather"', '": {}, "name": "clock"'],
    "function": [
        "\n<parameter=city>\nNew\nYork <b>\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
        "</function>",
        "<parameter=city>Oslo</parameter><parameter=days>3</parameter><parameter=unit>F"
        "</parameter><parameter=exact>True</parameter></function>",
        '\n{"city": "Oslo", "unit": "C"}\n</function>',
    ],
    "invoke": [
        '\n<parameter name="city">Oslo</parameter>\n<parameter name="unit">C</parameter>\n</invoke>'
    ],
    "pairs": [
        "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>unit</arg_key>\n"
        "<arg_value>C</arg_value>\n</tool_call>"
    ],
    "python": [
        "city='Oslo', unit=\"C\")",
        'city="it\'s", days=3, unit="F", exact=True, tags=["a", "b"], place={"x": 1.5}, note=None)',
    ],
    "args": ['{"city": "Oslo", "unit": "C"}'],
}
FORBIDDEN = {
    "json": [('": {"town', "town"), ('": {"city": "a", "days": 31', "1")],
    "first": [('": {"town', "town"), ('": {"city": "a", "unit": "C"}, "name": "clock', "clock")],
    "function": [
        ("<parameter=town>", "town"),
        ("<parameter=city>\nOslo\n</parameter>\n</function>", "</"),
        ("<parameter=city>a</parameter><parameter=unit>K", "K"),
        ("<parameter=city>a</parameter><parameter=days>three", "three"),
    ],
    "invoke": [('<parameter name="town">', "town")],
    "pairs": [("<arg_key>town", "town"), ("<arg_key>unit", "unit")],
    "python": [
        ("town=", "town"),
        ("city=3", "3"),
        ('city="a", days=31', "1"),
        ('city="a", unit="C", place={"x": "', '"'),
        ('city="a")', ")"),
    ],
    "args": [('{"town', "town")],
}


@pytest.fixture(scope="module")
def guide(default_model: Path) -> Any:
    with Model(default_model, ModelOptions(vocabulary_only=True)) as model:
        yield Guide(model.vocabulary), model.vocabulary


@pytest.fixture(scope="module")
def parts() -> PartGrammars:
    found = grammars_of_arguments(SCHEMAS, {}, frozenset(HEADS))
    assert found is not None
    return found


def begun(parts: PartGrammars, form: str) -> tuple[str, str]:
    """The grammar that holds what follows a head, and the rest of the head that it has to take."""
    head = HEADS[form].encode()
    match = parts.begins.search(head)
    assert match is not None
    group = match.lastgroup
    assert group is not None and group.partition("_")[0] == form
    name = b"" if form == "first" else match[group]
    return parts.grammars[group, name], head[match.end() :].decode()


@pytest.mark.parametrize("form", HEADS)
def test_a_head_without_its_tool_begins_nothing(parts: PartGrammars, form: str) -> None:
    other = HEADS[form].replace("weather", "nothing").replace("arguments", "nothing")
    assert parts.begins.search(other.encode()) is None


@pytest.mark.parametrize(("form", "text"), [(f, text) for f in ALLOWED for text in ALLOWED[f]])
def test_what_models_write(guide: Any, parts: PartGrammars, form: str, text: str) -> None:
    prepared, vocabulary = guide
    grammar, rest = begun(parts, form)
    matcher = prepared.start(grammar)
    tokens = vocabulary.tokenize(rest + text, add_special=False).tolist()
    assert matcher.allowed_prefix(tokens) == len(tokens)
    matcher.consume(tokens)
    assert matcher.accepts()


@pytest.mark.parametrize(
    ("form", "text", "word"), [(f, *one) for f in FORBIDDEN for one in FORBIDDEN[f]]
)
def test_what_is_forbidden(
    guide: Any, parts: PartGrammars, form: str, text: str, word: str
) -> None:
    prepared, vocabulary = guide
    grammar, rest = begun(parts, form)
    tokens = vocabulary.tokenize(rest + text, add_special=False).tolist()
    count = prepared.start(grammar).allowed_prefix(tokens)
    assert count < len(tokens)
    assert word in vocabulary.decode(tokens[count:])


@pytest.mark.parametrize("form", HEADS)
def test_whatever_is_allowed_is_read_back_and_obeys(
    guide: Any, parts: PartGrammars, form: str
) -> None:
    """Tokens drawn at random of what is allowed, until the part may end."""
    prepared, vocabulary = guide
    grammar, rest = begun(parts, form)
    random = np.random.default_rng(sum(form.encode()))
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    # Otherwise texts would hardly ever end, and hold what no tokenizer would write.
    short = np.array([len(piece) == 1 and piece.isascii() for piece in pieces])
    plain = short | np.array([piece.isascii() and 1 < len(piece) < 12 for piece in pieces])
    marks = np.array([piece in (b'"', b"'", b"<", b"/", b"}", b")", b"]") for piece in pieces])
    bits = np.zeros(prepared.words, np.int32)
    finished = 0
    for _ in range(60):
        matcher, text = prepared.start(grammar), rest
        if rest:
            matcher.consume(prepared.spell(rest.encode()))
        for step in range(600):
            if step % 6 == 5:
                text += closed(matcher, prepared, form)
            matcher.write_bits(bits)
            bit = np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(pieces)]
            allowed = bit.astype(bool) & (plain if step % 3 else short)
            ends = allowed & marks
            wanted = ends if ends.any() and random.random() < 0.3 else allowed
            token = int(random.choice(np.flatnonzero(wanted)))
            matcher.consume([token])
            text += pieces[token].decode()
            if matcher.accepts():
                break
        else:
            continue
        finished += 1
        answer = HEADS[form][: len(HEADS[form]) - len(rest)] + text + ENDS.get(form, "")
        _, calls = read_calls(answer, SCHEMAS)
        assert calls, answer
        arguments = json.loads(calls[0].arguments)
        jsonschema.validate(arguments, SCHEMAS[calls[0].name])
        assert set(arguments) <= set(SCHEMAS[calls[0].name]["properties"])
    assert finished >= 20


def closed(matcher: Any, guide: Guide, form: str) -> str:
    """End a value between tags, which chance would hardly ever do."""
    mark = "</arg_value>" if form == "pairs" else "</parameter>"
    tokens = guide.spell(mark.encode())
    assert tokens is not None
    if matcher.allowed_prefix(tokens) < len(tokens):
        return ""
    matcher.consume(tokens)
    return mark


def test_a_form_is_known_by_what_a_template_shows() -> None:
    shown = {
        "function": "<tool_call>\n<function=example>\n<parameter=a>\n1\n</parameter>",
        "invoke": '<invoke name="$NAME">',
        "pairs": "<arg_key>{arg-key}</arg_key>",
        "python": "in the format of [func_name1(param1=value1, param2=value2)]",
        "args": "[TOOL_CALLS]probe_name[ARGS]{}",
        "channel": "<|channel|>commentary to=functions.probe_name",
        "separated": "<｜tool▁sep｜>",
        "numbered": "<|tool_call_argument_begin|>",
        "first": '{"arguments": {"probe_key": 1}, "name": "probe_name"}',
    }
    for form, text in shown.items():
        assert taught_forms(text) == {"json", form}
    assert taught_forms('{"name": "probe_name", "arguments": {"probe_key": 1}}') == {"json"}
    assert taught_forms("Call print(x) and see [1].") == {"json"}


def test_a_tool_that_a_form_cannot_hold_is_left_out() -> None:
    """Any object, and names of properties that are no keywords."""
    schemas = {
        "free": {"type": "object"},
        "odd": {"type": "object", "properties": {"a b": {"type": "string"}}},
    }
    held = grammars_of_arguments(schemas, {}, frozenset(("json", "python", "function")))
    assert held is not None
    assert held.forms("free") == {"json"}
    assert held.forms("odd") == {"json", "function"}
