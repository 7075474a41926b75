"""A cache that cannot be cut back: checkpoints of a recurrent state, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model
from edgespec.errors import CancelledError

LENGTH = 512


@pytest.fixture(scope="module")
def model(recurrent_model: Path) -> Iterator[Model]:
    with Model(recurrent_model) as model:
        yield model


def open_context(model: Model, checkpoints: int) -> Context:
    return Context(model, ContextOptions(LENGTH, outputs=17, checkpoints=checkpoints))


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(32, 127, 120).astype(np.int32)


def one_by_one(context: Context, tokens: np.ndarray) -> np.ndarray:
    return np.array([context.evaluate(tokens[i : i + 1], 1)[0].copy() for i in range(len(tokens))])


def test_found_out_by_asking(model: Model) -> None:
    assert model.has_state
    for checkpoints in (0, 1, 3):
        with open_context(model, checkpoints) as context:
            assert context.can_truncate() == (checkpoints > 0)
            assert context.length == context.native_length() == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 16, 17])
def test_a_block_has_the_logits_of_single_tokens(
    model: Model, tokens: np.ndarray, size: int
) -> None:
    with open_context(model, 0) as context:
        context.prefill(tokens[:50])
        expected = one_by_one(context, tokens[50 : 50 + size])
        context.clear()
        context.prefill(tokens[:50])
        assert np.array_equal(context.evaluate(tokens[50 : 50 + size], size), expected)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_rejected_block_leaves_no_trace(model: Model, tokens: np.ndarray, kept: int) -> None:
    """Evaluate four wrong proposals, keep some of them, go on with the right tokens."""
    with open_context(model, 1) as context:
        context.prefill(tokens[:40])
        expected = one_by_one(context, tokens[40:60])
        context.clear()
        context.prefill(tokens[:40])
        for start in range(40, 55, 5):
            block = tokens[start : start + 5].copy()
            block[kept + 1 :] += 1
            context.evaluate(block, 5)
            context.truncate(start + kept + 1)
            assert context.length == context.native_length() == start
            got = context.evaluate(tokens[context.length : start + 5], 5 - kept)
            assert np.array_equal(got[-1], expected[start + 4 - 40])


def test_goes_back_to_the_newest_checkpoint_that_is_old_enough(
    model: Model, tokens: np.ndarray
) -> None:
    with open_context(model, 3) as context:
        expected = one_by_one(context, tokens[:10])  # checkpoints of 7, 8 and 9 tokens
        context.truncate(9)
        assert context.length == 9
        context.truncate(7)
        assert context.length == 7
        assert np.array_equal(one_by_one(context, tokens[7:10]), expected[7:])
        context.truncate(6)
        assert context.length == context.native_length() == 0
        assert np.array_equal(one_by_one(context, tokens[:10]), expected)


def test_without_checkpoints_nothing_is_left(model: Model, tokens: np.ndarray) -> None:
    with open_context(model, 0) as context:
        context.prefill(tokens)
        context.truncate(len(tokens))
        assert context.length == len(tokens)
        context.truncate(len(tokens) - 1)
        assert context.length == context.native_length() == 0


def test_checkpoints_do_not_outlive_what_they_were_taken_of(
    model: Model, tokens: np.ndarray
) -> None:
    with open_context(model, 2) as context:
        one_by_one(context, tokens[:6])
        context.clear()
        expected = one_by_one(context, tokens[20:26])
        context.truncate(5)
        assert np.array_equal(context.evaluate(tokens[25:26], 1)[0], expected[5])
        state = context.save_state()
        one_by_one(context, tokens[26:28])
        context.restore_state(state)
        assert context.length == context.native_length() == 6
        context.truncate(5)
        assert context.length == 0


def test_a_cancelled_evaluation_leaves_a_state_that_holds(model: Model, tokens: np.ndarray) -> None:
    with open_context(model, 1) as context:
        expected = one_by_one(context, tokens[:12])
        context.clear()
        one_by_one(context, tokens[:6])
        context.cancel()
        with pytest.raises(CancelledError):
            context.evaluate(tokens[6:10], 4)
        context.resume()
        assert context.length == context.native_length() == 6
        assert np.array_equal(one_by_one(context, tokens[6:12]), expected[6:])
        context.cancel()
        with pytest.raises(CancelledError):
            context.prefill(tokens[12:20])
        context.resume()
        assert context.length == context.native_length() <= 12
        done = context.length
        assert np.array_equal(one_by_one(context, tokens[done:12]), expected[done:])


# -- snapshots: states that llama.cpp keeps behind each of an evaluation's last tokens ------------


@pytest.fixture(scope="module")
def gated(built_models: Any, tmp_path_factory: Any) -> Iterator[Model]:
    path = built_models.write_qwen35(tmp_path_factory.mktemp("gated") / "qwen35.gguf")
    with Model(path) as model:
        yield model


def with_snapshots(model: Model, checkpoints: int = 1) -> Context:
    return Context(model, ContextOptions(LENGTH, outputs=17, checkpoints=checkpoints, snapshots=4))


def test_snapshots_are_tried(gated: Model, model: Model) -> None:
    for one in (gated, model):  # the other architecture has none, and copies
        with with_snapshots(one) as context:
            assert context.can_truncate()
            assert context.length == context.native_length() == 0


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
@pytest.mark.parametrize("size", [5, 8])
def test_rejected_tokens_are_taken_back(
    gated: Model, tokens: np.ndarray, kept: int, size: int
) -> None:
    """Five tokens have a snapshot each; before eight the state is copied."""
    with with_snapshots(gated) as context:
        context.prefill(tokens[:40])
        expected = one_by_one(context, tokens[40:60])
        context.clear()
        context.prefill(tokens[:40])
        position = 40
        while position + size <= 60:
            block = tokens[context.length : position + size].copy()
            kept_end = position + kept + 1
            block[kept_end - context.length :] += 1
            context.evaluate(block, min(17, len(block)))
            context.truncate(kept_end)
            assert context.length == context.native_length()
            if size == 5 or size - kept - 1 <= 4:
                assert context.length == kept_end
            position = kept_end
            got = context.evaluate(tokens[context.length : position + 1], 1)[0]
            assert np.array_equal(got, expected[position - 40])
            position += 1


def test_truncated_twice_is_truncated_once(gated: Model, tokens: np.ndarray) -> None:
    """What a cycle emitted may turn out to end inside."""
    with with_snapshots(gated) as context:
        context.prefill(tokens[:20])
        expected = one_by_one(context, tokens[20:25])
        context.clear()
        context.prefill(tokens[:20])
        context.evaluate(tokens[20:25], 5)
        context.truncate(24)
        context.truncate(22)
        assert context.length == context.native_length() == 22
        state = context.save_state()
        assert np.array_equal(context.evaluate(tokens[22:23], 1)[0], expected[2])
        context.restore_state(state)
        assert context.length == context.native_length() == 22
        assert np.array_equal(context.evaluate(tokens[22:23], 1)[0], expected[2])


def test_goes_back_further_than_snapshots_by_a_copy_or_from_nothing(
    gated: Model, tokens: np.ndarray
) -> None:
    with with_snapshots(gated) as context:
        context.prefill(tokens[:10])
        context.prefill(tokens[10:60])  # long: the state is copied before
        context.evaluate(tokens[60:62], 1)
        context.truncate(30)
        assert context.length == context.native_length() == 10
        context.truncate(5)
        assert context.length == context.native_length() == 0


def test_a_short_evaluation_is_not_stopped_halfway(gated: Model, tokens: np.ndarray) -> None:
    with with_snapshots(gated) as context:
        context.prefill(tokens[:20])
        expected = context.evaluate(tokens[20:22], 1).copy()
        context.truncate(21)
        context.cancel()
        with pytest.raises(CancelledError):
            context.evaluate(tokens[21:22], 1)
        with pytest.raises(CancelledError):
            context.prefill(tokens[21:80])
        context.resume()
        assert context.length == context.native_length() == 21
        assert np.array_equal(context.evaluate(tokens[21:22], 1), expected)
