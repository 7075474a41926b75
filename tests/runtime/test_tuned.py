"""Engines open what `edgespec tune` found best, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.control.speedup import Achieved
from edgespec.runtime.loading import with_best
from edgespec.runtime.processors import default_threads
from edgespec.tuning.profile import load_profile
from edgespec.tuning.setting import (
    Setting,
    SettingFigures,
    find_setting,
    forget_settings,
    store_setting,
)

BEST = Setting(threads=1, flash_attention=True, repack=False)
SIZES = list(range(1, 34))


def figures(**values: Any) -> SettingFigures:
    usual: dict[str, Any] = {
        "threads": 1,
        "flash_attention": True,
        "repack": False,
        "kv_type": "f16",
        "identical": 33,
        "logit_difference": 0.0,
        "total_variation": 0.0,
        "depths": [40, 272],
        "sizes": SIZES,
        "seconds": [[0.020 + 0.004 * n for n in SIZES]] * 2,
        "switch_s": [0.001] * 33,
        "prefill_s": 0.005,
    }
    return SettingFigures(**{**usual, **values})


Open = Callable[..., Engine]


@pytest.fixture
def open_tuned(default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Engines in a cache of their own, where the default model is tuned to `BEST`."""
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    profile = load_profile(default_model)
    profile.best = BEST
    profile.save()

    def open_one(**options: Any) -> Engine:
        return Engine(default_model, EngineOptions(**{"context": 512, **options}))

    return open_one


def opened(engine: Engine) -> tuple[int, bool, bool]:
    options = engine.target.options
    return options.threads, options.flash_attention, engine.target.model.options.repack


def test_the_target_is_opened_as_was_found_best(open_tuned: Open) -> None:
    with open_tuned(draft="none") as engine:
        assert opened(engine) == (1, True, False)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"threads": 2}, (2, True, False)),
        ({"flash_attention": False}, (1, False, False)),
        ({"repack": True}, (1, True, True)),
        ({"exact": "bitwise"}, (1, False, False)),
    ],
)
def test_explicit_flags_win(
    open_tuned: Open, flags: dict[str, Any], expected: tuple[int, bool, bool]
) -> None:
    with open_tuned(draft="none", **flags) as engine:
        assert opened(engine) == expected


def test_without_tuning_nothing_changes(default_model: Path, open_tuned: Open) -> None:
    load_profile(default_model).forget()
    options = with_best(EngineOptions(), load_profile(default_model))
    assert options == EngineOptions()
    assert options.thread_count == default_threads()


def test_the_refined_costs_are_used_and_never_replaced(
    default_model: Path, open_tuned: Open
) -> None:
    tuned = figures()
    store_setting(default_model, tuned, tuned=True)
    store_setting(default_model, figures(sizes=SIZES[:16], seconds=[[1.0] * 16] * 2))
    with open_tuned(draft="ngram") as engine:
        assert engine.exactness.setting == tuned
        assert engine.policy.costs.seconds[0, 8] == pytest.approx(tuned.seconds[0][7])
        prompt = "one two three one two three one two three one two"
        stream = engine.generate(
            prompt, SamplingParameters(temperature=0.0), GenerationLimits(max_tokens=12)
        )
        result = stream.result
    assert find_setting(default_model, tuned.name) == tuned
    # What it brought is noted; tokens that the limit cut off were decoded all the same.
    achieved = Achieved.from_json(load_profile(default_model).ngram["achieved"])
    assert achieved.cycles == result.statistics.cycles
    assert len(result.tokens) <= achieved.tokens <= len(result.tokens) + 15
    assert achieved.seconds > 0


def cut(largest: int, seconds: float) -> SettingFigures:
    return figures(
        sizes=SIZES[:largest],
        seconds=[[seconds] * largest] * 2,
        switch_s=[0.001] * largest,
        identical=largest,
    )


def test_a_longer_block_than_was_tuned_is_looked_up_elsewhere(
    default_model: Path, open_tuned: Open
) -> None:
    short = cut(12, 0.01)
    long = cut(20, 0.02)
    store_setting(default_model, short, tuned=True)
    assert find_setting(default_model, short.name, 13) is None
    store_setting(default_model, long)
    assert find_setting(default_model, short.name, 12) == short
    assert find_setting(default_model, short.name, 13) == long
    forget_settings(default_model)
    assert find_setting(default_model, short.name) is None


def test_tuned_bitwise_settings_stay_bitwise_when_only_shorter_blocks_are_exact(
    default_model: Path, open_tuned: Open
) -> None:
    profile = load_profile(default_model)
    profile.best = BEST._replace(flash_attention=False)
    profile.save()
    cut = figures(flash_attention=False, identical=7, logit_difference=0.1)
    store_setting(default_model, cut, tuned=True)
    with open_tuned(draft="ngram") as engine:
        assert (engine.exactness.mode, engine.exactness.largest_k) == ("bitwise", 6)
    with open_tuned(draft="ngram", exact="distribution") as engine:
        assert engine.exactness.largest_k > 6
