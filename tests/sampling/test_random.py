"""Counter-based draws and the exponential race.

Every statistical test uses fixed seeds. Its p-values are compared with 1e-3 divided by their
number (Bonferroni), so each test would fail by chance once in a thousand choices of seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from edgespec.sampling.kernel import kernel
from edgespec.sampling.selection import (
    PURPOSE_ACCEPT,
    PURPOSE_DRAFT,
    PURPOSE_NOISE,
    PURPOSE_TARGET,
    noise_uniform,
    race,
    stream,
    uniform,
)

FALSE_ALARMS = 1e-3
PURPOSES = (PURPOSE_TARGET, PURPOSE_DRAFT, PURPOSE_ACCEPT, PURPOSE_NOISE)
N = 100_000


@kernel
def _along_positions(seed, purpose, out):
    for i in range(len(out)):
        out[i] = uniform(seed, i, purpose)


@kernel
def _along_seeds(position, purpose, out):
    for i in range(len(out)):
        out[i] = uniform(i, position, purpose)


@kernel
def _along_tokens(key, out):
    for i in range(len(out)):
        out[i] = noise_uniform(key, i)


@kernel
def _races(p, q, tokens, purpose, counts):
    """Race p and q under one key, len(p) * len(q) table of winners; seeds 0, 1, ..."""
    for seed in range(N):
        key = stream(seed, 17, purpose)
        counts[race(p, tokens, len(tokens), key), race(q, tokens, len(tokens), key)] += 1


def _sequences():
    """Series of draws that have to look independent of each other."""
    series = {}
    for purpose in PURPOSES:
        for seed in (0, 1, 2, -1, 2**63 - 1, -(2**63)):
            series[f"seed {seed}, purpose {purpose}"] = out = np.empty(N)
            _along_positions(seed, purpose, out)
        for position in (0, 1, 2, 4096):
            series[f"position {position}, purpose {purpose}"] = out = np.empty(N)
            _along_seeds(position, purpose, out)
    for position in (0, 1):
        series[f"tokens at {position}"] = out = np.empty(N)
        _along_tokens(np.uint64(stream(3, position, PURPOSE_NOISE)), out)
    return series


@pytest.fixture(scope="module")
def sequences():
    return _sequences()


def test_draws_are_inside_the_open_unit_interval(sequences):
    for out in sequences.values():
        assert out.min() > 0.0 and out.max() < 1.0


def test_a_draw_depends_on_its_counters_only(sequences):
    again = _sequences()
    assert all((again[name] == out).all() for name, out in sequences.items())
    assert uniform(1, 2, 3) == uniform(np.int64(1), np.int32(2), 3)
    assert sequences["seed 0, purpose 1"][1] == sequences["position 1, purpose 1"][0]


def test_every_draw_is_another(sequences):
    seeds = np.concatenate([out for name, out in sequences.items() if name.startswith("seed")])
    assert len(np.unique(seeds)) == len(seeds)


def test_seeds_are_64_bits_of_an_unsigned_number():
    wrapped = np.array([2**64 - 1, 2**63, 12345], np.uint64).view(np.int64)
    for seed, bits in zip((2**64 - 1, 2**63, 12345), wrapped, strict=True):
        assert uniform(int(bits), 5, 1) == uniform(np.uint64(seed), np.uint64(5), np.uint64(1))
    assert uniform(-1, 0, 1) != uniform(1, 0, 1)


def test_draws_are_uniform(sequences):
    threshold = FALSE_ALARMS / len(sequences)
    for name, out in sequences.items():
        bins = np.histogram(out, 256, (0, 1))[0]
        assert stats.chisquare(bins).pvalue > threshold, name


def test_successive_draws_are_independent(sequences):
    threshold = FALSE_ALARMS / len(sequences)
    for name, out in sequences.items():
        pairs = np.histogram2d(out[:-1:2], out[1::2], 16, [[0, 1], [0, 1]])[0]
        assert stats.chisquare(pairs.ravel()).pvalue > threshold, name


def test_series_are_not_correlated_with_each_other(sequences):
    names = list(sequences)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    matrix = np.corrcoef(np.stack(list(sequences.values())))
    # Series along seeds and along positions share single draws: 1 of 100,000 is invisible.
    deviation = np.abs(matrix[np.tril_indices(len(names), -1)]) * math.sqrt(N)
    assert 2 * stats.norm.sf(deviation.max()) * len(pairs) > FALSE_ALARMS


DISTRIBUTIONS = [
    [0.6, 0.3, 0.1],
    [0.2, 0.5, 0.3],
    [0.001, 0.009, 0.99],
    [0.0, 0.5, 0.5],
    [1 / 3, 1 / 3, 1 / 3],
    [1.0, 0.0, 0.0],
]


def test_race_draws_from_p_and_agrees_as_often_as_it_must():
    pairs = [(p, q) for p in DISTRIBUTIONS for q in DISTRIBUTIONS]
    threshold = FALSE_ALARMS / (2 * len(pairs))
    tokens = np.arange(3, dtype=np.int32)
    for p, q in pairs:
        counts = np.zeros((3, 3), np.int64)
        _races(np.array(p, np.float32), np.array(q, np.float32), tokens, PURPOSE_NOISE, counts)
        winners = counts.sum(axis=1)
        support = np.array(p) > 0
        assert not winners[~support].any()
        if support.sum() > 1:
            expected = np.array(p)[support] * N
            g_test = stats.power_divergence(winners[support], expected, lambda_="log-likelihood")
            assert g_test.pvalue > threshold, (p, q)
        distance = 0.5 * np.abs(np.subtract(p, q)).sum()
        bound = (1 - distance) / (1 + distance)
        agreed = int(np.trace(counts))
        assert stats.binom.cdf(agreed, N, bound) > threshold, (p, q, agreed)
        if p == q:
            assert agreed == N


def test_race_equals_the_plain_gumbel_maximum():
    rng = np.random.default_rng(5)
    for position in range(2000):
        n = int(rng.integers(1, 50))
        p = rng.dirichlet(np.full(n, 0.3)).astype(np.float32)
        p[rng.random(n) < 0.2] = 0
        if not p.any():
            continue
        key = np.uint64(stream(9, position, PURPOSE_NOISE))
        gumbel = np.array([-math.log(-math.log(noise_uniform(key, v))) for v in range(n)])
        with np.errstate(divide="ignore"):
            plain = int(np.argmax(np.log(p.astype(np.float64)) + gumbel))
        listed = rng.permutation(n).astype(np.int32)
        assert race(p, listed, n, key) == plain
        assert race(p * np.float32(8), listed, n, key) == plain, "weights need no normalization"


def test_race_with_denormal_weights_and_with_none():
    tokens = np.arange(2, dtype=np.int32)
    key = np.uint64(stream(1, 1, PURPOSE_NOISE))
    assert race(np.array([0, 1e-45], np.float32), tokens, 2, key) == 1
    assert race(np.zeros(2, np.float32), tokens, 2, key) == -1
