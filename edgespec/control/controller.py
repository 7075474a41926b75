"""Decide every cycle what speculation may spend: its budget, and what is learned from its cycles.

The drafters know how probable acceptance is; the controller knows what verification costs. It
hands the costs over as a `DraftBudget`, and keeps an account: when the cycles that speculated took
longer than their tokens would have taken plainly, whatever the reason, speculation has to promise
that much more before it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from edgespec._types import Float64Array
from edgespec.control.costs import CostTable, fill_cycle_costs, observe_cost, predicted_cost
from edgespec.control.speedup import Achieved, continued, expected_speedups, fastest, with_one_more
from edgespec.sampling.kernel import kernel

__all__ = [
    "AdaptivePolicy",
    "CycleTiming",
    "DraftBudget",
    "FixedPolicy",
    "Policy",
    "best_length",
    "draft_speedup",
    "fixed_budget",
]

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


_TRYING = 0.01
"""Share of the time that may go into trying drafts that do not pay."""

_MOST_SPARE_CYCLES = 8.0  # plain cycles; as many are there at the beginning
_ACCOUNT_DECAY = 0.98  # a cycle that speculated
_FORGIVING = 0.997  # a cycle that did not
_MOST_MARGIN = 0.5
_ACCOUNT_CYCLES = 50.0
"""Opening balance of both sides, in plain cycles: about as many as the account remembers, so that a
draft that fails in the first few blocks does not condemn the next one."""


class CycleTiming(NamedTuple):
    """What one cycle did, and how long it took.

    Attributes:
        depth: tokens in the target's cache before it.
        evaluated: tokens that the target evaluated.
        proposed: how many of them were proposals.
        emitted: tokens.
        draft_s, verify_s: seconds.
    """

    depth: int
    evaluated: int
    proposed: int
    emitted: int
    draft_s: float
    verify_s: float


class Policy(Protocol):
    """Bounds a cycle's proposals.

    Attributes:
        achieved: totals of all cycles whose costs are known.
        costs: what evaluations cost, corrected by use; None where costs play no part.
    """

    achieved: Achieved

    @property
    def costs(self) -> CostTable | None:
        """See the attributes."""

    def budget(self, depth: int, limit: int) -> DraftBudget:
        """Return the budget for up to `limit` proposals behind `depth` cached tokens."""

    def observe(self, timing: CycleTiming) -> float | None:
        """Learn from a finished cycle; return the seconds predicted for its evaluation."""


class FixedPolicy:
    """Allow as many proposals as the user asked for, whatever they cost."""

    costs = None

    def __init__(self, k: int) -> None:
        self.achieved = Achieved()
        self._budgets = [fixed_budget(limit) for limit in range(k + 1)]

    def budget(self, depth: int, limit: int) -> DraftBudget:
        """Allow `limit` proposals."""
        return self._budgets[limit]

    def observe(self, timing: CycleTiming) -> None:
        """Learn nothing."""


class AdaptivePolicy:
    """Never be slower than plain decoding: proposals have to pay on this machine.

    Args:
        costs: measured for up to k + 1 tokens.
        k: the most proposals.

    `achieved` has the totals of all cycles.
    """

    def __init__(self, costs: CostTable, k: int) -> None:
        self.costs = costs
        self.achieved = Achieved()
        self._cycle_s: Float64Array = np.zeros(k + 1)
        self._acceptance: Float64Array = np.zeros(max(1, k))
        plain_s = predicted_cost(costs, 0.0, 1)
        self._spare_s = _MOST_SPARE_CYCLES * plain_s
        self._took_s = self._worth_s = _ACCOUNT_CYCLES * plain_s

    @property
    def margin(self) -> float:
        """By how much speculation has lately disappointed, as a share of its cost."""
        return min(max(self._took_s / self._worth_s - 1.0, 0.0), _MOST_MARGIN)

    def budget(self, depth: int, limit: int) -> DraftBudget:
        """Hand over the measured costs at this depth."""
        fill_cycle_costs(self.costs, float(depth), limit, self.margin, self._cycle_s)
        return DraftBudget(limit, self._cycle_s, self._acceptance, False, self._spare_s)

    def observe(self, timing: CycleTiming) -> float | None:
        """Correct the costs and the account; return the seconds that had been predicted."""
        depth, predicted = float(timing.depth), None
        if timing.evaluated <= self.costs.largest:
            predicted, plain_s = observe_cost(self.costs, depth, timing.evaluated, timing.verify_s)
        else:
            plain_s = predicted_cost(self.costs, depth, 1)
        took_s = timing.draft_s + timing.verify_s
        worth_s = timing.emitted * plain_s
        if predicted is not None:
            self.achieved.add(timing.evaluated, timing.emitted, took_s, worth_s)
        self._spare_s += _TRYING * took_s
        if timing.proposed > 0:
            # An outlier, or a draft that reads a whole prompt once, says little of the next one.
            usual_s = min(took_s, worth_s + plain_s)
            self._took_s = _ACCOUNT_DECAY * self._took_s + usual_s
            self._worth_s = _ACCOUNT_DECAY * self._worth_s + worth_s
            self._spare_s = max(0.0, self._spare_s - max(0.0, took_s - worth_s))
        else:
            self._took_s = self._worth_s + _FORGIVING * (self._took_s - self._worth_s)
        self._spare_s = min(self._spare_s, _MOST_SPARE_CYCLES * plain_s)
        return predicted
