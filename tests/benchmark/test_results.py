"""Figures from pairs, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.benchmark.results import (
    alpha_by_position,
    by_depth,
    median_interval,
    summarize,
    table_lines,
)


def test_lines_by_category_and_for_all(pairs: list[dict[str, Any]]) -> None:
    lines = summarize(pairs)
    assert [line["category"] for line in lines] == ["a", "b", "all"]
    assert [line["speedup"]["median"] for line in lines] == [1.5, 4.0, 2.0]
    assert lines[0]["acceptance_rate"] == pytest.approx(7 / 10)
    assert lines[1]["acceptance_rate"] is None
    assert lines[2]["tokens_per_cycle"] == pytest.approx(2.0)
    assert lines[2]["same_texts"] == 3
    assert lines[1]["speedup"] == {"median": 4.0, "low": 4.0, "high": 4.0}


def test_acceptance_by_position_and_speed_by_depth(pairs: list[dict[str, Any]]) -> None:
    assert alpha_by_position(pairs) == pytest.approx([6 / 8, 1 / 2])
    assert alpha_by_position([]) == []
    assert by_depth(pairs, "plain") == pytest.approx({0: 30 / 4})


def test_the_interval_holds_the_median_and_widens_with_the_spread() -> None:
    narrow, wide = median_interval([1.0, 1.1, 0.9] * 5), median_interval([1.0, 3.0, 0.1] * 5)
    for found in (narrow, wide):
        assert found["low"] <= found["median"] <= found["high"]
    assert wide["high"] - wide["low"] > narrow["high"] - narrow["low"]


def test_the_table_says_what_it_is_of(pairs: list[dict[str, Any]]) -> None:
    head = {
        "settings": {
            "model": "m",
            "draft": "ngram",
            "k": "auto",
            "threads": 2,
            "flash_attention": False,
            "exactness": "bitwise",
            "tokens": 10,
        },
        "machine": {"processor": "P", "cores": 2},
    }
    text = "\n".join(table_lines(pairs, head, 4, 2**20))
    for part in ("1: 0.75", "3 of 3", "1 pairs were left out", "1 MiB"):
        assert part in text
    for some, shown in ((pairs[2:] * 5, "4.00   "), (pairs[2:] * 6, "4.00 [4.00, 4.00]")):
        text = "\n".join(table_lines(some, head, len(some), 2**20))
        assert shown in text
        assert ("have no interval" in text) == (len(some) < 6)
