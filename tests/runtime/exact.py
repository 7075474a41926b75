"""What exactness tests compare with: the joint distribution, enumerated on plain logits."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from edgespec import GenerationLimits, SamplingParameters

GREEDY = SamplingParameters(temperature=0.0)


def unfiltered(seed: int, **filters: Any) -> SamplingParameters:
    return SamplingParameters(
        **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed, **filters}
    )


def run(engine: Any, prompt: Any, sampling: Any, count: int = 32, **options: Any) -> Any:
    """The stream of a whole answer, which has at least one token."""
    stream = engine.generate(prompt, sampling, GenerationLimits(max_tokens=count), **options)
    assert stream.result.tokens
    return stream


def emitted(engine: Any, prompt: str, sampling: Any, count: int, **options: Any) -> list[int]:
    stream = engine.generate(prompt, sampling, GenerationLimits(max_tokens=count), **options)
    return list(stream.result.tokens)


def joint(plain: Any, start: list[int], length: int, top_k: int) -> dict[tuple[int, ...], float]:
    """The probability of every continuation of so many tokens: the product of p at each prefix."""
    exact = {}
    for path in itertools.product(range(top_k), repeat=length):
        tokens, chance = list(start), 1.0
        for rank in path:
            p = filtered(plain, tuple(tokens), top_k)
            token = sorted(p, key=lambda t: (-p[t], t))[rank]
            chance *= p[token]
            tokens.append(token)
        exact[tuple(tokens[len(start) :])] = chance
    assert math.isclose(sum(exact.values()), 1.0, rel_tol=1e-6)
    return exact


_rows: dict[tuple[Any, int, tuple[int, ...]], dict[int, float]] = {}


def filtered(plain: Any, tokens: tuple[int, ...], top_k: int) -> dict[int, float]:
    """Top-k and temperature 1.5, in NumPy, on plain logits."""
    key = plain, top_k, tokens
    if key not in _rows:
        logits = plain.logits(list(tokens)).astype(np.float64)
        kept = np.argsort(-logits, kind="stable")[:top_k]
        weights = np.exp((logits[kept] - logits[kept].max()) / 1.5)
        _rows[key] = dict(zip(kept.tolist(), (weights / weights.sum()).tolist(), strict=True))
    return _rows[key]


def p_value(counts: Mapping[Any, int], exact: dict[Any, float], runs: int) -> float:
    common = [outcome for outcome, chance in exact.items() if chance * runs >= 5]
    observed = [counts.get(outcome, 0) for outcome in common]
    chances = [exact[outcome] * runs for outcome in common]
    observed.append(runs - sum(observed))
    chances.append(runs - sum(chances))
    if chances[-1] < 1e-6:
        observed.pop()
        chances.pop()
    chances = [chance * sum(observed) / sum(chances) for chance in chances]
    return float(stats.chisquare(observed, chances).pvalue)


class Drawn(NamedTuple):
    """How often each text came, and how many tokens were proposed and accepted in all."""

    counts: Counter[tuple[int, ...]]
    proposed: int
    accepted: int


def drawn(engine: Any, prompt: Any, runs: int, length: int, top_k: int, **options: Any) -> Drawn:
    """So many texts drawn by rejection at temperature 1.5, with the seeds 0, 1, ..."""
    counts: Counter[tuple[int, ...]] = Counter()
    proposed = accepted = 0
    for seed in range(runs):
        sampling = unfiltered(seed, temperature=1.5, top_k=top_k)
        stream = run(engine, prompt, sampling, length, accept="rejection", **options)
        counts[tuple(stream.result.tokens)] += 1
        proposed += stream.statistics.proposed
        accepted += stream.statistics.accepted
    return Drawn(counts, proposed, accepted)


def drawn_p_value(
    engine: Any, plain: Any, prompt: str, runs: int, **options: Any
) -> tuple[float, int]:
    """Chi-square over three tokens drawn by rejection with fixed seeds; how many were proposed."""
    start, length, top_k = engine.tokenize(prompt).tolist(), 3, 3
    exact = joint(plain, start, length, top_k)
    found = drawn(engine, start, runs, length, top_k, **options)
    return p_value(found.counts, exact, runs), found.proposed
