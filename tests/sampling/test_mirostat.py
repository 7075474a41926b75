"""Mirostat 2.0: p and mu, against the twin and along the path of llama.cpp's own sampler."""

from __future__ import annotations

import ctypes
import math

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.sampling.filters import advance_mu
from edgespec.sampling.parameters import SamplingParameters

TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

rows = st.builds(
    lambda seed, size, spread: np.random.default_rng(seed).normal(0, spread, size),
    st.integers(0, 2**32 - 1),
    st.integers(1, 200),
    st.sampled_from([0.0, 0.5, 3.0, 200.0]),
).map(lambda row: row.astype(np.float32))


@settings(max_examples=5 * settings.default.max_examples)
@given(
    rows,
    st.floats(-3, 12) | st.sampled_from([1e9, -1e9]),
    st.sampled_from([0.0, 0.4, 1.0, 3.0]),
    st.booleans(),
)
def test_p_is_the_twin_s(twins, run_kernel, logits, mu, temperature, holes):
    if holes:
        logits[::2] = -np.inf
    parameters = SamplingParameters(temperature=temperature, mirostat=2)
    number, mask, p = run_kernel(logits, [], parameters, mu=mu)
    if np.isneginf(logits).all():
        assert number == 0
        return
    assert number >= 1 and not p[~mask].any()
    choices = [twins.mirostat(logits, parameters, mu, slack) for slack in (0, -1e-5, 1e-5)]
    if (logits == logits.max()).sum() > 1:
        alone = np.zeros(len(logits))  # the most likely token, where rounding leaves one only
        alone[np.argmax(logits)] = 1
        choices.append(alone)
    assert min(np.abs(p - choice).max() for choice in choices) < 1e-6


def test_everything_else_is_replaced(run_kernel):
    """Except for the bias: as in llama.cpp, neither penalties nor filters are looked at."""
    logits = np.random.default_rng(0).normal(0, 2, 50).astype(np.float32)
    plain = run_kernel(logits, [1, 2, 1, 2], SamplingParameters(mirostat=2), mu=4.0)[2]
    other = SamplingParameters(
        mirostat=2, top_k=1, top_p=0.1, typical_p=0.1, min_p=1.0, top_n_sigma=0.1,
        repeat_penalty=2.0, frequency_penalty=1.0, presence_penalty=1.0, dry_multiplier=5.0,
        dry_allowed_length=0, xtc_probability=1.0, dynatemp_range=0.5,
    )  # fmt: skip
    assert (run_kernel(logits, [1, 2, 1, 2], other, mu=4.0)[2] == plain).all()
    biased = SamplingParameters(mirostat=2, logit_bias={int(np.argmax(logits)): -math.inf})
    assert run_kernel(logits, [], biased, mu=4.0)[2][np.argmax(logits)] == 0


def test_broken_logits_are_found(run_kernel):
    for temperature in (0.0, 1.0):
        for bad in (np.nan, np.inf):
            logits = np.array([0, 1, bad, 2], np.float32)
            parameters = SamplingParameters(temperature=temperature, mirostat=2)
            assert run_kernel(logits, [], parameters, mu=4.0)[0] == -1


def test_mu_moves_towards_the_target():
    arguments = SamplingParameters(mirostat=2, mirostat_tau=3.0, mirostat_eta=0.5)
    arguments = arguments.filter_arguments()
    assert advance_mu(6.0, 0.125, arguments) == 6.0
    assert advance_mu(6.0, 1.0, arguments) == 7.5
    assert advance_mu(6.0, 2.0**-5, arguments) == 5.0


def _logits(n_vocab, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, n_vocab)
    leaders = rng.choice(n_vocab, 300, replace=False)
    logits[leaders] += 4 + rng.exponential(rng.uniform(0.5, 3), 300)
    return logits.astype(np.float32)


def _rounding(values):
    """Of a surprise in bits, when probabilities are divided by a sum in float32."""
    weights = np.exp(np.sort(values.astype(np.float64))[::-1] - values.max())
    found = np.cumsum(weights.astype(np.float32), dtype=np.float32)[-1]
    return 1e-5 + 2 * abs(math.log2(found / weights.sum()))


@pytest.mark.parametrize("n_vocab", [49_152, 151_936])
@pytest.mark.parametrize(
    ("tau", "eta", "temperature"), [(5.0, 0.1, 1.0), (2.0, 0.6, 0.7), (2.5, 1.0, 1.3)]
)
def test_path_is_llama_cpp_s(twins, run_kernel, n_vocab, tau, eta, temperature):
    """It draws its own tokens; the same tokens advance our mu, which has to cut off the same."""
    parameters = SamplingParameters(
        temperature=temperature, mirostat=2, mirostat_tau=tau, mirostat_eta=eta
    )
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for link in (
        llama_cpp.llama_sampler_init_temp(temperature),
        llama_cpp.llama_sampler_init_mirostat_v2(7, tau, eta),
    ):
        llama_cpp.llama_sampler_chain_add(chain, link)
    arguments = parameters.filter_arguments()
    mu, drift, sizes, agreed = 2 * tau, 0.0, set(), 0
    for step in range(25):
        logits = _logits(n_vocab, step)
        entries = np.zeros(n_vocab, TOKEN)
        entries["id"], entries["logit"] = np.arange(n_vocab), logits
        array = llama_cpp.llama_token_data_array()
        array.data = entries.ctypes.data_as(llama_cpp.llama_token_data_p)
        array.size, array.selected, array.sorted = n_vocab, -1, False
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        left = entries[: array.size]
        expected = np.zeros(n_vocab)
        expected[left["id"]] = left["p"]
        if array.size > 5000:
            # Divided by a float32 sum over that many tokens, they are off by one factor.
            assert abs(expected.sum() - 1) < 1e-3
            expected /= expected.sum()
        token = int(left["id"][array.selected])

        number, _, p = run_kernel(logits, [], parameters, mu=mu)
        rounding = _rounding(logits / np.float32(temperature))
        slack = drift + rounding
        drift += eta * rounding  # of the other side's mu
        if number != array.size:
            # Tokens within rounding of the edge: the twin has the same ones on the other side.
            near = [twins.mirostat(logits, parameters, mu, sign * slack) for sign in (-1, 1)]
            low, high = ((row > 0).sum() for row in near)
            assert low <= array.size <= high and low <= number <= high
            p = np.where(expected > 0, near[1], 0) / near[1][expected > 0].sum()
        else:
            agreed += 1
        assert np.abs(p - expected).max() < 1e-5
        mu = advance_mu(mu, p[token], arguments)
        sizes.add(number)
    llama_cpp.llama_sampler_free(chain)
    assert len(sizes) > 3, "mu had no effect"
    assert agreed > 15
