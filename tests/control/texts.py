"""Made-up costs, texts and drafts for the simulator; the same for the same seed."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float64Array, Int32Array

Generator = np.random.Generator

# Costs of 1, 2, ... 16 tokens; Q4_0 and Q4_1 as measured on two cores with AVX2.
FLAT = tuple(1 + 0.04 * n for n in range(16))
EIGHT_CORES = (1, 1.1, 1.2, 1.25, 1.45, 1.5, 1.6, 1.65, 1.9, 1.95, 2.05, 2.1, 2.3, 2.35, 2.45, 2.5)
Q4_0 = (1, 1.46, 2.07, 2.11, 2.77, 2.99, 3.45, 3.62, 4.0, 4.3, 4.6, 4.96, 5.2, 5.5, 5.8, 6.05)
Q4_1 = (1, 1.58, 2.15, 2.56, 3.44, 3.51, 4.29, 5.3, 5.8, 6.3, 6.8, 7.25, 7.7, 8.2, 8.7, 9.2)
STAIRS = (1, 1.34, 1.64, 1.67, 2.3, 2.32, 2.33, 2.34, 3.0, 3.0, 3.0, 3.0, 3.7, 3.7, 3.7, 3.7)
CLIFF = (1, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8, 5.0, 5.3, 5.6, 6.0, 6.4, 6.8, 7.2, 7.6, 4.2)

_VOCABULARY = 3000


def prose(rng: Generator, n: int) -> Int32Array:
    """Words by their frequency: what stood behind one before says little."""
    ranks = np.arange(1, _VOCABULARY + 1)
    return rng.choice(_VOCABULARY, n, p=(1 / ranks) / (1 / ranks).sum()).astype(np.int32)


def code(rng: Generator, n: int) -> Int32Array:
    """Lines of twelve kinds with two names in each that differ."""
    kinds = [rng.integers(0, _VOCABULARY, rng.integers(5, 14)) for _ in range(12)]
    lines: list[Int32Array] = []
    while sum(map(len, lines)) < n:
        line = kinds[rng.integers(len(kinds))].copy()
        line[rng.choice(len(line), 2, replace=False)] = rng.integers(0, _VOCABULARY, 2)
        lines.append(line)
    return np.concatenate(lines)[:n].astype(np.int32)


def copying(rng: Generator, source: Int32Array, n: int) -> Int32Array:
    """Stretches of the source, one word in thirty changed."""
    parts: list[Int32Array] = []
    while sum(map(len, parts)) < n:
        start = rng.integers(0, max(1, len(source) - 60))
        parts.append(source[start : start + rng.integers(40, 160)])
    text = np.concatenate(parts)[:n].copy()
    changed = rng.random(n) < 1 / 30
    text[changed] = rng.integers(0, _VOCABULARY, int(changed.sum()))
    return text.astype(np.int32)


def bursts(rng: Generator, source: Int32Array, n: int) -> Int32Array:
    """Prose, with a stretch of the source now and then."""
    parts: list[Int32Array] = []
    while sum(map(len, parts)) < n:
        parts.append(prose(rng, rng.integers(60, 140)))
        parts.append(copying(rng, source, rng.integers(30, 90)))
    return np.concatenate(parts)[:n]


def mixed_certainty(rng: Generator, n: int) -> Float64Array:
    """Chances of acceptance as of a good draft: most words are easy, the others anything."""
    easy = rng.random(n) < 0.6
    return np.where(easy, rng.uniform(0.93, 1.0, n), rng.uniform(0.0, 0.8, n))
