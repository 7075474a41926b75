"""Drafting with a target's own MTP layers: its text stays what plain decoding makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits
from edgespec.backend import Context, capabilities, probe
from edgespec.drafters import ComposedDrafter, MTPDrafter, PromptLookupDrafter
from edgespec.errors import PairingError
from edgespec.gguf.header import read_header
from edgespec.runtime import drafting
from edgespec.runtime.memory import estimate
from edgespec.verification.cache import check_cache
from edgespec.verification.checks import Prompt
from tests.runtime.conftest import PlainLoop
from tests.runtime.exact import GREEDY, drawn_p_value, emitted, run, unfiltered

pytestmark = [
    pytest.mark.skipif(
        not capabilities().mtp, reason="this build of llama.cpp cannot run MTP layers"
    ),
    pytest.mark.skipif(
        capabilities().tinyblas,
        reason="this build's LLAMAFILE kernels round batches differently: rebuild as README says",
    ),
]

KINDS = ("qwen35", "glm4moe")
TEXTS = ("The lock keeper said", "abc abc abc abc", "Überlingen", "x = [1, 2,")
LONG = "A tale of many words. " * 35  # three batches of bytes


@pytest.fixture(scope="module")
def files(built_models: ModuleType, tmp_path_factory: Any) -> dict[str, Path]:
    """A hybrid of gated delta nets and attention, and one of experts."""
    folder = tmp_path_factory.mktemp("mtp")
    return {kind: getattr(built_models, f"write_{kind}")(folder / f"{kind}.gguf") for kind in KINDS}


@pytest.fixture(scope="module")
def plain_loops(files: dict[str, Path]) -> Iterator[Callable[[str], PlainLoop]]:
    loops = {kind: PlainLoop(path, 2048, "llama.cpp") for kind, path in files.items()}
    yield loops.__getitem__
    for loop in loops.values():
        loop.close()


@pytest.fixture(scope="module")
def opened(files: dict[str, Path]) -> Iterator[Callable[..., Engine]]:
    engines: dict[str, Engine] = {}

    def open_one(kind: str, **options: Any) -> Engine:
        options = {"threads": 1, "draft": "mtp", "kernels": "llama.cpp", **options}
        key = f"{kind} {options}"
        if key not in engines:
            engines[key] = Engine(files[kind], EngineOptions(**options))
        return engines[key]

    yield open_one
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3, 4, None])
def test_greedy_text_equals_plain_decoding(
    kind: str, k: int | None, opened: Any, plain_loops: Any
) -> None:
    engine, proposed, accepted = opened(kind, k=k), 0, 0
    for text in (*TEXTS, LONG):
        tokens = engine.tokenize(text).tolist()
        stream = run(engine, tokens, GREEDY, 60)
        assert list(stream.result.tokens) == plain_loops(kind).greedy(tokens, 60)
        proposed += stream.statistics.proposed
        accepted += stream.statistics.accepted
    if k is not None:
        assert isinstance(engine.drafter, MTPDrafter)
        # A random token would be right in one of 260 cases.
        assert 0.1 * proposed < accepted < proposed
    else:
        assert isinstance(engine.drafter, ComposedDrafter)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 4])
def test_coupled_text_equals_plain_decoding(kind: str, k: int, opened: Any) -> None:
    engine, plain = opened(kind, k=k), opened(kind, draft="none")
    for seed, text in enumerate(TEXTS):
        expected = emitted(plain, text, unfiltered(seed), 60, accept="coupled")
        assert emitted(engine, text, unfiltered(seed), 60, accept="coupled") == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 3])
def test_drawn_tokens_have_the_targets_distribution(
    kind: str, k: int, opened: Any, plain_loops: Any
) -> None:
    """Fixed seeds. With these bounds one of 10,000 right programs fails."""
    text = TEXTS[KINDS.index(kind)]  # what is enumerated is kept by its tokens
    p, proposed = drawn_p_value(opened(kind, k=k), plain_loops(kind), text, 600)
    assert proposed > 600
    assert p > 1e-4 / 4


@pytest.mark.parametrize("kind", KINDS)
def test_entries_after_many_cycles_are_those_of_one_reading(kind: str, opened: Any) -> None:
    """Rejections leave nothing in the layer's cache, and nothing is missing."""
    engine = opened(kind, k=4)
    stream = run(engine, TEXTS[0], unfiltered(3), 60, accept="rejection")
    assert 0 < stream.statistics.accepted < stream.statistics.proposed
    drafter, decoder = engine.drafter, engine.decoder
    tokens = decoder.history[: decoder.length].copy()
    read = len(tokens) - 1  # the last has no state yet
    drafter.read(tokens, read, 0)
    after = drafter.context.step(tokens[read:], drafter.features.rows[read - 1 : read])[0].copy()
    target: Context = decoder.target
    target.clear()
    target.prefill(tokens[:read])
    drafter.context.clear()
    rows = drafter.features.rows[:read]
    logits, _ = drafter.context.step(tokens[1:], rows)
    assert np.allclose(logits, after, atol=0.02)  # keys and values are f16
    engine.forget()


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_take_turns(kind: str, opened: Any, plain_loops: Any) -> None:
    """Caches are brought back; the layer goes on behind what it has states of."""
    engine = opened(kind, k=3)
    texts = {0: engine.tokenize(LONG).tolist(), 1: engine.tokenize(LONG[::-1]).tolist()}
    used = 0
    for turn in range(6):
        tokens = texts[turn % 2]
        stream = run(engine, tokens, GREEDY, 24)
        expected = plain_loops(kind).greedy(tokens, 24)
        assert list(stream.result.tokens) == expected
        texts[turn % 2] = tokens + expected + engine.tokenize(" And then?").tolist()
        used += stream.statistics.accepted
        if turn > 1:
            assert stream.statistics.reused_tokens > 600
    assert engine.kept_bytes > 0
    assert used > 10


@pytest.mark.parametrize("kind", KINDS)
def test_proposes_again_soon_after_a_cache_was_brought_back(kind: str, opened: Any) -> None:
    engine = opened(kind, k=2)
    first = engine.tokenize(LONG).tolist()
    answer = list(run(engine, first, GREEDY, 20).result.tokens)
    run(engine, engine.tokenize(LONG[::-1]).tolist(), GREEDY, 8)
    stream = run(engine, first + answer + first[:5], GREEDY, 40)
    assert stream.statistics.reused_tokens >= len(first)
    assert stream.statistics.proposed > stream.statistics.cycles


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_leaves_both_caches_in_step(kind: str, opened: Any, plain_loops: Any) -> None:
    engine = opened(kind, k=3)
    tokens = engine.tokenize(TEXTS[0]).tolist()
    stream = engine.generate(tokens, GREEDY, GenerationLimits(max_tokens=60))
    for number, _ in enumerate(stream):
        if number == 10:
            stream.cancel()
    found = list(stream.result.tokens)
    assert 10 < len(found) < 60
    assert found == plain_loops(kind).greedy(tokens, 60)[: len(found)]
    assert emitted(engine, TEXTS[0], GREEDY, 40) == plain_loops(kind).greedy(tokens, 40)


def test_auto_uses_them_where_they_are_expected_to_pay(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for worth, kind in ((0.0, ComposedDrafter), (1e9, PromptLookupDrafter)):
        monkeypatch.setattr(drafting, "_WORTH_OPENING", worth)
        with Engine(files["glm4moe"], EngineOptions(threads=1)) as engine:
            assert isinstance(engine.drafter, kind)
            assert engine.drafter_name == ("mtp" if kind is ComposedDrafter else "ngram")


def test_trees_of_a_quantized_model_change_nothing(
    built_models: ModuleType, tmp_path: Path
) -> None:
    """Both caches take trees where our kernels multiply."""
    path = built_models.write_glm4moe(tmp_path / "q8.gguf", quantized=True)
    options = {"threads": 1, "kernels": "edgespec", "exact": "distribution"}
    with Engine(path, EngineOptions(draft="none", **options)) as engine:
        if not engine.target.branches:
            pytest.skip("edgespec's kernels cannot be used here")
        expected = [emitted(engine, text, GREEDY, 60) for text in TEXTS]
    with Engine(path, EngineOptions(draft="mtp", tree="3,2,1", **options)) as engine:
        accepted = 0
        for text, tokens in zip(TEXTS, expected, strict=True):
            stream = run(engine, text, GREEDY, 60)
            assert list(stream.result.tokens) == tokens
            accepted += stream.statistics.accepted
        assert accepted > 20


# -- files that cannot be used so ------------------------------------------------------------


def test_a_model_without_them_says_so(default_model: Path) -> None:
    with pytest.raises(PairingError, match=r"SmolLM2.* has no MTP layers: use another --draft"):
        Engine(default_model, EngineOptions(draft="mtp"))


def test_layers_that_llama_cpp_would_end_the_process_on(
    built_models: ModuleType, tmp_path: Path
) -> None:
    path = built_models.write_qwen35(tmp_path / "two.gguf", further=2)
    with pytest.raises(PairingError, match=r"cannot be used, llama\.cpp can run one of qwen35"):
        Engine(path, EngineOptions(draft="mtp"))
    with Engine(path, EngineOptions(threads=1)) as engine:  # the model itself is fine
        assert isinstance(engine.drafter, PromptLookupDrafter)
        assert emitted(engine, TEXTS[0], GREEDY, 8)


def test_they_are_tried_in_a_process_of_their_own(
    built_models: ModuleType, files: dict[str, Path], tmp_path: Path
) -> None:
    for path in files.values():
        probe.require_sound(read_header(path), mtp=True)
    two = read_header(built_models.write_qwen35(tmp_path / "two.gguf", further=2))
    with pytest.raises(probe.ModelFileError, match=r"ended the process .SIGABRT., GGML_ASSERT"):
        probe.require_sound(two, mtp=True)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_counts_them_only_where_they_draft(kind: str, files: dict[str, Path]) -> None:
    header = read_header(files[kind])
    assert header.mtp is not None

    def needed(context: int, mtp: bool) -> Any:
        return estimate(
            header,
            context=context,
            batch=256,
            outputs=4,
            flash_attention=False,
            repack=False,
            mtp=mtp,
        )

    without, with_them = needed(1024, False), needed(1024, True)
    assert with_them.weights - without.weights == header.mtp.size_bytes
    per_token = 2 * sum(header.head_count_kv[-header.mtp.count :]) * 2 * header.key_length
    assert with_them.kv_cache - without.kv_cache == 1024 * per_token
    assert with_them.compute > without.compute + 1024 * 4 * header.embedding_length


# -- what `edgespec verify` says of them -----------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_verify_compares_the_layers_cache(
    damaged: bool, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened("glm4moe", k=3)
    if damaged:  # drafted entries stay, and the states of what was rejected with them
        monkeypatch.setattr(engine.drafter, "commit", lambda history, length: None)
    prompt = Prompt("one", engine.tokenize(TEXTS[0]))
    result = check_cache(engine.target, engine.drafter, 3, prompt, 20)
    assert result.figures["draft_compared"]
    assert result.holds is not damaged
    engine.forget()
