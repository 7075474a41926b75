"""Free text in which grammars hold some parts: nothing is forbidden outside of them.

A part begins where the text says so (`PartGrammars.begins`), which is looked for behind every token
and every proposal, and ends where its grammar may end. So every position has its own state, as with
a grammar of the whole text, and p is the filtered softmax over what is allowed there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from edgespec._types import Float32Array, Int32Array
from edgespec.errors import GrammarError
from edgespec.grammars import Foresight, Guide, Likely, Matcher, PartGrammars
from edgespec.sampling.penalties import forbid

__all__ = ["HoldingConstraint"]

_REMEMBERED = 600  # bytes, in which the beginning of a part has to stand


class _Spot(NamedTuple):
    """A position in the text.

    Attributes:
        text: the last of the free text.
        aside: what ends the passage in which no part begins; empty outside of one.
        matcher: of the part; None in free text.
    """

    text: bytes = b""
    aside: bytes = b""
    matcher: Matcher | None = None


class HoldingConstraint:
    """Grammars of parts along one generation; a `Constraint`.

    Args:
        parts: the grammars, and where they begin.
        guide: of the model.
        piece: the bytes of a token, as they are in the text.
        end_tokens: end the generation; inside a part they are forbidden.
        bits: int32 (largest block + 1, words of the guide), scratch space.
        foresight: expects what comes next in the parts of this text.

    Raises:
        GrammarError: a grammar does not compile.
    """

    def __init__(
        self,
        parts: PartGrammars,
        guide: Guide,
        piece: Callable[[int], bytes],
        end_tokens: frozenset[int],
        bits: Int32Array,
        foresight: Foresight,
    ) -> None:
        self._begins, self._guide, self._piece = parts.begins, guide, piece
        self._matchers = {name: guide.start(text) for name, text in parts.grammars.items()}
        self._asides = {key.encode(): value.encode() for key, value in parts.asides.items()}
        marks = b"|".join(map(re.escape, self._asides)) or rb"(?!)"
        self._opening = re.compile(rb"(?:\A|\n)\s*(" + marks + rb")")
        self._end_tokens, self._bits = end_tokens, bits
        self._foresight = foresight
        self._rows = 0  # of `bits` that are of the block under way
        self._spots = [_Spot(aside=parts.aside.encode())]

    def expect(self, proposals: Int32Array, last: int) -> Likely | None:
        """Return what is likely behind proposals, if that is inside a part."""
        if self.walk(proposals) < len(proposals):
            return None
        matcher = self._spots[-1].matcher
        if matcher is None:
            return None
        try:
            matcher.write_bits(self._bits[0])
        except GrammarError:
            return None  # `mask` raises it where the text gets there
        return self._foresight.expect(self._bits[0], matcher.forced_bytes(), last)

    def walk(self, proposals: Int32Array) -> int:
        """Return how many of the proposals are allowed, up to an end token."""
        del self._spots[1:]
        for token in proposals.tolist():
            after = None if token in self._end_tokens else self._after(self._spots[-1], token)
            if after is None:
                break
            self._spots.append(after)
        return len(self._spots) - 1

    def mask(self, logits: Float32Array) -> None:
        """Set forbidden tokens of each row inside a part to -inf."""
        spots = self._spots[: len(logits)]
        if all(spot.matcher is None for spot in spots):
            return
        for row, spot in zip(self._bits, spots, strict=False):
            if spot.matcher is None:
                row.fill(-1)
            else:
                spot.matcher.write_bits(row)
        forbid(logits, self._bits)
        self._rows = len(spots)

    def commit(self, tokens: list[int]) -> None:
        """Advance over what was emitted: all but the last were proposed."""
        for row, (spot, token) in enumerate(zip(self._spots[: self._rows], tokens, strict=False)):
            if spot.matcher is not None:
                self._foresight.learn(self._bits[row], token)
        known = min(len(tokens) - 1, len(self._spots) - 1)
        spot = self._spots[known]
        for token in tokens[known:]:
            if token in self._end_tokens:
                break
            after = self._after(spot, token)
            if after is None:
                raise GrammarError("the arguments of a call cannot be followed any further")
            spot = after
        self._spots, self._rows = [spot], 0

    def complete(self) -> bool:
        """Return whether no part has been begun and not ended."""
        return self._spots[0].matcher is None

    def close(self) -> None:
        """Do nothing: states are freed with the constraint."""

    def _after(self, spot: _Spot, token: int) -> _Spot | None:
        """Return the position behind a token; None if it is forbidden."""
        if spot.matcher is None:
            return self._read(spot, self._piece(token))
        matcher = spot.matcher.copy()
        if not matcher.allowed_prefix([token]):
            return None
        matcher.consume([token])
        return _Spot() if matcher.accepts() else _Spot(matcher=matcher)

    def _read(self, spot: _Spot, piece: bytes) -> _Spot:
        """Return the position behind some bytes of free text."""
        text = spot.text + piece
        if spot.aside:
            end = text.find(spot.aside)
            if end < 0:
                return _Spot(text[-_REMEMBERED:], spot.aside)
            return self._read(_Spot(b"\n"), text[end + len(spot.aside) :])
        opened, begun = self._opening.search(text), self._begins.search(text)
        if opened and not (begun and begun.end() < opened.end()):
            return self._read(_Spot(aside=self._asides[opened[1]]), text[opened.end() :])
        if begun:
            kind = begun.lastgroup or ""
            return self._begin((kind, begun[kind]), text[begun.end() :])
        return _Spot(text[-_REMEMBERED:])

    def _begin(self, name: tuple[str, bytes], rest: bytes) -> _Spot:
        """Return the position in a part of which some bytes came with the token that began it."""
        known = self._matchers.get(name) or self._matchers[name[0], b""]
        matcher = known.copy()
        tokens = self._guide.spell(rest)
        if tokens is None or matcher.allowed_prefix(tokens) < len(tokens):
            return _Spot(rest)  # it is no such part
        matcher.consume(tokens)
        return _Spot() if matcher.accepts() else _Spot(matcher=matcher)
