"""`best_length` against plain enumeration, over costs with steps and cliffs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control.controller import DraftBudget, best_length, fixed_budget

PROPERTY = settings(max_examples=300, deadline=None, derandomize=True)

seconds = st.floats(1e-4, 1.0)
chance = st.floats(0.0, 1.0)


def budget(cycle_s, acceptance):
    limit = len(cycle_s) - 1
    assert len(acceptance) >= limit
    return DraftBudget(limit, np.array(cycle_s, float), np.array(acceptance, float))


def emitted(acceptance, j):
    """Expected tokens of j proposals, by summing over where the first rejection is."""
    total, reached = 0.0, 1.0
    for i in range(j):
        total += reached * (1 - acceptance[i]) * (i + 1)
        reached *= acceptance[i]
    return total + reached * (j + 1)


def rates(cycle_s, acceptance, given, drafted, step_s, start_s):
    """Tokens per second for each number of proposals."""
    result = []
    for j in range(len(cycle_s)):
        steps = max(j, drafted) - given
        drafting = start_s + steps * step_s if steps > 0 else 0.0
        result.append(emitted(acceptance, j) / (cycle_s[j] + drafting))
    return result


@st.composite
def situations(draw):
    limit = draw(st.integers(0, 10))
    costs = draw(st.lists(seconds, min_size=limit + 1, max_size=limit + 1))
    if draw(st.booleans()):
        costs = list(itertools.accumulate(costs))  # dearer with every token, in uneven steps
    acceptance = draw(st.lists(chance, min_size=max(1, limit), max_size=max(1, limit)))
    given = draw(st.integers(0, limit))
    drafted = draw(st.integers(given, limit))
    return costs, acceptance, given, drafted, draw(st.floats(0, 0.5)), draw(st.floats(0, 0.5))


@PROPERTY
@given(situations())
def test_the_best_of_all_lengths(situation):
    costs, acceptance, given, drafted, step_s, start_s = situation
    expected = rates(*situation)
    for least in range(len(costs)):
        j, rate = best_length(budget(costs, acceptance), least, given, drafted, step_s, start_s)
        assert least <= j < len(costs)
        assert rate == pytest.approx(expected[j])
        assert rate == pytest.approx(max(expected[least:]))


@PROPERTY
@given(situations())
def test_what_is_paid_already_never_makes_fewer_worthwhile(situation):
    """Sunk costs: the more has been drafted, the more is verified."""
    costs, acceptance, given, drafted, step_s, start_s = situation
    a = budget(costs, acceptance)
    lengths = [
        best_length(a, 0, given, sunk, step_s, start_s)[0] for sunk in range(given, drafted + 1)
    ]
    assert lengths == sorted(lengths)


def test_of_equals_the_shortest():
    assert best_length(budget([1.0, 1.5], [0.5]), 0, 1, 1, 0.0, 0.0) == (0, 1.0)


def test_a_step_that_does_not_pay_does_not_hide_one_that_does():
    """Four for the price of three."""
    costs = [1.0, 1.8, 2.6, 2.65, 3.6]
    assert best_length(budget(costs, [0.9] * 4), 0, 4, 4, 0.0, 0.0)[0] == 3
    assert best_length(budget(costs[:3], [0.9] * 4), 0, 4, 4, 0.0, 0.0)[0] == 1


def test_stops_before_a_cliff_and_goes_beyond_it_where_it_falls_off():
    rising = [1 + 0.1 * j for j in range(8)]
    cliff = [*rising, 5.0, 5.1, 5.2, 2.4]
    assert best_length(budget(cliff, [0.9] * 11), 0, 11, 11, 0.0, 0.0)[0] == 7
    assert best_length(budget(cliff, [0.98] * 11), 0, 11, 11, 0.0, 0.0)[0] == 11


def test_drafting_that_costs_as_much_as_decoding_never_pays():
    costs = [1.0 + 0.01 * j for j in range(9)]
    assert best_length(budget(costs, [1.0] * 8), 0, 0, 0, 1.0, 0.0)[0] == 0
    # Given ones are free, and once it is drafted the token is worth verifying.
    assert best_length(budget(costs, [1.0] * 8), 0, 3, 3, 1.0, 0.0)[0] == 3
    assert best_length(budget(costs, [1.0] * 8), 0, 0, 1, 1.0, 0.0)[0] == 1


def test_a_start_that_has_to_be_paid_for_takes_a_longer_block():
    costs = [1.0 + 0.1 * j for j in range(9)]
    short, _ = best_length(budget(costs, [0.9] * 8), 0, 0, 0, 0.2, 0.0)
    long, _ = best_length(budget(costs, [0.9] * 8), 0, 0, 0, 0.2, 0.6)
    assert 0 < short < long
    assert best_length(budget(costs, [0.9] * 8), 0, 0, 0, 0.2, 50.0)[0] == 0


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_fixed_budget_is_of_so_many(limit):
    fixed = fixed_budget(limit)
    assert fixed.fixed and fixed.limit == limit
    assert len(fixed.cycle_s) == limit + 1 and len(fixed.acceptance) >= limit
