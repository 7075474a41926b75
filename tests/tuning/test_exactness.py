"""The choice between exact and fast settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgespec.tuning.exactness import choose_exactness, exactness_of, relative_cost
from edgespec.tuning.setting import SettingFigures

EXACT = SettingFigures(
    threads=2, flash_attention=False, repack=True, kv_type="f16",
    identical=4, logit_difference=0.25, total_variation=0.01,
    depths=[40, 272], sizes=list(range(1, 9)), seconds=[[0.009] * 8, [0.010] * 8],
    switch_s=[0.001] * 8, prefill_s=0.001,
)  # fmt: skip
FAST = replace(EXACT, flash_attention=True, identical=1, logit_difference=0.5, total_variation=0.03)


def choose(wanted: str, k: int, exact: SettingFigures, fast: SettingFigures, **options: Any) -> Any:
    return choose_exactness(wanted, k, lambda: exact, lambda: fast, **options)


def never() -> SettingFigures:
    raise AssertionError("this need not be measured")


def costing(figures: SettingFigures, factor: float) -> SettingFigures:
    """The same setting on a machine where all its batches take so many times as long."""
    seconds = [[factor * value for value in row] for row in figures.seconds]
    return replace(figures, seconds=seconds)


def test_bitwise_never_measures_the_fast_settings_and_cuts_the_block() -> None:
    choice = choose_exactness("bitwise", 7, lambda: EXACT, never)
    assert (choice.mode, choice.flash_attention, choice.largest_k) == ("bitwise", False, 3)
    assert "cut to 3" in choice.reason
    assert choose_exactness("bitwise", 3, lambda: EXACT, never).largest_k == 3
    alone = replace(EXACT, identical=1)
    assert choose_exactness("bitwise", 3, lambda: alone, never).largest_k == 0


@pytest.mark.parametrize("k", [1, 2, 3])
def test_auto_is_bitwise_where_blocks_are_identical_and_measures_nothing_else(k: int) -> None:
    choice = choose_exactness("auto", k, lambda: EXACT, never)
    assert (choice.mode, choice.flash_attention, choice.largest_k) == ("bitwise", False, k)
    assert "cut" not in choice.reason


def test_auto_cuts_adaptive_blocks_but_not_below_typical_ones() -> None:
    """Shorter blocks will do where k is only the most; a user's own k is not cut."""
    exact = replace(EXACT, identical=5)
    choice = choose_exactness("auto", 15, lambda: exact, never, adaptive=True)
    assert (choice.mode, choice.largest_k) == ("bitwise", 4)
    with pytest.raises(AssertionError, match="need not"):
        choose_exactness("auto", 5, lambda: exact, never)
    with pytest.raises(AssertionError, match="need not"):
        choose_exactness("auto", 15, lambda: EXACT, never, adaptive=True)


@pytest.mark.parametrize(("cost", "flash"), [(0.8, False), (1.2, True)])
def test_auto_takes_the_faster_where_blocks_are_not_identical(cost: float, flash: bool) -> None:
    choice = choose("auto", 4, costing(EXACT, cost), FAST)
    assert (choice.mode, choice.flash_attention, choice.largest_k) == ("distribution", flash, 4)
    difference = 0.5 if flash else 0.25
    assert choice.as_json()["logit_difference"] == difference
    assert str(difference) in choice.reason
    assert ("1.20 times as long" in choice.reason) == flash


def test_distribution_takes_the_faster_and_says_bitwise_if_that_is_identical_too() -> None:
    assert choose("distribution", 3, costing(EXACT, 2), FAST).flash_attention
    slow = choose("distribution", 3, replace(EXACT, identical=2), costing(FAST, 2))
    assert (slow.mode, slow.flash_attention) == ("distribution", False)
    both = choose("distribution", 3, costing(EXACT, 2), replace(FAST, identical=4))
    assert (both.mode, both.flash_attention) == ("bitwise", True)


def test_no_block_is_longer_than_what_was_measured() -> None:
    assert exactness_of("distribution", 15, FAST).largest_k == 7
    assert exactness_of("auto", 3, FAST).largest_k == 3
    assert exactness_of("bitwise", 15, replace(EXACT, identical=8)).largest_k == 7


def test_relative_cost_weighs_single_tokens_and_blocks_alike() -> None:
    assert relative_cost(costing(EXACT, 3), EXACT) == pytest.approx(3)
    blocks = replace(EXACT, seconds=[[1.0] * 8, [0.010, *[0.040] * 7]])
    assert relative_cost(blocks, EXACT) == pytest.approx(2)
    # Of settings measured to different sizes, what both have is compared.
    glance = replace(FAST, sizes=[1, 2], seconds=[[0.010, 0.020]], switch_s=[0.0] * 2, depths=[272])
    assert relative_cost(EXACT, glance) == pytest.approx(0.5**0.5)


def test_what_is_reported() -> None:
    report = choose("bitwise", 3, EXACT, FAST).as_json()
    assert set(report) == {
        "mode", "reason", "flash_attention", "identical", "logit_difference", "total_variation",
    }  # fmt: skip
