"""Figures from pairs, by hand; energy from counters that start over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec.benchmark.energy import EnergyMeter
from edgespec.benchmark.summary import alpha_by_position, by_depth, median_interval, summarize
from edgespec.benchmark.tables import table_lines


def run(tokens: int, seconds: float, **other: Any) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "decode_s": seconds,
        "first_token_s": 0.5,
        "cycles": tokens // 2,
        "tried": [],
        "accepted": [],
        "depths": {"0": [tokens, seconds]},
        "joules": None,
        **other,
    }


def pair(category: str, plain_s: float, speculative_s: float, **other: Any) -> dict[str, Any]:
    return {
        "category": category,
        "temperature": 0.0,
        "plain": run(10, plain_s),
        "speculative": run(10, speculative_s, **other),
        "same_text": True,
    }


PAIRS = [
    pair("a", 1.0, 0.5, tried=[4, 2], accepted=[2, 1]),
    pair("a", 1.0, 1.0, tried=[4], accepted=[4]),
    pair("b", 2.0, 0.5),
]


def test_lines_by_category_and_for_all() -> None:
    lines = summarize(PAIRS)
    assert [line["category"] for line in lines] == ["a", "b", "all"]
    assert [line["speedup"]["median"] for line in lines] == [1.5, 4.0, 2.0]
    assert lines[0]["acceptance_rate"] == pytest.approx(7 / 10)
    assert lines[1]["acceptance_rate"] is None
    assert lines[2]["tokens_per_cycle"] == pytest.approx(2.0)
    assert lines[2]["same_texts"] == 3
    assert lines[1]["speedup"] == {"median": 4.0, "low": 4.0, "high": 4.0}


def test_acceptance_by_position_and_speed_by_depth() -> None:
    assert alpha_by_position(PAIRS) == pytest.approx([6 / 8, 1 / 2])
    assert alpha_by_position([]) == []
    assert by_depth(PAIRS, "plain") == pytest.approx({0: 30 / 4})


def test_the_interval_holds_the_median_and_widens_with_the_spread() -> None:
    narrow, wide = median_interval([1.0, 1.1, 0.9] * 5), median_interval([1.0, 3.0, 0.1] * 5)
    for found in (narrow, wide):
        assert found["low"] <= found["median"] <= found["high"]
    assert wide["high"] - wide["low"] > narrow["high"] - narrow["low"]


def test_the_table_says_what_it_is_of() -> None:
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
    text = "\n".join(table_lines(PAIRS, head, 4, 2**20))
    for part in ("1: 0.75", "3 of 3", "1 pairs were left out", "1 MiB"):
        assert part in text
    for pairs, shown in ((PAIRS[2:] * 5, "4.00   "), (PAIRS[2:] * 6, "4.00 [4.00, 4.00]")):
        text = "\n".join(table_lines(pairs, head, len(pairs), 2**20))
        assert shown in text
        assert ("have no interval" in text) == (len(pairs) < 6)


def test_energy_counters_that_start_over_or_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "max_energy_range_uj").write_text("10000000")
    (folder / "energy_uj").write_text("9000000")
    meter = EnergyMeter(tmp_path)
    (folder / "energy_uj").write_text("9500000")
    assert meter.joules() == pytest.approx(0.5)
    (folder / "energy_uj").write_text("500000")
    assert meter.joules() == pytest.approx(1.0)
    (folder / "energy_uj").unlink()
    assert meter.joules() is None
    assert EnergyMeter(tmp_path / "nothing").joules() is None
