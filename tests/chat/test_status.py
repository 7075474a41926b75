from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec.chat.status import notices, statistics_lines, status_line
from edgespec.runtime.statistics import Statistics
from edgespec.runtime.stream import Result


def _result(drafter: str = "ngram", tokens: int = 24) -> Result:
    statistics = Statistics(decode_s=0.5, emitted=tokens)
    statistics.count_cycle(3, 2, drafting=True)
    statistics.count_cycle(0, 0, drafting=True)
    return Result("text", tuple(range(tokens)), 9, "stop", "test", drafter, statistics)


def test_status_line() -> None:
    expected = "24 tokens, 48.0/s, 67% accepted, 12.00 a cycle, ngram, context 33/4096"
    assert status_line(_result(), 33, 4096) == expected
    plain = replace(_result("none", 1), statistics=Statistics())
    assert status_line(plain, 10, 4096) == "1 token, 0.0/s, none, context 10/4096"


@pytest.mark.parametrize("drafter", ["none", "a-model-with-a-very-long-name" * 3])
@pytest.mark.parametrize("tokens", [1, 99_999])
def test_status_line_fits(drafter: str, tokens: int) -> None:
    assert len(status_line(_result(drafter, tokens), 131_071, 131_072)) < 80
    assert len(status_line(_result(drafter, tokens), 131_071, 131_072, 40)) < 40


def test_statistics_fit() -> None:
    assert max(map(len, statistics_lines(_result()))) < 80


def test_notices() -> None:
    result = _result()
    assert list(notices(result, 0, 0)) == []
    assert list(notices(result, 4, 2)) == [
        "the context is full: the model no longer sees the first 4 messages"
    ]
    assert "24 tokens" in next(notices(replace(result, finish_reason="length"), 0, 0))
    assert "context is full" in next(notices(replace(result, finish_reason="context"), 0, 0))
    assert list(notices(replace(result, finish_reason="cancelled"), 0, 0)) == ["stopped"]
    silent = replace(result, finish_reason="cancelled", text="")
    assert "/retry" in next(notices(silent, 0, 0))
