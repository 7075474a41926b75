"""Costs decide how much is proposed; what comes out is the target's all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from edgespec import GenerationLimits, SamplingParameters
from edgespec.backend import capabilities
from edgespec.control.controller import AdaptivePolicy
from edgespec.control.costs import make_cost_table
from edgespec.drafters import ComposedDrafter, PromptLookupDrafter
from tests.runtime.exact import GREEDY, emitted, joint, p_value, unfiltered

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas,
    reason="this build's LLAMAFILE kernels round batches differently: rebuild as the README says",
)


@contextmanager
def cheap_batches(engine: Any) -> Iterator[None]:
    """A machine on which verification is nearly free: blocks of all lengths are proposed."""
    drafter = engine.drafter
    if isinstance(drafter, ComposedDrafter):
        drafter.model.stopping.step_s, drafter.model.stopping.reading_s = 0.001, 0.0001
    costs = make_cost_table([1.0], [1, 2, 16], [[0.010, 0.011, 0.020]], [0.0, 0.0, 0.0], 16)
    before, engine.decoder.policy = engine.decoder.policy, _Unmoved(costs, engine.decoder.k)
    try:
        yield
    finally:
        engine.decoder.policy = before


class _Unmoved(AdaptivePolicy):
    """Learns nothing of the real costs."""

    def observe(self, timing: Any) -> None:
        pass


@pytest.fixture(scope="module")
def expected(plain: Any, open_engine: Any, prompts: tuple[str, ...]) -> dict[str, list[int]]:
    """Greedy text of some prompts, from llama.cpp's loop."""
    tokenize = open_engine().tokenize
    chosen = (*prompts[:4], prompts[10])
    return {prompt: plain.greedy(tokenize(prompt).tolist(), 64) for prompt in chosen}


@pytest.mark.parametrize("draft", ["ngram", "damaged"])
def test_greedy_tokens_equal_plain_decoding(
    draft: str, drafts: dict[str, str], open_engine: Any, expected: dict[str, list[int]]
) -> None:
    engine = open_engine(draft=drafts[draft], k=None)
    lengths: set[int] = set()
    for prompt, tokens in expected.items():
        assert emitted(engine, prompt, GREEDY, 64) == tokens  # as measured here
        with cheap_batches(engine):
            stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=64))
            assert list(stream.result.tokens) == tokens
        lengths |= set(stream.statistics.k_histogram)
    assert len(lengths) >= 4, "blocks of several lengths"


@pytest.mark.parametrize("draft", ["ngram", "damaged"])
def test_coupled_text_is_that_of_plain_decoding(
    draft: str, drafts: dict[str, str], open_engine: Any, prompts: tuple[str, ...]
) -> None:
    engine = open_engine(draft=drafts[draft], k=None)
    for seed, prompt in enumerate((prompts[0], prompts[2])):
        sampling = unfiltered(seed, temperature=0.8)
        reference = emitted(open_engine(), prompt, sampling, 48, accept="coupled")
        with cheap_batches(engine):
            assert emitted(engine, prompt, sampling, 48, accept="coupled") == reference


@pytest.mark.slow
def test_rejection_sampling_has_the_targets_joint_distribution(
    drafts: dict[str, str], open_engine: Any, plain: Any
) -> None:
    """Prompt lookup and a model in one block, stopped early by confidence: a chi-square test.

    Three tokens drawn end to end, 250 fixed seeds, false-alarm rate 1e-3.
    """
    runs = 250
    prompt = "A B C A B C A B"
    engine = open_engine(draft=drafts["damaged"], k=None)
    exact = joint(plain, engine.tokenize(prompt).tolist(), length=3, top_k=3)
    counts: dict[tuple[int, ...], int] = {}
    proposers, sizes = set(), set()
    with cheap_batches(engine):
        for seed in range(runs):
            sampling = unfiltered(seed, top_k=3, temperature=1.5)
            stream = engine.generate(prompt, sampling, GenerationLimits(max_tokens=3))
            outcome = tuple(stream.result.tokens)
            counts[outcome] = counts.get(outcome, 0) + 1
            proposers.add(engine.drafter.name)
            sizes |= set(stream.statistics.k_histogram)
    assert set(counts) <= set(exact)
    assert len(proposers) == 2 and len(sizes) >= 2
    assert p_value(counts, exact, runs) > 1e-3


def test_prompt_lookup_leaves_the_text_of_a_seed(
    open_engine: Any, prompts: tuple[str, ...]
) -> None:
    """What is proposed depends on costs, and those on the clock: a seed's text does not."""
    engine = open_engine(draft="ngram", k=None)
    for seed, prompt in enumerate((prompts[2], prompts[10])):
        sampling = unfiltered(seed, temperature=0.7, top_k=40)
        reference = emitted(open_engine(), prompt, sampling, 48)
        with cheap_batches(engine):
            stream = engine.generate(prompt, sampling, GenerationLimits(max_tokens=48))
            assert list(stream.result.tokens) == reference
        assert stream.statistics.proposed > 0


def test_what_was_learned_is_there_next_time(
    default_model: Any, prompts: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec import Engine, EngineOptions
    from edgespec.tuning.profile import load_profile

    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    options = EngineOptions(threads=2, context=1024)
    with Engine(default_model, options) as engine:
        assert isinstance(engine.drafter, PromptLookupDrafter)
        emitted(engine, prompts[2], SamplingParameters(temperature=0.0), 40)
        used = engine.drafter.learned().lookup
        usage = engine.profile.usage.answer
    profile = load_profile(default_model)
    assert {name: profile.ngram[name] for name in used} == used
    assert profile.ngram["achieved"]["tokens"] == 40
    assert profile.usage.answer == usage != 200.0
    with Engine(default_model, options) as engine:
        assert engine.profile.ngram["hits"] == used["hits"]
        assert engine.drafter.credibility(2) != PromptLookupDrafter(8).credibility(2)
