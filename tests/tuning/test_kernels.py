from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec.backend import kernel_status
from edgespec.gguf.header import read_header
from edgespec.kernels.check import FormatTimes
from edgespec.tuning import exactness
from edgespec.tuning.exactness import (
    fast_options,
    faster_formats,
    usual_kernels,
)
from tests.built_models import write_llama

pytestmark = pytest.mark.skipif(
    kernel_status().instruction_set is None, reason="our kernels cannot be used here"
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from edgespec.backend import quantize

    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    quantize(write_llama(tmp_path / "plain.gguf"), tmp_path / "model.gguf", "Q8_0")
    return tmp_path / "model.gguf"


def timed(monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float) -> list[Any]:
    """Measurements with these seconds for everything; a list of what was measured."""
    asked: list[Any] = []

    def measure(names: list[str], **facts: Any) -> dict[str, FormatTimes]:
        asked.append(names)
        columns = facts["columns"]
        times = FormatTimes(dict.fromkeys(columns, ours), dict.fromkeys(columns, theirs))
        return dict.fromkeys(names, times)

    monkeypatch.setattr(exactness, "time_formats", measure)
    return asked


@pytest.mark.parametrize(("ours", "expected"), [(0.5, True), (1.0, True), (1.2, False)])
def test_what_is_faster_is_chosen_and_measured_once(
    model: Path, monkeypatch: pytest.MonkeyPatch, ours: float, expected: bool
) -> None:
    asked = timed(monkeypatch, ours, 1.0)
    header = read_header(model)
    for _ in range(2):
        assert (faster_formats(header) == frozenset({"Q8_0"})) is expected
    assert asked == [["Q8_0"]]
    assert usual_kernels(header) == ("edgespec" if expected else "llama.cpp")
    assert fast_options(model, 3).threads == 3


def test_the_first_verdict_holds_for_all_processes(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a seed would give two texts."""
    header = read_header(model)
    slow = timed(monkeypatch, 2.0, 1.0)

    def measure_while_another_does(names: list[str], **facts: Any) -> dict[str, FormatTimes]:
        timed(monkeypatch, 2.0, 1.0)
        assert faster_formats(header) == frozenset()  # the other process is done first
        fast = dict.fromkeys(facts["columns"], 0.1)
        return {names[0]: FormatTimes(fast, dict.fromkeys(facts["columns"], 1.0))}

    monkeypatch.setattr(exactness, "time_formats", measure_while_another_does)
    assert faster_formats(header) == frozenset()
    assert slow == []


def test_real_kernels_are_timed(model: Path) -> None:
    assert faster_formats(read_header(model)) <= {"Q8_0"}
    (stored,) = (model.parent / "measurements").glob("kernels-*.json")
    assert stored.stat().st_size > 0
