"""EAGLE-3 heads: the text stays the target's, and the head's cache follows it exactly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits
from edgespec.backend import Context, HeadContext, RecordedInputs, capabilities
from edgespec.control.controller import fixed_budget
from edgespec.drafters import ComposedDrafter, EagleDrafter, PromptLookupDrafter
from edgespec.errors import PairingError
from edgespec.runtime import drafting, plan
from edgespec.runtime.cycle import Statistics
from edgespec.speculation.acceptance import draw_settings
from edgespec.tuning.drafting import DraftCost
from tests.runtime.exact import GREEDY, emitted, run, unfiltered

TEXTS = (0, 1, 9)

pytestmark = [
    pytest.mark.skipif(
        capabilities().tinyblas,
        reason="this build's LLAMAFILE kernels round batches differently: rebuild as README says",
    ),
    pytest.mark.skipif(
        not capabilities().eagle, reason="this build of llama.cpp cannot run EAGLE-3 heads"
    ),
]


@pytest.fixture(scope="module")
def make(built_models: ModuleType, default_model: Path, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("eagle")

    def build(name: str, kept: Any, **options: Any) -> Path:
        ids = None if kept is None else np.unique(np.asarray(kept))
        return built_models.write_eagle(default_model, folder / f"{name}.gguf", ids, **options)

    return build


@pytest.fixture(scope="module")
def texts(open_engine: Any, prompts: tuple[str, ...]) -> dict[int, list[int]]:
    """Greedy answers of plain decoding."""
    return {i: emitted(open_engine(), prompts[i], GREEDY, 32) for i in TEXTS}


@pytest.fixture(scope="module")
def few(make: Any, texts: dict[int, list[int]]) -> Path:
    """A head of the commonest tokens there, of which a random one is right now and then."""
    common = Counter(token for tokens in texts.values() for token in tokens).most_common(12)
    return make("few", [token for token, _ in common])


@pytest.mark.parametrize("kind", ["few", "own", "all"])
def test_greedy_text_equals_plain_decoding(
    kind: str, few: Path, make: Any, open_engine: Any, prompts: tuple[str, ...], texts: Any
) -> None:
    path = few
    if kind == "own":  # its own embedding, in another width than the target's
        path = make("own", np.arange(100, 6000, 3), own_embedding=True, width=288)
    elif kind == "all":  # both matrices are the target's
        path = make("all", None)
    engine = open_engine(draft=path, k=3)
    assert isinstance(engine.drafter, EagleDrafter)
    statistics = []
    for index, expected in texts.items():
        stream = run(engine, prompts[index], GREEDY)
        assert list(stream.result.tokens) == expected
        statistics.append(stream.statistics)
    proposed, accepted = (sum(getattr(s, n) for s in statistics) for n in ("proposed", "accepted"))
    assert proposed > 0
    if kind == "few":
        assert 0 < accepted < proposed


@pytest.mark.parametrize("faster", [1, 2])
def test_it_has_as_many_threads_as_are_faster(
    faster: int, few: Path, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(head: HeadContext) -> DraftCost:
        return DraftCost(0.001 if head.alone == faster else 0.002, 0.0)

    monkeypatch.setattr(drafting, "measure_head", measured)
    with Engine(default_model, EngineOptions(draft=str(few), k=3, threads=2)) as engine:
        assert engine.drafter.context.alone == faster
        assert engine.drafter.stopping.step_s == 0.001
        assert engine.generate("Some", GREEDY, GenerationLimits(max_tokens=8)).result.tokens


def test_q_after_many_cycles_is_that_of_a_fresh_head(
    few: Path, open_engine: Any, prompts: tuple[str, ...]
) -> None:
    """Tokens committed by accepting, rejecting, stopping inside a block and going back."""
    engine = open_engine(draft=few, k=3)
    decoder, drafter = engine.decoder, engine.drafter
    allowed = dict.fromkeys(range(engine.vocabulary.size), -np.inf)
    for token in drafter.context.model.header.eagle.target_ids:
        del allowed[int(token)]
    settings = draw_settings(unfiltered(5, temperature=6.0, logit_bias=allowed), "rejection")
    statistics = Statistics()
    prompt = engine.tokenize(prompts[0])
    decoder.begin(prompt, settings, statistics)
    for cycle in range(40):
        before = decoder.length
        decoder.cycle(100)
        if cycle % 7 == 3:
            decoder.keep(before + 1)
        if cycle == 20:
            decoder.begin(decoder.history[: before - 5].copy(), settings, statistics)
        cache = drafter.context
        assert cache.length == cache.native_length() <= decoder.length - 2
    assert statistics.accepted > 10
    assert statistics.proposed - statistics.accepted > 10
    tokens = decoder.history[: decoder.length].copy()
    _, used = drafter.read(tokens, len(tokens), 0)
    used, entries = used.copy(), drafter.context.length
    assert entries == len(tokens) - 1

    head, target = drafter.context, engine.target
    recorded = drafter.features.rows[:entries].copy()
    with Context(target.model, target.options) as fresh:
        inputs = RecordedInputs(fresh, head.model.header.eagle.layers)
        fresh.prefill(prompt[:-1])
        for token in tokens[len(prompt) - 1 : -1]:
            fresh.prefill(np.array([token], np.int32))
        assert inputs.length == entries
        assert np.array_equal(recorded, inputs.rows[:entries])
        with HeadContext(head.model, head.options, fresh) as other:
            expected, _ = other.step(tokens[1:], other.fuse(inputs.rows[:entries]))
            np.testing.assert_allclose(used, expected, rtol=1e-5, atol=1e-5)
    drafter.rewind(len(tokens) - 1)


def test_q_has_mass_on_the_heads_tokens_only(few: Path, open_engine: Any) -> None:
    engine = open_engine(draft=few, k=3)
    run(engine, "The sea", unfiltered(1), 8)
    rows = engine.drafter._q[:2]
    np.testing.assert_allclose(rows.sum(1), 1.0, rtol=1e-4)
    assert set(np.flatnonzero(rows.any(0))) <= set(
        engine.drafter.context.model.header.eagle.target_ids.tolist()
    )


def test_coupled_text_equals_plain_decoding(
    few: Path, open_engine: Any, prompts: tuple[str, ...]
) -> None:
    expected = emitted(open_engine(), prompts[1], unfiltered(3), 24, accept="coupled")
    engine = open_engine(draft=few, k=3)
    assert emitted(engine, prompts[1], unfiltered(3), 24, accept="coupled") == expected


@pytest.mark.slow
def test_beside_prompt_lookup_and_across_shifts(
    few: Path, open_engine: Any, prompts: tuple[str, ...], texts: Any
) -> None:
    engine = open_engine(draft=few, k=None)
    assert isinstance(engine.drafter, ComposedDrafter)
    for index, expected in texts.items():
        assert emitted(engine, prompts[index], GREEDY, 32) == expected
    # It cannot go on behind proposals that are not its own, and learns nothing of them.
    model, history = engine.drafter.model, engine.decoder.history
    learned = model.stopping.as_json()
    assert model.extend(history, engine.decoder.length, fixed_budget(3), 2).size == 2
    model.learn(1, 2)
    assert model.stopping.as_json() == learned
    short, plain = open_engine(draft=few, k=3, context=256), open_engine(context=256)
    prompt = np.resize(short.tokenize("one two three four"), 240)
    limits = GenerationLimits(max_tokens=30, overflow="shift", keep=10)
    results = [e.generate(prompt, GREEDY, limits).result.tokens for e in (short, plain)]
    assert results[0] == results[1]
    assert emitted(short, "A", GREEDY, 4) == emitted(plain, "A", GREEDY, 4)  # one token of prompt


def test_what_does_not_fit_is_refused(
    make: Any, few: Path, default_model: Path, recurrent_model: Path
) -> None:
    def complaint(target: Path, path: Path) -> str:
        with pytest.raises(PairingError) as caught:
            Engine(target, EngineOptions(draft=str(path), threads=2))
        return str(caught.value)

    assert "width 576, the target's have 64" in complaint(recurrent_model, few)
    deep = make("deep", [5, 6], layers=(2, 15, 30))
    assert "input of layer 30, the target's layers are 0 to 29" in complaint(default_model, deep)
    thin = make("thin", [5, 6], width=288)
    assert "its width is 288 and the target's 576" in complaint(default_model, thin)


def test_a_build_without_hidden_states_drafts_by_prompt_lookup(
    few: Path, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    without = replace(capabilities(), layer_taps=False)
    monkeypatch.setattr(plan, "capabilities", lambda: without)
    options = EngineOptions(draft=str(few), threads=2, context=256, k=2)
    with Engine(default_model, options) as engine:
        assert isinstance(engine.drafter, PromptLookupDrafter)
        assert "no access to hidden states" in engine.notice
        assert engine.drafter_name == "ngram"


def test_conversations_take_turns(open_engine: Any, prompts: tuple[str, ...]) -> None:
    """Each cache is brought back, and the head goes on behind it: the text stays the target's."""
    engine, plain = open_engine(draft="smollm2-135m-eagle3", k=3), open_engine()
    engine.forget()
    texts = {turn: engine.tokenize(prompts[turn]).tolist() for turn in (0, 3)}
    accepted = 0
    for turn in (0, 3, 0, 3, 0, 3):
        tokens = texts[turn]
        stream = run(engine, tokens, GREEDY)
        assert list(stream.result.tokens) == emitted(plain, tokens, GREEDY, 32)
        if len(tokens) > 64:  # not the first turn
            assert stream.statistics.reused_tokens > 40
            accepted += stream.statistics.accepted
        texts[turn] = [*tokens, *stream.result.tokens, *engine.tokenize(" And then?").tolist()]
    assert accepted > 10
    assert engine.kept_bytes > 0
