"""Whether a draft drafts one more token: what it costs, and how often it is right when so sure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array
from edgespec.control.controller import DraftBudget, best_length, fixed_budget
from edgespec.sampling.kernel import kernel

__all__ = [
    "Calibration",
    "DraftStopping",
    "estimate",
    "expected",
    "forget",
    "make_calibration",
    "notice",
    "read_calibration",
    "record",
    "write_calibration",
]

POSITIONS = 4
"""Positions told apart; later ones count as the last."""

_EDGES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
_BINS = len(_EDGES) + 1
_MIDDLES = (0.05, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.94, 0.99)  # of the bins
_PRIOR = 8.0  # weight of what is believed without observations, in observations
_EXPECTED = 0.8  # chance of acceptance before anything is known: hopeful, for it to be tried
_DECAY = 0.99  # of past observations of a cell, at each new one
_FADING = 0.98  # of how often a confidence occurs, at each new one of its position
_MOST_SEEN = 1e6  # sums that decay are far below
_TILT_DECAY, _TILT_STEP, _MOST_TILT = 0.95, 0.2, 2.0
_FORGETTING = 0.98  # of the offset, at a cycle in which nothing was judged


class Calibration(NamedTuple):
    """Accepted and judged proposals by position and confidence, and the recent offset.

    Attributes:
        hits, trials: float64 (POSITIONS, bins).
        seen: float64 (POSITIONS, bins), how often each occurred lately, judged or not.
        tilt: float64 (1,), in log-odds.
    """

    hits: Float64Array
    trials: Float64Array
    seen: Float64Array
    tilt: Float64Array


def make_calibration() -> Calibration:
    """Return a calibration that has observed nothing."""
    shape = (POSITIONS, _BINS)
    return Calibration(np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(1))


def write_calibration(calibration: Calibration) -> dict[str, Any]:
    """Return it as JSON, without the offset, which belongs to the last text."""
    tables = {"hits": calibration.hits, "trials": calibration.trials, "seen": calibration.seen}
    return {name: np.round(table, 3).tolist() for name, table in tables.items()}


def read_calibration(data: Any) -> Calibration:
    """Read it from JSON; return a fresh one if that has another shape or is no calibration."""
    fresh = make_calibration()
    try:
        tables = [np.array(data[name], np.float64) for name in ("hits", "trials", "seen")]
    except (KeyError, TypeError, ValueError, OverflowError):
        return fresh
    if any(table.shape != fresh.hits.shape for table in tables):
        return fresh
    sane = all(bool(((table >= 0) & (table < _MOST_SEEN)).all()) for table in tables)
    sane = sane and bool((tables[0] <= tables[1]).all())
    hits, trials, seen = tables
    return Calibration(hits, trials, seen, fresh.tilt) if sane else fresh


@kernel
def _bin(confidence: float) -> int:
    index = 0
    for edge in _EDGES:
        index += int(confidence >= edge)
    return index


@kernel
def _tilted(probability: float, tilt: float) -> float:
    """Move a probability by `tilt` in log-odds."""
    odds = min(max(probability, 1e-3), 1 - 1e-3)
    return float(1.0 / (1.0 + (1.0 - odds) / odds * math.exp(-tilt)))


@kernel
def _untilted(calibration: Calibration, position: int, confidence: float) -> float:
    """Return a cell's rate, shrunk to its column's, which is shrunk to the confidence itself."""
    row, column = min(position, POSITIONS - 1), _bin(confidence)
    hits = calibration.hits[:, column].sum() + _PRIOR * confidence
    common = hits / (calibration.trials[:, column].sum() + _PRIOR)
    hits = calibration.hits[row, column] + _PRIOR * common
    return float(hits / (calibration.trials[row, column] + _PRIOR))


@kernel
def estimate(calibration: Calibration, position: int, confidence: float) -> float:
    """Return the probability that a proposal is accepted if all before it are.

    Args:
        position: its place in the block, from 0.
        confidence: the expected probability, under q, of a token drawn from q.
    """
    return _tilted(_untilted(calibration, position, confidence), calibration.tilt[0])


@kernel
def expected(calibration: Calibration, position: int) -> float:
    """Return the same before q is known: the average over how sure the draft has lately been."""
    own = min(position, POSITIONS - 1)
    own_rate, rate = 0.0, 0.0
    own_weight, weight = 0.0, 0.0
    for row in range(POSITIONS):
        for column in range(_BINS):
            seen = calibration.seen[row, column]
            if seen > 0.0:
                chance = seen * _untilted(calibration, row, _MIDDLES[column])
                rate += chance
                weight += seen
                if row == own:
                    own_rate += chance
                    own_weight += seen
    common = (rate + _PRIOR * _EXPECTED) / (weight + _PRIOR)
    return _tilted((own_rate + _PRIOR * common) / (own_weight + _PRIOR), calibration.tilt[0])


@kernel
def record(calibration: Calibration, position: int, confidence: float, accepted: bool) -> None:
    """Learn from one judged proposal."""
    surprise = int(accepted) - estimate(calibration, position, confidence)
    tilt = _TILT_DECAY * calibration.tilt[0] + _TILT_STEP * surprise
    calibration.tilt[0] = min(max(tilt, -_MOST_TILT), _MOST_TILT)
    row, column = min(position, POSITIONS - 1), _bin(confidence)
    calibration.hits[row, column] = _DECAY * calibration.hits[row, column] + int(accepted)
    calibration.trials[row, column] = _DECAY * calibration.trials[row, column] + 1.0


@kernel
def notice(calibration: Calibration, position: int, confidence: float) -> None:
    """Learn how sure the draft is, whether its proposal was judged or not."""
    row = min(position, POSITIONS - 1)
    for column in range(_BINS):
        calibration.seen[row, column] *= _FADING
    calibration.seen[row, _bin(confidence)] += 1.0


@kernel
def forget(calibration: Calibration) -> None:
    """Note that nothing was judged: the offset fades."""
    calibration.tilt[0] *= _FORGETTING


_HORIZON = 100
"""Cycles over which the time for reading what the draft missed is spread: an answer's."""

_WORTH = 1.02
"""Gain for which a draft that has fallen behind starts again."""

_HOPE = 0.95
"""Acceptance assumed of a draft that has not been tried for a while, when a try is planned."""

_TRY = 2  # proposals of a try
_USUAL = 4  # of a block
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
        once_s: seconds that a block costs whatever its length, to a draft that has all at once.

    Attributes:
        more_s: seconds of each further node in a level of a tree.
    """

    def __init__(self, step_s: float, reading_s: float, most: int, once_s: float = 0.0) -> None:
        self.step_s = step_s
        self.once_s = once_s
        self.reading_s = reading_s
        self.more_s = 0.5 * step_s
        self.calibration = make_calibration()
        self._confidence = np.zeros(max(1, most))
        self._budget = fixed_budget(0)
        self._given = self._drafted = 0
        self._start_s = 0.0
        self._minimum = 0

    @property
    def token_s(self) -> float:
        """Seconds of drafting a token in a block of usual length."""
        return self.step_s + self.once_s / _USUAL

    def rate(self, budget: DraftBudget, missing: int) -> float:
        """Return the expected tokens per second of a cycle that this drafter begins.

        Args:
            missing: committed tokens that the draft has not read.
        """
        _expect(self.calibration, budget.acceptance, 0, budget.limit, 0.0)
        start_s = self._begin_s(missing)
        length, rate = best_length(budget, 0, 0, 0, self.step_s, start_s)
        return float(rate) if length else 0.0

    def begin(self, budget: DraftBudget, missing: int, given: int) -> None:
        """Start a block.

        Args:
            given: proposals at its front that are another drafter's, their acceptance known.
        """
        self._budget = budget
        self._given = self._drafted = given
        self._start_s = self._begin_s(missing)
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
        cost = missing * self.reading_s + self.once_s + tried * self.step_s
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
        """Learn what an evaluation of the draft took; nothing if it evaluated no token."""
        if 0 < tokens <= _FEW:
            self.step_s = _toward(self.step_s, seconds)
        elif tokens >= _MANY:
            self.reading_s = _toward(self.reading_s, seconds / tokens)

    def timed_once(self, seconds: float) -> None:
        """Learn what a block cost whatever its length."""
        self.once_s = _toward(self.once_s, seconds)

    def timed_level(self, nodes: int, seconds: float) -> None:
        """Learn what a level of a tree took."""
        if nodes == 1:
            self.step_s = _toward(self.step_s, seconds)
        else:
            self.more_s = _toward(self.more_s, max(0.0, seconds - self.step_s) / (nodes - 1))

    def begin_s(self, missing: int) -> float:
        """Return the seconds that a block's first proposal is taken to cost."""
        return self.step_s + self._begin_s(missing)

    def _begin_s(self, missing: int) -> float:
        return self.once_s + missing * self.reading_s / _HORIZON

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
