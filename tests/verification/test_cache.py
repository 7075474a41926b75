"""Caches after many rejections, right ones and such as are off by one."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.backend import Context, ContextOptions, Model, capabilities
from edgespec.drafters import NoDrafter, PromptLookupDrafter
from edgespec.verification.cache import check_cache

CYCLES = 24

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas, reason="LLAMAFILE kernels round batches differently"
)


@pytest.mark.parametrize("drafter", ["damaged"], indirect=True)
def test_caches_of_target_and_draft_are_those_of_plain_decoding(
    drafter: Any, target: Context, questions: list[Any]
) -> None:
    result = check_cache(target, drafter, 3, questions[0], CYCLES)
    assert result.holds, result.details
    parts = {c["part"]: c for c in result.figures["comparisons"]}
    assert set(parts) == {"target, scripted proposals", "target, drafted proposals", "draft"}
    assert all(parts[part]["bit_identical"] for part in parts if part.startswith("target"))
    assert result.figures["cycles"] >= 2 * CYCLES
    assert CYCLES / 2 < result.figures["rejections"] < result.figures["cycles"]
    assert result.figures["accepted"] > CYCLES


@pytest.mark.parametrize("drafter", [NoDrafter(), PromptLookupDrafter(512)], ids=lambda d: d.name)
def test_without_a_draft_model_the_targets_cache_is_tried(
    drafter: Any, target: Context, questions: list[Any]
) -> None:
    result = check_cache(target, drafter, 3, questions[1], CYCLES // 2)
    assert result.holds and result.applies, result.details
    assert not result.figures["draft_compared"]
    assert result.figures["rejections"] > 0


def test_a_target_whose_rollback_is_off_by_one_is_caught(
    stale: type[Context], model: Model, options: ContextOptions, questions: list[Any]
) -> None:
    with stale(model, options) as context:
        result = check_cache(context, NoDrafter(), 3, questions[0], CYCLES // 2)
    assert not result.holds
    assert "differ by" in result.details[0]


def test_a_draft_whose_rollback_is_off_by_one_is_caught(
    stale: type[Context],
    damaged: Model,
    target: Context,
    options: ContextOptions,
    make_drafter: Any,
    questions: list[Any],
) -> None:
    with stale(damaged, options) as context:
        result = check_cache(target, make_drafter(context), 3, questions[0], CYCLES // 2)
    holds = {c["part"]: c["holds"] for c in result.figures["comparisons"]}
    # The text stays right and only comes later, which is why the draft's cache is looked at too.
    assert holds == {
        "target, scripted proposals": True,
        "target, drafted proposals": True,
        "draft": False,
    }


def test_nothing_is_rolled_back_without_proposals(target: Context, questions: list[Any]) -> None:
    result = check_cache(target, NoDrafter(), 0, questions[0], CYCLES)
    assert result.holds and not result.applies
