from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from edgespec.chat.conversation import Chat
from edgespec.chat.screen import (
    Figures,
    Forecast,
    Meter,
    notices,
    statistics_lines,
    status_line,
    summary_line,
)
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Message, Session
from edgespec.runtime.stream import GenerationLimits, Result
from edgespec.tuning.exactness import PLAIN

FIGURES = Figures(24, 48.0, 1.28, 0.67, "ngram", 33, 4096)


def _result(tokens: int = 24) -> Result:
    statistics = Statistics(decode_s=0.5, emitted=tokens)
    statistics.count_cycle(3, 2, drafting=True)
    statistics.count_cycle(0, 0, drafting=True)
    return Result("text", tuple(range(tokens)), 9, "stop", "test", "ngram", statistics)


def test_status_line() -> None:
    expected = "24 tokens, 48.0/s, 1.3x plain (37.5/s), 67% accepted, ngram, context 33/4096"
    assert status_line(FIGURES) == expected
    unknown = replace(FIGURES, tokens=1, speedup=None, acceptance=None, drafter="none")
    assert status_line(unknown) == "1 token, 48.0/s, none, context 33/4096"


@pytest.mark.parametrize("drafter", ["none", "a-model-with-a-very-long-name" * 3, "語" * 50])
@pytest.mark.parametrize("tokens", [1, 99_999])
@pytest.mark.parametrize("width", [80, 60, 20])
def test_status_line_fits(drafter: str, tokens: int, width: int) -> None:
    figures = replace(FIGURES, drafter=drafter, tokens=tokens, used=131_071, capacity=131_072)
    assert cell_len(status_line(figures, width)) < width


@pytest.mark.parametrize("width", [80, 60, 20])
@pytest.mark.parametrize("tokens", [1, 99_999])
def test_a_lossy_rule_is_always_said(tokens: int, width: int) -> None:
    figures = replace(FIGURES, exactness="lossy", tokens=tokens, drafter="a-long-name" * 5)
    assert "lossy, context" in status_line(figures, width)
    assert len(status_line(figures, width)) < width
    assert "not the distribution" in list(statistics_lines(_result(), figures))[-1]
    assert max(map(len, statistics_lines(_result(), figures))) < 80


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("model", ["m", "語" * 50])
@pytest.mark.parametrize("drafter", ["none", "a-model-with-a-very-long-name" * 3])
@pytest.mark.parametrize("files", [[], ["notes.txt"] * 20])
def test_summary_line_fits(width: int, model: str, drafter: str, files: list[str]) -> None:
    line = summary_line(model, drafter, 131_071, 131_072, files, width)
    assert cell_len(line) < width
    assert "context 131071/131072" in line
    assert line.startswith(model[:2])


def test_summary_line_says_it_all_if_it_can() -> None:
    line = summary_line("smollm2-135m", "ngram", 5, 4096, ["a.txt", "b.txt"], 80)
    assert line == "smollm2-135m, draft ngram, context 5/4096, with a.txt, b.txt"


def test_what_matters_is_left_out_last() -> None:
    long = replace(FIGURES, tokens=1234, per_second=123.4, used=1234, drafter="a-long-name" * 2)
    line = status_line(long)
    assert "1.3x plain" in line
    assert "(96.4/s)" not in line
    assert line.endswith("context 1234/4096")


def test_statistics_fit() -> None:
    lines = list(statistics_lines(_result(), FIGURES))
    assert max(map(len, lines)) < 80
    assert any("1.28x" in line for line in lines)
    assert lines[-2] == "block length  0: 1 cycle, 3: 1 cycle"
    assert lines[-1] == "exactness     bitwise, the logits of plain decoding bit for bit"
    lossy = list(statistics_lines(_result(), replace(FIGURES, exactness="distribution")))
    assert "but for rounding" in lossy[-1] and len(lossy[-1]) < 80
    unknown = replace(FIGURES, speedup=None)
    assert any("not known" in line for line in statistics_lines(_result(), unknown))


def test_notices() -> None:
    result = _result()
    assert list(notices(result, 0, 0, 0)) == []
    assert list(notices(result, 4, 2, 0)) == [
        "the context is full: the model no longer sees the first 4 messages"
    ]
    assert "oldest 50 tokens" in next(notices(result, 0, 0, 50))
    assert "24 tokens" in next(notices(replace(result, finish_reason="length"), 0, 0, 0))
    assert "allow-loops" in next(notices(replace(result, finish_reason="loop"), 0, 0, 0))
    assert "context is full" in next(notices(replace(result, finish_reason="context"), 0, 0, 0))
    assert list(notices(replace(result, finish_reason="cancelled"), 0, 0, 0)) == ["stopped"]
    silent = replace(result, finish_reason="cancelled", text="")
    assert "/retry" in next(notices(silent, 0, 0, 0))


def test_the_meter_reads_a_turn_at_any_time(engine: Engine) -> None:
    turn = Session(engine, limits=GenerationLimits(max_tokens=2)).send("Count to ten.")
    meter = Meter(turn, engine)
    assert meter.read().tokens == 0
    next(iter(turn))
    first = meter.read()
    assert 0 < first.tokens <= 2
    result = turn.result
    last = meter.read()
    assert (last.tokens, last.used) == (2, result.prompt_tokens + 2)
    assert last.per_second == result.statistics.tokens_per_second
    assert last.speedup is None  # no costs are known with a fixed k
    assert (last.capacity, last.drafter) == (engine.context_length, "ngram")


def test_the_speedup_is_of_this_answer_and_only_told_when_it_is_known() -> None:
    statistics = Statistics(decode_s=1.0, emitted=31)
    statistics.plain_steps_s += [0.04] * 4
    statistics.count_cycle(3, 2, drafting=True)
    stream = SimpleNamespace(statistics=statistics, emitted=[], sequence=[])
    turn: Any = SimpleNamespace(stream=stream)
    engine: Any = SimpleNamespace(
        context_length=100, drafter_name="ngram", exactness_of=lambda _: PLAIN
    )
    meter = Meter(turn, engine)
    assert meter.read().speedup is None  # too few tokens
    statistics.emitted = 50
    assert meter.read().speedup == pytest.approx(2.0)
    assert meter.read().plain_per_second == pytest.approx(25.0)


Say = Callable[..., list[str]]
MESSAGE = "Tell me a story about the sea and the ships. " * 12


@pytest.mark.slow
def test_it_is_said_before_it_happens_and_once(chat: Chat, say: Say) -> None:
    said: list[list[str]] = []
    while not any("no longer sees" in line for line in (said[-1] if said else ())):
        assert len(said) < 20
        said.append(say(MESSAGE))
    warned = [turn for turn, lines in enumerate(said) if any("any more" in x for x in lines)]
    happened = len(said) - 1
    assert warned[0] in (happened - 1, happened - 2)
    assert len([turn for turn in warned if turn < happened]) == 1
    (warning,) = [line for line in said[warned[0]] if "any more" in line]
    promised = re.fullmatch(
        r"the context is (\d\d)% full: soon the model will not see the oldest (\d+) messages "
        r"any more",
        warning,
    )
    assert promised
    (dropped,) = [line for line in said[happened] if "no longer sees" in line]
    assert f"first {promised.group(2)} messages" in dropped


@pytest.mark.parametrize(("used", "warns"), [(500, False), (860, False), (880, True)])
def test_at_85_percent(engine: Engine, used: int, warns: bool) -> None:
    session = Session(engine)
    session.messages = [Message("user", "hi"), Message("assistant", "hello")] * 10
    assert bool(Forecast().after(session, used)) is warns


def test_without_dropping_it_says_that_it_ends(engine: Engine) -> None:
    session = Session(engine)
    session.limits = replace(session.limits, overflow="stop")
    session.messages = [Message("user", "hi"), Message("assistant", "hello")]
    assert "it ends soon; /reset" in str(Forecast().after(session, 1000))


def test_it_is_said_again_after_room_was_made(engine: Engine) -> None:
    session, forecast = Session(engine), Forecast()
    session.messages = [Message("user", "hi"), Message("assistant", "hello")] * 10
    said = [forecast.after(session, used) is not None for used in (900, 950, 500, 900)]
    assert said == [True, False, False, True]
