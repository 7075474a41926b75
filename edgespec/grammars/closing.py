"""How a text can still become whole: short ends of what a grammar allows, found by trying.

A best-first search over bytes: what closes comes first, then what is usual, then anything. It
counts what it tries and gives up, so that it is bounded and depends on the text before only. What
it finds is spelled in the fewest tokens; there may be shorter ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf, log2, prod
from time import thread_time
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.errors import GrammarError
from edgespec.grammars.guidance import Guide, Matcher

__all__ = ["Closer", "End", "longest_detour"]

_BETWEEN = b"}],:\"'0)>nt1 "
_INSIDE = b"\"a</\n>}]').;|`\\0-@:,_=*#!?~&%$+^({["
"""What is tried first, in this order: between the parts of a text, and where any text may stand."""

_BLANKS = b" \t\r\n"
_FREE = 64  # allowed bytes that are more are free text

_INSIDE_ORDER = np.array([*_INSIDE])
_BETWEEN_ORDER = np.array([*_BETWEEN, *(set(range(256)) - {*_BETWEEN, *_BLANKS}), *_BLANKS[1:]])

_STEP, _SAME, _RANK = 0.001, 0.01, 0.2
"""Costs: of a byte, of one that leaves allowed what was allowed, and of each doubling of
those that were tried before it."""

_TRIES, _TRIES_AT_START, _TRIES_FOR_ANOTHER = 400, 2000, 200
_LONG_S = 1.0  # of this thread, at the start
_SEARCHES, _TRIES_OF_ONE = 6, 60  # for one token
_LONGEST = 4096  # bytes
_LIKELY, _GAP = 64, 10.0
_MOST = 1 << 20

_Choices = list[tuple[bytes, list[int]]]
_Open = tuple[float, int, int, float, bytes, Matcher, _Choices, int]


class End(NamedTuple):
    """What makes a text whole.

    Attributes:
        text: its bytes.
        tokens: the fewest that spell it.
    """

    text: bytes
    tokens: tuple[int, ...]


_NOTHING = End(b"", ())


def longest_detour(grammar: str) -> int:
    """Return a number of tokens by which one token should not bring an end further away.

    What a token begins is written in the grammar, and comes as often as the numbers there say.
    """
    numbers = re.findall(r'(?:"min\w{1,20}": ?|\{)(\d{1,7})', grammar)
    times = prod(max(1, int(number)) for number in numbers[:16])
    return 16 + min(len(grammar) // 2 * times, _MOST)


class Closer:
    """Leads texts of one grammar to an end before their last token. One thread uses it at a time.

    Args:
        guide: of the model.
        grammar: its text.
        most: how many of the likeliest tokens a filter looks at; 0 if that is not known.
    """

    def __init__(self, guide: Guide, grammar: str, most: int = 0) -> None:
        self._guide = guide
        self._most = min(most or _LIKELY, _LIKELY)
        self._detour = longest_detour(grammar)
        self._row: Int32Array = np.zeros(guide.words, np.int32)
        self._tokens = guide.single_bytes()
        self._singles = [
            (bytes((byte,)), [token]) for byte, token in enumerate(self._tokens.tolist())
        ]

    def shortest(self, matcher: Matcher) -> End | None:
        """Return the shortest end that is found when others are looked for too.

        None if none is found, or the grammar is so large that a token's searches would take long.
        """
        latest = thread_time() + _LONG_S
        found = [*self._ends(matcher, _TRIES_AT_START, latest)]
        if thread_time() > latest:
            return None
        return min(found, key=lambda end: len(end.tokens), default=None)

    def any(self, matcher: Matcher) -> End | None:
        """Return the end that is found first; None if none is."""
        return next(self._ends(matcher, _TRIES), None)

    def after(self, matcher: Matcher, end: End, token: int) -> End | None:
        """Return an end of the text with one more token; None if none is found.

        Args:
            matcher: behind the text; it is left there.
            end: of the text.
            token: which is allowed.
        """
        return self._kept(matcher, end, token) or self._found(matcher, token, _TRIES)

    def steer(self, logits: Float32Array, matcher: Matcher, end: End, left: int) -> None:
        """Forbid what would leave no way to an end, where the last token may be near.

        Of all others the likeliest few stay, as many as a filter looks at, and 64 at most.

        Args:
            logits: of the next token, -inf where the grammar forbids it; changed in place.
            matcher: behind the text; it is left there.
            end: of the text.
            left: how many tokens it may still have.
        """
        if not len(end.tokens) <= left <= len(end.tokens) + self._detour:
            return
        kept = self._kept_tokens(logits, matcher, end, left)
        if not kept:
            kept = [t for t in end.tokens[:1] or self._guide.ends if logits[t] > -np.inf]
        if kept:  # or else the token was forbidden by others
            values = logits[kept]
            logits.fill(-np.inf)
            logits[kept] = values

    def _kept_tokens(
        self, logits: Float32Array, matcher: Matcher, end: End, left: int
    ) -> list[int]:
        searches, kept = _SEARCHES, list[int]()
        for token in _likeliest(logits):
            after = self._kept(matcher, end, token)
            if after is None and searches:
                searches -= 1
                after = self._found(matcher, token, _TRIES_OF_ONE)
            if after is not None and len(after.tokens) < left:
                kept.append(token)
                if len(kept) == self._most:
                    break
        return kept

    def _found(self, matcher: Matcher, token: int, tries: int) -> End | None:
        behind = matcher.copy()
        behind.consume([token])
        return next(self._ends(behind, tries), None)

    def _kept(self, matcher: Matcher, end: End, token: int) -> End | None:
        """Return what is left of an end, or all of it, if that ends the longer text."""
        piece = self._guide.piece(token)
        if not piece or matcher.ends_with([token]):
            return _NOTHING
        if end.text.startswith(piece):
            return self._without(end, len(piece))
        if matcher.ends_with([token, *end.tokens]):
            return end
        bare = piece.strip(_BLANKS)
        if bare and bare != piece and end.text.startswith(bare):
            rest = self._without(end, len(bare))
            return rest if rest and matcher.ends_with([token, *rest.tokens]) else None
        return None

    def _without(self, end: End, size: int) -> End | None:
        """Return an end without its first bytes."""
        at = place = 0
        while at < size:
            at += len(self._guide.piece(end.tokens[place]))
            place += 1
        cut = self._guide.fewest(end.text[size:at])  # the rest of a token
        return None if cut is None else End(end.text[size:], (*cut, *end.tokens[place:]))

    def _spelled(self, matcher: Matcher, text: bytes) -> End | None:
        tokens = self._guide.fewest(text)
        whole = tokens is not None and matcher.ends_with(tokens)
        return End(text, tuple(tokens)) if tokens is not None and whole else None

    def _ends(self, matcher: Matcher, tries: int, latest: float = inf) -> Iterator[End]:
        """Yield ends, the cheapest first. Of states that allow the same, one is followed."""
        order, seen = count(), set[tuple[int, int]]()
        heap: list[_Open] = []

        def push(cost: float, text: bytes, state: Matcher, choices: _Choices, rank: int) -> None:
            if rank < len(choices):
                key = cost + (_RANK * log2(1 + rank) if len(choices) > 1 else 0.0)
                heappush(heap, (key, -len(text), next(order), cost, text, state, choices, rank))

        push(0.0, b"", matcher, [(b"", [])], 0)
        while heap and tries and thread_time() < latest:
            tries -= 1
            key, _, _, cost, text, state, choices, rank = heappop(heap)
            push(cost, text, state, choices, rank + 1)
            more, tokens = choices[rank]
            text, state = text + more, state.copy()
            if len(text) > _LONGEST or state.allowed_prefix(tokens) < len(tokens):
                continue
            state.consume(tokens)
            if state.accepts():
                if (end := self._spelled(matcher, text)) is not None:
                    yield end
                    tries = min(tries, _TRIES_FOR_ANOTHER)
            else:
                allowed = self._choices(state, seen, len(text))
                same = [c for c, _ in allowed] == [c for c, _ in choices]
                push(key + _STEP + _SAME * same, text, state, allowed, 0)

    def _choices(self, state: Matcher, seen: set[tuple[int, int]], length: int) -> _Choices:
        """Return what may be tried next, in tokens: bytes that have to come, or one byte each."""
        forced = state.forced_bytes()
        if forced and (tokens := self._guide.spell(forced)) is not None:
            return [(forced, tokens)]
        try:
            state.write_bits(self._row)
        except GrammarError:  # too complex here
            return []
        key = length, hash(self._row.tobytes())
        if key in seen:
            return []
        seen.add(key)
        words = self._row[self._tokens >> 5]
        allowed = (self._tokens >= 0) & ((words >> (self._tokens & 31)) & 1 != 0)
        order = _INSIDE_ORDER if np.count_nonzero(allowed) > _FREE else _BETWEEN_ORDER
        return [self._singles[byte] for byte in order[allowed[order]].tolist()]


def _likeliest(logits: Float32Array) -> list[int]:
    """Return the tokens with the largest logits, the largest first."""
    near = np.flatnonzero(logits >= logits.max() - _GAP)
    if len(near) < _LIKELY:
        near = np.flatnonzero(logits > -np.inf)
    if len(near) > _LIKELY:
        near = np.sort(near[np.argpartition(logits[near], -_LIKELY)[-_LIKELY:]])
    tokens: list[int] = near[np.argsort(-logits[near], kind="stable")].tolist()
    return tokens
