"""Greedy and coupled answers against plain ones, and what a wrong rollback does to them."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.backend import Context, ContextOptions, Model, capabilities
from edgespec.drafters import ModelDrafter, PromptLookupDrafter
from edgespec.verification.texts import check_coupled, check_greedy

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas, reason="LLAMAFILE kernels round batches differently"
)


@pytest.mark.parametrize("drafter", ["ngram", "damaged"], indirect=True)
def test_answers_are_those_of_plain_decoding(
    drafter: Any, target: Context, questions: list[Any]
) -> None:
    greedy = check_greedy(target, drafter, 3, questions, 24)
    assert greedy.holds and not greedy.details, greedy.details
    assert greedy.figures["tokens"] > 24
    assert 0 < greedy.figures["accepted"] < greedy.figures["proposed"]
    coupled = check_coupled(target, drafter, 3, questions, 24)
    assert coupled.holds, coupled.details


@pytest.mark.parametrize("check", [check_greedy, check_coupled])
def test_a_rollback_that_is_off_by_one_is_caught(
    check: Any,
    stale: type[Context],
    model: Model,
    options: ContextOptions,
    damaged_drafter: ModelDrafter,
    questions: list[Any],
) -> None:
    with stale(model, options) as context:
        result = check(context, damaged_drafter, 3, questions, 24)
    assert not result.holds
    assert f"{len(result.details)} answers differ" in result.summary
    difference = result.figures["differences"][0]
    assert difference["plain"]["token"] != difference["speculative"]["token"]
    assert 0 <= difference["speculative"]["probability"] <= 1
    if check is check_greedy:
        # Plain greedy decoding takes the most likely token.
        assert difference["plain"]["probability"] >= difference["speculative"]["probability"]


def test_a_drafter_is_not_believed(target: Context, questions: list[Any]) -> None:
    """A decoder that keeps whatever was proposed is caught, with the place of the first mistake."""
    from edgespec.runtime.decoder import Decoder

    class Credulous(Decoder):
        def _accept(self, logits: Any, count: int, q: Any) -> int:
            accepted = super()._accept(logits, count, q)
            if count == 0:
                return accepted
            self._emitted[:count] = self.history[self.length : self.length + count]
            return count - 1

    target.clear()
    drafter = PromptLookupDrafter(target.capacity, threshold=0.0)
    result = check_greedy(target, drafter, 3, questions, 24, decoder_class=Credulous)
    assert not result.holds
    assert result.figures["differences"][0]["prompt"] in ("list", "copying")
