"""Copying from earlier texts leaves texts and distributions as they are, and is nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec import EarlierTexts, GenerationLimits, Session
from edgespec.errors import UsageError
from tests.runtime.exact import GREEDY, drawn_p_value, emitted, run, unfiltered

PROMPT = "<|im_start|>user\nName the seven days of the week.<|im_end|>\n<|im_start|>assistant\n"
OTHER = "<|im_start|>user\nWho wrote Hamlet?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("k", [1, 4, None])
def test_texts_are_those_of_plain_decoding(open_engine: Any, k: Any) -> None:
    """Copying the right answer, one that goes on in another way, and one of another prompt."""
    copying, plain = open_engine(draft="ngram", k=k), open_engine(draft="none")
    for sampling, rule in ((GREEDY, "greedy"), (unfiltered(3), "coupled")):
        answers = [emitted(plain, each, sampling, 48, accept=rule) for each in (PROMPT, OTHER)]
        broken = [*answers[0][:10], *answers[1][5:]]
        for texts in ([answers[0]], [broken], answers, [answers[1], broken]):
            recent = EarlierTexts(1000)
            for text in texts:
                recent.add(text)
            stream = run(copying, PROMPT, sampling, 48, accept=rule, recent=recent)
            assert list(stream.result.tokens) == answers[0]
            if k is not None and texts == [answers[0]]:
                assert stream.statistics.accepted > 20


@pytest.mark.slow
def test_the_joint_distribution_is_the_targets(open_engine: Any, plain: Any) -> None:
    """Chi-square over three tokens at a false-alarm rate of 1e-3, fixed seeds.

    Every answer is remembered, so that later ones copy what was drawn before.
    """
    engine, recent = open_engine(draft="ngram", k=2), EarlierTexts(2000)
    p, proposed = drawn_p_value(engine, plain, PROMPT, 400, recent=recent)
    assert proposed > 100
    assert p > 1e-3


def test_an_answer_is_found_by_the_same_question_of_the_same_user_only(open_engine: Any) -> None:
    engine = open_engine(draft="ngram", k=4)
    mine, theirs = EarlierTexts(1000), EarlierTexts(1000)
    engine.forget()

    def accepted(recent: EarlierTexts | None) -> int:
        engine.forget()
        return int(run(engine, PROMPT, GREEDY, 40, recent=recent).statistics.accepted)

    alone = accepted(None)
    assert accepted(mine) == alone
    assert accepted(mine) > alone + 10
    assert accepted(None) == alone
    assert accepted(theirs) == alone
    assert accepted(theirs) > alone + 10


def test_streams_that_take_turns_copy_from_their_own_only(
    open_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is consulted in a stream's turn was given to that stream."""
    engine = open_engine(draft="ngram", k=3)
    one, two = EarlierTexts(1000), EarlierTexts(1000)
    expected = {id(one): emitted(engine, PROMPT, GREEDY, 30), id(two): None}
    expected[id(two)] = emitted(engine, OTHER, GREEDY, 30)
    seen: list[set[int]] = []
    cycle = engine.decoder.cycle

    def watched(limit: int) -> Any:
        seen.append({id(reader.texts) for reader in engine.drafter._readers})
        return cycle(limit)

    monkeypatch.setattr(engine.decoder, "cycle", watched)
    streams = [
        engine.generate(prompt, GREEDY, run_limits(30), recent=recent)
        for prompt, recent in ((PROMPT, one), (OTHER, two), (PROMPT, None))
    ]
    turns = [iter(stream) for stream in streams]
    wanted = [{id(one)}, {id(two)}, set()]
    for _ in range(6):
        for turn, allowed in zip(turns, wanted, strict=True):
            seen.clear()
            next(turn, None)
            assert all(each == allowed for each in seen)
    results = [list(stream.result.tokens) for stream in streams]
    assert results == [expected[id(one)], expected[id(two)], expected[id(one)]]


def run_limits(count: int) -> Any:
    return GenerationLimits(max_tokens=count)


def test_a_conversation_remembers_what_was_reset(open_engine: Any) -> None:
    engine, recent = open_engine(draft="ngram", k=4), EarlierTexts(1000)
    session = Session(engine, None, GREEDY, run_limits(40), recent=recent)
    first = session.send("Name the seven days of the week.").result
    session.reset()
    engine.forget()
    again = session.send("Name the seven days of the week.").result
    assert again.tokens == first.tokens
    assert again.statistics.accepted > first.statistics.accepted + 10


def test_a_file_is_looked_up(open_engine: Any, tmp_path: Path) -> None:
    plain = open_engine(draft="ngram", k=4)
    expected = run(plain, PROMPT, GREEDY, 40)
    path = tmp_path / "days.txt"
    path.write_text("\ufeff" + expected.result.text, encoding="utf-16")
    engine = open_engine(draft="ngram", k=4, lookup=(path,))
    got = run(engine, PROMPT, GREEDY, 40)
    assert got.result.tokens == expected.result.tokens
    assert got.statistics.accepted > expected.statistics.accepted + 10
    assert 0 < engine.lookup.size < 60
    assert "--lookup" in open_engine(draft="none", lookup=(path,)).notice


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x89PNG\r\n\x1a\n\x00", "is not UTF-8"),
        (b"a\0b", "is not text: it has zero bytes"),
        (b"\xff\xfea", "is not UTF-16"),
        (b"\xef\xbb\xbf \n", "is empty"),
        (b"x" * ((4 << 20) + 1), "is too long to be looked up: it has more than 4 MiB"),
        (b"7 " * (1 << 20), "tokens and 262,144 fit"),
        (None, "cannot read"),
    ],
)
def test_what_cannot_be_looked_up_is_one_line(
    open_engine: Any, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=problem) as told:
        open_engine(draft="ngram", lookup=(path,))
    assert "\n" not in str(told.value)
