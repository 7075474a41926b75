"""Constrained output, whole or in parts: a grammar's mask enters p at every position.

The mask comes before every filter, so that p is the filtered softmax over the allowed tokens.
A sampled proposal that the grammar forbids ends the block, but stays in it as its last: p is zero
there, so that it is rejected and replaced from the residual. Dropping it and drawing from p would
favour what the draft avoids, and the distribution would not be the constrained target's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Grammar, Vocabulary
from edgespec.errors import GrammarError
from edgespec.grammars import Closer, End, Foresight, Guide, Likely, Matcher, PartGrammars, is_lark
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.penalties import forbid

__all__ = ["Constraint", "Constraints", "GbnfConstraint", "GuidedConstraint", "HoldingConstraint"]

_CHUNKS = (16, 256, 4096)
_ENDLESS = 1 << 30
_ENDS = 256  # of grammars, remembered


class Constraint(Protocol):
    """A grammar along one generation."""

    def expect(self, proposals: Int32Array, last: int) -> Likely | None:
        """Return what is likely behind proposals, by the grammar and by what it met before.

        Args:
            proposals: behind the committed text; nothing is likely behind forbidden ones.
            last: the token before the place that is asked for.
        """

    def walk(self, proposals: Int32Array) -> int:
        """Advance along proposals; how many the grammar allows.

        The states before each of them, and after the last allowed, are those of `mask`.
        """

    def mask(self, logits: Float32Array, left: int = _ENDLESS) -> None:
        """Set forbidden tokens of each row to -inf, in place: row i has the i-th state.

        Args:
            logits: of the next token, and behind each proposal.
            left: how many tokens the text may still have; its last ones lead to an end of it.

        Raises:
            GrammarError: the grammar cannot be followed any further.
        """

    def commit(self, tokens: list[int]) -> None:
        """Advance over what was emitted; an end token ends the text."""

    def complete(self) -> bool:
        """Return whether what was committed is a whole text of the grammar."""

    @property
    def shortest(self) -> int | None:
        """Tokens of the shortest whole text that is known; None if none is."""

    def close(self) -> None:
        """Free all states."""


class GuidedConstraint:
    """A grammar that llguidance follows.

    Args:
        matcher: in its start state; nobody else uses it.
        end_tokens: end the generation; the grammar allows them where the text is complete.
        bits: int32 (largest block + 1, words of the guide), scratch space.
        foresight: expects what comes next in this text.
        closing: leads it to an end.
        end: the shortest whole text that is known.
    """

    def __init__(
        self,
        matcher: Matcher,
        end_tokens: frozenset[int],
        bits: Int32Array,
        foresight: Foresight,
        closing: Closer,
        end: End | None,
    ) -> None:
        self.shortest = None if end is None else len(end.tokens)
        self._closing = closing
        self._endings = [end]  # of the committed text, and behind proposals
        self._matcher = matcher
        self._end_tokens = end_tokens
        self._bits = bits
        self._foresight = foresight
        self._proposals: list[int] = []
        self._consumed: list[int] = []  # what the matcher has read behind the committed text
        self._rows = 0  # of `bits` that are of the block under way

    def expect(self, proposals: Int32Array, last: int) -> Likely | None:
        """Return what is likely behind proposals, if anything is."""
        try:
            if not self._move(proposals.tolist()) or self._matcher.stopped():
                return None
            forced = self._matcher.forced_bytes()
            self._matcher.write_bits(self._bits[0])
        except GrammarError:
            return None  # `mask` raises it where the text gets there
        likely = self._foresight.expect(self._bits[0], forced, last)
        return None if likely is None or likely.token in self._end_tokens else likely

    def walk(self, proposals: Int32Array) -> int:
        """Return how many of the proposals the grammar allows."""
        tokens: list[int] = proposals.tolist()
        ends = (place for place, token in enumerate(tokens) if token in self._end_tokens)
        tokens = tokens[: next(ends, len(tokens))]
        self._move(tokens[: self._shared(tokens)])
        known = len(self._consumed)
        allowed = known + (self._matcher.allowed_prefix(tokens[known:]) if tokens[known:] else 0)
        self._proposals = tokens[:allowed]
        return allowed

    def mask(self, logits: Float32Array, left: int = _ENDLESS) -> None:
        """Set forbidden tokens of each row to -inf, and those that lead too far from an end."""
        self._move([])
        del self._endings[1:]
        for row in range(len(logits)):
            one = slice(row, row + 1)
            self._matcher.write_bits(self._bits[row])
            forbid(logits[one], self._bits[one])
            end = self._ending(left - row)
            if end is not None:
                self._closing.steer(logits[row], self._matcher, end, left - row)
            self._follow(self._proposals[one])
        self._rows = len(logits)

    def commit(self, tokens: list[int]) -> None:
        """Advance over what was emitted: all but the last were proposed."""
        rest = tokens[:-1] if tokens and tokens[-1] in self._end_tokens else tokens
        for row, token in enumerate(rest[: self._rows]):
            self._foresight.learn(self._bits[row], token)
        known = min(self._shared(rest), len(self._endings) - 1)
        self._back_to(known)
        del self._endings[known + 1 :]
        self._follow(rest[known:])
        self._endings = self._endings[-1:]
        self._consumed, self._proposals, self._rows = [], [], 0

    def _ending(self, left: int) -> End | None:
        """Return an end of the text read so far, looking for a lost one now and then."""
        if left >= _ENDLESS:
            self._endings[-1] = None
        elif self._endings[-1] is None and self.shortest and left & (left - 1) == 0:
            self._endings[-1] = self._closing.any(self._matcher)
        return self._endings[-1]

    def _follow(self, tokens: list[int]) -> None:
        """Read tokens, and what they leave of the end."""
        for token in tokens:
            end = self._endings[-1]
            after = None if end is None else self._closing.after(self._matcher, end, token)
            self._endings.append(after)
            self._consume([token])

    def complete(self) -> bool:
        """Return whether what was committed is a whole text of the grammar."""
        self._back_to(0)
        self._proposals = []
        return self._matcher.accepts()

    def close(self) -> None:
        """Do nothing: states are freed with the constraint."""

    def _move(self, tokens: list[int]) -> bool:
        """Stand behind these proposals; False if the grammar forbids one of them."""
        self._back_to(self._shared(tokens))
        rest = tokens[len(self._consumed) :]
        if rest and self._matcher.allowed_prefix(rest) < len(rest):
            return False
        self._consume(rest)
        return True

    def _shared(self, tokens: list[int]) -> int:
        shared = 0
        for ours, theirs in zip(self._consumed, tokens, strict=False):
            if ours != theirs:
                break
            shared += 1
        return shared

    def _back_to(self, count: int) -> None:
        self._matcher.roll_back(len(self._consumed) - count)
        del self._consumed[count:]

    def _consume(self, tokens: list[int]) -> None:
        if tokens:
            self._matcher.consume(tokens)
            self._consumed += tokens


class GbnfConstraint:
    """A grammar that llama.cpp's engine follows.

    Args:
        grammar: in its start state; closed with the constraint.
        sampling: says how many allowed tokens a row needs.
        end_tokens: end the generation; the grammar allows them where the text is complete.
    """

    def __init__(
        self, grammar: Grammar, sampling: SamplingParameters, end_tokens: frozenset[int]
    ) -> None:
        self.shortest = None
        self._grammar = grammar
        self._states: list[Grammar] = [grammar]
        self._wanted = _few(sampling)
        self._end_tokens = end_tokens

    def expect(self, proposals: Int32Array, last: int) -> None:
        """Expect nothing: in this engine a token is judged in microseconds, a mask in more."""

    def walk(self, proposals: Int32Array) -> int:
        """Advance along proposals; how many the grammar allows.

        The state before each of them, and after the last allowed, is kept for `mask`.
        """
        self._forget()
        for token in proposals.tolist():
            state = self._states[-1]
            if token in self._end_tokens or not state.allows(token):
                return len(self._states) - 1
            self._states.append(state.clone())
            self._states[-1].accept(token)
        return len(self._states) - 1

    def mask(self, logits: Float32Array, left: int = _ENDLESS) -> None:
        """Set forbidden tokens of each row to -inf, in place: row i has the i-th state."""
        for row, state in zip(logits, self._states, strict=True):
            self._mask_row(row, state)

    def commit(self, tokens: list[int]) -> None:
        """Advance over what was emitted; an end token ends the text."""
        self._forget()
        for token in tokens:
            if token in self._end_tokens:
                return
            self._grammar.accept(token)

    def complete(self) -> bool:
        """Return whether what was committed is a whole text of the grammar."""
        return any(map(self._grammar.allows, self._end_tokens))

    def close(self) -> None:
        """Free all states."""
        self._forget()
        self._grammar.close()

    def _forget(self) -> None:
        for state in self._states[1:]:
            state.close()
        del self._states[1:]

    def _mask_row(self, row: Float32Array, state: Grammar) -> None:
        tokens = self._candidates(row, state)
        kept = row[tokens]
        row.fill(-np.inf)
        row[tokens] = kept

    def _candidates(self, row: Float32Array, state: Grammar) -> Int32Array:
        """Return the allowed tokens, or at least as many of the best as the filters look at."""
        # Judging a token is slow: where the best few are enough, the others are not judged.
        for size in _CHUNKS if self._wanted else ():
            if size >= len(row):
                break
            floor = np.partition(row, len(row) - size)[len(row) - size]
            best = np.flatnonzero(row >= floor).astype(np.int32)
            best = best[state.allowed(best)]
            if len(best) >= self._wanted:
                return best
        return np.flatnonzero(state.allowed(np.arange(len(row), dtype=np.int32))).astype(np.int32)


def _few(sampling: SamplingParameters) -> int:
    """Return how many of the most likely allowed tokens decide p; 0 for all of them."""
    edits = (
        sampling.repeat_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
        or len(sampling.logit_bias) > 0
        or sampling.uses_dry
    )
    if edits or sampling.mirostat != 0 or sampling.top_n_sigma > 0:
        return 0
    if sampling.greedy and sampling.xtc_probability <= 0 and sampling.typical_p >= 1:
        return 1
    return sampling.top_k


class Constraints:
    """Begins constraints for one model.

    Args:
        vocabulary: of the model.
        rows: the most rows of logits in a cycle; one cycle runs at a time.
    """

    def __init__(self, vocabulary: Vocabulary, rows: int) -> None:
        self._vocabulary, self._rows = vocabulary, rows
        self._ends: dict[str, tuple[End | None]] = {}  # the shortest texts of grammars

    def begin(self, grammar: str | PartGrammars, sampling: SamplingParameters) -> Constraint:
        """Return a grammar at its start, for one generation with this sampling.

        Raises:
            GrammarError: it does not compile.
        """
        ends = self._vocabulary.end_tokens
        foresight = Foresight(self._vocabulary)
        if isinstance(grammar, PartGrammars):
            piece = partial(self._vocabulary.piece, special=True)
            return HoldingConstraint(grammar, self._guide, piece, ends, self._bits, foresight)
        if not is_lark(grammar):
            return GbnfConstraint(Grammar(self._vocabulary, grammar), sampling, ends)
        matcher, closing = self._guide.start(grammar), Closer(self._guide, grammar, _few(sampling))
        if (known := self._ends.get(grammar)) is None:
            known = (closing.shortest(matcher),)
            if len(self._ends) >= _ENDS:
                self._ends.clear()
            self._ends[grammar] = known
        end = known[0]
        return GuidedConstraint(matcher, ends, self._bits, foresight, closing, end)

    @cached_property
    def _guide(self) -> Guide:
        return Guide(self._vocabulary)

    @cached_property
    def _bits(self) -> Int32Array:
        """Scratch space of the cycle that runs."""
        return np.zeros((self._rows, self._guide.words), np.int32)


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
        self.shortest = None
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

    def mask(self, logits: Float32Array, left: int = 0) -> None:
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
