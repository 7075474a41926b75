"""Schemas: what is enforced, token for token, and what is refused in which words."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from edgespec.errors import GrammarError
from edgespec.grammars import grammar_from_schema


def object_of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required}


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
NODE = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/tree_node"}}]}
CAT = object_of(kind={"const": "cat"}, lives=INTEGER)
DOG = object_of(kind={"enum": ["dog", "hound"]}, name=STRING)
PET = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "$defs": {"Cat": CAT, "Dog": DOG},
}

CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    # name: schema, texts that obey it, texts that do not
    "additional-any": (
        object_of(a=INTEGER) | {"additionalProperties": True},
        ['{"a":1}', '{"a":1,"b":[null]}'],
        ['{"b":1}', '{"a":1,"a":2}'],
    ),
    "additional-repeats-key": (
        object_of(a=INTEGER) | {"additionalProperties": STRING},
        ['{"a":1}', '{"a":1,"b":"x"}'],
        ['{"a":1,"a":"x"}', '{"a":1,"b":2}'],
    ),
    "allof-one-ref-enum": (
        {"allOf": [{"$ref": "#/$defs/C"}], "$defs": {"C": {"enum": ["red"]}}},
        ['"red"'],
        ['"blue"', "1"],
    ),
    "anyof-beside-properties": (
        object_of(a=INTEGER) | {"anyOf": [{"properties": {"b": INTEGER}, "required": ["b"]}]},
        ['{"a":1,"b":2}'],
        ['{"a":1}', '{"a":1,"b":"x"}'],
    ),
    "count-as-float": ({"type": "string", "maxLength": 3.0}, ['"abc"'], ['"abcd"']),
    "defs-named-date": (
        object_of(p={"type": "string", "format": "date"}, q={"$ref": "#/$defs/date"})
        | {"$defs": {"date": {"enum": ["x"]}}},
        ['{"p":"2024-02-29","q":"x"}'],
        ['{"p":"x","q":"x"}', '{"p":"2024-02-29","q":"2024-02-29"}'],
    ),
    "defs-named-space": (
        object_of(q={"$ref": "#/$defs/space"}) | {"$defs": {"space": {"enum": ["x"]}}},
        ['{"q":"x"}', '{ "q": "x" }'],
        ['{"q":" "}', '{"q":"y"}', '{  "q":"x"}'],
    ),
    "defs-named-string": (
        object_of(p=STRING, q={"$ref": "#/$defs/string"}) | {"$defs": {"string": {"enum": ["x"]}}},
        ['{"p":"any","q":"x"}'],
        ['{"p":"any","q":"any"}'],
    ),
    "defs-of-like-names": (
        object_of(a={"$ref": "#/$defs/a-b"}, b={"$ref": "#/$defs/a_b"})
        | {"$defs": {"a-b": {"enum": ["x"]}, "a_b": {"enum": ["y"]}}},
        ['{"a":"x","b":"y"}'],
        ['{"a":"y","b":"y"}', '{"a":"x","b":"x"}'],
    ),
    "enum-of-a-nullable": (
        {"type": ["string", "null"], "enum": ["a", None]},
        ['"a"', "null"],
        ['"b"', "1", '"null"'],
    ),
    "field-ge-le": ({"type": "integer", "minimum": 1, "maximum": 5}, ["1", "5"], ["0", "6", "15"]),
    "format-ipv4": ({"type": "string", "format": "ipv4"}, ['"10.0.0.1"'], ['"10.0.0.256"', '"x"']),
    "format-unknown": ({"type": "string", "format": "path"}, ['"a/b"'], ["1"]),
    "literal-backslash": ({"enum": ["a\\d"]}, ['"a\\\\d"'], ['"a\\d"']),
    "literal-backslash-other": ({"const": "a\\tb"}, ['"a\\\\tb"'], ['"a\\tb"']),
    "literal-emoji": ({"enum": ["🐱", 'q"q']}, ['"🐱"', '"q\\"q"'], ['"🐟"', '"q"q"']),
    "literal-line-break": ({"enum": ["a\nb"]}, ['"a\\nb"'], ['"a\nb"', '"anb"']),
    "literal-nul": ({"enum": ["a\0b"]}, ['"a\\u0000b"'], ['"a\0b"', '"ab"']),
    "lone-bracket": ({"type": "string", "pattern": "^a]$"}, ['"a]"'], ['"a"']),
    "many-max-lengths": (
        object_of(**{f"p{i}": {"type": "string", "maxLength": 199} for i in range(6)}),
        [json.dumps({f"p{i}": "x" * 199 for i in range(6)})],
        [json.dumps({f"p{i}": "x" * 200 for i in range(6)})],
    ),
    "max-items": (
        {"type": "array", "items": INTEGER, "maxItems": 300},
        ["[]", json.dumps([7] * 300)],
        [json.dumps([7] * 301), '["x"]'],
    ),
    "max-length-255": (
        {"type": "string", "maxLength": 255},
        [f'"{"ü" * 255}"'],
        [f'"{"a" * 256}"'],
    ),
    "max-length-5000": (
        {"type": "string", "maxLength": 5000},
        [f'"{"a" * 5000}"'],
        [f'"{"a" * 5001}"'],
    ),
    "min-properties": ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
    "multiple": ({"type": "integer", "multipleOf": 2}, ["4", "-10"], ["3"]),
    "optional": (object_of([], a=INTEGER, b=STRING), ["{}", '{"b":"x"}'], ['{"c":1}']),
    "pattern-alternatives": ({"type": "string", "pattern": "^a$|^b$"}, ['"a"', '"b"'], ['"ab"']),
    "pattern-digits": ({"type": "string", "pattern": "^\\d$"}, ['"1"'], ['"x"', '"٣"']),
    "pattern-dot": (
        {"type": "string", "pattern": "^.{2}$"},
        ['"é."', '"\\"x"'],
        ['"abc"', '"\n\n"'],
    ),
    "pattern-lazy": ({"type": "string", "pattern": "^a+?$"}, ['"aa"'], ['"b"', '""']),
    "pattern-negated": ({"type": "string", "pattern": "^[^a]$"}, ['"b"', '"\\\\"'], ['"a"', '"""']),
    "pattern-part": ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    "pattern-tab": ({"type": "string", "pattern": "^\\t$"}, ['"\\t"'], ['"\t"', '"t"']),
    "prefix-items-and-items": (
        {"type": "array", "prefixItems": [STRING], "items": INTEGER},
        ['["a",1,2]', "[]"],
        ['["a","b"]', "[1]"],
    ),
    "items-list": (
        {"type": "array", "items": [STRING, INTEGER], "minItems": 2, "additionalItems": False},
        ['["a",1]'],
        ['[1,"a"]', '["a",1,1]'],
    ),
    "property-like-a-format": (
        object_of(
            date_time={"type": "string", "maxLength": 9},
            at={"type": "string", "format": "date-time"},
        ),
        ['{"date_time":"x","at":"2024-01-31T10:00:00Z"}'],
        ['{"date_time":"x","at":"x"}'],
    ),
    "property-empty-name": (object_of(**{"": {"enum": [1]}}), ['{"":1}'], ["{}", '{"a":1}']),
    "property-any": (
        object_of(x={}, y=True, z={"title": "Z"}),
        ['{"x":[1],"y":null,"z":{"a":"b"}}'],
        ['{"x":1,"y":2}'],
    ),
    "ref-escaped-slash": (
        object_of(a={"$ref": "#/$defs/x~1y"}) | {"$defs": {"x/y": {"enum": ["q"]}}},
        ['{"a":"q"}'],
        ['{"a":"x"}'],
    ),
    "ref-into-list": (
        object_of(
            ["b"], a={"anyOf": [{"type": "null"}, INTEGER]}, b={"$ref": "#/properties/a/anyOf/1"}
        ),
        ['{"b":1}', '{"a":null,"b":1}'],
        ['{"b":null}'],
    ),
    "ref-recursive": (
        object_of(t={"$ref": "#/$defs/tree_node"}) | {"$defs": {"tree_node": NODE}},
        ['{"t":[null,[[]]]}'],
        ['{"t":[1]}'],
    ),
    "ref-root": (
        object_of(n={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        ['{"n":{"n":null}}'],
        ['{"n":1}', '{"n":{}}'],
    ),
    "ref-siblings": (
        object_of(a={"$ref": "#/$defs/s", "maxLength": 2, "description": "x"})
        | {"$defs": {"s": STRING}},
        ['{"a":"xy"}'],
        ['{"a":"xyz"}', '{"a":1}'],
    ),
    "required-alone": ({"type": "object", "required": ["a"]}, ['{"a":1}'], ["{}", '{"b":1}']),
    "required-elsewhere": (
        object_of(["b"], a=INTEGER),
        ['{"b":"x"}', '{"a":1,"b":2}'],
        ['{"a":1}'],
    ),
    "type-list-object": (
        {"type": ["object", "null"], "properties": {"a": INTEGER}, "required": ["a"]},
        ["null", '{"a":1}'],
        ["{}", "1"],
    ),
    "discriminated": (
        PET,
        ['{"kind":"cat","lives":9}', '{"kind":"hound","name":"Rex"}'],
        ['{"kind":"cat","name":"Rex"}', '{"kind":"fish"}'],
    ),
    "one-of-types": ({"oneOf": [STRING, INTEGER]}, ['"a"', "1"], ["null", "1.5"]),
    "no-effect": (
        {"type": "array", "items": INTEGER, "uniqueItems": False, "minContains": 2, "then": False},
        ["[1,1]"],
        ['["x"]'],
    ),
    "names-of-any-alphabet": (
        object_of(**{"城市": {"enum": ["北京"]}, "größe": INTEGER, 'a"b\\': INTEGER}),
        ['{"城市":"北京","größe":1,"a\\"b\\\\":2}'],
        ['{"größe":1,"城市":"北京","a\\"b\\\\":2}'],
    ),
}


def checker(schema: Any) -> Any:
    """Return the independent judge; lists of `items` are of an earlier draft."""
    earlier = isinstance(schema.get("items"), list)
    kind = jsonschema.Draft7Validator if earlier else jsonschema.Draft202012Validator
    return kind(schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", CASES)
def test_texts_obey(judge: Any, name: str) -> None:
    schema, obeying, others = CASES[name]
    grammar = grammar_from_schema(json.dumps(schema))
    for text in obeying:
        checker(schema).validate(json.loads(text))
        assert judge.accepts(grammar, text), text
    for text in others:
        assert not judge.accepts(grammar, text), text


@pytest.mark.parametrize("name", CASES)
def test_drawn_texts_are_valid(judge: Any, name: str) -> None:
    schema = CASES[name][0]
    grammar = grammar_from_schema(schema)
    finished = 0
    for seed in range(4):
        text = judge.draw(grammar, seed)
        if text is None:
            continue
        finished += 1
        checker(schema).validate(json.loads(text))
    assert finished or name.startswith(("many", "max"))


def test_a_byte_order_mark_is_no_part_of_it(judge: Any) -> None:
    assert judge.accepts(grammar_from_schema('\ufeff{"enum":["a"]}'), '"a"')


def test_an_integer_has_no_end_of_digits(judge: Any) -> None:
    """Where the schema does not bound it, it fits into 64 bits, as parsers need it."""
    free = grammar_from_schema(object_of(["a"], a={"type": "integer"}))
    for number in (0, -7, 10**18, 2**62, -(2**62)):
        assert judge.accepts(free, f'{{"a":{number}}}')
    for number in (2**62 + 1, -(2**62) - 1, 10**25):
        assert not judge.accepts(free, f'{{"a":{number}}}')
    assert judge.accepts(grammar_from_schema({"type": "integer", "minimum": 1}), str(10**25))


def test_pydantic_models(judge: Any) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Node(pydantic.BaseModel):
        value: Any
        rating: int = pydantic.Field(ge=1, le=5)
        children: list[Node] = []
        parent: Node | None = None

    Node.model_rebuild(_types_namespace={"Node": Node, "Any": Any})
    grammar = grammar_from_schema(Node.model_json_schema())
    good = '{"value":{"a":[1]},"rating":5,"children":[{"value":1,"rating":1}],"parent":null}'
    Node.model_validate_json(good)
    assert judge.accepts(grammar, good)
    assert not judge.accepts(grammar, good.replace("5", "6"))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (object_of(a={"type": "array", "uniqueItems": True}), r"uniqueItems at \$\.properties\.a,"),
        ({"type": "array", "items": {"not": STRING}}, r"not at \$\.items,"),
        ({"type": "object", "dependentRequired": {"b": ["a"]}}, r"dependentRequired at \$,"),
        ({"if": STRING, "then": {"minLength": 1}}, r"has if at \$,"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"not": {}}}}, r"not at \$\.\$defs\.x,"),
        (
            object_of(**{"a b": {"propertyNames": STRING}}),
            r'propertyNames at \$\.properties\["a b"\],',
        ),
        ({"anyOf": [STRING, {"contains": {}}]}, r"contains at \$\.anyOf\[1\],"),
        ({"type": "string", "format": "regex"}, r"format regex at \$ cannot"),
        ({"type": "object", "minProperties": 2}, r"minProperties 2 at \$ cannot"),
        (
            object_of(a={"type": "string", "pattern": "("}),
            r"at \$\.properties\.a: wrong regular exp",
        ),
        (object_of(a={"type": "string", "pattern": "(?=a)"}), r"\$\.properties\.a: .*look-around"),
        (object_of(a={"type": "wish"}), r"at \$\.properties\.a: .*wish"),
        ({"oneOf": [{"type": "number"}, INTEGER]}, r"at \$: oneOf"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, r"minimum \(5\) is greater"),
        (False, "object"),
        ("{", "line 1"),
        ('{\n"type": }', "line 2"),
        ('{"const": NaN}', "NaN"),
        ("[1]", "object"),
        ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
        ({"$ref": "#/$defs/missing"}, "leads to nothing"),
        ({"properties": 7}, "properties"),
        ({"const": "\ud800"}, "surrogate"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "deep"),
        ({"enum": ["x" * 300_000]}, "characters"),
        (object_of(**{f"p{i}": {} for i in range(5001)}), "5000 are the most"),
        ({"type": "string", "minLength": 10**30}, "minLength"),
        (7, "object"),
        ({"const": {1, 2}}, "not JSON"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value[:20],
)
def test_what_cannot_be_enforced_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        grammar_from_schema(schema)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
