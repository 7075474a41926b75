"""Grammars and JSON schemas: output obeys them, and its distribution is the masked target's."""

from __future__ import annotations

import ctypes
import json
import re
from collections import Counter
from typing import Any

import jsonschema
import llama_cpp as lib
import numpy as np
import pytest
from scipy import stats

from edgespec import GenerationLimits, SamplingParameters
from edgespec.backend import Grammar
from edgespec.errors import GrammarError
from edgespec.grammars import grammar_from_regex, grammar_from_schema
from tests.runtime.exact import p_value

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["river", "sea"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
BOAT = r"""
root ::= ("{" s "\"name\"" s ":" s "\"" char{0,12} "\"" s "," s "\"age\"" s ":" s int s "," s
         "\"tags\"" s ":" s "[" s (tag (s "," s tag){0,2} s)? "]" s "}")
char ::= [^"\\\x00-\x1f] | "\\" (["\\bfnrt] | "u" control)
control ::= "00" ("0" [0-7bBeEfF] | "1" [0-9a-fA-F] | "7" [fF])
int ::= "-"? ("0" | [1-9] [0-9]*)
tag ::= "\"river\"" | "\"sea\""
s ::= " "?
"""
PROMPT = "<|im_start|>user\nDescribe a boat as JSON.<|im_end|>\n<|im_start|>assistant\n"
GREEDY = SamplingParameters(temperature=0.0)


def test_allowed_tokens_are_those_that_a_regular_expression_allows(open_engine: Any) -> None:
    vocabulary = open_engine().vocabulary
    everything = np.arange(vocabulary.size, dtype=np.int32)
    with Grammar(vocabulary, 'root ::= [a-c]+ "xy"') as grammar:
        for text, pattern in (("", r"[a-c]+(x|xy)?"), ("ab", r"[a-c]+(x|xy)?|x|xy"), ("abx", "y")):
            state = grammar.clone()
            for token in vocabulary.tokenize(text, add_special=False):
                state.accept(int(token))
            got = set(np.flatnonzero(state.allowed(everything)).tolist())
            pieces = (
                vocabulary.piece(t).decode("utf-8", "replace") for t in range(len(everything))
            )
            assert got == {t for t, piece in enumerate(pieces) if re.fullmatch(pattern, piece)}
            state.close()


def test_the_end_is_allowed_only_where_the_text_is_complete(open_engine: Any) -> None:
    vocabulary = open_engine().vocabulary
    end = next(iter(vocabulary.end_tokens))
    with Grammar(vocabulary, 'root ::= "a" | "ab"') as grammar:
        assert not grammar.allows(end)
        grammar.accept(int(vocabulary.tokenize("a", add_special=False)[0]))
        assert grammar.allows(end)


def test_a_forbidden_token_is_an_error_and_does_not_end_the_process(open_engine: Any) -> None:
    vocabulary = open_engine().vocabulary
    with Grammar(vocabulary, 'root ::= "a"') as grammar, pytest.raises(GrammarError):
        grammar.accept(int(vocabulary.tokenize("b", add_special=False)[0]))


@pytest.mark.parametrize("draft", ["none", "ngram", "damaged"])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_output_always_parses(
    draft: str, temperature: float, drafts: dict[str, str], open_engine: Any
) -> None:
    engine = open_engine(draft=drafts[draft])
    grammar = grammar_from_schema(SCHEMA)
    for seed in range(3):
        sampling = SamplingParameters(temperature=temperature, seed=seed)
        stream = engine.generate(
            PROMPT, sampling, GenerationLimits(max_tokens=120), grammar=grammar
        )
        result = stream.result
        assert result.finish_reason == "stop"
        boat = json.loads(result.text)
        assert set(boat) == {"name", "age", "tags"}
        assert isinstance(boat["age"], int)
        assert set(boat["tags"]) <= {"river", "sea"}
        assert engine.decoder.length == len(stream.sequence)
        assert engine.target.native_length() == len(stream.sequence) - 1


def reference_greedy(plain: Any, tokens: list[int], grammar: str, count: int) -> list[int]:
    """llama.cpp's grammar over the whole row, then its greedy choice, one token at a time."""
    sampler = lib.llama_sampler_init_grammar(plain.vocabulary, grammar.encode(), b"root")
    layout = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    row = np.zeros(plain.size, layout)
    answer: list[int] = []
    while len(answer) < count:
        row["id"] = np.arange(plain.size)
        row["logit"] = plain.logits(tokens + answer, fresh=not answer)
        data = lib.llama_token_data_array(
            data=ctypes.cast(row.ctypes.data, ctypes.POINTER(lib.llama_token_data)),
            size=plain.size,
            selected=-1,
            sorted=False,
        )
        lib.llama_sampler_apply(sampler, ctypes.byref(data))
        answer.append(int(np.argmax(row["logit"])))
        if lib.llama_vocab_is_eog(plain.vocabulary, answer[-1]):
            break
        lib.llama_sampler_accept(sampler, answer[-1])
    lib.llama_sampler_free(sampler)
    return answer


@pytest.mark.parametrize("draft", ["none", "ngram", "damaged"])
def test_greedy_tokens_equal_plain_constrained_decoding(
    draft: str, drafts: dict[str, str], open_engine: Any, plain: Any
) -> None:
    engine = open_engine(draft=drafts[draft])
    expected = reference_greedy(plain, engine.tokenize(PROMPT).tolist(), BOAT, 60)
    limits = GenerationLimits(max_tokens=60)
    # Both engines allow the same texts, and so the same tokens.
    for grammar in (BOAT, grammar_from_schema(SCHEMA)):
        got = engine.generate(PROMPT, GREEDY, limits, grammar=grammar).result
        assert list(got.tokens) == expected


def test_coupled_constrained_text_does_not_depend_on_the_draft(
    drafts: dict[str, str], open_engine: Any
) -> None:
    grammar = grammar_from_schema(SCHEMA)
    texts = set()
    for draft, k in (("none", 3), ("ngram", 3), ("damaged", 1), ("damaged", 4)):
        sampling = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)
        stream = open_engine(draft=drafts[draft], k=k).generate(
            PROMPT, sampling, GenerationLimits(max_tokens=60), grammar=grammar, accept="coupled"
        )
        texts.add(stream.result.tokens)
    assert len(texts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("guided", [False, True])
def test_the_distribution_is_the_masked_targets(
    drafts: dict[str, str], open_engine: Any, plain: Any, guided: bool
) -> None:
    """The draft knows nothing of the grammar: most of its proposals are forbidden.

    Chi-square at a false-alarm rate of 1e-3, fixed seeds.
    """
    words, runs = ["A", "B", "C", "Yes", "No", "The", "one"], 250
    prompt = "<|im_start|>user\nA, B or C?<|im_end|>\n<|im_start|>assistant\n"
    engine = open_engine(draft=drafts["damaged"], k=2)
    ids = [int(engine.vocabulary.tokenize(w, add_special=False)[0]) for w in words]
    assert [engine.vocabulary.decode([i]) for i in ids] == words
    grammar = "root ::= (" + " | ".join(f'"{w}"' for w in words) + ') [^"]*'
    logits = plain.logits(engine.tokenize(prompt).tolist()).astype(np.float64)
    # Tokens that begin more than one letter of a word, or go on behind it, are allowed too.
    with Grammar(engine.vocabulary, grammar) as rules:
        allowed = np.flatnonzero(rules.allowed(np.arange(plain.size, dtype=np.int32)))
    chances = np.exp((logits[allowed] - logits[allowed].max()) / 1.5)
    chances /= chances.sum()
    if guided:
        grammar = grammar_from_regex(f'({"|".join(words)})[^"]*')
    counts: Counter[int] = Counter()
    proposed = accepted = 0
    for seed in range(runs):
        sampling = SamplingParameters(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        stream = engine.generate(
            prompt, sampling, GenerationLimits(max_tokens=3), grammar=grammar, accept="rejection"
        )
        counts[stream.result.tokens[0]] += 1
        proposed += stream.statistics.proposed
        accepted += stream.statistics.accepted
    assert 0 < accepted < proposed
    order = np.argsort(-chances)
    common = [i for i in order if chances[i] * runs >= 5]
    observed = [counts[int(allowed[i])] for i in common]
    expected = [chances[i] * runs for i in common]
    observed.append(runs - sum(observed))
    expected.append(runs - sum(expected))
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.slow
def test_what_a_grammar_makes_likely_leaves_the_joint_distribution_as_it_is(
    open_engine: Any, plain: Any
) -> None:
    """The grammar's guess at the second token is how the tokenizer would go on.

    Chi-square over pairs of tokens at a false-alarm rate of 1e-3, fixed seeds.
    """
    runs, prompt, texts = 500, PROMPT + "Tea? ", (b"Yes thanks", b"No thanks")
    engine = open_engine(draft="ngram", k=2)
    pieces = [engine.vocabulary.piece(token) for token in range(plain.size)]
    start = engine.tokenize(prompt).tolist()

    def chances(before: list[int]) -> dict[int, float]:
        known = b"".join(pieces[token] for token in before)
        rests = [text[len(known) :] for text in texts if text.startswith(known)]
        allowed = [t for t, p in enumerate(pieces) if p and any(r.startswith(p) for r in rests)]
        logits = plain.logits(start + before).astype(np.float64)[allowed] / 4.0
        weights = np.exp(logits - logits.max())
        return dict(zip(allowed, (weights / weights.sum()).tolist(), strict=True))

    exact = {
        (one, two): first * second
        for one, first in chances([]).items()
        for two, second in chances([one]).items()
    }
    grammar = grammar_from_regex("(Yes|No) thanks")
    counts: Counter[tuple[int, ...]] = Counter()
    proposed = accepted = 0
    for seed in range(runs):
        sampling = SamplingParameters(temperature=4.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        stream = engine.generate(
            prompt, sampling, GenerationLimits(max_tokens=20), grammar=grammar, accept="rejection"
        )
        counts[stream.result.tokens[:2]] += 1
        proposed += stream.statistics.proposed
        accepted += stream.statistics.accepted
    assert 0 < accepted < proposed
    assert p_value(counts, exact, runs) > 1e-3


WHOLE = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "minLength": 3},
        "kinds": {"type": "array", "items": {"enum": ["river", "sea"]}, "minItems": 2},
        "crew": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
            },
        },
    },
    "required": ["place", "kinds", "crew"],
}
ACCENTS = (
    "<|im_start|>user\nWrite JSON with \\u00e9, 日本 and 😀.<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    "few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["few", "all"]
)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_last_token_leaves_a_whole_text_with_and_without_speculation(
    open_engine: Any, few: bool, temperature: float
) -> None:
    """Every limit from the shortest text on; the same tokens, drawn one by one or in blocks."""
    grammar = grammar_from_schema(WHOLE)
    plain, engine = open_engine(draft="none"), open_engine(draft="ngram", k=4)
    least = engine.constrain(grammar, GREEDY).shortest
    assert least is not None and least < 24
    limits = range(least, least + 3) if few else range(least, 60)
    lengths = set()
    for limit in limits:
        sampling = SamplingParameters(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=limit)
        asked = (ACCENTS, sampling, GenerationLimits(max_tokens=limit))
        rule = "coupled" if temperature else "auto"
        one, other = (
            each.generate(*asked, grammar=grammar, accept=rule).result for each in (plain, engine)
        )
        assert one.tokens == other.tokens
        assert one.complete and other.complete
        jsonschema.validate(json.loads(one.text), WHOLE)
        lengths.add(len(one.tokens))
    assert len(lengths) > 1


def test_a_full_context_leaves_a_whole_text_too(open_engine: Any) -> None:
    engine = open_engine(draft="ngram", context=128)
    tokens = engine.tokenize(ACCENTS * 4)[:100]
    grammar = grammar_from_schema({"type": "string", "minLength": 40})
    result = engine.generate(tokens, GREEDY, GenerationLimits(), grammar=grammar).result
    assert result.complete and len(json.loads(result.text)) >= 40


def test_near_the_limit_p_is_the_softmax_over_what_can_still_end(
    drafts: dict[str, str], open_engine: Any, plain: Any
) -> None:
    """Two tokens: one that leaves an end of one token, and that; the draft knows nothing of it.

    Chi-square over pairs of tokens at a false-alarm rate of 1e-3, fixed seeds.
    """
    runs, texts = 300, (b"Yes thanks", b"No thanks", b"Maybe tomorrow or never")
    engine = open_engine(draft=drafts["damaged"], k=2)
    pieces = [engine.vocabulary.piece(token) for token in range(plain.size)]
    known = set(pieces)
    start = engine.tokenize(PROMPT).tolist()

    def chances(before: list[int]) -> dict[int, float]:
        text = b"".join(pieces[token] for token in before)
        rests = [one[len(text) :] for one in texts if one.startswith(text)]
        ends = {rest for rest in rests if before} or {
            rest[:size] for rest in rests for size in range(1, len(rest)) if rest[size:] in known
        }
        allowed = [token for token, piece in enumerate(pieces) if piece in ends]
        logits = plain.logits(start + before).astype(np.float64)[allowed] / 4.0
        weights = np.exp(logits - logits.max())
        return dict(zip(allowed, (weights / weights.sum()).tolist(), strict=True))

    exact = {
        (one, two): first * second
        for one, first in chances([]).items()
        for two, second in chances([one]).items()
    }
    assert len(exact) > 1
    grammar = grammar_from_regex("|".join(text.decode() for text in texts))
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        sampling = SamplingParameters(temperature=4.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        limits = GenerationLimits(max_tokens=2)
        stream = engine.generate(PROMPT, sampling, limits, grammar=grammar, accept="rejection")
        counts[stream.result.tokens] += 1
    assert p_value(counts, exact, runs) > 1e-3


def test_interleaved_constrained_streams_keep_their_states(open_engine: Any) -> None:
    engine = open_engine(draft="ngram")
    grammar = grammar_from_schema(SCHEMA)

    def start() -> Any:
        return engine.generate(PROMPT, GREEDY, GenerationLimits(max_tokens=25), grammar=grammar)

    expected = start().result.tokens
    one, two = start(), start()
    first, second = iter(one), iter(two)
    for _ in range(5):
        next(first)
        next(second)
    assert one.result.tokens == two.result.tokens == expected


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a" |\n  (', r"line 2"),
        ('root ::= "a\n', r"line 1"),
        ('root ::= "a"\nb ::= "c" )\n', r"line 2"),
        ('start ::= "a"', "root"),
        ("", "empty"),
        ("root ::= \0", "no text"),
        ("x" * 300_000, "longer"),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "deep"),
        ("root ::= " + "(" * 100_000, "deep"),
        ('root ::= "a"{5,2}', "turn them round"),
        ('root ::= "a"{1000000000}', "2000"),
        ('root ::= "a"{99999999999999999999,}', "2000"),
    ],
)
def test_grammars_that_do_not_compile(
    open_engine: Any, capfd: pytest.CaptureFixture[str], grammar: str, words: str
) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        open_engine().generate("x", grammar=grammar)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
