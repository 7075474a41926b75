"""Batches against single tokens, in the context that speculation uses and in one that it avoids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, capabilities
from edgespec.verification.invariance import check_invariance

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
