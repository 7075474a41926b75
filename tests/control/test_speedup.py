"""What a draft is expected to bring, against the theory in exact fractions and sums written out."""

from __future__ import annotations

from fractions import Fraction

import pytest

from edgespec.control.controller import draft_speedup
from edgespec.control.costs import make_cost_table
from edgespec.control.speedup import continued, expected_speedups, fastest
from edgespec.lab.theory import best_k, expected_tokens

V = [1.0, 1.4, 1.8, 2.2, 3.0, 3.3, 3.6, 4.0, 5.5]


@pytest.mark.parametrize("alpha", ["1/10", "1/2", "7/10", "19/20"])
@pytest.mark.parametrize("c", ["0", "1/10", "1/2"])
def test_expected_speedups_are_the_theory(alpha: str, c: str) -> None:
    rate, step = Fraction(alpha), Fraction(c)
    costs = [Fraction(v).limit_denominator(100) for v in V]
    found = expected_speedups([float(rate)] * 8, V, float(step))
    for k, expected in enumerate(found):
        assert expected.tokens == pytest.approx(float(expected_tokens(rate, k)))
        assert expected.cost == pytest.approx(float(costs[k] + k * step))
    best = best_k(rate, step, lambda n: costs[n - 1] if n <= 9 else None, 8)
    assert max(found, key=lambda each: each.speedup).k == best.k


def test_the_best_block_by_hand() -> None:
    v = [1.0, 1.5, 1.8, 2.4]
    best = fastest(expected_speedups(continued([0.8, 0.5], 3), v, 0.1))
    assert (best.k, best.speedup) == (1, pytest.approx(1.8 / 1.6))  # k = 2: 2.2 / 2.0
    best = fastest(expected_speedups(continued([0.9], 3), v, 0.05))
    assert (best.k, best.speedup) == (2, pytest.approx((1 + 0.9 + 0.81) / 1.9))
    best = fastest(expected_speedups(continued([0.4], 3), v, 0.1))
    assert (best.k, best.speedup) == (0, 1.0)


def test_costs_are_those_of_an_answers_depth() -> None:
    # Halfway between the depths, two tokens cost 1.5 times what one does.
    table = make_cost_table([0, 512], [1, 2], [[8.0, 11.0], [12.0, 19.0]], [0.0, 0.0], 2)
    assert draft_speedup([0.8], table, 1.0) == pytest.approx(1.8 / 1.6)
