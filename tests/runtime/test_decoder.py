"""Commit and rollback: after every cycle both caches hold exactly the committed prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import SamplingParameters
from edgespec.backend import Context, ContextOptions, Model
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import ModelDrafter, NoDrafter, PromptLookupDrafter
from edgespec.errors import ContextFullError, NumericalError, UsageError
from edgespec.runtime.cycle import Origin, Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.speculation.acceptance import draw_settings

OPTIONS = ContextOptions(length=512, threads=2)
TEXT = "<|im_start|>user\nSay one two three one two three.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def target(default_model: Path) -> Iterator[Context]:
    with Model(default_model) as model, Context(model, OPTIONS) as context:
        yield context


@pytest.fixture(scope="module")
def draft(damaged_model: Path) -> Iterator[Context]:
    with Model(damaged_model) as model, Context(model, OPTIONS) as context:
        yield context


@pytest.fixture
def decoder(request: Any, target: Context, draft: Context) -> Decoder:
    target.clear()
    draft.clear()
    size = target.model.vocabulary.size
    drafters = {
        "none": lambda: NoDrafter(),
        "ngram": lambda: PromptLookupDrafter(target.capacity),
        "model": lambda: ModelDrafter(draft, size, size, 4, stopping(4)),
    }
    return Decoder(target, drafters[request.param](), 0 if request.param == "none" else 4)


def stopping(most: int) -> DraftStopping:
    """Of no consequence: these decoders propose a fixed number."""
    return DraftStopping(step_s=1.0, reading_s=1.0, most=most)


def prompt_of(target: Context, text: str = TEXT) -> np.ndarray:
    return target.model.vocabulary.tokenize(text, parse_special=True)


ALL = pytest.mark.parametrize("decoder", ["none", "ngram", "model"], indirect=True)


@ALL
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_caches_hold_the_committed_prefix_after_every_cycle(
    decoder: Decoder, temperature: float
) -> None:
    target = decoder.target
    prompt = prompt_of(target)
    statistics = Statistics()
    decoder.begin(prompt, draw_settings(SamplingParameters(temperature), "auto"), statistics)
    assert target.native_length() == target.length == len(prompt) - 1
    tokens = prompt.tolist()
    while len(tokens) < len(prompt) + 60:
        cycle = decoder.cycle(100)
        tokens += cycle.tokens
        assert decoder.history[: decoder.length].tolist() == tokens
        assert target.native_length() == target.length == len(tokens) - 1
        if isinstance(decoder.drafter, ModelDrafter):
            cache = decoder.drafter.context
            assert cache.native_length() == cache.length
            # One token behind, two after a block that was accepted whole.
            whole = cycle.origins[-1] is Origin.BONUS
            assert cache.length == len(tokens) - 1 - whole
    assert statistics.emitted == len(tokens) - len(prompt)
    assert statistics.emitted == statistics.cycles + statistics.accepted
    assert sum(statistics.k_histogram.values()) == statistics.cycles
    with Context(target.model, target.options) as fresh:
        fresh.prefill(prompt[:-1])
        for token in tokens[len(prompt) - 1 : -1]:
            fresh.evaluate(np.array([token], np.int32), 1)
        expected = fresh.evaluate(np.array(tokens[-1:], np.int32), 1)
        got = target.evaluate(np.array(tokens[-1:], np.int32), 1)
        assert np.array_equal(got, expected)


def test_a_whole_block_is_caught_up_without_an_extra_draft_evaluation(
    default_model: Path, target: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.clear()
    size = target.model.vocabulary.size
    with Model(default_model) as model, Context(model, OPTIONS) as cache:
        decoder = Decoder(target, ModelDrafter(cache, size, size, 3, stopping(3)), 3)
        prompt = prompt_of(target)
        decoder.begin(prompt, draw_settings(SamplingParameters(0.0), "auto"), Statistics())
        decoder.cycle(100)
        sizes: list[int] = []
        evaluate = cache.evaluate

        def counted(tokens: np.ndarray, outputs: int) -> np.ndarray:
            sizes.append(len(tokens))
            return evaluate(tokens, outputs)

        monkeypatch.setattr(cache, "evaluate", counted)
        assert decoder.cycle(100).origins == [Origin.ACCEPTED] * 3 + [Origin.BONUS]
        assert sizes == [2, 1, 1]


@ALL
def test_never_more_tokens_than_the_limit_or_the_context(decoder: Decoder) -> None:
    target = decoder.target
    for limit in (1, 2, 3):
        decoder.begin(
            prompt_of(target), draw_settings(SamplingParameters(0.0), "auto"), Statistics()
        )
        assert 1 <= len(decoder.cycle(limit).tokens) <= limit
    long = np.resize(prompt_of(target), target.capacity - 3).astype(np.int32)
    decoder.begin(long, draw_settings(SamplingParameters(0.0), "auto"), Statistics())
    while decoder.room:
        decoder.cycle(100)
    assert decoder.length == target.capacity
    assert target.native_length() == target.capacity - 1


@ALL
def test_keep_takes_tokens_back_from_both_caches(decoder: Decoder) -> None:
    target = decoder.target
    settings = draw_settings(SamplingParameters(0.0), "auto")
    prompt = prompt_of(target)
    decoder.begin(prompt, settings, Statistics())
    tokens = [*prompt.tolist()]
    while len(tokens) < len(prompt) + 12:
        tokens += decoder.cycle(100).tokens
    decoder.keep(len(prompt) + 5)
    assert decoder.length == len(prompt) + 5
    assert target.native_length() == len(prompt) + 4
    again = tokens[: len(prompt) + 5]
    while len(again) < len(tokens):
        again += decoder.cycle(len(tokens) - len(again)).tokens
    assert again == tokens


@ALL
def test_a_new_prompt_reuses_the_common_prefix(decoder: Decoder) -> None:
    target = decoder.target
    settings = draw_settings(SamplingParameters(0.0), "auto")
    first, second = prompt_of(target, TEXT + "one"), prompt_of(target, TEXT + "two")
    common = int(np.flatnonzero(first != second)[0])
    decoder.begin(first, settings, Statistics())
    decoder.cycle(100)
    statistics = Statistics()
    decoder.begin(second, settings, statistics)
    assert statistics.reused_tokens == min(common, len(second) - 1)
    got = decoder.cycle(1).tokens
    target.clear()
    decoder.begin(second, settings, Statistics())
    assert decoder.cycle(1).tokens == got


@ALL
def test_bad_prompts(decoder: Decoder) -> None:
    settings = draw_settings(SamplingParameters(0.0), "auto")
    with pytest.raises(UsageError, match="empty"):
        decoder.begin(np.zeros(0, np.int32), settings, Statistics())
    with pytest.raises(ContextFullError, match="--ctx"):
        decoder.begin(np.ones(decoder.capacity, np.int32), settings, Statistics())
    biased = draw_settings(SamplingParameters(0.0, logit_bias={10**6: 1.0}), "auto")
    with pytest.raises(UsageError, match="1000000"):
        decoder.begin(np.ones(4, np.int32), biased, Statistics())


@pytest.mark.parametrize("decoder", ["none"], indirect=True)
def test_token_ids_outside_the_vocabulary_are_refused(decoder: Decoder) -> None:
    settings = draw_settings(SamplingParameters(0.0), "auto")
    for bad in (-1, decoder.target.model.vocabulary.size):
        with pytest.raises(UsageError, match="vocabulary"):
            decoder.begin(np.array([1, bad], np.int32), settings, Statistics())


@ALL
def test_a_bias_can_force_and_forbid(decoder: Decoder) -> None:
    prompt = prompt_of(decoder.target)
    forced = draw_settings(SamplingParameters(1.0, logit_bias={1000: 1000.0}), "auto")
    decoder.begin(prompt, forced, Statistics())
    assert set(decoder.cycle(100).tokens) == {1000}
    plain = draw_settings(SamplingParameters(0.0), "auto")
    decoder.begin(prompt, plain, Statistics())
    favourite = decoder.cycle(1).tokens[0]
    forbidden = SamplingParameters(0.0, logit_bias={favourite: -np.inf})
    decoder.begin(prompt, draw_settings(forbidden, "auto"), Statistics())
    assert decoder.cycle(1).tokens[0] != favourite


def test_broken_weights_are_an_error_that_names_the_model(
    default_model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    data = bytearray(default_model.read_bytes())
    offset = norm_offset(default_model)
    data[offset : offset + 128] = np.full(32, np.inf, np.float32).tobytes()
    broken.write_bytes(bytes(data))
    with Model(broken) as model, Context(model, OPTIONS) as context:
        decoder = Decoder(context, NoDrafter(), 0)
        decoder.begin(
            prompt_of(context), draw_settings(SamplingParameters(0.0), "auto"), Statistics()
        )
        with pytest.raises(NumericalError, match=r"broken\.gguf"):
            decoder.cycle(1)
        # The caches are in step all the same.
        assert context.native_length() == decoder.length - 1


def norm_offset(path: Path) -> int:
    """Where the weights of the last norm lie in the file."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    return int(next(t.data_offset for t in reader.tensors if t.name == "output_norm.weight"))
