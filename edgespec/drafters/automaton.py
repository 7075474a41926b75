"""What prompt lookup goes by: a suffix automaton, what matches were worth, and earlier texts.

Online construction of Blumer et al. (1985). Transitions are kept in linked lists (a clone copies
its original's) and found through one open-addressed hash table.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = [
    "EarlierTexts",
    "Experience",
    "SuffixAutomaton",
    "believe",
    "credibility",
    "ending",
    "extend",
    "follow",
    "forget",
    "make_automaton",
    "make_experience",
    "match",
    "note",
    "reset",
]

_STATES, _EDGES, _LAST, _TOKENS = 0, 1, 2, 3  # in `counters`
_REFRESHED = 4  # suffix links whose most recent occurrence is updated with every token


class SuffixAutomaton(NamedTuple):
    """Arrays of an automaton for up to n tokens.

    States (2n): the length of their longest string, their suffix link, the end of a recent
    occurrence, the head of their edge list. Edges (3n): source, token, target, next in list.
    """

    length: Int32Array
    link: Int32Array
    recent: Int32Array
    first_edge: Int32Array
    edge_source: Int32Array
    edge_token: Int32Array
    edge_target: Int32Array
    next_edge: Int32Array
    table: Int32Array
    counters: Int32Array


def make_automaton(capacity: int) -> SuffixAutomaton:
    """Allocate an empty automaton for up to `capacity` tokens."""
    states, edges = 2 * capacity + 2, 3 * capacity + 3
    slots = 1 << (2 * edges).bit_length()
    automaton = SuffixAutomaton(
        length=np.zeros(states, np.int32),
        link=np.zeros(states, np.int32),
        recent=np.zeros(states, np.int32),
        first_edge=np.zeros(states, np.int32),
        edge_source=np.zeros(edges, np.int32),
        edge_token=np.zeros(edges, np.int32),
        edge_target=np.zeros(edges, np.int32),
        next_edge=np.zeros(edges, np.int32),
        table=np.zeros(slots, np.int32),
        counters=np.zeros(4, np.int32),
    )
    reset(automaton)
    return automaton


@kernel
def reset(automaton: SuffixAutomaton) -> None:
    """Forget every token."""
    automaton.table[:] = -1
    automaton.counters[:] = 0
    automaton.counters[_STATES] = 1
    automaton.length[0] = 0
    automaton.link[0] = -1
    automaton.recent[0] = -1
    automaton.first_edge[0] = -1


@kernel
def _slot(automaton: SuffixAutomaton, state: int, token: int) -> np.uint64:
    """Return where the edge (state, token) is or would be in the hash table."""
    mask = np.uint64(len(automaton.table) - 1)
    key = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token)
    slot: np.uint64 = ((key ^ (key >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(
        20
    )
    slot &= mask
    while True:
        edge = automaton.table[slot]
        if edge < 0 or (
            automaton.edge_source[edge] == state and automaton.edge_token[edge] == token
        ):
            return slot
        slot = (slot + np.uint64(1)) & mask


@kernel
def _add_edge(automaton: SuffixAutomaton, state: int, token: int, target: int) -> None:
    edge = automaton.counters[_EDGES]
    automaton.counters[_EDGES] += 1
    automaton.edge_source[edge] = state
    automaton.edge_token[edge] = token
    automaton.edge_target[edge] = target
    automaton.next_edge[edge] = automaton.first_edge[state]
    automaton.first_edge[state] = edge
    automaton.table[_slot(automaton, state, token)] = edge


@kernel
def _add_state(automaton: SuffixAutomaton, length: int, link: int, recent: int) -> int:
    state = int(automaton.counters[_STATES])
    automaton.counters[_STATES] += 1
    automaton.length[state] = length
    automaton.link[state] = link
    automaton.recent[state] = recent
    automaton.first_edge[state] = -1
    return state


@kernel
def _clone(automaton: SuffixAutomaton, original: int, parent: int, token: int) -> int:
    """Split `original`: a state for its shorter strings, which `parent` reaches by token."""
    clone = _add_state(
        automaton,
        automaton.length[parent] + 1,
        automaton.link[original],
        automaton.recent[original],
    )
    edge = automaton.first_edge[original]
    while edge >= 0:
        _add_edge(automaton, clone, automaton.edge_token[edge], automaton.edge_target[edge])
        edge = automaton.next_edge[edge]
    while parent >= 0:
        edge = automaton.table[_slot(automaton, parent, token)]
        if edge < 0 or automaton.edge_target[edge] != original:
            break
        automaton.edge_target[edge] = clone
        parent = automaton.link[parent]
    automaton.link[original] = clone
    return clone


@kernel
def _append(automaton: SuffixAutomaton, token: int, position: int) -> None:
    last = automaton.counters[_LAST]
    state = _add_state(automaton, automaton.length[last] + 1, 0, position)
    parent = last
    edge = -1
    while parent >= 0:
        edge = automaton.table[_slot(automaton, parent, token)]
        if edge >= 0:
            break
        _add_edge(automaton, parent, token, state)
        parent = automaton.link[parent]
    if parent >= 0:
        target = automaton.edge_target[edge]
        if automaton.length[target] != automaton.length[parent] + 1:
            target = _clone(automaton, target, parent, token)
        automaton.link[state] = target
    automaton.counters[_LAST] = state
    automaton.counters[_TOKENS] = position + 1


@kernel
def ending(automaton: SuffixAutomaton) -> tuple[int, int]:
    """Return the state of the longest suffix that occurred before, and its length."""
    state = automaton.link[automaton.counters[_LAST]]
    return (state, automaton.length[state]) if state > 0 else (0, 0)


@kernel
def follow(automaton: SuffixAutomaton, state: int, matched: int, token: int) -> tuple[int, int]:
    """Return the state of the longest suffix that occurs when one more token is read.

    Args:
        state, matched: those of the text before, and how many tokens of it they match.
        token: not appended to the text.
    """
    while True:
        edge = automaton.table[_slot(automaton, state, token)]
        if edge >= 0:
            return automaton.edge_target[edge], matched + 1
        if state == 0:
            return 0, 0
        state = automaton.link[state]
        matched = automaton.length[state]


@kernel
def match(automaton: SuffixAutomaton, state: int, matched: int, level: int) -> tuple[int, int]:
    """Return where a suffix of the text occurred before, or the level-th shorter one.

    Args:
        state, matched: as `ending` or `follow` gives them.
        level: how many suffix links below it.

    Returns:
        (length, end): the suffix's number of tokens and the index of the last token of its
        earlier occurrence; length 0 if there is none.
    """
    for _ in range(level):
        if state <= 0:
            break
        state = automaton.link[state]
    if state <= 0:
        return 0, -1
    return min(matched, automaton.length[state]), automaton.recent[state]


@kernel
def extend(automaton: SuffixAutomaton, token: int, position: int) -> None:
    """Append one token at index `position`. Amortized O(1)."""
    # Only now do the suffixes of the text before this token count as seen there: `match` has to
    # report earlier occurrences, not the end of the text itself.
    state = automaton.link[automaton.counters[_LAST]]
    for _ in range(_REFRESHED):
        if state <= 0:
            break
        automaton.recent[state] = position - 1
        state = automaton.link[state]
    _append(automaton, token, position)


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
