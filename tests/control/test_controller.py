"""The policies: what a cycle may spend, and what is learned when speculation disappoints."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.control.controller import AdaptivePolicy, CycleTiming, FixedPolicy
from edgespec.control.costs import make_cost_table

K = 7
PLAIN_S = 0.01


def policy():
    seconds = [PLAIN_S * (1 + 0.1 * j) for j in range(K + 1)]
    return AdaptivePolicy(
        make_cost_table([0], range(1, K + 2), [seconds], [0.0] * (K + 1), K + 1), K
    )


def cycle(adaptive, proposed, emitted, slower=1.0, draft_s=0.0):
    verify_s = PLAIN_S * (1 + 0.1 * proposed) * slower
    adaptive.observe(CycleTiming(100, proposed + 1, proposed, emitted, draft_s, verify_s))


def test_a_fixed_policy_allows_what_was_asked_for():
    fixed = FixedPolicy(3)
    for limit in range(4):
        budget = fixed.budget(100, limit)
        assert budget.fixed and budget.limit == limit
    fixed.observe(CycleTiming(0, 1, 0, 1, 0.0, 9.0))
    assert fixed.budget(0, 3).fixed


def test_allows_at_measured_costs():
    budget = policy().budget(100, 4)
    assert budget.limit == 4 and not budget.fixed
    assert budget.cycle_s[:5] == pytest.approx(PLAIN_S * (1 + 0.1 * np.arange(5)))
    assert len(budget.acceptance) >= 4


def test_gains_leave_no_margin():
    adaptive = policy()
    for _ in range(200):
        cycle(adaptive, 3, 3)
    assert adaptive.margin == 0.0


def test_losses_raise_the_margin_and_plain_cycles_forgive():
    adaptive = policy()
    for _ in range(60):
        cycle(adaptive, 3, 1)
    raised = adaptive.margin
    assert 0.1 < raised <= 0.5
    dearer = adaptive.budget(100, 3).cycle_s
    assert dearer[3] > 1.1 * 1.3 * PLAIN_S and dearer[0] == pytest.approx(PLAIN_S)
    margins = []
    for _ in range(1500):
        cycle(adaptive, 0, 1)
        margins.append(adaptive.margin)
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < 0.25 * raised


def test_time_lost_on_drafting_counts_too():
    adaptive = policy()
    for _ in range(60):
        cycle(adaptive, 2, 2, draft_s=2 * PLAIN_S)
    assert adaptive.margin > 0.1


def test_an_unlucky_block_does_not_end_speculation():
    adaptive = policy()
    for _ in range(20):
        cycle(adaptive, 3, 3)
    for _ in range(3):
        cycle(adaptive, 3, 1)
    assert adaptive.margin == 0.0


def test_reading_a_prompt_once_is_no_reason_for_doubt():
    adaptive = policy()
    cycle(adaptive, 3, 4, draft_s=100 * PLAIN_S)
    assert adaptive.margin < 0.05


def test_a_margin_is_bounded_and_gains_end_it():
    adaptive = policy()
    for _ in range(300):
        cycle(adaptive, 7, 1, draft_s=10 * PLAIN_S)
    assert adaptive.margin == 0.5
    for _ in range(300):
        cycle(adaptive, 3, 4)
    assert adaptive.margin == 0.0


def test_only_a_small_share_of_the_time_is_there_to_be_lost():
    """A drafter that tries whenever there is time to spare, in vain: two tokens for 0.4."""
    adaptive = policy()
    lost = total = 0.0
    for _ in range(20_000):
        spare = adaptive.budget(100, K).spare_s
        tries = spare >= 0.4 * PLAIN_S
        took = PLAIN_S * (1.4 if tries else 1.0)
        cycle(adaptive, 2 if tries else 0, 1, draft_s=0.2 * PLAIN_S if tries else 0.0)
        total += took
        lost += took - PLAIN_S
    assert 0.002 * total < lost < 0.0105 * total


def test_what_may_be_lost_at_once_is_bounded():
    adaptive = policy()
    for _ in range(100_000):
        cycle(adaptive, 0, 1)
    assert adaptive.budget(100, K).spare_s <= 8.5 * PLAIN_S


def test_costs_are_corrected():
    adaptive = policy()
    for _ in range(100):
        cycle(adaptive, 3, 4, slower=1.25)
        cycle(adaptive, 3, 4, slower=1.25)
        cycle(adaptive, 0, 1)
        cycle(adaptive, 0, 1)
    costs = adaptive.budget(100, K).cycle_s
    assert costs[0] == pytest.approx(PLAIN_S, rel=0.05)
    assert costs[3] == pytest.approx(1.3 * 1.25 * PLAIN_S, rel=0.05)


def test_tells_what_an_evaluation_was_predicted_to_take():
    adaptive = policy()
    predicted = adaptive.observe(CycleTiming(100, 3, 2, 1, 0.0, 1.2 * PLAIN_S))
    assert predicted == pytest.approx(1.2 * PLAIN_S)
    # The prompt's end may be longer than any batch that was measured.
    assert adaptive.observe(CycleTiming(0, 500, 2, 1, 0.0, 1.0)) is None
