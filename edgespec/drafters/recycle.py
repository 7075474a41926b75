"""Recycled logits: propose what the target itself found most likely behind a token before.

Every row of logits that was evaluated anyway tells the likeliest successor of a token (Luo et al.
2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
Recycling"). It is remembered by the token, and by the last two tokens; a chain follows the
successors. How far the best logit stood above the second tells how probable it is to hold again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import ByteArray, Float32Array, Float64Array, Int32Array, Int64Array
from edgespec.control.controller import DraftBudget, best_length
from edgespec.drafters.protocol import ChainDrafter, Learned, Proposal
from edgespec.sampling.kernel import kernel
from edgespec.sampling.softmax import best_two
from edgespec.speculation.acceptance import DrawSettings

__all__ = ["RecycleDrafter"]

_PAIRS = 1 << 15
"""Places for pairs of tokens; a pair takes the place of another one."""

_MARGINS = 6  # told apart: 0, 1, ... and 5 or more in logits
_PRIOR_RATES = np.array([[0.2, 0.3, 0.35, 0.4, 0.45, 0.45], [0.35, 0.5, 0.5, 0.6, 0.6, 0.65]])
_PRIOR = 8.0  # weight of that, in observations
_DECAY = 0.98
_LEAST = 0.02  # probability of a whole block below which no longer one is looked at
_MIX, _SHIFT = 0x9E3779B97F4A7C15, 40


class Successors(NamedTuple):
    """What followed, by one token and by two.

    Attributes:
        token, margin: of each token: its successor (-1: never seen), how far it stood above.
        pairs: both tokens that a place is taken by, as one number; -1 for none.
        pair_token, pair_margin: the same of pairs.
        hits, trials: float64 (2, margins): how often a successor was right lately.
    """

    token: Int32Array
    margin: ByteArray
    pairs: Int64Array
    pair_token: Int32Array
    pair_margin: ByteArray
    hits: Float64Array
    trials: Float64Array


@kernel
def _pair(before: int, last: int) -> int:
    return int((np.int64(before) << np.int64(32)) | np.int64(last))


@kernel
def _place(pair: int) -> int:
    return int((np.uint64(pair) * np.uint64(_MIX)) >> np.uint64(_SHIFT)) & (_PAIRS - 1)


@kernel
def _find(known: Successors, before: int, last: int) -> tuple[int, int, int]:
    """Return the successor, -1 for none; whether the pair told it; and its margin."""
    pair = _pair(before, last)
    place = _place(pair)
    if known.pairs[place] == pair:
        return known.pair_token[place], 1, known.pair_margin[place]
    return known.token[last], 0, known.margin[last]


@kernel
def _rate(known: Successors, kind: int, margin: int) -> float:
    """Return the posterior mean that such a successor is right."""
    hits = known.hits[kind, margin] + _PRIOR * _PRIOR_RATES[kind, margin]
    return float(hits / (known.trials[kind, margin] + _PRIOR))


@kernel
def _observe(known: Successors, history: Int32Array, length: int, logits: Float32Array) -> None:
    """Remember the best of every row; row i follows ``history[:length + i]``."""
    for row in range(len(logits)):
        token, margin = best_two(logits[row])
        if token < 0:
            return
        level = min(int(margin), _MARGINS - 1)
        last = history[length + row - 1]
        known.token[last], known.margin[last] = token, level
        if length + row > 1:
            pair = _pair(history[length + row - 2], last)
            place = _place(pair)
            known.pairs[place] = pair
            known.pair_token[place], known.pair_margin[place] = token, level


@kernel
def _score(known: Successors, history: Int32Array, start: int, stop: int) -> None:
    """Learn from committed tokens how often successors are right, proposed or not."""
    for position in range(max(2, start), stop):
        token, kind, margin = _find(known, history[position - 2], history[position - 1])
        if token >= 0:
            known.trials[kind, margin] = known.trials[kind, margin] * _DECAY + 1.0
            right = token == history[position]
            known.hits[kind, margin] = known.hits[kind, margin] * _DECAY + right


@kernel
def _follow(
    known: Successors, history: Int32Array, length: int, budget: DraftBudget, given: int
) -> tuple[int, float]:
    """Write a chain of successors behind `given` proposals; its size and expected rate."""
    credible, count = 1.0, given
    for place in range(given):
        credible *= budget.acceptance[place]
    while count < budget.limit and length + count > 1:
        end = length + count
        token, kind, margin = _find(known, history[end - 2], history[end - 1])
        if token < 0:
            break
        probability = _rate(known, kind, margin)
        credible *= probability
        if credible < _LEAST:
            break
        budget.acceptance[count] = probability
        history[end] = token
        count += 1
    if budget.fixed:
        return count, 0.0
    reached = DraftBudget(count, budget.cycle_s, budget.acceptance, False, budget.spare_s)
    return best_length(reached, given, count, count, 0.0, 0.0)


class RecycleDrafter(ChainDrafter):
    """Proposes chains of successors from the target's own logits; deterministic, no model.

    It remembers one text only, and takes 5 bytes for every token of the vocabulary and 0.4 MiB.

    Args:
        n_vocab: of the target.
    """

    name = "recycle"
    speculates = True

    def __init__(self, n_vocab: int) -> None:
        self._known = Successors(
            np.full(n_vocab, -1, np.int32),
            np.zeros(n_vocab, np.uint8),
            np.full(_PAIRS, -1, np.int64),
            np.zeros(_PAIRS, np.int32),
            np.zeros(_PAIRS, np.uint8),
            np.zeros((2, _MARGINS)),
            np.zeros((2, _MARGINS)),
        )
        self._length = 0
        self._tail: Int32Array = np.zeros(2, np.int32)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(array.nbytes for array in self._known)

    def begin(self, settings: DrawSettings) -> None:
        """Do nothing: proposals do not depend on the filters."""

    def rate(self, budget: DraftBudget, length: int) -> float:
        """Return the expected tokens per second of a block that it begins; 0 for no proposals."""
        if length != self._length or length < 2:
            return 0.0
        scratch = np.empty(2 + budget.limit, np.int32)
        scratch[:2] = self._tail
        size, rate = _follow(self._known, scratch, 2, budget, 0)
        return float(rate) if size else 0.0

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose a chain of successors."""
        return self.extend(history, length, budget, 0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose a chain of successors behind `given` proposals."""
        return Proposal(int(_follow(self._known, history, length, budget, given)[0]))

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Remember what the target finds likeliest behind each token."""
        _observe(self._known, history, length, logits)

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Do nothing: it proposes chains."""

    def learn(self, accepted: int, judged: int) -> None:
        """Do nothing: `commit` learns from every token, proposed or not."""

    def learned(self) -> Learned:
        """Return nothing: it remembers one text."""
        return Learned()

    def commit(self, history: Int32Array, length: int) -> None:
        """Score what would have been proposed, and take note of the text's end."""
        _score(self._known, history, self._length, length)
        self._length = length
        if length >= 2:
            self._tail[:] = history[length - 2 : length]

    def rewind(self, length: int) -> None:
        """Forget everything where another text begins."""
        if length < self._length - 1:
            self._known.token[:] = -1
            self._known.pairs[:] = -1
        self._length = length

    def cancel(self) -> None:
        """Do nothing: proposals take microseconds."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
