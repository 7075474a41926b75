"""How often a draft is right, by how sure it is and by position: learned from acceptances.

How sure it has lately been tells what to expect before it drafts. Counts decay, and an offset in
log-odds follows the last few tens of tokens, so that estimates move when the text turns from
prose to code.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array
from edgespec.sampling.kernel import kernel

__all__ = [
    "Calibration",
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
