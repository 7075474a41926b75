"""The choice between exact and fast settings, and the measurements it rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.backend import Context, ContextOptions, Model
from edgespec.tuning import exactness
from edgespec.tuning.exactness import SettingFigures, choose_exactness, measure_setting
from edgespec.tuning.store import load_measurement, measurement_key, store_measurement

EXACT = SettingFigures(False, 4, 0.0, 0.0, 0.010)
FAST = SettingFigures(True, 1, 0.5, 0.03, 0.010)


def choose(wanted: str, k: int, exact: SettingFigures, fast: SettingFigures) -> Any:
    return choose_exactness(wanted, k, lambda: exact, lambda: fast)


def never() -> SettingFigures:
    raise AssertionError("this need not be measured")


def test_bitwise_never_measures_the_fast_settings_and_cuts_the_block() -> None:
    choice = choose_exactness("bitwise", 7, lambda: EXACT, never)
    assert (choice.mode, choice.flash_attention, choice.largest_k) == ("bitwise", False, 3)
    assert "cut to 3" in choice.reason
    assert choose_exactness("bitwise", 3, lambda: EXACT, never).largest_k == 3
    alone = replace(EXACT, identical=1)
    assert choose_exactness("bitwise", 3, lambda: alone, never).largest_k == 0


@pytest.mark.parametrize(
    ("cost", "mode"), [(0.8, "bitwise"), (1.04, "bitwise"), (1.2, "distribution")]
)
def test_auto_is_bitwise_where_that_costs_under_five_percent(cost: float, mode: str) -> None:
    choice = choose("auto", 3, replace(EXACT, block_s=0.010 * cost), FAST)
    assert choice.mode == mode
    assert choice.flash_attention == (mode == "distribution")
    assert choice.largest_k == 3
    if mode == "distribution":
        assert choice.as_json()["logit_difference"] == 0.5
        assert "0.5" in choice.reason


def test_distribution_takes_the_faster_and_says_bitwise_if_that_is_identical_too() -> None:
    assert choose("distribution", 3, replace(EXACT, block_s=0.02), FAST).flash_attention
    slow = choose("distribution", 3, replace(EXACT, identical=2), replace(FAST, block_s=0.02))
    assert (slow.mode, slow.flash_attention) == ("distribution", False)
    both = choose("distribution", 3, replace(EXACT, block_s=0.02), replace(FAST, identical=4))
    assert (both.mode, both.flash_attention) == ("bitwise", True)


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    return tmp_path


def test_a_context_is_measured_once(
    default_model: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model(default_model) as model:
        options = ContextOptions(length=512, threads=2, outputs=4)
        with Context(model, options) as context:
            figures = measure_setting(context, 3)
            assert 1 <= figures.identical <= 4
            assert (figures.logit_difference == 0.0) == (figures.identical == 4)
            assert figures.block_s > 0
            assert context.length == context.native_length() == 0
            monkeypatch.setattr(exactness, "_measure", lambda *_: never())
            assert measure_setting(context, 3) == figures
            with pytest.raises(AssertionError):
                measure_setting(context, 2)
        with (
            Context(model, replace(options, threads=1)) as other,
            pytest.raises(AssertionError),
        ):
            measure_setting(other, 3)


def test_store(fresh_cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"abc")
    key = measurement_key(file, {"k": 3})
    assert load_measurement(key) is None
    store_measurement(key, {"identical": 4})
    assert load_measurement(key) == {"identical": 4}
    assert measurement_key(file, {"k": 4}) != key
    file.write_bytes(b"abd")
    assert measurement_key(file, {"k": 3}) != key
    (fresh_cache / "measurements" / f"{key}.json").write_text("{")
    assert load_measurement(key) is None


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", "/proc/nowhere")
    store_measurement("key", {})
    assert load_measurement("key") is None
