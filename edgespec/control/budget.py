"""What a cycle may spend on proposals, and how many of them are worth it.

The best number of proposals maximizes the expected emitted tokens by the second:
E(j) / C(j), with E(j) = 1 + a1 + a1 a2 + ... + a1...aj for conditional acceptance probabilities
a (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", equation 1,
with probabilities that differ by position) and C(j) the measured seconds of a cycle that verifies
j proposals. C has steps and cliffs, so that all j are compared; the first j that does not pay
says nothing about the next.

What stops a drafter early may depend on q, never on the token that was drawn from it: a proposal
that is dropped because of what it is would leave the others too likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import Float64Array
from edgespec.sampling.kernel import kernel

__all__ = ["DraftBudget", "best_length", "fixed_budget"]


class DraftBudget(NamedTuple):
    """The budget of one cycle.

    Attributes:
        limit: the most proposals.
        cycle_s: float64 (> limit,), seconds of a cycle that verifies j proposals, drafting left
            out.
        acceptance: float64 (>= limit,), the drafter writes here how probable it thinks it is
            that proposal j is accepted if all before it are.
        fixed: the user asked for this many: costs are not to be looked at.
        spare_s: seconds that may be lost on trying whether drafting pays by now.
    """

    limit: int
    cycle_s: Float64Array
    acceptance: Float64Array
    fixed: bool = False
    spare_s: float = 0.0


def fixed_budget(limit: int) -> DraftBudget:
    """Up to `limit` proposals whatever they cost."""
    return DraftBudget(limit, np.ones(limit + 1), np.ones(max(1, limit)), fixed=True)


@kernel
def best_length(
    budget: DraftBudget, least: int, given: int, drafted: int, step_s: float, start_s: float
) -> tuple[int, float]:
    """The number of proposals with the most expected tokens by the second, and those.

    Args:
        budget: its acceptance is known or expected for every position below its limit.
        least: fewer are no choice any more.
        given: proposals at the front that cost nothing.
        drafted: proposals, with those, that are paid for whether they are verified or not.
        step_s: seconds of drafting one more.
        start_s: seconds paid once if anything is drafted.
    """
    best, rate = least, 0.0
    survival, expected = 1.0, 1.0
    for j in range(budget.limit + 1):
        if j > 0:
            survival *= budget.acceptance[j - 1]
            expected += survival
        if j < least:
            continue
        seconds = budget.cycle_s[j]
        steps = max(j, drafted) - given
        if steps > 0:
            seconds += start_s + steps * step_s
        if expected > rate * seconds:
            best, rate = j, expected / seconds
    return best, rate
