"""How often a match of so many tokens told the next one: learned from every token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array
from edgespec.sampling.kernel import kernel

__all__ = ["Experience", "believe", "credibility", "forget", "make_experience", "note"]

_LENGTHS = 17  # match lengths told apart; longer ones count as the last
_PRIOR = 4.0  # weight of the prior, in observations
_DECAY = 0.98  # of past observations, at each new one of the same length


class Experience(NamedTuple):
    """Right predictions and all predictions by match length, and what was believed before."""

    hits: Float64Array
    trials: Float64Array
    prior: Float64Array


def make_experience() -> Experience:
    """Return none yet: a match of two tokens is right half the time, until experience says else."""
    length = np.arange(_LENGTHS, dtype=np.float64)
    return Experience(np.zeros(_LENGTHS), np.zeros(_LENGTHS), length / (length + 2.0))


@kernel
def note(experience: Experience, length: int, right: bool) -> None:
    """Note whether a match of this length told the next token."""
    index = min(length, _LENGTHS - 1)
    experience.trials[index] = experience.trials[index] * _DECAY + 1.0
    experience.hits[index] = experience.hits[index] * _DECAY + right


@kernel
def credibility(experience: Experience, length: int) -> float:
    """Return the posterior mean that a match of this length tells the next token."""
    index = min(length, _LENGTHS - 1)
    hits = experience.hits[index] + _PRIOR * experience.prior[index]
    return float(hits / (experience.trials[index] + _PRIOR))


def believe(experience: Experience, told: Any) -> None:
    """Take hits and trials of earlier texts, as JSON, for the prior; what is no such is ignored."""
    try:
        hits = np.array(told["hits"], np.float64)
        trials = np.array(told["trials"], np.float64)
    except (KeyError, TypeError, ValueError):
        return
    prior = experience.prior
    sane = hits.shape == trials.shape == prior.shape
    if sane and bool((hits >= 0).all() and (hits <= trials).all() and trials.max() < 1e9):
        prior[:] = (hits + _PRIOR * prior) / (trials + _PRIOR)


def forget(experience: Experience) -> None:
    """Return to the prior."""
    experience.hits[:] = 0
    experience.trials[:] = 0
