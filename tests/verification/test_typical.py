"""What typical acceptance loses: told exactly, and the frequencies are no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context
from edgespec.speculation.acceptance import ACCEPT_REJECTION
from edgespec.verification.rejection import make_trials, tally_first_tokens
from edgespec.verification.trees import check_typical, loss_of, typical_distribution


@pytest.fixture(scope="module")
def trials(target: Context, draft: Context, make_drafter: Any, questions: list[Any]) -> list[Any]:
    draft.clear()
    return make_trials(target, make_drafter(draft), questions)


def test_the_loss_is_measured_and_frequencies_fit_it(trials: list[Any]) -> None:
    result = check_typical(trials, 5_000, threads=2)
    assert result.holds, result.figures
    assert result.summary.startswith("lossy") and result.figures["lossy"]
    assert 0 < result.figures["variation"] < 1 and result.figures["divergence"] > 0
    for test in result.figures["tests"]:
        assert test["agreement"] <= 1 - test["variation"] + 1e-9


def test_another_rule_is_not_taken_for_it(trials: list[Any]) -> None:
    def exact(*arguments: Any) -> int:
        place = 6
        settings = arguments[place]._replace(rule=ACCEPT_REJECTION)
        return tally_first_tokens(*arguments[:place], settings, *arguments[place + 1 :])

    assert not check_typical(trials, 5_000, threads=2, tally=exact).holds


def test_the_loss_in_numbers() -> None:
    p = np.array([0.7, 0.25, 0.05])  # entropy 0.75: enough is 0.09
    source = np.array([0.0, 0.6, 0.4])
    emitted = typical_distribution(p, source)
    assert np.allclose(emitted, [0.28, 0.6 + 0.1, 0.02])
    loss = loss_of(p, source)
    assert loss.variation == pytest.approx(0.45)
    assert loss.agreement == pytest.approx(0.4 + 0.6 * 0.25)
    assert loss_of(p, np.array([0.0, 0.0, 1.0])) == pytest.approx((0.0, 0.0, 1.0))
