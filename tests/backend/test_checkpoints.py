"""A saved cache that is restored and cut gives the logits, bit for bit, of one that never left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.backend.checkpoints import byte_pointer
from edgespec.backend.lifetime import lib
from edgespec.runtime.prefix_cache import SavedPrefix, read_cache, write_cache

KINDS = ("toy_target", "windowed_model", "recurrent_model", "hybrid_model")
LONG, CUTS = 461, (0, 1, 60, 300, 460, 461)


GEMMA = pytest.param("gemma3-270m.gguf", marks=pytest.mark.model)


@pytest.fixture(scope="module", params=[*KINDS, GEMMA])
def model(request: Any) -> Iterator[Model]:
    real = request.param.endswith(".gguf")
    if real:
        path = request.getfixturevalue("other_model")(request.param)
    else:
        path = request.getfixturevalue(request.param)
    with Model(path, ModelOptions(repack=False)) as model:
        yield model


def open_context(model: Model) -> Context:
    length = 1024 if model.window > 64 else 512
    return Context(model, ContextOptions(length, threads=1))


def text(model: Model) -> np.ndarray:
    """A text of LONG tokens behind one window, if there is a long one."""
    before = model.window if model.window > 64 else 0
    tokens = np.random.default_rng(4).integers(33, 127, before + LONG + 8)
    return tokens.astype(np.int32)


def rows(context: Context, tokens: np.ndarray, length: int) -> np.ndarray:
    """Read what is missing of the first `length` tokens, and the four behind them one by one."""
    context.prefill(tokens[context.length : length])
    return np.array([context.evaluate(tokens[i : i + 1], 1)[0] for i in range(length, length + 4)])


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kept_in", ["memory", "file"])
def test_restored_and_cut_it_is_as_if_it_had_stayed(
    model: Model, cut: int, kept_in: str, tmp_path: Path
) -> None:
    tokens = text(model)
    whole = len(tokens) - 8
    with open_context(model) as one, open_context(model) as other:
        one.prefill(tokens[:whole])
        saved = SavedPrefix.of(one, tokens[:whole])
        if kept_in == "file":
            write_cache(tmp_path / "kept", "key", saved)
            read = read_cache(tmp_path / "kept", "key")
            assert read is not None
            saved = read
        one.truncate(whole - cut)
        expected = rows(one, tokens, whole - cut)
        # In place of another text, and in a context that never held it.
        for context in (one, other):
            context.restore_state(saved.state)
            assert context.length == context.native_length() == whole
            assert context.lowest == saved.lowest == (whole if model.has_state else 0)
            context.truncate(whole - cut)
            left = whole - cut if whole - cut >= saved.lowest else 0
            assert context.length == context.native_length() == left
            assert np.array_equal(rows(context, tokens, whole - cut), expected)
            assert context.native_length() == whole - cut + 4


def test_restored_and_cut_again_and_again(model: Model) -> None:
    """Cut, go on, save, restore, cut below that: nothing is lost on the way."""
    tokens = text(model)
    whole = len(tokens) - 8
    with open_context(model) as live, open_context(model) as moved:
        lengths = (whole, whole - 5, whole - 200, whole - 199, whole - 420, whole, 3)
        for length in lengths:
            for context in (live, moved):
                context.truncate(length)
                context.prefill(tokens[context.length : length])
            assert np.array_equal(rows(moved, tokens, length), rows(live, tokens, length))
            state = moved.save_state()
            moved.clear()
            moved.restore_state(state)
            if model.has_state:
                live.clear()  # of both nothing is left when they are cut


def test_a_state_without_what_left_the_window_is_not_cut_below_it(windowed_model: Path) -> None:
    """As llama.cpp writes it: read again below the lowest length, and used above it."""
    with Model(windowed_model) as model, open_context(model) as context:
        tokens = text(model)
        context.prefill(tokens[:LONG])
        size = lib.llama_state_seq_get_size(context.pointer, 0)
        state = np.empty(size, np.uint8)
        lib.llama_state_seq_get_data(context.pointer, byte_pointer(state), size, 0)
        assert size < context.state_size()
        for cut, left in ((1, LONG - 1), (2, 0), (60, 0)):
            context.restore_state(state)
            assert context.lowest == LONG - 1
            context.truncate(LONG - cut)
            assert context.length == context.native_length() == left
            assert context.lowest <= LONG - 1


def test_who_has_several_sequences_saves_the_first(windowed_model: Path) -> None:
    with Model(windowed_model) as model:
        options = ContextOptions(512, sequences=2)
        with Context(model, options) as context:
            tokens = text(model)
            context.prefill(tokens[:200])
            context.copy_sequence(0, 1)
            state = context.save_state()
            context.restore_state(state)
            assert context.length == context.native_length() == 200
            assert context.lowest == 199
