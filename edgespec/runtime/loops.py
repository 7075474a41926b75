"""Notices an answer that only repeats itself, so that it can end.

A model that has begun to repeat itself goes on until the context is full. Data repeats itself too
(the rows of a table, a list of zeros, code that is copied from the prompt), so that only a long
verbatim repetition counts, a longer one where it has no letters, and none that the prompt has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from edgespec._types import Int32Array

__all__ = ["LoopDetector"]

_EVERY = 32
"""Tokens between two looks: where an answer ends depends on nothing but its tokens."""

_LONG = 400
"""Tokens that have to be one repetition, at least."""

_LONG_DATA = 1200
"""The same, where no letter is repeated."""

_TIMES = 5
"""How often, at least."""

_LONGEST = 256
"""The longest text, in tokens, that is repeated."""

_SEEN = max(_TIMES * _LONGEST, _LONG_DATA)


class LoopDetector:
    """Tells where an answer has become a loop.

    Args:
        prompt: int32 (n,), what the answer follows: repetitions in it may be copied.
        piece: returns a token's bytes.
    """

    def __init__(self, prompt: Int32Array, piece: Callable[[int], bytes]) -> None:
        self._prompt = prompt
        self._piece = piece

    def found(self, answer: Sequence[int], following: Sequence[int] = ()) -> bool:
        """Return whether an answer that has become so long ends as a loop.

        It says so at certain lengths only: it has to be asked at every length.

        Args:
            answer: tokens of the answer.
            following: more of them.
        """
        size = len(answer) + len(following)
        if size < _LONG or size % _EVERY:
            return False
        tail = np.array([*answer[-_SEEN:], *following][-_SEEN:], np.int32)
        return any(_run(tail, period) >= self._wanted(tail[-period:]) for period in _periods(tail))

    def _wanted(self, unit: Int32Array) -> int:
        """Return the tokens of a repetition of this text that are too many."""
        text = b"".join(map(self._piece, unit.tolist())).decode("utf-8", "ignore")
        least = _LONG if any(map(str.isalpha, text)) else _LONG_DATA
        return max(least, _TIMES * len(unit), _longest_run(self._prompt, unit) + _LONG)


def _periods(tail: Int32Array) -> Iterator[int]:
    """Yield the periods that the last tokens may have."""
    same = tail[-1 - _LONGEST : -1] == tail[-1]
    for period in np.flatnonzero(same[::-1]) + 1:
        if np.array_equal(tail[period - _LONG :], tail[-_LONG:-period]):
            yield int(period)


def _run(tail: Int32Array, period: int) -> int:
    """Return how many of the last tokens have this period."""
    differs = np.flatnonzero(tail[period:] != tail[:-period])
    return len(tail) - (int(differs[-1]) + 1 if len(differs) else 0)


def _longest_run(tokens: Int32Array, unit: Int32Array) -> int:
    """Return the tokens of the longest repetition of `unit`, beginning anywhere in it; or 0."""
    period = len(unit)
    if len(tokens) < 2 * period:
        return 0
    differs = np.flatnonzero(tokens[period:] != tokens[:-period])
    borders = np.concatenate(([-1], differs, [len(tokens) - period]))
    place = int(np.argmax(np.diff(borders)))
    start, size = int(borders[place]) + 1, int(np.diff(borders)[place]) - 1 + period
    turns = np.lib.stride_tricks.sliding_window_view(np.tile(unit, 2), period)
    return size if (turns == tokens[start : start + period]).all(axis=1).any() else 0
