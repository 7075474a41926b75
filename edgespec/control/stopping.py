"""Whether a draft whose tokens cost time drafts one more: decided token by token."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgespec._types import Float64Array
from edgespec.control.calibration import (
    POSITIONS,
    Calibration,
    estimate,
    expected,
    forget,
    make_calibration,
    notice,
    read_calibration,
    record,
    write_calibration,
)
from edgespec.control.controller import DraftBudget, best_length, fixed_budget
from edgespec.sampling.kernel import kernel

__all__ = ["DraftStopping"]

_HORIZON = 100
"""Cycles over which the time for reading what the draft missed is spread: an answer's."""

_WORTH = 1.02
"""Gain for which a draft that has fallen behind starts again."""

_HOPE = 0.95
"""Acceptance assumed of a draft that has not been tried for a while, when a try is planned."""

_TRY = 2  # proposals of a try
_FEW, _MANY = 2, 16  # tokens that tell the cost of a step, of reading
_LEARNING, _MOST_CHANGE = 0.1, 2.0


@kernel
def _expect(
    calibration: Calibration, acceptance: Float64Array, start: int, limit: int, least: float
) -> None:
    for position in range(start, limit):
        if position > start and position >= POSITIONS:
            acceptance[position] = acceptance[position - 1]  # told apart no more
        else:
            acceptance[position] = max(least, expected(calibration, position))


@kernel
def _learn(
    calibration: Calibration,
    confidence: Float64Array,
    first: int,
    drafted: int,
    accepted: int,
    judged: int,
) -> None:
    """Learn from the proposals from `first` on; the first rejected one ends the block.

    What was drafted behind it is no part of the text and teaches nothing.
    """
    if min(accepted + 1, judged) <= first:
        forget(calibration)
    for position in range(first, min(accepted + 1, drafted)):
        notice(calibration, position, confidence[position])
        if position < judged:
            record(calibration, position, confidence[position], position < accepted)


class DraftStopping:
    """Decide token by token whether to go on, from measured costs and recent acceptances.

    Args:
        step_s: seconds of drafting one token.
        reading_s: seconds of reading one committed token that the draft has not seen.
        most: the longest block.

    Attributes:
        more_s: seconds of each further node in a level of a tree.
    """

    def __init__(self, step_s: float, reading_s: float, most: int) -> None:
        self.step_s = step_s
        self.reading_s = reading_s
        self.more_s = 0.5 * step_s
        self.calibration = make_calibration()
        self._confidence = np.zeros(max(1, most))
        self._budget = fixed_budget(0)
        self._given = self._drafted = 0
        self._start_s = 0.0
        self._minimum = 0

    def rate(self, budget: DraftBudget, missing: int) -> float:
        """Return the expected tokens per second of a cycle that this drafter begins.

        Args:
            missing: committed tokens that the draft has not read.
        """
        _expect(self.calibration, budget.acceptance, 0, budget.limit, 0.0)
        start_s = missing * self.reading_s / _HORIZON
        length, rate = best_length(budget, 0, 0, 0, self.step_s, start_s)
        return float(rate) if length else 0.0

    def begin(self, budget: DraftBudget, missing: int, given: int) -> None:
        """Start a block.

        Args:
            given: proposals at its front that are another drafter's, their acceptance known.
        """
        self._budget = budget
        self._given = self._drafted = given
        self._start_s = missing * self.reading_s / _HORIZON
        self._minimum = budget.limit if budget.fixed else 0
        if budget.fixed:
            return
        _expect(self.calibration, budget.acceptance, given, budget.limit, 0.0)
        if given:
            return
        length, rate = self._best(budget)
        if missing > _MANY and rate < _WORTH / budget.cycle_s[0]:
            length, self._budget = 0, budget._replace(limit=0)
        if length == 0 and self._may_try(budget, missing):
            self._budget = budget
            self._minimum = min(_TRY, budget.limit)

    def _may_try(self, budget: DraftBudget, missing: int) -> bool:
        """Return whether there is time to spare for finding out if drafting pays by now."""
        tried = min(_TRY, budget.limit)
        cost = missing * self.reading_s + tried * self.step_s
        cost += float(budget.cycle_s[tried] - budget.cycle_s[0])
        if tried == 0 or budget.spare_s < cost:
            return False
        _expect(self.calibration, budget.acceptance, 0, budget.limit, _HOPE)
        length, _ = self._best(budget)
        _expect(self.calibration, budget.acceptance, 0, budget.limit, 0.0)
        return length > 0

    def another(self) -> bool:
        """Return whether one more token is worth drafting."""
        if self._drafted < self._minimum:
            return True
        if self._drafted >= self._budget.limit or self._budget.fixed:
            return False
        return self._best(self._budget)[0] > self._drafted

    def add(self, confidence: float) -> None:
        """Note a drafted token, and the probability that q gives its draws on average."""
        position = self._drafted
        self._confidence[position] = confidence
        acceptance = estimate(self.calibration, position, confidence)
        self._budget.acceptance[position] = acceptance
        self._drafted += 1

    @property
    def size(self) -> int:
        """How many of the drafted proposals are worth verifying.

        The last ones may not be, now that their q is known. What they are plays no part.
        """
        if self._drafted <= self._minimum:
            return self._drafted
        return self._best(self._budget._replace(limit=self._drafted))[0]

    def _best(self, budget: DraftBudget) -> tuple[int, float]:
        # What was drafted behind a token depends on it, so it must not decide whether it is kept.
        least = self._drafted - 1 if self._drafted > self._given else 0
        length, rate = best_length(
            budget, least, self._given, self._drafted, self.step_s, self._start_s
        )
        return int(length), float(rate)

    def learn(self, accepted: int, judged: int) -> None:
        """Learn that `accepted` of the `judged` proposals of the last block stayed."""
        _learn(self.calibration, self._confidence, self._given, self._drafted, accepted, judged)

    def timed(self, tokens: int, seconds: float) -> None:
        """Learn what an evaluation of the draft took."""
        if tokens <= _FEW:
            self.step_s = _toward(self.step_s, seconds)
        elif tokens >= _MANY:
            self.reading_s = _toward(self.reading_s, seconds / tokens)

    def timed_level(self, nodes: int, seconds: float) -> None:
        """Learn what a level of a tree took."""
        if nodes == 1:
            self.step_s = _toward(self.step_s, seconds)
        else:
            self.more_s = _toward(self.more_s, max(0.0, seconds - self.step_s) / (nodes - 1))

    def begin_s(self, missing: int) -> float:
        """Return the seconds that a block's first proposal is taken to cost."""
        return self.step_s + missing * self.reading_s / _HORIZON

    def as_json(self) -> dict[str, Any]:
        """Return what is worth keeping for the next conversation."""
        return {
            "step_s": self.step_s,
            "reading_s": self.reading_s,
            "calibration": write_calibration(self.calibration),
        }

    def restore(self, data: Any) -> None:
        """Take over acceptance estimates from `as_json`; costs were given anew."""
        if isinstance(data, dict):
            self.calibration = read_calibration(data.get("calibration"))


def _toward(old: float, new: float) -> float:
    """Return a moving average that one outlier does not throw off."""
    bounded = min(max(new, old / _MOST_CHANGE), old * _MOST_CHANGE)
    return old + _LEARNING * (bounded - old)
