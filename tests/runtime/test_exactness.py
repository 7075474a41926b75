"""Speculation changes nothing: against llama.cpp's own loop, exact enumeration, and itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from edgespec import GenerationLimits
from edgespec.backend import capabilities
from tests.runtime.exact import GREEDY, emitted, joint, p_value, unfiltered

LONG = "The lock keeper writes the level of the river into his book every evening at six. " * 60
MASK = 2**64 - 1

pytestmark = pytest.mark.skipif(
    capabilities().tinyblas,
    reason="this build's LLAMAFILE kernels round batches differently: rebuild as the README says",
)


@pytest.fixture(scope="module")
def expected(plain: Any, prompts: tuple[str, ...], open_engine: Any) -> dict[str, list[int]]:
    """Greedy text of every prompt, from llama.cpp's loop and its own greedy sampler."""
    tokenize = open_engine().tokenize
    return {prompt: plain.greedy(tokenize(prompt).tolist(), 96) for prompt in prompts}


@pytest.mark.parametrize(
    ("draft", "threads"),
    [
        pytest.param("none", 2, marks=pytest.mark.slow),
        ("ngram", 1),
        pytest.param("itself", 2, marks=pytest.mark.slow),
        ("damaged", 1),
    ],
)
def test_greedy_tokens_equal_plain_decoding(
    draft: str,
    threads: int,
    drafts: dict[str, str],
    open_engine: Any,
    expected: dict[str, list[int]],
) -> None:
    engine = open_engine(draft=drafts[draft], threads=threads)
    accepted = proposed = 0
    for prompt, tokens in expected.items():
        stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=96))
        assert list(stream.result.tokens) == tokens, prompt
        accepted += stream.statistics.accepted
        proposed += stream.statistics.proposed
    # The extremes and the middle of acceptance are really exercised.
    if draft == "none":
        assert proposed == 0
    elif draft == "itself":
        assert accepted == proposed > 0
    else:
        assert 0 < accepted < proposed


def test_greedy_tokens_equal_plain_decoding_with_llama_cpps_kernels(
    plain_with_llama_cpps_kernels: Any, prompts: tuple[str, ...], open_engine: Any
) -> None:
    engine = open_engine(draft="ngram", kernels="llama.cpp")
    proposed = 0
    for prompt in prompts[:6]:
        tokens = plain_with_llama_cpps_kernels.greedy(engine.tokenize(prompt).tolist(), 48)
        stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=48))
        assert list(stream.result.tokens) == tokens, prompt
        proposed += stream.statistics.proposed
    assert proposed > 0


@pytest.mark.parametrize("draft", ["ngram", "damaged"])
def test_greedy_tokens_equal_plain_decoding_in_a_long_context(
    draft: str, drafts: dict[str, str], open_engine: Any, plain: Any
) -> None:
    engine = open_engine(draft=drafts[draft])
    prompt = f"<|im_start|>user\n{LONG}\nWhat does he write?<|im_end|>\n<|im_start|>assistant\n"
    tokens = engine.tokenize(prompt).tolist()
    assert len(tokens) > 1000
    assert emitted(engine, prompt, GREEDY, 64) == plain.greedy(tokens, 64)


def test_coupled_text_is_the_same_for_every_drafter_and_block_length(
    drafts: dict[str, str], open_engine: Any, prompts: tuple[str, ...]
) -> None:
    for seed, prompt in enumerate((prompts[0], prompts[2])):
        sampling = unfiltered(seed)
        reference = emitted(open_engine(), prompt, sampling, 32, accept="coupled")
        for draft in ("ngram", "damaged"):
            engine = open_engine(draft=drafts[draft], k=8)
            for k in range(1, 9):
                engine.decoder.k = k
                got = emitted(engine, prompt, sampling, 32, accept="coupled")
                assert got == reference, (draft, k)


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def test_coupled_text_is_gumbel_max_on_plain_logits(
    plain: Any, open_engine: Any, prompts: tuple[str, ...]
) -> None:
    """argmax(log p + Gumbel), in NumPy, on logits of one token at a time."""
    weyl, noise, seed = 0x9E3779B97F4A7C15, 4, 12345
    tokens = open_engine().tokenize(prompts[4]).tolist()
    start = len(tokens)
    for _ in range(12):
        logits = plain.logits(tokens).astype(np.float64)
        key = mix(seed + weyl & MASK)
        key = mix(key + (len(tokens) + 1) * weyl & MASK)
        key = mix(key + (noise + 1) * weyl & MASK)
        uniforms = np.array(
            [((mix(key + (v + 1) * weyl & MASK) >> 11) + 0.5) * 2.0**-53 for v in range(plain.size)]
        )
        tokens.append(int(np.argmax(logits - np.log(-np.log(uniforms)))))
    got = emitted(open_engine(), prompts[4], unfiltered(seed), 12, accept="coupled")
    assert got == tokens[start:]


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param("ngram", marks=pytest.mark.slow),
        "damaged",
        pytest.param("itself", marks=pytest.mark.slow),
    ],
)
def test_rejection_sampling_has_the_targets_joint_distribution(
    draft: str, drafts: dict[str, str], open_engine: Any, plain: Any
) -> None:
    """Three tokens drawn end to end, against the product of p at every prefix.

    A chi-square test at a false-alarm rate of 1e-3 over the three drafts (Bonferroni), with fixed
    seeds; outcomes expected less than five times are pooled.
    """
    runs, length, top_k = 500, 3, 3
    prompt = "A B C A B C A B"  # repeats, so that the n-gram drafter proposes
    start = open_engine().tokenize(prompt).tolist()
    exact = joint(plain, start, length, top_k)
    engine = open_engine(draft=drafts[draft], k=2)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        sampling = unfiltered(seed, top_k=top_k, temperature=1.5)
        counts[tuple(emitted(engine, prompt, sampling, length, accept="rejection"))] += 1
    assert set(counts) <= set(exact)
    assert p_value(counts, exact, runs) > 1e-3 / 3
