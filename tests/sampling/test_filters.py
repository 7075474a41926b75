"""`distribution` against its float64 twin, over all combinations of filters and hostile logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edgespec.sampling.filters import argmax, excludes_top
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_TARGET, PURPOSE_XTC, uniform
from edgespec.sampling.softmax import softmax

ALL = settings(max_examples=5 * settings.default.max_examples)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def _shaped(kind: str, size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    normal = rng.normal(0, 3, size)
    rows = {
        "normal": normal,
        "peaked": normal + 12 * (rng.random(size) < 0.1),
        "ties": rng.integers(-2, 3, size),
        "signed zeros": np.where(rng.random(size) < 0.5, 0.0, -0.0),
        "equal": np.full(size, normal[0]),
        "one-hot": np.where(np.arange(size) == seed % size, 300.0, -300.0),
        "denormal": rng.normal(0, 1, size) * 1e-40,
        "tiny": rng.normal(0, 1e-8, size),
        "wide": rng.normal(0, 1, size) * 10.0 ** rng.uniform(-3, 38, size),
        "large": 1e6 + normal,
        "holes": np.where(rng.random(size) < 0.5, -np.inf, normal),
    }
    row = rows[kind].clip(-3.4e38, 3.4e38) if kind != "holes" else rows[kind]
    row = row.astype(np.float32)
    if np.isneginf(row).all():
        row[seed % size] = 1.0
    return row


KINDS = ["normal", "peaked", "ties", "signed zeros", "equal", "one-hot", "denormal"]
KINDS += ["tiny", "wide", "large", "holes"]

shaped_logits = st.builds(
    _shaped, st.sampled_from(KINDS), st.integers(1, 200), st.integers(0, 2**32 - 1)
)
free_logits = st.lists(
    st.floats(-(2.0**127), 2.0**127, width=32)
    | st.sampled_from([0.0, -0.0, 1.0, 1e-45, -math.inf]),
    min_size=1,
    max_size=30,
).map(lambda values: np.array(values, np.float32))
fractions = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0])
all_parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.5, 1e-30, 1e30]),
        "top_k": st.sampled_from([0, 1, 2, 5, 40, 1000]),
        "typical_p": st.just(1.0) | fractions,
        "top_p": st.just(1.0) | fractions,
        "min_p": st.just(0.0) | fractions,
    }
)
late_filters = st.just({}) | st.fixed_dictionaries(
    {
        "top_n_sigma": st.sampled_from([-1.0, 0.3, 1.0, 2.5]),
        "dynatemp_range": st.sampled_from([0.0, 0.5, 3.0]),
        "dynatemp_exponent": st.sampled_from([0.0, 1.0, 1.7]),
        "xtc_probability": st.sampled_from([0.0, 1.0]),
        "xtc_threshold": st.sampled_from([0.0, 0.02, 0.1, 0.5, 0.6]),
    }
)
dry = st.just({}) | st.fixed_dictionaries(
    {
        "dry_multiplier": st.sampled_from([0.0, 0.8, 1e38]),
        "dry_base": st.sampled_from([1.0, 1.1, 1.75, 1e30]),
        "dry_allowed_length": st.integers(0, 4),
        "dry_window": st.sampled_from([-1, 0, 1, 7, 64]),
    }
)
all_penalties = st.just({}) | st.fixed_dictionaries(
    {
        "repeat_penalty": st.sampled_from([1.0, 1.3, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.25, -0.5]),
        "presence_penalty": st.sampled_from([0.0, 1.0, -1.5]),
        "penalty_window": st.sampled_from([-1, 0, 1, 7, 64]),
    }
)


def _check(twins, run_kernel, logits, history, parameters):
    values = twins.edited(logits, history, len(history), parameters)  # no breakers
    number, mask, p = run_kernel(logits, history, parameters)
    if np.isnan(values).any() or (values == np.inf).any():
        assert number == -1
        return
    if np.isneginf(values).all():
        assert number == 0
        return
    assert number >= 1
    assert not p[~mask].any(), "mass outside the candidates"
    assert abs(p.sum(dtype=np.float64) - 1) < 1e-6
    verdict = twins.verdict(values, parameters)
    mask &= values > -np.inf
    if parameters.dynatemp_range > 0 and number == 1:
        # The entropy, and with it the temperature, may be 0: one candidate has all mass.
        mask |= verdict.sure
    assert not (verdict.sure & ~mask).any(), np.flatnonzero(verdict.sure & ~mask)
    assert not (mask & ~verdict.possible).any(), np.flatnonzero(mask & ~verdict.possible)
    expected = twins.probabilities(values, mask, parameters)
    assert np.abs(p - expected).max() < 1e-6


@ALL
@given(logits=shaped_logits | free_logits, filters=all_parameters, penalties=all_penalties,
       late=late_filters, repetition=dry, data=st.data())  # fmt: skip
def test_any_combination_is_what_the_twin_says(
    twins, run_kernel, logits, filters, penalties, late, repetition, data
):
    token = st.integers(0, len(logits) - 1)
    history = data.draw(st.lists(token, max_size=40))
    bias = data.draw(
        st.just({})
        | st.dictionaries(token, st.floats(-50, 50, width=32) | st.just(-math.inf), max_size=4)
    )
    parameters = SamplingParameters(**filters, **penalties, **late, **repetition, logit_bias=bias)
    with np.errstate(all="ignore"):
        _check(twins, run_kernel, logits, history, parameters)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "filters",
    [{"top_k": 7}, {"typical_p": 0.6}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.3}, {},
     {"top_n_sigma": 1.0}, {"dynatemp_range": 0.7}, {"temperature": 0.0, "dynatemp_range": 1.0},
     {"xtc_probability": 1.0}, {"xtc_probability": 1.0, "temperature": 0.0},
     {"top_n_sigma": 0.3, "xtc_probability": 1.0, "xtc_threshold": 0.5},
     {"min_p": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.0}],
    ids=str,
)  # fmt: skip
def test_each_filter_alone(twins, run_kernel, kind, filters):
    parameters = SamplingParameters(**{**OFF, **filters})
    for seed in range(8):
        for size in (1, 2, 63, 64, 65, 200):
            with np.errstate(all="ignore"):
                _check(twins, run_kernel, _shaped(kind, size, seed), [], parameters)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.nan], ids=["nan", "+inf", "-nan"])
@pytest.mark.parametrize(
    "filters",
    [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.5}],
    ids=str,
)
def test_broken_logits_are_found_wherever_they_are(run_kernel, bad, filters):
    parameters = SamplingParameters(**{**OFF, **filters})
    for size in (1, 6, 64, 300, 1000):
        for where in {0, size // 3, size // 2, size - 1}:
            logits = np.linspace(5, -5, size).astype(np.float32)
            logits[where] = bad
            assert run_kernel(logits, [], parameters)[0] == -1
            logits[:] = -np.inf
            logits[where] = bad
            assert run_kernel(logits, [], parameters)[0] == -1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.5}, {"top_k": 500}],
    ids=str,
)
def test_nothing_allowed_is_reported(run_kernel, temperature, filters):
    parameters = SamplingParameters(**{**OFF, **filters, "temperature": temperature})
    for size in (1, 5, 300):
        logits = np.full(size, -np.inf, np.float32)
        assert run_kernel(logits, [], parameters)[0] == 0
    forbidden = SamplingParameters(**{**OFF, **filters}, logit_bias={0: -math.inf, 1: -math.inf})
    assert run_kernel(np.zeros(2, np.float32), [], forbidden)[0] == 0


def test_a_forbidden_token_never_gets_mass(run_kernel):
    logits = np.array([9, 1, 2], np.float32)
    parameters = SamplingParameters(**OFF, logit_bias={0: -math.inf})
    p = run_kernel(logits, [], parameters)[2]
    assert p[0] == 0 and abs(p[2] - 1 / (1 + math.exp(-1))) < 1e-6


@pytest.mark.parametrize("temperature", [1e-40, 1e-320])
def test_the_smallest_temperatures_choose_the_largest_logit(run_kernel, temperature):
    parameters = SamplingParameters(**{**OFF, "temperature": temperature})
    p = run_kernel(np.array([1, 3, 3, 2], np.float32), [], parameters)[2]
    assert p.tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize("top_k", [1, 3, 5])
def test_equal_logits_go_to_the_smaller_ids(run_kernel, top_k):
    logits = np.zeros(100, np.float32)
    mask = run_kernel(logits, [], SamplingParameters(**{**OFF, "top_k": top_k}))[1]
    assert list(np.flatnonzero(mask)) == list(range(top_k))


@ALL
@given(shaped_logits | free_logits)
def test_argmax_is_the_first_of_the_largest(logits):
    assert argmax(logits) == int(np.argmax(logits))


@ALL
@given(shaped_logits, st.floats(0.05, 20))
def test_softmax_is_accurate_to_single_precision(logits, temperature):
    out = np.empty_like(logits)
    inverse = np.float32(1 / temperature)
    with np.errstate(over="ignore"):  # the difference of two huge numbers
        scaled = (logits - logits.max()) * inverse
        total = softmax(logits, len(logits), logits.max(), inverse, out)
    exact = np.exp(scaled.astype(np.float64))
    assert abs(total / exact.sum() - 1) < 3e-7
    assert np.abs(out - exact / exact.sum()).max() < 3e-7
    large = exact > 1e-30
    np.testing.assert_allclose(out[large], (exact / exact.sum())[large], rtol=5e-7)


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
