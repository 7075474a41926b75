"""How often a draft is right when it is this sure, by position: learned from what was accepted.

Counts decay, and an offset in log-odds follows the last few tens of tokens, so that estimates
move when the text turns from prose to code.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.sampling.kernel import kernel

__all__ = [
    "Calibration",
    "estimate",
    "expected",
    "make_calibration",
    "read_calibration",
    "record",
    "write_calibration",
]

Float64Array = npt.NDArray[np.float64]

POSITIONS = 4
"""Positions told apart; later ones count as the last."""

_EDGES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
_BINS = len(_EDGES) + 1
_PRIOR = 4.0  # weight of what is believed without observations, in observations
_EXPECTED = 0.6  # chance of acceptance before anything is known
_DECAY = 0.99  # of past observations of a cell, at each new one
_TILT_DECAY, _TILT_STEP, _MOST_TILT = 0.95, 0.2, 2.0


class Calibration(NamedTuple):
    """Accepted and judged proposals by position and confidence, and the recent offset.

    Attributes:
        hits, trials: float64 (POSITIONS, bins).
        tilt: float64 (1,), in log-odds.
    """

    hits: Float64Array
    trials: Float64Array
    tilt: Float64Array


def make_calibration() -> Calibration:
    """Nothing observed yet."""
    shape = (POSITIONS, _BINS)
    return Calibration(np.zeros(shape), np.zeros(shape), np.zeros(1))


def write_calibration(calibration: Calibration) -> dict[str, Any]:
    """As JSON; the offset is of the last text and not kept."""
    return {
        "hits": np.round(calibration.hits, 3).tolist(),
        "trials": np.round(calibration.trials, 3).tolist(),
    }


def read_calibration(data: Any) -> Calibration:
    """From JSON; a fresh one if it is of another shape, or not a calibration at all."""
    fresh = make_calibration()
    try:
        hits = np.array(data["hits"], np.float64)
        trials = np.array(data["trials"], np.float64)
    except (KeyError, TypeError, ValueError):
        return fresh
    sane = hits.shape == trials.shape == fresh.hits.shape and bool(
        (hits >= 0).all() and (hits <= trials).all() and (trials < 1e9).all()
    )
    return Calibration(hits, trials, fresh.tilt) if sane else fresh


@kernel
def _bin(confidence: float) -> int:
    index = 0
    for edge in _EDGES:
        index += int(confidence >= edge)
    return index


@kernel
def _tilted(probability: float, tilt: float) -> float:
    """Moved by `tilt` in log-odds."""
    odds = min(max(probability, 1e-3), 1 - 1e-3)
    return float(1.0 / (1.0 + (1.0 - odds) / odds * math.exp(-tilt)))


@kernel
def _untilted(calibration: Calibration, position: int, confidence: float) -> float:
    """A cell's rate, shrunk to that of its column, shrunk to the confidence itself."""
    row, column = min(position, POSITIONS - 1), _bin(confidence)
    hits = calibration.hits[:, column].sum() + _PRIOR * confidence
    common = hits / (calibration.trials[:, column].sum() + _PRIOR)
    hits = calibration.hits[row, column] + _PRIOR * common
    return float(hits / (calibration.trials[row, column] + _PRIOR))


@kernel
def estimate(calibration: Calibration, position: int, confidence: float) -> float:
    """Probability that a proposal is accepted if all before it are.

    Args:
        position: its place in the block, from 0.
        confidence: the expected probability, under q, of a token drawn from q.
    """
    return _tilted(_untilted(calibration, position, confidence), calibration.tilt[0])


@kernel
def expected(calibration: Calibration, position: int) -> float:
    """The same before q is known."""
    row = min(position, POSITIONS - 1)
    hits = calibration.hits[row].sum() + _PRIOR * _EXPECTED
    return _tilted(hits / (calibration.trials[row].sum() + _PRIOR), calibration.tilt[0])


@kernel
def record(calibration: Calibration, position: int, confidence: float, accepted: bool) -> None:
    """Learn from one judged proposal."""
    surprise = int(accepted) - estimate(calibration, position, confidence)
    tilt = _TILT_DECAY * calibration.tilt[0] + _TILT_STEP * surprise
    calibration.tilt[0] = min(max(tilt, -_MOST_TILT), _MOST_TILT)
    row, column = min(position, POSITIONS - 1), _bin(confidence)
    calibration.hits[row, column] = _DECAY * calibration.hits[row, column] + int(accepted)
    calibration.trials[row, column] = _DECAY * calibration.trials[row, column] + 1.0
