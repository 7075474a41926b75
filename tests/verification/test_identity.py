"""Greedy and coupled answers against plain ones, and what a wrong rollback does to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, capabilities
from edgespec.drafters import ModelDrafter, PromptLookupDrafter
from edgespec.verification.identity import check_coupled, check_greedy, check_invariance

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


DEPTHS = (40, 300)


@pytest.mark.skipif(capabilities().tinyblas, reason="LLAMAFILE kernels round batches differently")
def test_batches_are_bit_identical_to_single_tokens(target: Context, reading: np.ndarray) -> None:
    result = check_invariance(target, reading, 3, DEPTHS)
    assert result.holds, result.summary
    contexts = result.figures["contexts"]
    assert [context["depth"] for context in contexts] == list(DEPTHS)
    assert [b["n"] for b in contexts[0]["batches"]] == list(range(1, 17))
    assert result.figures["largest_identical_batch"] >= 4


def test_flash_attention_with_two_threads_is_reported(
    model: Model, options: ContextOptions, reading: np.ndarray
) -> None:
    flash = replace(options, flash_attention=True, threads=2)
    with Context(model, flash) as context:
        result = check_invariance(context, reading, 3, (300,))
    if result.figures["largest_identical_batch"] >= 4:
        pytest.skip("flash attention is batch-invariant in this build")
    assert not result.holds
    worst = max(result.figures["contexts"][0]["batches"], key=lambda b: b["logit_difference"])
    assert worst["logit_difference"] > 0 and worst["total_variation"] > 0
    assert len(result.details) == 1


def test_depths_are_cut_to_the_context(model: Model, options: Any, reading: np.ndarray) -> None:
    with Context(model, replace(options, length=256)) as context:
        result = check_invariance(context, reading, 1, (40, 300, 1200))
        depths = [c["depth"] for c in result.figures["contexts"]]
        assert depths == [40, context.capacity - 16]


def test_a_context_that_evaluates_batches_otherwise_is_caught(
    model: Model, options: ContextOptions, reading: np.ndarray
) -> None:
    class Nudged(Context):
        def evaluate(self, tokens: Any, outputs: int) -> Any:
            logits = super().evaluate(tokens, outputs)
            if outputs == 3:
                logits[2, 7] = np.nextafter(logits[2, 7], np.float32(np.inf))
            return logits

    with Nudged(model, options) as context:
        caught = check_invariance(context, reading, 2, (40,))
        assert not caught.holds and caught.figures["largest_identical_batch"] == 2
        assert check_invariance(context, reading, 1, (40,)).holds
