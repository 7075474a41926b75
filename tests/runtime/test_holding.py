"""Grammars of parts: free text stays free, and the arguments of a call obey their schema."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edgespec import GenerationLimits, SamplingParameters
from edgespec.grammars import PartGrammars, grammars_of_arguments
from edgespec.runtime.constraint import HoldingConstraint

SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
    },
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
}
HEAD = '<tool_call>\n{"name": "weather", "arguments'
TAGS = "<tool_call>\n<function=weather>\n"
PROMPT = "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
GREEDY = SamplingParameters(temperature=0.0)


@pytest.fixture(scope="module")
def parts() -> PartGrammars:
    forms = frozenset(("json", "function", "pairs", "python"))
    found = grammars_of_arguments(SCHEMAS, {"<think>": "</think>"}, forms)
    assert found is not None
    return found


@pytest.fixture
def follow(open_engine: Any, parts: PartGrammars) -> Any:
    """Returns the constraint behind a text, and the number of its tokens that were allowed."""
    engine = open_engine(draft="none")

    def behind(text: str, **changed: Any) -> tuple[HoldingConstraint, list[str]]:
        constraint = engine.constrain(replace(parts, **changed), GREEDY)
        tokens = engine.vocabulary.tokenize(text, add_special=False)
        count = constraint.walk(tokens)
        forbidden = [engine.vocabulary.decode([token]) for token in tokens[count:].tolist()]
        constraint.commit([*tokens[:count].tolist()])
        return constraint, forbidden

    return behind


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("Any text, even {} and <tool_call>", True),
        (HEAD, False),
        (HEAD + '": {"city": "Oslo", "days', False),
        (HEAD + '": {"city": "Oslo", "days": 3}', True),
        (HEAD + '": {"city": "Oslo", "days": 3}}\n</tool_call>\nDone.', True),
        ('{"type": "function", "name" : "weather" ,\n "parameters": {"city": "Ro', False),
        ('{"name": "clock", "arguments": {}}', True),
        (HEAD.replace("weather", "nothing") + '": {"x": 1}}', True),
        (f'{HEAD}": {{"city": "Oslo", "days": 3}}}}\n{HEAD}": {{"city": "Rome', False),
        (f"<think>{HEAD}", True),
        (TAGS, False),
        (TAGS + "<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3", False),
        (TAGS + "<parameter=city>\nOslo\n</parameter><parameter=days>3</parameter></", False),
        (TAGS + "<parameter=city>Oslo</parameter><parameter=days>3</parameter></function>", True),
        ("<tool_call>weather\n<arg_key>ci", False),
        ("<tool_call>clock\n</tool_call>", True),
        ('[weather(city="Oslo", ', False),
        ("[weather(city='Oslo', days=3), clock()]", True),
        ("[clock(), weather(", False),
        ("Ask weather(city) for it", True),
        (f"<think>{HEAD}</think>{HEAD}", False),
        (f"So:\n<think>{HEAD}</think>\n", True),
    ],
)
def test_what_is_held(follow: Any, text: str, complete: bool) -> None:
    constraint, forbidden = follow(text)
    assert not forbidden
    assert constraint.complete() is complete


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        (HEAD + '": {"town', "town"),
        (HEAD + '": {"city": "Paris', "Paris"),
        (HEAD + '": {"city": "Oslo", "days": 3, "', ","),
        ('{"name": "clock", "arguments": {"', '"'),
        (HEAD + '": "{', ' "'),
        (TAGS + "<parameter=town", "town"),
        (TAGS + "<parameter=city>Paris", "P"),
        ("[clock(), weather(city='Oslo', days=0", "0"),
    ],
)
def test_what_is_forbidden(follow: Any, text: str, forbidden: str) -> None:
    _, found = follow(text)
    assert found and forbidden in found[0]


def test_reasoning_that_the_prompt_began(follow: Any) -> None:
    assert follow(HEAD, aside="</think>")[0].complete()
    assert not follow(f"Well.</think>{HEAD}", aside="</think>")[0].complete()


def test_free_text_is_not_masked(open_engine: Any, follow: Any) -> None:
    size = open_engine().vocabulary.size
    logits = np.zeros((1, size), np.float32)
    follow("Any text")[0].mask(logits)
    assert (logits == 0).all()
    follow(HEAD)[0].mask(logits)
    assert 0 < (logits == 0).sum() < 100


@pytest.mark.parametrize("draft", ["none", "ngram", "damaged"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_arguments_obey_their_schema(
    draft: str, temperature: float, drafts: dict[str, str], open_engine: Any, parts: PartGrammars
) -> None:
    engine = open_engine(draft=drafts[draft])
    for seed in range(4):
        sampling = SamplingParameters(temperature=temperature, seed=seed)
        stream = engine.generate(
            PROMPT + HEAD[:-1], sampling, GenerationLimits(max_tokens=60), grammar=parts
        )
        # The head ends in the answer, so that it begins the part.
        text = (HEAD[:-1] + stream.result.text).partition('"arguments"')[2].lstrip(": ")
        if text:
            arguments, _ = json.JSONDecoder().raw_decode(text)
            assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9
            assert len(arguments) == 2


def plain_answer(engine: Any, parts: PartGrammars, plain: Any, count: int) -> list[int]:
    """Greedy decoding token by token, each judged by a constraint that has read all before."""
    tokens = engine.tokenize(PROMPT).tolist()
    answer: list[int] = engine.vocabulary.tokenize(HEAD, add_special=False).tolist()
    begun = len(answer)
    while len(answer) < begun + count:
        constraint = engine.constrain(parts, GREEDY)
        for token in answer:
            constraint.commit([token])
        logits = plain.logits(tokens + answer)[None].copy()
        constraint.walk(np.zeros(0, np.int32))
        constraint.mask(logits)
        answer.append(int(np.argmax(logits[0])))
        if answer[-1] in engine.vocabulary.end_tokens:
            break
    return answer[begun:]


@pytest.mark.parametrize("draft", ["none", "ngram", "damaged"])
def test_greedy_tokens_are_those_of_plain_decoding(
    draft: str, drafts: dict[str, str], open_engine: Any, parts: PartGrammars, plain: Any
) -> None:
    engine = open_engine(draft=drafts[draft])
    bias = {}
    begun = engine.vocabulary.tokenize(HEAD, add_special=False).tolist()
    expected = plain_answer(engine, parts, plain, 20)

    def forced(history: Any, logits: Any) -> None:
        place = len(history) - len(engine.tokenize(PROMPT))
        if place < len(begun):
            logits[begun[place]] = 1e6

    stream = engine.generate(
        PROMPT,
        replace(GREEDY, logit_bias=bias),
        GenerationLimits(max_tokens=len(begun) + 20),
        grammar=parts,
        edit=forced,
    )
    got = list(stream.result.tokens)
    assert got[: len(begun)] == begun
    assert got[len(begun) :] == expected


@pytest.mark.slow
def test_the_distribution_is_the_masked_targets(
    drafts: dict[str, str], open_engine: Any, parts: PartGrammars, plain: Any
) -> None:
    """The first value behind a head. Chi-square at a false-alarm rate of 1e-3, fixed seeds."""
    engine, runs = open_engine(draft=drafts["damaged"], k=2), 120
    head = engine.vocabulary.tokenize(HEAD[13:] + '": {"city": "', add_special=False).tolist()
    tokens = engine.tokenize(PROMPT).tolist()
    logits = plain.logits(tokens + head).astype(np.float64)[None].astype(np.float32)
    constraint = engine.constrain(parts, GREEDY)
    for token in head:
        constraint.commit([token])
    constraint.walk(np.zeros(0, np.int32))
    constraint.mask(logits)
    chances = np.exp((logits[0] - logits[0].max()) / 1.5, dtype=np.float64)
    chances /= chances.sum()

    def forced(history: Any, row: Any) -> None:
        place = len(history) - len(tokens)
        if place < len(head):
            row[head[place]] = 1e6

    counts: Counter[int] = Counter()
    for seed in range(runs):
        sampling = SamplingParameters(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        stream = engine.generate(
            PROMPT,
            sampling,
            GenerationLimits(max_tokens=len(head) + 3),
            grammar=parts,
            accept="rejection",
            edit=forced,
        )
        counts[stream.result.tokens[len(head)]] += 1
    common = [token for token in np.argsort(-chances) if chances[token] * runs >= 5]
    observed = [counts[int(token)] for token in common]
    expected = [chances[token] * runs for token in common]
    observed.append(runs - sum(observed))
    expected.append(runs - sum(expected))
    assert len(common) > 1
    assert stats.chisquare(observed, expected).pvalue > 1e-3
