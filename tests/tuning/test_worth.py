"""What a draft is expected to bring, against sums written out."""

from __future__ import annotations

import pytest

from edgespec.tuning.costs import make_cost_table
from edgespec.tuning.worth import best_block, expected_speedup

VERIFY = [10.0, 15.0, 18.0, 24.0]


def test_the_best_block_by_hand() -> None:
    # k = 1: 1.8 / 1.6; k = 2: (1 + 0.8 + 0.8 * 0.5) / 2.0; k = 3: 2.2 + 0.2 over 2.7
    k, speedup = best_block([0.8, 0.5], VERIFY, 1.0)
    assert (k, speedup) == (1, pytest.approx(1.8 / 1.6))
    k, speedup = best_block([0.9], VERIFY, 0.5)
    assert (k, speedup) == (2, pytest.approx((1 + 0.9 + 0.81) / 1.9))


def test_nothing_is_better_than_a_loss() -> None:
    assert best_block([0.4], VERIFY, 1.0) == (0, 1.0)
    assert best_block([1.0], VERIFY[:1], 0.0) == (0, 1.0)


def test_costs_are_those_of_an_answers_depth() -> None:
    # Halfway between the depths, two tokens cost 1.5 times what one does.
    table = make_cost_table([0, 512], [1, 2], [[8.0, 11.0], [12.0, 19.0]], [0.0, 0.0], 2)
    assert expected_speedup([0.8], table, 1.0) == pytest.approx(1.8 / 1.6)
