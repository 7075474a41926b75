"""G-test, chi-square tail and Holm's correction, against SciPy and known cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from edgespec.errors import UsageError
from edgespec.sampling.parameters import SamplingParameters
from edgespec.verification.checks import (
    chi_square_tail,
    expected_distribution,
    g_test,
    holm_rejects,
    is_clear_cut,
    softmax,
    total_variation,
)


@pytest.mark.parametrize("degrees", [1, 2, 5, 40, 300, 3000])
def test_chi_square_tail(degrees: int) -> None:
    for quantile in (1e-12, 1e-6, 1e-3, 0.3, 0.5, 0.9, 0.999999):
        statistic = float(stats.chi2.isf(quantile, degrees))
        assert chi_square_tail(statistic, degrees) == pytest.approx(quantile, rel=1e-7)
    assert chi_square_tail(0.0, degrees) == 1.0
    assert chi_square_tail(1e5, degrees) == pytest.approx(0.0, abs=1e-300)


def test_g_test_is_scipys_when_nothing_is_pooled() -> None:
    p = np.array([0.5, 0.3, 0.2])
    counts = np.array([520, 280, 200])
    test = g_test(counts, p)
    expected = stats.power_divergence(counts, p * 1000, lambda_="log-likelihood")
    # An outcome of its own is the pool here: the least likely one.
    assert test.statistic == pytest.approx(expected.statistic)
    assert test.p_value == pytest.approx(expected.pvalue)
    assert (test.degrees, test.impossible) == (2, 0)


def test_rare_outcomes_are_pooled() -> None:
    p = np.array([0.9, 0.08, *[0.002] * 10])
    counts = np.array([900, 80, *[2] * 10])
    assert g_test(counts, p).degrees == 2
    assert g_test(counts, p).statistic == pytest.approx(0.0, abs=1e-9)
    # A pool that is itself rare joins the least likely of the others.
    assert g_test(np.array([598, 400, 2]), np.array([0.6, 0.398, 0.002])).degrees == 1


def test_an_impossible_outcome_is_a_failure() -> None:
    test = g_test(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0]))
    assert (test.impossible, test.p_value) == (1, 0.0)


def test_a_single_outcome_fits() -> None:
    assert g_test(np.array([100, 0]), np.array([1.0, 0.0])).p_value == 1.0


def test_false_alarms_come_at_the_stated_rate() -> None:
    """p-values of right counts are uniform, so one in a hundred is below 0.01."""
    rng = np.random.default_rng(5)
    p = softmax(rng.normal(0, 2, 60))
    values = [g_test(rng.multinomial(20_000, p), p).p_value for _ in range(400)]
    assert stats.kstest(values, "uniform").pvalue > 1e-4


def test_holm() -> None:
    assert holm_rejects([0.02, 0.001, 0.3], 0.05) == [True, True, False]
    assert holm_rejects([0.03, 0.001, 0.03], 0.05) == [False, True, False]
    assert holm_rejects([], 0.05) == []


def test_rounding_at_a_threshold_is_noticed() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    parameters = SamplingParameters(temperature=1.0, top_k=0, top_p=0.75, min_p=0.0)
    assert not is_clear_cut(logits, parameters)
    assert is_clear_cut(logits, SamplingParameters(1.0, top_k=0, top_p=0.8, min_p=0.0))


def test_only_known_filters_are_expected() -> None:
    with pytest.raises(UsageError, match="temperatures above 0"):
        expected_distribution(np.zeros(4, np.float32), SamplingParameters(temperature=0.0))
    with pytest.raises(UsageError, match="knows top-k"):
        expected_distribution(np.zeros(4, np.float32), SamplingParameters(repeat_penalty=1.1))


def test_total_variation() -> None:
    assert total_variation(np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])) == pytest.approx(
        0.4
    )
