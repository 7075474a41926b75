"""What a cycle may spend on proposals, and how many of them are worth it.

The best number of proposals maximizes E(j) / C(j), the expected tokens per second, with C(j) the
measured seconds of a cycle that verifies j proposals. C has steps and cliffs, so that all j are
compared; the first j that does not pay says nothing about the next.

What stops a drafter early may depend on q, never on the token that was drawn from it: a proposal
that is dropped because of what it is would leave the others too likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgespec._types import Float64Array
from edgespec.control.costs import CostTable, predicted_cost
from edgespec.control.speedup import continued, expected_speedups, fastest, with_one_more
from edgespec.sampling.kernel import kernel

__all__ = ["DraftBudget", "best_length", "draft_speedup", "fixed_budget"]

_DEPTH = 256.0
"""Tokens in the cache when a draft is judged before it is used: the middle of an answer."""

_with_one_more = kernel(with_one_more)


class DraftBudget(NamedTuple):
    """What one cycle may spend on proposals.

    Attributes:
        limit: the most proposals.
        cycle_s: float64 (> limit,), seconds of a cycle that verifies j proposals, drafting left
            out.
        acceptance: float64 (>= limit,), where the drafter writes its estimate of the probability
            that proposal j is accepted if all before it are.
        fixed: the user asked for this many, so that costs play no part.
        spare_s: seconds that may be lost on finding out whether drafting pays by now.
    """

    limit: int
    cycle_s: Float64Array
    acceptance: Float64Array
    fixed: bool = False
    spare_s: float = 0.0


def fixed_budget(limit: int) -> DraftBudget:
    """Return a budget of up to `limit` proposals, whatever they cost."""
    return DraftBudget(limit, np.ones(limit + 1), np.ones(max(1, limit)), fixed=True)


@kernel
def best_length(
    budget: DraftBudget, least: int, given: int, drafted: int, step_s: float, start_s: float
) -> tuple[int, float]:
    """Return the number of proposals with the most expected tokens per second, and that rate.

    Args:
        budget: its acceptance is known or expected for every position below its limit.
        least: fewer are no longer a choice.
        given: proposals at the front that cost nothing.
        drafted: proposals, including those, that are paid for whether verified or not.
        step_s: seconds of drafting one more.
        start_s: seconds paid once if anything is drafted.
    """
    best, rate = least, 0.0
    survival, expected = 1.0, 1.0
    for j in range(budget.limit + 1):
        if j > 0:
            expected, survival = _with_one_more(expected, survival, budget.acceptance[j - 1])
        if j < least:
            continue
        seconds = budget.cycle_s[j]
        steps = max(j, drafted) - given
        if steps > 0:
            seconds += start_s + steps * step_s
        if expected > rate * seconds:
            best, rate = j, expected / seconds
    return best, rate


def draft_speedup(alpha: Sequence[float], costs: CostTable, step_s: float) -> float:
    """Return the speedup of a draft with this held-out acceptance at its best k.

    Args:
        step_s: seconds of drafting one token.
    """
    seconds = [float(predicted_cost(costs, _DEPTH, n)) for n in range(1, costs.largest + 1)]
    v = [s / seconds[0] for s in seconds]
    found = expected_speedups(continued(alpha, len(v) - 1), v, step_s / seconds[0])
    return fastest(found).speedup
