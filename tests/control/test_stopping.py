"""How far a draft whose tokens cost time goes, and what may decide that."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control.controller import DraftBudget, fixed_budget
from edgespec.control.stopping import DraftStopping, notice, record

PROPERTY = settings(max_examples=200, deadline=None, derandomize=True)
K = 8
FLAT = [1.0 + 0.1 * j for j in range(K + 1)]


def allow(cycle_s=FLAT, limit=K, spare_s=0.0, acceptance=None):
    acceptance = np.ones(K) if acceptance is None else acceptance
    return DraftBudget(limit, np.array(cycle_s, float), acceptance, False, spare_s)


def experienced(chance, step_s=0.1, reading_s=0.02, count=200):
    """A stopping that has seen so many proposals judged."""
    rng = np.random.default_rng(0)
    stopping = DraftStopping(step_s, reading_s, K)
    for i in range(count):
        notice(stopping.calibration, i % 4, 0.7)
        record(stopping.calibration, i % 4, 0.7, bool(rng.random() < chance))
    stopping.calibration.tilt[0] = 0.0
    return stopping


def draft(stopping, budget, confidence, missing=0, given=0):
    """(drafted, verified) of a block whose proposals are so sure."""
    stopping.begin(budget, missing, given)
    drafted = given
    while stopping.another():
        stopping.add(confidence[drafted] if isinstance(confidence, list) else confidence)
        drafted += 1
        assert drafted <= budget.limit
    size = stopping.size
    assert 0 <= size <= drafted
    return drafted, size


def test_a_good_draft_goes_far_a_bad_one_not_at_all():
    assert draft(experienced(0.95), allow(), 0.7)[1] >= 4
    assert draft(experienced(0.6), allow(), 0.7)[1] in (1, 2, 3)
    assert draft(experienced(0.05), allow(), 0.7) == (0, 0)


def test_a_dear_draft_is_not_used_however_good():
    assert draft(experienced(0.95, step_s=1.1), allow(), 0.7) == (0, 0)


def test_costs_that_rise_with_every_token_leave_plain_decoding():
    assert draft(experienced(0.95), allow([1.0 + j for j in range(K + 1)]), 0.7) == (0, 0)


def test_stops_where_the_draft_becomes_unsure():
    stopping = DraftStopping(0.1, 0.02, K)
    drafted, size = draft(stopping, allow(), [0.99, 0.99, 0.99, 0.02, 0.99, 0.99, 0.99, 0.99])
    assert (drafted, size) == (4, 3)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_than_the_limit(limit):
    assert draft(experienced(0.99), allow(limit=limit), 0.99) == (limit, limit)


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_fixed_number_whatever_it_costs(limit):
    stopping = experienced(0.01, step_s=9.0)
    assert draft(stopping, fixed_budget(limit), 0.01, missing=10_000) == (limit, limit)


@st.composite
def blocks(draw):
    """Costs with steps, and two drafts that are equally sure of the first few tokens."""
    costs = draw(st.lists(st.floats(0.0, 0.6), min_size=K, max_size=K))
    cycle_s = [1.0, *(1.0 + np.cumsum(costs))]
    chances = st.lists(st.floats(0.0, 1.0), min_size=K, max_size=K)
    one, other = draw(chances), draw(chances)
    shared = draw(st.integers(0, K))
    given = draw(st.integers(0, 3))
    spare_s = draw(st.sampled_from([0.0, 10.0]))
    return cycle_s, one, one[:shared] + other[shared:], shared, given, spare_s


@PROPERTY
@given(blocks())
def test_whether_a_token_is_kept_does_not_depend_on_what_is_behind_it(block):
    """The confidence of a proposal depends on the tokens drawn before it. If it decided whether
    one of those is verified, tokens that make the draft sure would be too likely."""
    cycle_s, one, other, shared, given, spare_s = block
    kept = []
    for confidence in (one, other):
        acceptance = np.full(K, 0.9)
        stopping = DraftStopping(0.05, 0.01, K)
        budget = allow(cycle_s, spare_s=spare_s, acceptance=acceptance)
        drafted, size = draft(stopping, budget, confidence, given=given)
        kept.append([i < size for i in range(given, min(drafted, shared))])
    reached = min(map(len, kept))
    assert kept[0][:reached] == kept[1][:reached]


@PROPERTY
@given(blocks())
def test_all_but_the_last_drafted_token_are_verified(block):
    cycle_s, confidence, _, _, given, _ = block
    budget = allow(cycle_s, acceptance=np.full(K, 0.9))
    drafted, size = draft(DraftStopping(0.05, 0.01, K), budget, confidence, given=given)
    if drafted > given:
        assert size >= drafted - 1


def test_goes_on_behind_what_is_given_where_that_pays():
    acceptance = np.full(K, 0.95)
    drafted, size = draft(experienced(0.9), allow(acceptance=acceptance), 0.7, given=2)
    assert drafted == size > 2
    acceptance[:2] = 0.1  # what is given will be rejected: nothing behind it counts
    assert draft(experienced(0.9), allow(acceptance=acceptance), 0.7, given=2)[0] == 2


def test_falling_behind_has_to_be_worth_catching_up():
    stopping = experienced(0.9, reading_s=0.05)
    assert draft(stopping, allow(), 0.7, missing=100)[0] > 0
    assert draft(stopping, allow(), 0.7, missing=5000) == (0, 0)


def test_rate_is_that_of_the_block_it_would_begin():
    stopping = experienced(0.8)
    rate = stopping.rate(allow(), 0)
    assert rate > 1.1
    assert stopping.rate(allow(), 300) < rate
    assert stopping.rate(allow(), 100_000) == 0.0
    assert stopping.rate(allow(limit=0), 0) == 0.0
    assert experienced(0.05).rate(allow(), 0) == 0.0


def test_a_try_takes_time_that_is_there_to_spare():
    stopping = experienced(0.05)
    assert draft(stopping, allow(spare_s=0.1), 0.7) == (0, 0)
    drafted, size = draft(stopping, allow(spare_s=1.0), 0.01)
    assert drafted == size > 0
    assert draft(stopping, allow(spare_s=1.0), 0.7, missing=1000) == (0, 0)
    # A draft that cannot pay even if it is right is not tried.
    assert draft(experienced(0.05, step_s=2.0), allow(spare_s=100.0), 0.7) == (0, 0)


def test_learns_from_what_was_its_own_and_was_judged():
    stopping = DraftStopping(0.1, 0.02, K)
    acceptance = np.full(K, 0.99)
    _, size = draft(stopping, allow(acceptance=acceptance), 0.99, given=2)
    assert size >= 4
    stopping.learn(3, size)  # two that were given, one that was drafted; the next one was wrong
    assert stopping.calibration.trials.sum() == pytest.approx(2.0)
    assert stopping.calibration.hits.sum() == pytest.approx(1.0)
    assert stopping.calibration.trials[2].sum() == pytest.approx(1.0)


def test_what_is_behind_a_rejection_teaches_nothing():
    stopping = DraftStopping(0.1, 0.02, K)
    _, size = draft(stopping, allow(acceptance=np.full(K, 0.99)), 0.99)
    assert size >= 3
    stopping.learn(0, size)
    assert stopping.calibration.seen.sum() == stopping.calibration.trials.sum() == 1.0


def test_how_sure_it_was_of_a_token_that_was_not_verified_is_learned():
    stopping = DraftStopping(0.1, 0.02, K)
    assert draft(stopping, allow([1.0, *[9.0] * K]), 0.1) == (0, 0)
    drafted, size = draft(stopping, allow(), 0.01)
    assert (drafted, size) == (1, 0)
    stopping.learn(0, 0)
    assert stopping.calibration.seen.sum() == 1.0 and not stopping.calibration.trials.any()


def test_a_rejection_of_what_was_given_teaches_nothing():
    stopping = DraftStopping(0.1, 0.02, K)
    acceptance = np.full(K, 0.99)
    _, size = draft(stopping, allow(acceptance=acceptance), 0.99, given=3)
    stopping.learn(1, size)
    assert not stopping.calibration.trials.any()


def test_everything_accepted_teaches_no_rejection():
    stopping = DraftStopping(0.1, 0.02, K)
    _, size = draft(stopping, allow(), 0.99)
    stopping.learn(size, size)
    assert stopping.calibration.hits.sum() == pytest.approx(stopping.calibration.trials.sum())


def test_costs_follow_the_clock():
    rng = np.random.default_rng(0)
    stopping = DraftStopping(0.1, 0.1, K)
    for _ in range(300):
        slow = 3.0 if rng.random() < 0.05 else 1.0
        stopping.timed(1, 0.03 * slow * np.exp(rng.normal(0, 0.1)))
        stopping.timed(50, 50 * 0.004 * slow * np.exp(rng.normal(0, 0.1)))
    assert stopping.step_s == pytest.approx(0.03, rel=0.2)
    assert stopping.reading_s == pytest.approx(0.004, rel=0.2)


def test_one_outlier_changes_little():
    stopping = DraftStopping(0.1, 0.1, K)
    stopping.timed(1, 100.0)
    assert stopping.step_s < 0.12


def test_through_a_file():
    stopping = experienced(0.9)
    again = DraftStopping(5.0, 5.0, K)
    again.restore(json.loads(json.dumps(stopping.as_json())))
    assert again.step_s == 5.0, "costs are measured anew"
    assert np.allclose(again.calibration.trials, stopping.calibration.trials, atol=1e-3)
    for hostile in (None, [], "x", {"calibration": 3}, {}):
        again.restore(hostile)


def test_a_cost_of_the_whole_block_is_paid_once():
    """As dear a token at a time: nothing for a short block, and worth it for a long one."""
    apart, at_once = experienced(0.9, step_s=0.1), experienced(0.9, step_s=0.0)
    at_once.once_s = 0.3
    rates = [stopping.rate(allow(), 0) for stopping in (apart, at_once)]
    assert rates[1] > rates[0] > 0.0
    assert at_once.begin_s(0) == 0.3 and at_once.token_s == pytest.approx(0.075)
    assert draft(at_once, allow(), 0.7)[1] > draft(apart, allow(), 0.7)[1]
    at_once.once_s = 100.0
    assert at_once.rate(allow(), 0) == 0.0
    assert draft(at_once, allow(), 0.7) == (0, 0)


def test_evaluating_nothing_tells_no_cost_and_a_block_its_own():
    stopping = DraftStopping(0.0, 0.0, K, once_s=1.0)
    stopping.timed(0, 5.0)
    assert stopping.step_s == 0.0
    for _ in range(200):
        stopping.timed_once(2.0)
    assert stopping.once_s == pytest.approx(2.0)
