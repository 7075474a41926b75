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
        {"frequency_penalty": math.nan},
        {"presence_penalty": math.inf},
        {"penalty_window": -2},
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
