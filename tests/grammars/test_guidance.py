"""Masks: those of llama.cpp's own engine, whatever was rolled back, within limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Grammar
from edgespec.errors import GrammarError
from edgespec.grammars import grammar_from_regex, grammar_from_schema, is_lark

PAIRS = [
    ('root ::= [a-c]+ "xy"', "[a-c]+xy", "abcxy"),
    ('root ::= "a" | "ab" | "über"', "a|ab|über", "über"),
    (r'root ::= "\"" [^"\\\x00-\x1f]* "\""', r'"[^"\\\x00-\x1f]*"', '"héllo wörld ü😀"'),
    ("root ::= [^a]{2,5}", "[^a]{2,5}", "日本x"),
    ('root ::= ("0" | [1-9] [0-9]*) (", " [0-9]+)*', "(0|[1-9][0-9]*)(, [0-9]+)*", "10, 007"),
]


@pytest.mark.parametrize(("gbnf", "pattern", "text"), PAIRS)
def test_masks_are_llama_cpps(judge: Any, gbnf: str, pattern: str, text: str) -> None:
    vocabulary = judge.vocabulary
    every = np.arange(vocabulary.size, dtype=np.int32)
    # llama.cpp reads a control token as the text of its name, and never allows a null byte.
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    left_out = {t for t, piece in enumerate(pieces) if piece[:1] in (b"", b"\0")}
    left_out -= vocabulary.end_tokens
    matcher = judge.guide.start(grammar_from_regex(pattern))
    with Grammar(vocabulary, gbnf) as theirs:
        for token in [None, *judge.tokens(text)]:
            if token is not None:
                matcher.consume([token])
                theirs.accept(token)
            expected = set(np.flatnonzero(theirs.allowed(every)).tolist()) - left_out
            assert set(judge.allowed(matcher)) - left_out == expected


def test_rolling_back_restores_the_mask(judge: Any) -> None:
    matcher = judge.guide.start(grammar_from_schema({"type": "object"}))
    tokens = judge.tokens('{"a": [1, {"b": "c d"}], "e": null}')
    masks = []
    for token in tokens:
        masks.append(judge.allowed(matcher))
        matcher.consume([token])
    masks.append(judge.allowed(matcher))
    for back in (1, 3, len(tokens)):
        matcher.roll_back(back)
        assert judge.allowed(matcher) == masks[len(tokens) - back]
        matcher.consume(tokens[len(tokens) - back :])
        assert judge.allowed(matcher) == masks[-1]


def test_a_copy_is_independent_and_a_grammar_is_prepared_once(judge: Any) -> None:
    text = grammar_from_regex("ab|cd")
    one, two = judge.guide.start(text), judge.guide.start(text)
    one.consume(judge.tokens("c"))
    assert judge.allowed(two) != judge.allowed(one)
    assert judge.guide._prepared[text] is not one


def test_a_forbidden_token_is_an_error(judge: Any) -> None:
    matcher = judge.guide.start(grammar_from_regex("a"))
    with pytest.raises(GrammarError, match="any further"):
        matcher.consume(judge.tokens("b"))


def test_rules_in_the_librarys_language(judge: Any) -> None:
    rules = (
        '%llguidance {}\nstart: greeting " " NAME\ngreeting: "Hi" | "Hello"\nNAME: /[A-Z][a-z]+/'
    )
    assert is_lark(rules) and not is_lark('root ::= "a"')
    assert judge.accepts(rules, "Hello World") and not judge.accepts(rules, "Hello world")
    with pytest.raises(GrammarError, match="line 3"):
        judge.guide.start('%llguidance {}\nstart: "a"\n  | (')


@pytest.mark.parametrize(
    ("pattern", "text", "other"),
    [
        (r"\d{4}-\d\d", "2024-12", "2024-1"),
        ("a/b|c]", "a/b", "a"),
        ("a\nb", "a\nb", "ab"),
        (r'"\\n"', r'"\n"', '"\n"'),
        ("é+", "éé", "e"),
    ],
)
def test_regular_expressions(judge: Any, pattern: str, text: str, other: str) -> None:
    assert judge.accepts(grammar_from_regex(pattern), text)
    assert not judge.accepts(grammar_from_regex(pattern), other)


@pytest.mark.parametrize("pattern", ["(", "", r"(a)\1", "(?=a)b", "a{5,2}", "x" * 300_000])
def test_wrong_expressions(pattern: str) -> None:
    with pytest.raises(GrammarError, match="regular expression") as caught:
        grammar_from_regex(pattern)
    assert "\n" not in str(caught.value)


BOMBS: dict[str, Any] = {
    "nested counts": {"pattern": "^((((a{0,30}){0,30}){0,30}){0,30})$"},
    "nested options": {"pattern": "^" + "(" * 26 + "a?)" + "{2})" * 25 + "{2}$"},
    "a large count": {"pattern": "^a{300000000}$"},
    "crossing": {"pattern": "^(.{1,5000}a.{1,5000}|b.{3,4000}){10,200}$"},
    "a look back": {"pattern": "^(a|b)*a(a|b){40}$"},
    "classes": {"pattern": r"^\w{100,2000}\p{L}{50,3000}\W*$"},
    "a long list": {"enum": [f"value {i}" for i in range(9000)]},
    "long names": {
        "type": "object",
        "properties": {"n" * 60_000 if i == 0 else f"p{i}": {} for i in range(2500)},
    },
    "many properties": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    "many patterns": {"anyOf": [{"pattern": f"^.*{i}.{{8}}$"} for i in range(300)]},
    "intersections": {"allOf": [{"pattern": f"^.*a.{{{i}}}$"} for i in range(10, 20)]},
    "products": {
        "allOf": [
            {"anyOf": [{"properties": {f"k{i}": {"enum": [j]}}} for j in (1, 2)]} for i in range(15)
        ]
    },
    "lists of lists": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 99_999},
        "maxItems": 1_000_000,
    },
    "many items": {"type": "array", "minItems": 10**9},
    "itself": {"$ref": "#"},
}

PROBE = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from edgespec.backend import Model
from edgespec.errors import GrammarError
from edgespec.grammars import Guide, grammar_from_schema
with Model(Path(sys.argv[1])) as model:
    guide = Guide(model.vocabulary)
    row = np.zeros(guide.words, np.int32)
    guide.start(grammar_from_schema({"type": "object"}))
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    before, worst = peak(), 0.0
    schema = json.load(sys.stdin)
    began = time.process_time()
    try:
        matcher = guide.start(grammar_from_schema(schema))
        took = time.process_time() - began
        for step in range(300):
            began = time.process_time()
            matcher.write_bits(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: model.vocabulary.size])
            texts = [t for t in allowed.tolist() if t not in model.vocabulary.end_tokens]
            if not texts:
                break
            matcher.consume([texts[(step * 7919) % len(texts)]])
            worst = max(worst, time.process_time() - began)
        said = "followed"
    except GrammarError as error:
        took, said = time.process_time() - began, str(error)
    print(json.dumps([took, worst, peak() - before, said]))
"""


@pytest.mark.parametrize("name", BOMBS)
def test_nothing_takes_long_or_much(default_model: Path, name: str) -> None:
    """In a process of its own, whose processor time and peak of memory can be read."""
    schema = BOMBS[name]
    schema = {"type": "string", **schema} if "pattern" in schema else schema
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(default_model)],
        input=json.dumps(schema),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    preparing, step, mebibytes, said = json.loads(done.stdout)
    assert preparing < 6 and step < 0.5 and mebibytes < 100, (preparing, step, mebibytes, said)
