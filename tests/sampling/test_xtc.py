"""XTC's coin: how often it falls, on what it depends, and the mixture that comes of it."""

from __future__ import annotations

import numpy as np
from scipy import stats

from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.random import PURPOSE_ACCEPT, PURPOSE_TARGET, PURPOSE_XTC, uniform
from edgespec.sampling.xtc import excludes_top

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DRAWS = 100_000


@kernel
def _toss(arguments, seed, first, coins):
    for i in range(len(coins)):
        coins[i] = excludes_top(arguments, seed, first + i)


def _coins(seed=1, first=0, **parameters):
    coins = np.zeros(DRAWS, np.bool_)
    _toss(SamplingParameters(**OFF, **parameters).filter_arguments(), seed, first, coins)
    return coins


def test_the_coin_falls_as_often_as_it_should():
    found = [
        stats.binomtest(int(_coins(seed, xtc_probability=chance).sum()), DRAWS, chance).pvalue
        for seed, chance in enumerate((0.01, 0.3, 0.5, 0.9))
    ]
    assert min(found) > 1e-3 / len(found)
    assert _coins(xtc_probability=1.0).all()
    assert not _coins(xtc_probability=0.0).any()
    assert not _coins(xtc_probability=1.0, xtc_threshold=0.51).any(), "off"


def test_the_coin_depends_on_seed_and_position_alone():
    coins = _coins(3, xtc_probability=0.5)
    assert (coins[100:] == _coins(3, 100, xtc_probability=0.5)[:-100]).all()
    assert abs(float((coins == _coins(4, xtc_probability=0.5)).mean()) - 0.5) < 0.01


def test_the_coin_is_independent_of_the_other_draws():
    found = []
    coins = _coins(5, xtc_probability=0.5)
    for purpose in (PURPOSE_ACCEPT, PURPOSE_TARGET):
        other = np.array([uniform(5, i, purpose) for i in range(20_000)])
        found.append(stats.ks_2samp(other[coins[:20_000]], other[~coins[:20_000]]).pvalue)
    assert min(found) > 1e-3 / len(found)
    assert [uniform(5, i, PURPOSE_XTC) < 0.5 for i in range(100)] == coins[:100].tolist()


def test_both_sides_of_the_coin_and_their_mixture(twins, run_kernel):
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.07, 0.03], np.float32))
    parameters = SamplingParameters(**OFF, xtc_probability=0.3, xtc_threshold=0.15)
    whole, excluded = [0.4, 0.3, 0.2, 0.07, 0.03], [0, 0, 2 / 3, 7 / 30, 0.1]
    total = np.zeros(5)
    for position in range(2000):
        coin = uniform(9, position, PURPOSE_XTC) < 0.3
        p = run_kernel(logits, [], parameters, seed=9, position=position)[2]
        assert np.abs(p - (excluded if coin else whole)).max() < 1e-6
        total += p
    exact = 0.7 * np.array(whole) + 0.3 * np.array(excluded)
    assert np.abs(twins.distribution(logits, [], 0, parameters) - exact).max() < 1e-6
    assert np.abs(total / 2000 - exact).max() < 4 * np.sqrt(0.21 / 2000) * 0.5


def test_what_is_spared_among_equals_and_where_nothing_is_to_be_done(run_kernel):
    always = SamplingParameters(**OFF, xtc_probability=1.0, xtc_threshold=0.2)
    p = run_kernel(np.zeros(4, np.float32), [], always)[2]
    assert p.tolist() == [0, 0, 0, 1]
    for row in ([5.0, 0, 0, 0], [0.0], [0.0, 1, 2, 30]):
        logits = np.array(row, np.float32)
        exact = np.exp(logits - logits.max())
        p = run_kernel(logits, [], always)[2]
        assert np.abs(p - exact / exact.sum()).max() < 1e-6
