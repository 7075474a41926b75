"""Ends of texts: whole for an independent judge, from every place that a text can stop at."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgespec.grammars import (
    Closer,
    End,
    Guide,
    grammar_from_regex,
    grammar_from_schema,
    grammar_of_json,
)

NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "left"],
        }
    },
    "$ref": "#/$defs/node",
}
# The shortest text of each, in bytes.
SCHEMAS = [
    (NAMED, '{"name":""}'),
    ({"type": "array", "items": NAMED, "minItems": 2}, '[{"name":""},{"name":""}]'),
    ({"enum": ["extraordinary", "ok", "okay"]}, '"ok"'),
    ({"const": {"a": [1, "é😀"]}}, '{"a":[1,"é😀"]}'),
    ({"type": "string", "minLength": 30}, None),
    ({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, None),
    ({"type": "string", "format": "email"}, None),
    ({"type": "integer", "minimum": 1800, "maximum": 2100}, None),
    ({"anyOf": [NAMED, {"type": "null"}]}, "null"),
    (TREE, '{"value":0,"left":null}'),
    ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}, '{"":0}'),
    (
        {
            "type": "object",
            "properties": {f"a_long_name_{i}": {"type": "string"} for i in range(40)},
            "required": [f"a_long_name_{i}" for i in range(40)],
        },
        None,
    ),
]
PATTERNS = [
    "[a-z]{3,40} is a (cat|dog)",
    "(foo|barbar|quux){3,5}!",
    "[^a]{2,5}日本",
    "(a{90})?b",
    r"<b>[^<]*</b>",
    r'(0|")*x',
]


def whole(judge: Any, end: End | None, start: bytes = b"") -> str:
    """The text with its end, whose tokens spell it."""
    assert end is not None
    assert b"".join(map(judge.vocabulary.piece, end.tokens)) == end.text
    return (start + end.text).decode()


@pytest.mark.parametrize(("schema", "shortest"), SCHEMAS)
def test_the_shortest_text_obeys_the_schema(judge: Any, schema: Any, shortest: str | None) -> None:
    grammar = grammar_from_schema(schema)
    end = Closer(judge.guide, grammar).shortest(judge.guide.start(grammar))
    text = whole(judge, end)
    jsonschema.validate(json.loads(text), schema)
    if shortest is not None:
        assert end is not None and len(end.tokens) <= len(judge.guide.fewest(shortest.encode()))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_shortest_text_matches_the_pattern(judge: Any, pattern: str) -> None:
    grammar = grammar_from_regex(pattern)
    end = Closer(judge.guide, grammar).shortest(judge.guide.start(grammar))
    assert re.fullmatch(pattern, whole(judge, end))


def test_the_fewest_tokens_are_the_fewest(judge: Any) -> None:
    guide: Guide = judge.guide
    pieces = {judge.vocabulary.piece(token) for token in range(judge.vocabulary.size)}

    def fewest(data: bytes) -> int:
        if not data:
            return 0
        ends = [n for n in range(1, len(data) + 1) if data[:n] in pieces]
        return 1 + min(fewest(data[n:]) for n in ends)

    for text in ("", "x", '{"name":""}', " hello", "é日"):
        tokens = guide.fewest(text.encode())
        assert tokens is not None
        assert b"".join(map(judge.vocabulary.piece, tokens)) == text.encode()
        assert len(tokens) == fewest(text.encode())


TEXTS = [
    (NAMED, '{"name": "a\\u001f\\n\\"b é日😀"}'),
    ({"type": "array", "items": NAMED}, '[ {"name":"x"}, {"name": "y z"}]'),
    (TREE, '{"value": -17,"left":{"value":0, "left": null}}'),
    ({"type": "object"}, '{"a": {"b": [[1.5e3, true], "\\\\"]}, "c": []}'),
    ({"enum": ["extraordinary", "extra"]}, '"extraordinary"'),
    ({"type": "string", "minLength": 9}, '"abc日本😀xyz"'),
]


@pytest.mark.parametrize(("schema", "text"), TEXTS)
def test_every_beginning_can_be_ended(judge: Any, schema: Any, text: str) -> None:
    """A byte a token, so that it stops inside characters and escapes too, and what remains."""
    grammar = grammar_from_schema(schema)
    closer, matcher = Closer(judge.guide, grammar), judge.guide.start(grammar)
    singles, end = judge.guide.single_bytes(), closer.shortest(matcher)
    for place, byte in enumerate(text.encode()):
        start = text.encode()[:place]
        jsonschema.validate(json.loads(whole(judge, end, start)), schema)
        jsonschema.validate(json.loads(whole(judge, closer.any(matcher), start)), schema)
        assert end is not None
        end = closer.after(matcher, end, int(singles[byte]))
        matcher.consume([int(singles[byte])])
    assert end == End(b"", ())


@pytest.mark.parametrize("grammar", [grammar_from_schema(s) for s, _ in SCHEMAS[:4]])
def test_what_is_left_is_enough_whatever_is_drawn(judge: Any, grammar: str) -> None:
    """Random logits; the texts that are drawn are whole at the last token."""
    luck, size = np.random.default_rng(3), judge.vocabulary.size
    start = Closer(judge.guide, grammar).shortest(judge.guide.start(grammar))
    assert start is not None
    for room in range(len(start.tokens), len(start.tokens) + 25):
        closer, matcher, end = Closer(judge.guide, grammar), judge.guide.start(grammar), start
        drawn: list[int] = []
        for left in range(room, 0, -1):
            logits = luck.normal(size=size, scale=3.0).astype(np.float32)
            logits[~judge.mask(matcher)] = -np.inf
            closer.steer(logits, matcher, end, left)
            token = int(np.argmax(logits))
            if token in judge.vocabulary.end_tokens:
                break
            after = closer.after(matcher, end, token)
            assert after is not None and len(after.tokens) < left
            matcher.consume([token])
            drawn.append(token)
            end = after
        text = b"".join(map(judge.vocabulary.piece, drawn)).decode()
        assert judge.accepts(grammar, text)


def test_steering_keeps_all_that_leads_to_an_end_and_nothing_else(judge: Any) -> None:
    """Compared with the shortest end behind each token, by hand."""
    grammar = grammar_from_regex("(b|a{6}|c{2}|[xy]d?)")
    closer, matcher = Closer(judge.guide, grammar), judge.guide.start(grammar)
    end = closer.shortest(matcher)
    assert end is not None
    pieces = [judge.vocabulary.piece(token) for token in range(judge.vocabulary.size)]

    def left_behind(piece: bytes) -> int:
        texts = [b"b", b"aaaaaa", b"cc", b"x", b"xd", b"y", b"yd"]
        rests = [text[len(piece) :] for text in texts if text.startswith(piece)]
        return min(len(judge.guide.fewest(rest)) for rest in rests)

    allowed = judge.allowed(matcher)
    for left in range(1, 5):
        logits = np.full(len(pieces), -np.inf, np.float32)
        logits[allowed] = 1.0
        closer.steer(logits, matcher, end, left)
        kept = {pieces[token] for token in np.flatnonzero(logits > -np.inf)}
        assert kept == {pieces[t] for t in allowed if left_behind(pieces[t]) < left}


def test_far_from_the_limit_nothing_is_forbidden(judge: Any) -> None:
    grammar = grammar_of_json()
    closer, matcher = Closer(judge.guide, grammar), judge.guide.start(grammar)
    end = closer.shortest(matcher)
    assert end is not None
    logits = np.zeros(judge.vocabulary.size, np.float32)
    closer.steer(logits, matcher, end, 2000)
    assert not logits.any()


def test_an_end_that_cannot_be_guessed_is_given_up(judge: Any) -> None:
    word = "".join(random.Random(1).choices("bcdefghjkmz", k=12))
    grammar = grammar_from_regex(f"(?s:.*){word}")
    assert Closer(judge.guide, grammar).shortest(judge.guide.start(grammar)) is None
