"""What a caller may ask for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.sampling.parameters import SamplingParameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": math.nan},
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"top_k": -1},
        {"typical_p": 1.1},
        {"top_p": -0.1},
        {"min_p": math.nan},
        {"repeat_penalty": 0.0},
        {"repeat_penalty": 1e7},
        {"frequency_penalty": math.nan},
        {"frequency_penalty": 1e7},
        {"presence_penalty": -1e300},
        {"presence_penalty": math.inf},
        {"penalty_window": -2},
        {"top_n_sigma": math.nan},
        {"top_n_sigma": math.inf},
        {"dynatemp_range": -0.1},
        {"dynatemp_exponent": -1.0},
        {"dry_multiplier": -1.0},
        {"dry_base": 0.9},
        {"dry_base": math.inf},
        {"dry_allowed_length": -1},
        {"dry_window": -2},
        {"dry_breakers": ("a", "")},
        {"dry_breakers": "ab"},
        {"xtc_probability": 1.1},
        {"xtc_threshold": -0.1},
        {"mirostat": 1},
        {"mirostat_tau": math.nan},
        {"mirostat_eta": -0.1},
        {"seed": -1},
        {"seed": 2**64},
        {"logit_bias": {-1: 0.0}},
        {"logit_bias": {0: math.nan}},
        {"logit_bias": {0: math.inf}},
    ],
    ids=str,
)
def test_wrong_values_are_refused_in_one_line(wrong):
    with pytest.raises(UsageError) as caught:
        SamplingParameters(**wrong)
    assert "\n" not in str(caught.value)


def test_kernel_form_has_one_type_whatever_was_given():
    given = SamplingParameters(temperature=1, top_k=3, top_p=1, logit_bias={4: -math.inf, 2: 1})
    default = SamplingParameters().filter_arguments()
    for value, expected in zip(given.filter_arguments(), default, strict=True):
        assert type(value) is type(expected)
    assert given.filter_arguments().bias_tokens.tolist() == [4, 2]
    assert given.filter_arguments().bias_values.dtype == np.float32


def test_where_there_is_a_choice_between_tokens():
    assert SamplingParameters(temperature=0.0).greedy
    assert SamplingParameters(temperature=0.0, xtc_probability=0.5).greedy
    assert SamplingParameters(temperature=0.0, mirostat=2, dynatemp_range=0.5).greedy
    assert not SamplingParameters(temperature=0.0, dynatemp_range=0.5).greedy
    assert not SamplingParameters().greedy


def test_filters_that_are_off_or_replaced_do_nothing():
    off = SamplingParameters(top_n_sigma=-3.0, xtc_probability=0.5, xtc_threshold=0.6)
    assert (off.filter_arguments().top_n_sigma, off.filter_arguments().xtc_probability) == (0, 0)
    replaced = SamplingParameters(mirostat=2, dry_multiplier=1.0, presence_penalty=2.0)
    assert not replaced.uses_dry
    assert replaced.filter_arguments().dry_multiplier == 0
    assert replaced.filter_arguments().presence_penalty == 0
