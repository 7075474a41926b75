"""Drafts with a part of the target's vocabulary: exact, and as good as what they have allows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions
from edgespec.backend import (
    Context,
    ContextOptions,
    Model,
    ModelOptions,
    capabilities,
    formats_of,
)
from edgespec.drafters import ComposedDrafter, ReducedDrafter
from edgespec.errors import ModelFileError, PairingError
from edgespec.gguf.header import read_header
from tests.runtime.exact import GREEDY, emitted, run, unfiltered

TEXTS = (0, 1, 9, 14)
LAYERS = 30
A_COMMA = 28

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas,
    reason="this build's LLAMAFILE kernels round batches differently: rebuild as the README says",
)


@pytest.fixture(scope="module")
def texts(open_engine: Any, prompts: tuple[str, ...]) -> dict[int, list[int]]:
    """Greedy answers of plain decoding."""
    return {i: emitted(open_engine(), prompts[i], GREEDY, 32) for i in TEXTS}


@pytest.fixture(scope="module")
def make(built_models: ModuleType, default_model: Path, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("reduced")

    def build(name: str, kept: Any, layers: int = LAYERS) -> Path:
        ids = np.unique(np.asarray(kept))
        return built_models.reduce_vocabulary(
            default_model, folder / f"{name}.gguf", ids, layers, A_COMMA
        )

    return build


@pytest.fixture(scope="module")
def whole(make: Any, open_engine: Any, prompts: tuple[str, ...], texts: Any) -> Path:
    """The target with the tokens of those conversations alone."""
    kept = [open_engine().tokenize(prompts[i]) for i in TEXTS] + list(texts.values())
    return make("whole", np.concatenate(kept))


@pytest.fixture(scope="module")
def holed(make: Any, whole: Path) -> Path:
    """Without every fifth of them."""
    with Model(whole) as model:
        ids = model.header.reduced.target_ids
    return make("holed", [t for i, t in enumerate(ids[:-1]) if i % 5])


def test_logits_are_the_targets_own_where_it_has_the_tokens(
    whole: Path, default_model: Path, open_engine: Any, prompts: tuple[str, ...]
) -> None:
    tokens = open_engine().tokenize(prompts[0])
    opened = Model(default_model, ModelOptions(formats_of(read_header(default_model)), 2))
    with opened as model:
        options = ContextOptions(length=256, threads=2, flash_attention=model.exact_attention)
        with Context(model, options) as context:
            expected = context.evaluate(tokens, 1)[0].copy()
    engine = open_engine(draft=whole, k=4)
    assert isinstance(engine.drafter, ReducedDrafter)
    engine.drafter.rewind(0)
    _, row = engine.drafter.read(tokens, len(tokens), 0)
    known = np.isfinite(row)
    assert known.sum() == engine.drafter.context.model.header.reduced.known
    assert np.array_equal(row[known], expected[known])


def test_greedy_text_equals_plain_decoding(
    whole: Path, holed: Path, make: Any, open_engine: Any, prompts: tuple[str, ...], texts: Any
) -> None:
    rates = []
    for path in (whole, holed, make("shallow", np.arange(3000), 2)):
        engine = open_engine(draft=path, k=4)
        runs = []
        for index, expected in texts.items():
            stream = run(engine, prompts[index], GREEDY)
            assert list(stream.result.tokens) == expected
            cache = engine.drafter.context
            assert cache.native_length() == cache.length
            runs.append(stream.statistics)
        rates.append(sum(s.accepted for s in runs) / sum(s.proposed for s in runs))
    assert rates[0] == 1.0
    assert rates[2] < rates[1] < 0.9
    assert rates[1] > 0.1


def test_coupled_text_equals_plain_decoding(
    holed: Path, open_engine: Any, prompts: tuple[str, ...]
) -> None:
    sampling = unfiltered(3, repeat_penalty=1.2, logit_bias={28: 1.0, 49000: -2.0})
    expected = emitted(open_engine(), prompts[1], sampling, 96, accept="coupled")
    engine = open_engine(draft=holed, k=4)
    stream = run(engine, prompts[1], sampling, 96, accept="coupled")
    assert list(stream.result.tokens) == expected
    assert stream.statistics.accepted > 0


def test_what_the_draft_lacks_can_be_all_that_is_allowed(whole: Path, open_engine: Any) -> None:
    engine = open_engine(draft=whole, k=4)
    bias = dict.fromkeys(range(engine.vocabulary.size), -np.inf)
    for token in (40_001, 40_002):
        del bias[token]
    assert {40_001, 40_002}.isdisjoint(engine.drafter.context.model.header.reduced.target_ids)
    stream = run(engine, "sea", unfiltered(1, logit_bias=bias), 6)
    assert set(stream.result.tokens) <= {40_001, 40_002}
    assert stream.statistics.proposed == 0


def test_beside_prompt_lookup_and_with_measured_costs(
    whole: Path, open_engine: Any, prompts: tuple[str, ...], texts: Any
) -> None:
    engine = open_engine(draft=whole, k=None)
    assert isinstance(engine.drafter, ComposedDrafter)
    for index, expected in texts.items():
        assert emitted(engine, prompts[index], GREEDY, 32) == expected


def test_a_draft_is_no_target_and_needs_its_own(
    make: Any, whole: Path, default_model: Path, recurrent_model: Path
) -> None:
    with pytest.raises(ModelFileError, match="is a draft for another model: give it as --draft"):
        Engine(whole, EngineOptions(threads=2))
    with pytest.raises(PairingError, match=r"proposes token \d+, the target has 260"):
        Engine(recurrent_model, EngineOptions(draft=str(whole), threads=2))
