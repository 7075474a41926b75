"""What prompt lookup goes by: experience with matches of each length, and bounded earlier texts.

Earlier texts are files, conversations, answers. Experience is learned from every token.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array, Int32Array
from edgespec.drafters.automaton import SuffixAutomaton, extend, make_automaton, reset
from edgespec.sampling.kernel import kernel

__all__ = [
    "EarlierTexts",
    "Experience",
    "believe",
    "credibility",
    "forget",
    "make_experience",
    "note",
]

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


_BETWEEN = -1
"""Stands behind every text: no token, so that no match goes from one text into the next."""

_FIRST = 1024  # tokens that there is room for at first


@kernel
def _index(automaton: SuffixAutomaton, tokens: Int32Array, start: int, stop: int) -> None:
    for position in range(start, stop):
        extend(automaton, tokens[position], position)


class EarlierTexts:
    """Token sequences of one vocabulary, the oldest of which make room for new ones.

    `add` may be called from any thread; what was added is found from the beginning of the next
    generation on.

    Args:
        limit: the most tokens, with one more for each text.

    Attributes:
        limit: as given.
        tokens: int32, the texts that are indexed, a negative number behind each.
        automaton: of those.
        experience: how good it was to copy from them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.experience: Experience = make_experience()
        self._added: deque[Int32Array] = deque()
        self._lock = threading.Lock()
        self._ends: list[int] = []
        self._make_room(0)

    @property
    def size(self) -> int:
        """How many tokens are indexed."""
        return self._ends[-1] if self._ends else 0

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self.tokens.nbytes + sum(array.nbytes for array in self.automaton)

    def add(self, tokens: Sequence[int] | Int32Array) -> None:
        """Add a text; of one that is too long, its end."""
        text = np.array(tokens[-(self.limit - 1) :], np.int32)
        if self.limit < 2 or not len(text):
            return
        with self._lock:
            self._added.append(text)
            while sum(len(each) + 1 for each in self._added) > self.limit:
                self._added.popleft()

    def settle(self) -> bool:
        """Index what was added; whether anything was. Nobody reads meanwhile."""
        with self._lock:
            texts, self._added = [*self._added], deque()
        needed = sum(len(text) + 1 for text in texts)
        if self.size + needed > self.limit:
            # Half of them make room at a time: an automaton cannot be cut at its front.
            texts = self._latest(self.limit // 2 - needed) + texts
            needed = sum(len(text) + 1 for text in texts)
            self._ends = []
            reset(self.automaton)
        if self.size + needed > len(self.tokens):
            texts = self._latest(self.size) + texts
            self._make_room(self.size + needed)
        for text in texts:
            self._append(text)
        return bool(texts)

    def _latest(self, room: int) -> list[Int32Array]:
        """Return the latest texts that fit into so many tokens."""
        kept: list[Int32Array] = []
        starts = [0, *self._ends[:-1]] if self._ends else []
        for start, end in zip(reversed(starts), reversed(self._ends), strict=True):
            if self.size - start > room:
                break
            kept.insert(0, self.tokens[start : end - 1].copy())
        return kept

    def _make_room(self, needed: int) -> None:
        """Begin anew, with room for so many tokens, and as many again where the limit allows it."""
        capacity = min(self.limit, max(_FIRST, 2 * needed))
        self.tokens: Int32Array = np.empty(capacity, np.int32)
        self.automaton = make_automaton(capacity)
        self._ends = []

    def _append(self, text: Int32Array) -> None:
        start, end = self.size, self.size + len(text) + 1
        self.tokens[start : end - 1] = text
        self.tokens[end - 1] = _BETWEEN
        _index(self.automaton, self.tokens, start, end)
        self._ends.append(end)
