"""p equals what llama.cpp's own sampler chain leaves: the tokens, and probabilities to 1e-5.

For top-p, typical-p and top-n-sigma, llama.cpp sums over all tokens in float32, one after the
other; a token that is within such a sum's rounding of the threshold may be kept by one side only.
The twin says which tokens those are; usually there are none. The entropy that sets the dynamic
temperature is such a sum, too: over tens of thousands of candidates its rounding is allowed for.
"""

from __future__ import annotations

import ctypes
import math

import llama_cpp
import numpy as np
import pytest

from edgespec.sampling.parameters import SamplingParameters

VOCABULARIES = (49_152, 151_936)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def _bias_sampler(n_vocab, bias):
    entries = (llama_cpp.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(entries, bias.items(), strict=True):
        entry.token, entry.bias = token, value
    return llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(bias), entries)


def _penalty_sampler(n_vocab, history, parameters):
    window = parameters.penalty_window
    sampler = llama_cpp.llama_sampler_init_penalties(
        n_vocab,
        len(history) if window < 0 else window,
        parameters.repeat_penalty,
        parameters.frequency_penalty,
        parameters.presence_penalty,
    )
    for token in history:
        llama_cpp.llama_sampler_accept(sampler, int(token))
    return sampler


def _chain(n_vocab, history, parameters):
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    links = [
        _bias_sampler(n_vocab, parameters.logit_bias),
        _penalty_sampler(n_vocab, history, parameters),
        llama_cpp.llama_sampler_init_top_n_sigma(parameters.top_n_sigma),
        llama_cpp.llama_sampler_init_top_k(parameters.top_k),
        llama_cpp.llama_sampler_init_typical(parameters.typical_p, 1),
        llama_cpp.llama_sampler_init_top_p(parameters.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(parameters.min_p, 1),
        llama_cpp.llama_sampler_init_xtc(
            parameters.xtc_probability, parameters.xtc_threshold, 1, 1
        ),
        llama_cpp.llama_sampler_init_temp_ext(
            parameters.temperature, parameters.dynatemp_range, parameters.dynatemp_exponent
        ),
    ]
    greedy = parameters.greedy
    links.append(
        llama_cpp.llama_sampler_init_greedy() if greedy else llama_cpp.llama_sampler_init_dist(1)
    )
    for link in links:
        llama_cpp.llama_sampler_chain_add(chain, link)
    return chain


def _llama(logits, history, parameters):
    """(mask of what the chain left, p as its last sampler computed it, the token it selected)."""
    n_vocab = len(logits)
    entries = np.zeros(n_vocab, TOKEN)
    entries["id"], entries["logit"] = np.arange(n_vocab), logits
    array = llama_cpp.llama_token_data_array()
    array.data = entries.ctypes.data_as(llama_cpp.llama_token_data_p)
    array.size, array.selected, array.sorted = n_vocab, -1, False
    chain = _chain(n_vocab, history, parameters)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    llama_cpp.llama_sampler_free(chain)
    # XTC moves the beginning of the list.
    first = (ctypes.addressof(array.data.contents) - entries.ctypes.data) // TOKEN.itemsize
    selected = int(entries["id"][first + array.selected])
    left = entries[first : first + array.size]
    left = left[left["logit"] > -np.inf]
    mask, p = np.zeros(n_vocab, bool), np.zeros(n_vocab)
    mask[left["id"]] = True
    p[left["id"]] = left["p"]
    return mask, p, selected


def _logits(n_vocab, seed, lead=1.5):
    """A broad mass and a few hundred leaders, as language models have them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, n_vocab)
    leaders = rng.choice(n_vocab, 300, replace=False)
    logits[leaders] += 4 + rng.exponential(lead, 300)
    return logits.astype(np.float32)


def _rounding(values):
    """How far running float32 sums over this row are from exact ones; with a factor of 2."""
    weights = np.exp(values[values > -np.inf].astype(np.float64) - values.max())
    weights /= weights.sum()
    terms = [weights, np.sort(weights)[::-1]]
    terms += [-w[w > 0] * np.log(w[w > 0]) for w in terms]
    errors = [np.cumsum(t.astype(np.float32), dtype=np.float32) - np.cumsum(t) for t in terms]
    return 1e-6 + 2 * max(float(np.abs(error).max()) for error in errors)


def _deviation(values):
    """How far a standard deviation is off whose sums are added up in float32."""
    values = values[values > -np.inf]
    mean = np.cumsum(values, dtype=np.float32)[-1] / np.float32(len(values))
    squares = ((values - mean) ** 2).astype(np.float32)
    found = math.sqrt(np.cumsum(squares, dtype=np.float32)[-1] / len(values))
    return 4 * abs(found - values.astype(np.float64).std())


def _warmth(twins, logits, history, parameters, mask):
    """How far p is off if the entropy of thousands of candidates is added up in float32."""
    if parameters.dynatemp_range == 0 or mask.sum() < 10_000:
        return 0.0
    values = twins.edited(logits, history, len(history), parameters)
    weights = np.sort(twins.softmax(values[mask].astype(np.float64)))[::-1]
    total = np.cumsum(np.float32(weights / weights[0]), dtype=np.float32)[-1]
    found = np.float32(weights / weights[0]) / total
    entropy = np.cumsum(-found * np.log(found), dtype=np.float32)[-1]
    exact = -(weights * np.log(weights)).sum()
    wrong = 3 * abs(float(entropy) / exact - 1) * parameters.dynatemp_exponent
    temperature = twins.temperature_of(values, mask, parameters)
    rows = [
        twins.softmax(values[mask].astype(np.float64), temperature + sign * wrong)
        for sign in (-parameters.dynatemp_range, parameters.dynatemp_range)
    ]
    return float(np.abs(rows[0] - rows[1]).max())


def _compare(twins, run_kernel, logits, history, parameters):
    number, mask, p = run_kernel(logits, history, parameters)
    assert number > 0
    expected_mask, expected, selected = _llama(logits, history, parameters)
    mask &= p > 0
    expected_mask &= (expected > 1e-30) | (expected_mask.sum() == 1)
    mask &= (p > 1e-30) | (mask.sum() == 1)
    if parameters.greedy:
        assert list(np.flatnonzero(mask)) == [selected]
        return
    differing = mask != expected_mask
    if differing.any():
        values = twins.edited(logits, history, len(history), parameters)
        verdict = twins.verdict(values, parameters, _rounding(values), _deviation(values))
        assert not (differing & (verdict.sure | ~verdict.possible)).any()
        assert differing.sum() < 0.01 * mask.sum() + 2
        # What is left to compare: this side's p, renormalized over the other side's tokens.
        p = twins.probabilities(values, expected_mask, parameters)
    slack = _warmth(twins, logits, history, parameters, mask)
    assert np.abs(p - expected).max() < 1e-5 + slack


ALONE = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 1000},
    {"top_k": 10**6},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"top_p": 0.1},
    {"top_p": 0.95},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1e-4},
    {"min_p": 1.0},
    {"repeat_penalty": 1.3},
    {"frequency_penalty": 0.4},
    {"presence_penalty": 0.7},
    {"presence_penalty": 0.7, "penalty_window": 5},
    {"repeat_penalty": 1.1, "frequency_penalty": -0.2, "penalty_window": -1},
    {"top_n_sigma": 0.5},
    {"top_n_sigma": 2.0},
    {"top_n_sigma": 1.0, "top_k": 50},
    {"top_n_sigma": -1.0},
    {"top_n_sigma": 0.0},
    {"top_k": 40, "dynatemp_range": 0.5},
    {"top_k": 40, "dynatemp_range": 2.0, "dynatemp_exponent": 2.5},
    {"dynatemp_range": 0.4},
    {"temperature": 0.0, "top_k": 40, "dynatemp_range": 0.7},
    {"top_n_sigma": 1.0, "dynatemp_range": 0.7},
    {"xtc_probability": 1.0},
    {"xtc_probability": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 30, "dynatemp_range": 0.5},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01, "temperature": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"logit_bias": {3: 5.0, 70: -math.inf, 40_000: 20.0}},
]


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize("lead", [0.01, 1.5, 3.0], ids=["broad", "usual", "peaked"])
@pytest.mark.parametrize("filters", ALONE, ids=str)
def test_each_filter_alone(twins, run_kernel, n_vocab, lead, filters):
    parameters = SamplingParameters(**{**OFF, **filters})
    logits = _logits(n_vocab, 7, lead)
    leaders = np.argsort(-logits)[:60]
    history = np.concatenate((leaders, leaders[:20], np.arange(30)))
    _compare(twins, run_kernel, logits, history, parameters)


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize("seed", range(20))
def test_random_combinations(twins, run_kernel, n_vocab, seed):
    rng = np.random.default_rng(seed)
    logits = _logits(n_vocab, seed, lead=float(rng.uniform(0.01, 3)))
    leaders = np.argsort(-logits)[:100]
    history = rng.choice(np.concatenate((leaders, rng.integers(0, n_vocab, 100))), 150)
    on = rng.random(12) < 0.6
    parameters = SamplingParameters(
        temperature=float(rng.uniform(0.2, 2)) if seed % 5 else 0.0,
        top_k=int(rng.choice([5, 40, 300, 5000])) if on[0] else 0,
        typical_p=float(rng.uniform(0.3, 1)) if on[1] and on[2] else 1.0,
        top_p=float(rng.uniform(0.5, 1)) if on[3] else 1.0,
        min_p=float(rng.uniform(0, 0.2)) if on[4] else 0.0,
        repeat_penalty=float(rng.uniform(0.9, 1.5)) if on[5] else 1.0,
        frequency_penalty=float(rng.uniform(-0.2, 0.5)) if on[6] else 0.0,
        presence_penalty=float(rng.uniform(-0.5, 1)) if on[7] else 0.0,
        penalty_window=int(rng.choice([0, 10, 64, 1000])),
        logit_bias={int(t): float(rng.normal(0, 4)) for t in leaders[:3]} if on[2] else {},
        # llama.cpp's typical-p takes the logarithm of the zeros that top-n-sigma leaves.
        top_n_sigma=float(rng.uniform(0.5, 3)) if on[8] and not (on[1] and on[2]) else -1.0,
        xtc_probability=float(on[9]),
        xtc_threshold=float(rng.uniform(0.005, 0.2)),
        dynatemp_range=float(rng.uniform(0, 1)) if on[10] and seed % 5 else 0.0,
        dynatemp_exponent=float(rng.uniform(0.3, 3)) if on[11] else 1.0,
    )
    _compare(twins, run_kernel, logits, history, parameters)


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_greedy_breaks_ties_as_llama_cpp_does(run_kernel, n_vocab):
    rng = np.random.default_rng(1)
    parameters = SamplingParameters(**{**OFF, "temperature": 0.0})
    rows = [rng.integers(0, 4, n_vocab).astype(np.float32) for _ in range(3)]
    rows.append(np.zeros(n_vocab, np.float32))
    rows.append(np.where(rng.random(n_vocab) < 0.999, np.float32(-0.0), np.float32(0.0)))
    rows.append(np.where(np.arange(n_vocab) > 5, np.float32(-np.inf), np.float32(-3)))
    for row in rows:
        mask = run_kernel(row, [], parameters)[1]
        assert int(np.flatnonzero(mask)[0]) == _llama(row, [], parameters)[2]
