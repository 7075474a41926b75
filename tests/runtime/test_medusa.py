"""Medusa heads end to end: the text stays the target's, in chains and in trees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits
from edgespec.backend import capabilities
from edgespec.control.controller import fixed_budget
from edgespec.drafters import ComposedDrafter, MedusaDrafter
from edgespec.drafters.trees import GROWN
from edgespec.errors import NumericalError, PairingError, UsageError
from edgespec.runtime.cycle import Statistics
from edgespec.speculation.acceptance import draw_settings
from tests.runtime.exact import GREEDY, drawn, emitted, joint, p_value, run, unfiltered

TEXTS = (0, 1, 9)
WIDTH = 576
FALSE_ALARMS, CASES = 1e-3, 4

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas,
    reason="this build's LLAMAFILE kernels round batches differently: rebuild as README says",
)


@pytest.fixture(scope="module")
def texts(open_engine: Any, prompts: tuple[str, ...]) -> dict[int, list[int]]:
    """Greedy answers of plain decoding."""
    return {i: emitted(open_engine(), prompts[i], GREEDY, 48) for i in TEXTS}


@pytest.fixture(scope="module")
def few(built_models: ModuleType, texts: dict[int, list[int]], tmp_path_factory: Any) -> Path:
    """Heads of the commonest tokens there, of which a random one is right now and then."""
    common = Counter(token for tokens in texts.values() for token in tokens).most_common(12)
    path: Path = tmp_path_factory.mktemp("medusa") / "few.gguf"
    built_models.write_medusa(path, WIDTH, np.unique([token for token, _ in common]))
    return path


@pytest.mark.parametrize("tree", [None, "3", "2,2", "4,2,1", "1,1,1,1"])
def test_greedy_text_is_that_of_plain_decoding(
    tree: str | None, few: Path, open_engine: Any, prompts: tuple[str, ...], texts: Any
) -> None:
    options = {"k": 3} if tree is None else {"k": None, "tree": tree}
    engine = open_engine(draft=few, **options)
    proposed = accepted = 0
    for index, expected in texts.items():
        stream = run(engine, prompts[index], GREEDY, 48)
        assert list(stream.result.tokens) == expected
        proposed += stream.statistics.proposed
        accepted += stream.statistics.accepted
        assert stream.statistics.fallback_cycles <= 2  # the first has no state; the last no room
    assert 0 < accepted < proposed


def test_greedy_text_is_the_same_with_llama_cpps_kernels(
    few: Path, default_model: Path, plain_with_llama_cpps_kernels: Any, prompts: tuple[str, ...]
) -> None:
    options = EngineOptions(draft=str(few), k=3, threads=1, kernels="llama.cpp", context=1024)
    with Engine(default_model, options) as engine:
        tokens = engine.tokenize(prompts[0]).tolist()
        stream = run(engine, tokens, GREEDY, 32)
        assert list(stream.result.tokens) == plain_with_llama_cpps_kernels.greedy(tokens, 32)
        assert stream.statistics.proposed > 0


def test_trees_that_grow_keep_the_text(
    few: Path, open_engine: Any, prompts: Any, texts: Any
) -> None:
    engine = open_engine(draft=few, k=None)
    assert isinstance(engine.drafter, ComposedDrafter)
    model = engine.drafter.model
    assert isinstance(model, MedusaDrafter) and model.shape == GROWN
    proposed = 0
    for once_s in (0.0, model.stopping.once_s):  # however little they cost
        model.stopping.once_s = once_s
        for index, expected in texts.items():
            stream = run(engine, prompts[index], GREEDY, 48)
            assert list(stream.result.tokens) == expected
            proposed += stream.statistics.proposed
    assert proposed > 0


def test_coupled_text_depends_on_nothing(
    few: Path, open_engine: Any, prompts: tuple[str, ...]
) -> None:
    sampling = unfiltered(5, top_k=40, repeat_penalty=1.3)
    reference = emitted(open_engine(), prompts[0], sampling, 48, accept="coupled")
    for options in ({"k": 4}, {"k": None}, {"k": None, "tree": "2,2,1"}):
        engine = open_engine(draft=few, **options)
        assert emitted(engine, prompts[0], sampling, 48, accept="coupled") == reference


@pytest.mark.parametrize("tree", [None, "3", "2,2"])
@pytest.mark.slow
def test_rejection_sampling_has_the_targets_joint_distribution(
    tree: str | None,
    built_models: ModuleType,
    open_engine: Any,
    plain: Any,
    tmp_path: Path,
) -> None:
    """Four tokens end to end against the product of p: chi-square with fixed seeds.

    A first cycle has no state; some likely tokens are not the heads'.
    """
    runs, length, top_k = 600, 4, 2
    prompt = "A B C A B C A B"
    exact = joint(plain, open_engine().tokenize(prompt).tolist(), length, top_k)
    likely = Counter(token for path in exact for token in path).most_common(6)
    path = tmp_path / "likely.gguf"
    built_models.write_medusa(path, WIDTH, np.unique([token for token, _ in likely][1:]))
    engine = open_engine(draft=path, **({"k": 3} if tree is None else {"k": None, "tree": tree}))
    counts, proposed, accepted = drawn(engine, prompt, runs, length, top_k)
    assert 0 < accepted < proposed
    assert set(counts) <= set(exact)
    assert p_value(counts, exact, runs) > FALSE_ALARMS / CASES


def test_q_is_the_softmax_of_each_head(few: Path, open_engine: Any, prompts: Any) -> None:
    """By position, whatever was drawn before; the same as NumPy makes of the file."""
    engine = open_engine(draft=few, k=4)
    decoder, drafter = engine.decoder, engine.drafter
    decoder.begin(
        engine.tokenize(prompts[0]), draw_settings(unfiltered(3), "rejection"), Statistics()
    )
    for _ in range(6):
        decoder.cycle(8)
    state = drafter._states.at(decoder.length - 2).copy()
    first = drafter.propose(decoder.history, decoder.length, fixed_budget(8))
    assert first.size == drafter.heads == 4
    logits = drafter._heads.logits.astype(np.float64)
    q = np.exp(logits - logits.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    assert np.allclose(first.q[:4][:, drafter._ids], q, atol=1e-5)
    assert np.allclose(first.q[:4].sum(1), 1.0, atol=1e-5)
    # The state is the one that the target's own logits at the last token were made of.
    tokens = decoder.history[: decoder.length - 1].copy()
    decoder.forget()
    engine.target.prefill(tokens[:-1])
    engine.target.evaluate(tokens[-1:], 1)
    assert np.array_equal(drafter._states.at(len(tokens) - 1), state)


def test_an_answer_that_ends_inside_a_block_leaves_all_in_step(
    few: Path, open_engine: Any, prompts: tuple[str, ...], texts: Any
) -> None:
    engine = open_engine(draft=few, k=None, tree="3,2,1")
    for count in range(1, 12):
        stream = engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=count))
        assert list(stream.result.tokens) == texts[0][:count]
        assert engine.target.native_length() == engine.target.length
    assert emitted(engine, prompts[0], GREEDY, 48) == texts[0]


def test_texts_that_take_turns_keep_their_text(
    few: Path, default_model: Path, prompts: tuple[str, ...], texts: Any
) -> None:
    """Each turn restores a cache, whose last state is not at hand."""
    options = EngineOptions(
        draft=str(few), k=3, threads=1, context=2048, exact="bitwise", kernels="edgespec"
    )
    with Engine(default_model, options) as engine:
        streams = {
            i: engine.generate(prompts[i], GREEDY, GenerationLimits(max_tokens=48)) for i in TEXTS
        }
        readers = {i: iter(stream) for i, stream in streams.items()}
        while readers:
            for i in list(readers):
                for _ in range(5):
                    if next(readers[i], None) is None:
                        del readers[i]
                        break
        for i, expected in texts.items():
            assert list(streams[i].result.tokens) == expected
            assert streams[i].statistics.proposed > 0
        again = run(engine, prompts[0], GREEDY, 48)
        assert list(again.result.tokens) == texts[0]
        assert again.statistics.reused_tokens > 0


def test_what_cannot_be_used_is_refused_in_one_line(
    few: Path, built_models: ModuleType, default_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="has 5 levels, and the draft 4 heads"):
        Engine(default_model, EngineOptions(draft=str(few), tree="1,1,1,1,1"))
    path = tmp_path / "wide.gguf"
    built_models.write_medusa(path, 64, np.arange(10))
    with pytest.raises(PairingError, match="of width 64, the target's have 576"):
        Engine(default_model, EngineOptions(draft=str(path)))
    with pytest.raises(Exception, match="is a draft for another model"):
        Engine(few)


def test_broken_weights_are_named(
    built_models: ModuleType, default_model: Path, prompts: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "broken.gguf"
    weights = built_models.write_medusa(path, WIDTH, np.arange(16))
    data = bytearray(path.read_bytes())
    at = data.index(weights.bias.tobytes())
    data[at : at + weights.bias.nbytes] = np.full_like(weights.bias, np.nan).tobytes()
    path.write_bytes(bytes(data))
    for choices in ({"k": 2}, {"tree": "2,1"}):
        options = EngineOptions(draft=str(path), threads=1, **choices)  # type: ignore[arg-type]
        complaint = r"broken\.gguf produced NaN"
        with (
            Engine(default_model, options) as engine,
            pytest.raises(NumericalError, match=complaint),
        ):
            emitted(engine, prompts[0], GREEDY, 16)
