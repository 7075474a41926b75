"""Totals of what decoding took."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from edgespec.control.controller import AdaptivePolicy, CycleTiming
from edgespec.control.costs import make_cost_table
from edgespec.control.speedup import Achieved


def test_totals_add_up_and_survive_json() -> None:
    one, other = Achieved(), Achieved()
    one.add(evaluated=1, emitted=1, seconds=0.02, plain_s=0.01)
    other.add(evaluated=4, emitted=3, seconds=0.02, plain_s=0.03)
    both = one + other
    assert both == Achieved(4, 0.04, 0.04, Counter({1: 1, 4: 1}))
    assert (both.cycles, both.speedup) == (2, 1.0)
    assert Achieved.from_json(json.loads(json.dumps(both.as_json()))) == both
    assert Achieved().speedup == 1.0


def test_a_speedup_is_at_most_tokens_a_cycle() -> None:
    done = Achieved()
    done.add(evaluated=1, emitted=1, seconds=0.01, plain_s=0.041)
    assert done.speedup == 1.0 and not done.speculated
    done.add(evaluated=3, emitted=2, seconds=0.01, plain_s=0.09)
    assert done.speedup == 1.5 and done.speculated


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"tokens": 1, "seconds": 1.0, "plain_s": 1.0, "sizes": [1]},
        {"tokens": 1, "seconds": float("nan"), "plain_s": 1.0, "sizes": {"1": 1}},
        {"tokens": 1, "seconds": 0.0, "plain_s": 1.0, "sizes": {"1": 1}},
        {"tokens": 1, "seconds": 1.0, "plain_s": 1.0, "sizes": {"0": 1}},
        {"tokens": 1, "seconds": 1.0, "plain_s": 1.0, "sizes": {"900": 1}},
        {"tokens": float("inf"), "seconds": 1.0, "plain_s": 1.0, "sizes": {"1": 1}},
    ],
)
def test_nonsense_is_nothing(data: Any) -> None:
    assert Achieved.from_json(data) == Achieved()


def test_a_policy_keeps_the_account() -> None:
    costs = make_cost_table([100.0], [1, 2, 3, 4], [[0.010, 0.015, 0.02, 0.025]], [0.0] * 4, 4)
    policy = AdaptivePolicy(costs, 3)
    policy.observe(CycleTiming(100, 1, 0, 1, 0.0, 0.010))
    policy.observe(CycleTiming(100, 3, 2, 3, 0.001, 0.020))
    achieved = policy.achieved
    assert (achieved.tokens, achieved.cycles) == (4, 2)
    assert achieved.seconds == pytest.approx(0.031)
    assert achieved.plain_s == pytest.approx(0.040)
    policy.observe(CycleTiming(100, 9, 0, 1, 0.0, 0.1))  # of a size whose cost is not known
    assert policy.achieved.cycles == 2
