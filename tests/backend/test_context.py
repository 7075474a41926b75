"""The native room, on the real default model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, ModelOptions, capabilities
from edgespec.backend.kernels import formats_of
from edgespec.errors import (
    BackendError,
    CancelledError,
    ContextFullError,
    ModelFileError,
    UsageError,
)
from edgespec.gguf.header import read_header

TEXT = (
    "Rivers carry sand to the sea, and the sea gives it back to the shore. A harbour that is not "
    "dredged fills up within a generation; 人们早就知道这一点, naïve or not. 🌊 "
)


@pytest.fixture(scope="module")
def model(default_model: Path) -> Iterator[Model]:
    with Model(default_model) as model:
        yield model


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with Context(model, ContextOptions(length=1024, threads=2)) as context:
        yield context


def alone(context: Context, tokens: np.ndarray) -> list[np.ndarray]:
    """Rows of logits of tokens evaluated one by one."""
    return [context.evaluate(tokens[i : i + 1], 1)[0].copy() for i in range(len(tokens))]


@pytest.mark.parametrize("depth", [20, 700])
def test_batch_rows_are_bit_identical_to_single_tokens(
    model: Model, context: Context, depth: int
) -> None:
    if capabilities().tinyblas:
        pytest.skip(reason="this build has the LLAMAFILE kernels, whose batches round differently")
    tokens = model.vocabulary.tokenize(TEXT * 20)
    context.prefill(tokens[:depth])
    expected = alone(context, tokens[depth : depth + 9])
    for n in range(1, 10):
        context.truncate(depth)
        rows = context.evaluate(tokens[depth : depth + n], n)
        for row, reference in zip(rows, expected, strict=False):
            assert np.array_equal(row.view(np.int32), reference.view(np.int32)), f"batch of {n}"


def test_logits_are_a_view_without_a_copy(model: Model, context: Context) -> None:
    tokens = model.vocabulary.tokenize(TEXT)[:8]
    first = context.evaluate(tokens, 3)
    assert first.shape == (3, model.vocabulary.size)
    assert first.dtype == np.float32
    assert not first.flags.owndata
    before = first.copy()
    second = context.evaluate(tokens, 3)
    assert np.shares_memory(first, second)
    assert not np.array_equal(before, second)


def test_rollback_leaves_no_trace(model: Model, context: Context) -> None:
    tokens = model.vocabulary.tokenize(TEXT * 2)
    context.prefill(tokens[:30])
    expected = context.evaluate(tokens[30:31], 1).copy()
    context.truncate(30)
    context.evaluate(tokens[40:46], 6)
    context.truncate(30)
    assert context.native_length() == context.length == 30
    assert np.array_equal(context.evaluate(tokens[30:31], 1), expected)


def test_state_is_saved_and_restored_bit_for_bit(model: Model, context: Context) -> None:
    tokens = model.vocabulary.tokenize(TEXT)
    context.prefill(tokens[:20])
    state = context.save_state()
    expected = context.evaluate(tokens[20:21], 1).copy()
    context.clear()
    assert context.native_length() == 0
    context.restore_state(state)
    assert context.length == 20
    assert np.array_equal(context.evaluate(tokens[20:21], 1), expected)


def test_a_foreign_state_is_refused_and_leaves_an_empty_cache(context: Context) -> None:
    with pytest.raises(BackendError, match="does not belong"):
        context.restore_state(np.frombuffer(b"not a state at all" * 10, np.uint8).copy())
    assert context.length == context.native_length() == 0


def test_sequence_copy(model: Model) -> None:
    tokens = model.vocabulary.tokenize(TEXT)
    with Context(model, ContextOptions(length=256, threads=2, sequences=2)) as context:
        context.prefill(tokens[:10])
        context.copy_sequence(0, 1)
        context.truncate(4)
        assert context.native_length(1) == 10
        assert context.native_length(0) == 4


def test_cache_can_be_cut_back_and_the_probe_leaves_it_empty(context: Context) -> None:
    assert context.can_truncate()
    assert context.length == context.native_length() == 0


def test_too_many_tokens_are_refused_before_llama_cpp_sees_them(
    model: Model, context: Context
) -> None:
    tokens = np.ones(context.capacity + 1, np.int32)
    with pytest.raises(ContextFullError, match="--ctx"):
        context.prefill(tokens)
    assert context.length == context.native_length()


def test_cancel_from_another_thread_stops_a_prefill_and_the_context_stays_usable(
    model: Model, context: Context
) -> None:
    tokens = model.vocabulary.tokenize(TEXT * 40)[:1000]
    timer = threading.Timer(0.1, context.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        while True:  # the machine may be fast: go on until the cancellation arrives
            context.clear()
            context.prefill(tokens)
    timer.join()
    assert context.length == context.native_length()
    context.resume()
    context.clear()
    context.prefill(tokens[:20])
    expected = context.evaluate(tokens[20:21], 1).copy()
    with Context(model, context.options) as fresh:
        fresh.prefill(tokens[:20])
        assert np.array_equal(fresh.evaluate(tokens[20:21], 1), expected)


def test_a_cancelled_context_refuses_until_resumed(model: Model, context: Context) -> None:
    context.cancel()
    with pytest.raises(CancelledError):
        context.evaluate(model.vocabulary.tokenize("sea"), 1)
    context.resume()
    assert context.evaluate(model.vocabulary.tokenize("sea"), 1).shape[0] == 1


def test_a_context_shorter_than_a_batch_holds_no_more_than_it_says(model: Model) -> None:
    with Context(model, ContextOptions(length=20, threads=2)) as context:
        assert context.capacity == 20
        context.prefill(np.ones(20, np.int32))
        with pytest.raises(ContextFullError):
            context.prefill(np.ones(1, np.int32))


def test_closed_things_say_so(default_model: Path) -> None:
    model = Model(default_model)
    context = Context(model, ContextOptions(length=64))
    context.close()
    context.close()
    with pytest.raises(BackendError, match="closed"):
        context.evaluate(np.ones(1, np.int32), 1)
    model.close()
    model.close()
    with pytest.raises(BackendError, match="closed"):
        Context(model, ContextOptions(length=64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "context length"),
        ({"threads": 0}, "threads"),
        ({"kv_type": "q9"}, "KV type"),
        ({"kv_type": "q8_0"}, "flash attention"),
    ],
)
def test_bad_options(model: Model, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Context(model, ContextOptions(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "emoji 👩‍👩‍👧‍👦 and flags 🇨🇭",
        "汉字 かな 한글",
        "combining e\u0301 a\u0308",
        "tabs\tand\nnew\r\nlines  ",
        "\u202eright to left",
        "<|im_start|>not a control token",
    ],
)
def test_text_survives_tokenizing(model: Model, text: str) -> None:
    vocabulary = model.vocabulary
    tokens = vocabulary.tokenize(text, add_special=False)
    assert b"".join(vocabulary.piece(int(t)) for t in tokens).decode() == text


def test_control_tokens_are_read_only_when_asked_for(model: Model) -> None:
    vocabulary = model.vocabulary
    text = "<|im_start|>user"
    assert len(vocabulary.tokenize(text, parse_special=True)) < len(vocabulary.tokenize(text))
    end = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert len(end) == 1
    assert int(end[0]) in vocabulary.end_tokens


def test_a_lone_surrogate_does_not_break_the_tokenizer(model: Model) -> None:
    assert len(model.vocabulary.tokenize("broken \ud800 half")) > 0


@pytest.mark.parametrize("token", [-1, 10**9])
def test_a_token_outside_the_vocabulary_is_refused(model: Model, token: int) -> None:
    with pytest.raises(BackendError, match="outside"):
        model.vocabulary.piece(token)


def test_vocabulary_without_weights(default_model: Path) -> None:
    with Model(default_model, ModelOptions(vocabulary_only=True)) as model:
        assert model.vocabulary.size == model.header.vocabulary_size


def test_an_exception_in_the_progress_callback_stops_the_load(default_model: Path) -> None:
    def interrupt(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model(default_model, progress=interrupt)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        Model(tmp_path / "nowhere.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ours", [True, False], ids=["edgespec's kernels", "llama.cpp's"])
def test_logits_do_not_depend_on_how_many_threads_there_is_room_for(
    default_model: Path, ours: bool
) -> None:
    """A machine gets busy in the middle of an answer: its bits stay the same."""
    formats = formats_of(read_header(default_model)) if ours else frozenset()
    asked: list[int] = []

    def room() -> int:
        asked.append(1 + len(asked) % 3)
        return asked[-1]

    with Model(default_model, ModelOptions(formats)) as model:
        assert model.kernels == ("edgespec" if ours else "llama.cpp")
        tokens = model.vocabulary.tokenize(TEXT * 8)[:200]
        rows = []
        for options in (ContextOptions(threads=1), ContextOptions(threads=3, room=room)):
            with Context(model, options) as context:
                for start in (0, 40, 80, 120):
                    context.prefill(tokens[start : start + 40])
                found = [context.evaluate(tokens[at : at + 4], 4).copy() for at in (160, 164, 168)]
                rows.append(
                    np.concatenate([*found, *alone(context, tokens[172:180])[:]], axis=None)
                )
    assert len(asked) == 15 and set(asked) == {1, 2, 3}
    assert np.array_equal(rows[0].view(np.int32), rows[1].view(np.int32))
