"""The command on the real model: pairs, the same greedy texts, going on with a file, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edgespec.benchmark.measuring import EnergyMeter
from edgespec.cli.main import cli
from edgespec.errors import EdgespecError, UsageError


@pytest.fixture
def bench(default_model: Path) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        fixed = ("bench", str(default_model), "--threads", "2", "--ctx", "512", "--k", "3")
        return CliRunner().invoke(cli, [*fixed, *words], catch_exceptions=True)

    return run


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    questions = [
        {"question_id": 1, "category": "copy", "turns": ["Repeat: one two three one two three"]},
        {"question_id": 2, "category": "talk", "turns": ["Name a river.", "Another one."]},
        {"question_id": 3, "category": "long", "turns": ["word " * 600]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in questions))
    return path


@pytest.mark.slow
def test_pairs_of_all_tasks_and_going_on_with_them(
    bench: Callable[..., Result], suite: Path, tmp_path: Path
) -> None:
    out, png = tmp_path / "out.jsonl", tmp_path / "out.png"
    words = ("--suite", str(suite), "--tokens", "12", "--out", str(out))
    first = bench(*words, "--temperature", "0", "--json", "--png", str(png))
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert png.read_bytes().startswith(b"\x89PNG")
    pairs = {pair["task"]: pair for pair in report["pairs"]}
    assert set(pairs) == {"copy-1", "talk-2", "long-3"}
    assert "--ctx" in pairs["long-3"]["skipped"]
    for name in ("copy-1", "talk-2"):
        assert pairs[name]["same_text"] is True
        assert pairs[name]["plain"]["tokens"] == pairs[name]["speculative"]["tokens"] > 0
        assert pairs[name]["plain"]["tried"] == []
        assert pairs[name]["plain"]["cycles"] == pairs[name]["plain"]["tokens"]
    copying = pairs["copy-1"]["speculative"]
    assert sum(copying["accepted"]) + copying["cycles"] >= copying["tokens"]
    assert report["summary"][-1]["same_texts"] == 2
    kept = out.read_text().splitlines()
    assert len(kept) == 4

    out.write_text("\n".join(kept[:2]) + "\n" + kept[2][:30])  # a crash in the second pair
    again = bench(*words, "--temperature", "0")
    assert again.exit_code == 0, again.output
    assert "greedy texts that are the same: 2 of 2" in again.stdout
    assert "1 pairs were left out" in again.stdout
    lines = out.read_text().splitlines()
    assert lines[:2] == kept[:2]
    assert [json.loads(line)["task"] for line in lines[1:]] == ["copy-1", "talk-2", "long-3"]

    other = bench("--suite", str(suite), "--tokens", "13", "--out", str(out))
    assert isinstance(other.exception, UsageError)
    assert "another tokens" in str(other.exception)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--draft", "none"), "draft"),
        (("--temperature", "-1"), "temperature"),
        (("--categories", "nonsense"), "no category"),
        (("--png", "a.jpg"), "PNG"),
        (("--suite", "missing.jsonl"), "cannot read"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_loaded(
    bench: Callable[..., Result], words: tuple[str, ...], problem: str
) -> None:
    result = bench(*words)
    assert isinstance(result.exception, EdgespecError)
    assert problem in str(result.exception)


def test_a_file_of_something_else_is_left_alone(
    bench: Callable[..., Result], suite: Path, tmp_path: Path
) -> None:
    out: Any = tmp_path / "notes.txt"
    out.write_text("my notes\n")
    result = bench("--suite", str(suite), "--out", str(out))
    assert isinstance(result.exception, UsageError)
    assert out.read_text() == "my notes\n"


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
