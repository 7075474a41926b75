"""Measuring a context: what is measured, whether it is right, and that it is done once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model
from edgespec.tuning.exactness import exactness_of
from edgespec.tuning.measure import Effort, measure_context, measuring_text
from edgespec.tuning.setting import (
    SettingFigures,
    load_measurement,
    load_setting,
    measurement_key,
    store_measurement,
    store_setting,
)

OPTIONS = ContextOptions(length=512, threads=2, outputs=6)
EFFORT = Effort(depths=(40, 20), largest=4, repetitions=2, seconds=60.0, needed=4)


@pytest.fixture(scope="module")
def model(default_model: Path) -> Iterator[Model]:
    with Model(default_model) as model:
        yield model


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with Context(model, OPTIONS) as context:
        yield context


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(depth, tokens) of every evaluation with outputs."""
    seen: list[tuple[int, int]] = []
    evaluate = Context.evaluate

    def counted(self: Context, tokens: Any, outputs: int) -> Any:
        assert outputs == len(tokens), "not every row was asked for"
        seen.append((self.length, len(tokens)))
        return evaluate(self, tokens, outputs)

    monkeypatch.setattr(Context, "evaluate", counted)
    return seen


def spoil(monkeypatch: pytest.MonkeyPatch, size: int, row: int, by: float) -> None:
    """One logit of one row of batches of this size is off."""
    evaluate = Context.evaluate

    def spoilt(self: Context, tokens: Any, outputs: int) -> Any:
        logits = evaluate(self, tokens, outputs)
        if len(tokens) == size:
            logits[row, 5] += np.float32(by)
        return logits

    monkeypatch.setattr(Context, "evaluate", spoilt)


# -- what is measured ---------------------------------------------------------------------------


def test_figures_have_a_value_for_every_depth_and_size(context: Context) -> None:
    fractions: list[float] = []
    figures = measure_context(context, EFFORT, fractions.append)
    assert (figures.threads, figures.flash_attention) == (2, False)
    assert (figures.repack, figures.kv_type) == (True, "f16")
    assert figures.depths == [20, 40]
    assert figures.sizes == [1, 2, 3, 4]
    assert np.shape(figures.seconds) == (2, 4)
    assert len(figures.switch_s) == 4
    assert min(map(min, figures.seconds)) > 0 and min(figures.switch_s) >= 0
    assert figures.prefill_s > 0
    assert 1 <= figures.identical <= 4
    assert (figures.logit_difference == 0.0) == (figures.identical == 4)
    assert fractions == [0.25, 0.5, 0.75, 1.0]
    assert context.length == context.native_length() == 0
    table = figures.cost_table(4)
    assert table.largest == 4
    assert table.seconds[1, 1:].tolist() == figures.seconds[1]
    assert figures.block_s(3) == figures.seconds[1][2]
    assert SettingFigures(**json.loads(json.dumps(figures.as_json()))) == figures


def test_every_size_is_evaluated_twice_in_a_row_at_every_depth(
    context: Context, evaluated: list[tuple[int, int]]
) -> None:
    measure_context(context, EFFORT)
    expected = []
    for depth in (40, 20):  # the greatest first
        expected += [(depth + i, 1) for i in range(4)]
        expected += [(depth, n) for n in (1, 1, 2, 2, 3, 3, 4, 4)]
        expected += [(depth, n) for n in (4, 4, 3, 3, 2, 2, 1, 1)]  # back and forth
    assert evaluated == expected


def test_batches_that_are_not_evaluated_twice_are_measured_all_the_same(
    context: Context, evaluated: list[tuple[int, int]]
) -> None:
    effort = EFFORT._replace(depths=(40,), repetitions=1, twice=2)
    figures = measure_context(context, effort)
    assert [n for _, n in evaluated[4:]] == [1, 1, 2, 2, 3, 4]
    assert np.shape(figures.seconds) == (1, 4)
    assert min(figures.seconds[0]) > 0


def test_when_time_runs_out_sizes_end_behind_the_needed_ones(
    context: Context, evaluated: list[tuple[int, int]]
) -> None:
    effort = EFFORT._replace(largest=6, seconds=0.0, needed=3)
    figures = measure_context(context, effort)
    assert figures.sizes == [1, 2, 3]
    assert np.shape(figures.seconds) == (2, 3)
    assert figures.identical <= 3
    batches = [entry for entry in evaluated if entry[1] > 1]
    # No second repetition is begun.
    assert batches == [(d, n) for d in (40, 20) for n in (2, 2, 3, 3)]


def test_a_short_context_is_measured_as_deep_as_it_goes(model: Model) -> None:
    with Context(model, replace(OPTIONS, length=64)) as context:
        figures = measure_context(context, EFFORT._replace(depths=(1000, 20)))
        assert figures.depths == [20, context.capacity - 4]


def test_the_text_is_long_enough(context: Context) -> None:
    for length in (1, 100, 1000):
        text = measuring_text(context, length)
        assert len(text) >= length
        assert text.dtype == np.int32


# -- whether it is right ------------------------------------------------------------------------


def test_batches_are_identical_exactly_where_single_tokens_say_so(context: Context) -> None:
    """Against rows computed here, one token at a time, in the same context."""
    effort = EFFORT._replace(depths=(40,), largest=6, needed=6, repetitions=1)
    figures = measure_context(context, effort)
    text = measuring_text(context, 46)
    context.prefill(text[:40])
    alone = np.stack([context.evaluate(text[i : i + 1], 1)[0].copy() for i in range(40, 46)])
    same = []
    for n in range(1, 7):
        context.truncate(40)
        same.append(np.array_equal(context.evaluate(text[40 : 40 + n], n), alone[:n]))
    assert figures.identical == (6 if all(same) else same.index(False))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_size_is_left_out_of_the_comparison(
    context: Context, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    honest = measure_context(context, EFFORT)
    spoil(monkeypatch, size, size - 1, 0.5)
    figures = measure_context(context, EFFORT)
    assert figures.identical == min(size - 1, honest.identical)
    assert figures.logit_difference == pytest.approx(0.5, abs=1e-3)
    assert 0 < figures.total_variation < 1


def test_a_single_token_that_is_not_repeatable_allows_no_proposals(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, count = Context.evaluate, 0

    def drifting(self: Context, tokens: Any, outputs: int) -> Any:
        nonlocal count
        count += 1
        logits = evaluate(self, tokens, outputs)
        logits[:, 5] += np.float32(count)
        return logits

    monkeypatch.setattr(Context, "evaluate", drifting)
    figures = measure_context(context, EFFORT)
    assert figures.identical == 0
    assert exactness_of("bitwise", 3, figures).largest_k == 0


def test_every_row_of_a_batch_is_compared(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 4, 0, 2.0)
    assert measure_context(context, EFFORT).identical <= 3


# -- what is kept -------------------------------------------------------------------------------


def keep(context: Context, effort: Effort) -> SettingFigures:
    """Measure a context, and store what was found."""
    figures = measure_context(context, effort)
    store_setting(context.model.path, figures)
    return figures


def test_what_was_measured_is_found_again(context: Context, fresh_cache: Path) -> None:
    assert load_setting(context) is None
    figures = keep(context, EFFORT)
    assert load_setting(context) == load_setting(context, 2) == load_setting(context, 4) == figures


def test_larger_batches_have_to_be_measured(context: Context, fresh_cache: Path) -> None:
    keep(context, EFFORT)
    assert load_setting(context, 6) is None
    figures = keep(context, EFFORT._replace(largest=6, needed=6))
    assert figures.sizes[-1] == 6
    assert load_setting(context, 4) == load_setting(context, 6) == figures


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({"threads": 1}, True),
        ({"flash_attention": True}, True),
        ({"kv_type": "f32"}, True),
        ({"length": 1024}, False),
        ({"batch": 64}, False),
    ],
    ids=str,
)
def test_what_is_another_setting(
    context: Context,
    model: Model,
    fresh_cache: Path,
    changes: dict[str, Any],
    again: bool,
) -> None:
    brief = EFFORT._replace(depths=(20,), largest=2, needed=2, repetitions=1)
    keep(context, brief)
    with Context(model, replace(OPTIONS, **changes)) as other:
        found = load_setting(other, 2)
        assert (found is None) == again
        figures = found or keep(other, brief)
        options = other.options
        assert (figures.threads, figures.flash_attention, figures.kv_type) == (
            (options.threads, options.flash_attention, options.kv_type)
        )


def measurements(folder: Path) -> list[Path]:
    return sorted((folder / "measurements").glob("*.json"))


Damage = Callable[[dict[str, Any]], object]
DAMAGES: dict[str, Damage] = {
    "a list": lambda figures: [1, 2],
    "nothing in it": lambda figures: {},
    "another version's field": lambda figures: {**figures, "block_s": 0.01},
    "a field missing": lambda figures: {k: v for k, v in figures.items() if k != "sizes"},
    "no sizes": lambda figures: {**figures, "sizes": []},
    "sizes of another type": lambda figures: {**figures, "sizes": 7},
    "null": lambda figures: {**figures, "seconds": None},
    "a row missing": lambda figures: {**figures, "seconds": figures["seconds"][:1]},
    "a short row": lambda figures: {**figures, "seconds": [[0.1], *figures["seconds"][1:]]},
    "identical beyond what was measured": lambda figures: {**figures, "identical": 99},
    "a negative time": lambda figures: {**figures, "seconds": [[-1.0] * 4] * 2},
    "a time of zero": lambda figures: {**figures, "seconds": [[0.0] * 4] * 2},
    "not a number": lambda figures: {**figures, "seconds": [[float("nan")] * 4] * 2},
    "text for a number": lambda figures: {**figures, "identical": "4"},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_not_believed(context: Context, fresh_cache: Path, damage: str) -> None:
    brief = EFFORT._replace(depths=(8, 4), repetitions=1)
    keep(context, brief)
    (file,) = measurements(fresh_cache)
    whole = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(DAMAGES[damage](whole)), "utf-8")
    assert load_setting(context) is None
    assert keep(context, brief).sizes == [1, 2, 3, 4]
    assert load_setting(context) is not None


@pytest.mark.parametrize("content", [b"", b"{", b'{"threads": 2', b"\xff\xfe", b"null"], ids=str)
def test_unreadable_files_are_not_believed(
    context: Context, fresh_cache: Path, content: bytes
) -> None:
    brief = EFFORT._replace(depths=(20,), largest=2, needed=2, repetitions=1)
    keep(context, brief)
    (file,) = measurements(fresh_cache)
    file.write_bytes(content)
    assert load_setting(context) is None
    figures = keep(context, brief)
    assert load_setting(context) == figures


# -- the store ----------------------------------------------------------------------------------


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


def test_a_file_that_nests_too_deeply_is_removed(fresh_cache: Path) -> None:
    store_measurement("deep", {"a": 1})
    (path,) = fresh_cache.rglob("deep.json")
    path.write_text("[" * 200_000)
    assert load_measurement("deep") is None
    assert not path.exists()
