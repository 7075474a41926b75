"""What a grammar makes likely next: the only token, the usual one, or how forced bytes are spelled.

A grammar allows a text in every split into tokens, so that forced bytes (`"name": `) seldom leave
one token only. Which one a model takes is a guess, which the target's p judges as any other
proposal; certain is only a token that stands alone in its mask.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.errors import BackendError, UsageError
from edgespec.sampling.penalties import allowed_set

__all__ = ["Foresight", "Likely"]

_OPEN = b"{[:,"
"""Bytes of JSON behind which something begins."""

_BEGINNINGS = (b' "', b" {", b" [", b" ")
_CLOSINGS = (b'":', b" }", b" ]")
"""How models mostly write JSON where a space is allowed but need not be."""

_SMALL = 256  # tokens in a mask that tells one place of a text from another
_SETS, _SPELLINGS = 1024, 1024  # remembered
_LONGEST = 256  # forced bytes that are looked at
_STYLE, _VALUE, _SPELLED = 0.7, 0.3, 0.9
"""Acceptance before experience: of punctuation as it was written before, of anything else as it was
before, of a spelling."""

_PRIOR = 2.0  # weight of that, in observations


class Likely(NamedTuple):
    """The token that is expected next, and how probable it is that the target emits it."""

    token: int
    probability: float


class _Choice:
    """What followed the last time that a set of tokens was allowed, and how often that held."""

    __slots__ = ("hits", "token", "trials")

    def __init__(self, token: int) -> None:
        self.token, self.hits, self.trials = token, 0, 0

    def see(self, token: int) -> None:
        self.trials += 1
        self.hits += token == self.token
        self.token = token


class Foresight:
    """Expects tokens of one constrained text. One thread uses it at a time.

    What it remembers is bounded, and of this text only.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._choices: OrderedDict[int, _Choice] = OrderedDict()
        self._spellings: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._comma = self._single(b",")
        self._beginnings = [t for t in map(self._single, _BEGINNINGS) if t >= 0]
        self._closings = [t for t in map(self._single, _CLOSINGS) if t >= 0]

    def expect(self, bits: Int32Array, forced: bytes, last: int) -> Likely | None:
        """Return what is likely to come next, if anything is.

        Args:
            bits: of the tokens that may come.
            forced: the bytes that have to come.
            last: the token before.
        """
        count, key, only = allowed_set(bits, _SMALL)
        if count == 1:
            return Likely(only, 1.0)
        choice = self._choices.get(key) if count else None
        if choice is not None:
            prior = _PRIOR * self._prior(choice.token)
            return Likely(choice.token, (choice.hits + prior) / (choice.trials + _PRIOR))
        if forced and (spelled := self._spell(forced, last)) >= 0:
            return Likely(spelled, _SPELLED)
        junction = self._join(bits, last) if count else -1
        return Likely(junction, _STYLE) if junction >= 0 else None

    def learn(self, bits: Int32Array, token: int) -> None:
        """Remember what followed where these tokens were allowed."""
        count, key, _ = allowed_set(bits, _SMALL)
        if count < 2:
            return
        choice = self._choices.get(key)
        if choice is None:
            self._choices[key] = _Choice(token)
            if len(self._choices) > _SETS:
                self._choices.popitem(last=False)
        else:
            choice.see(token)
            self._choices.move_to_end(key)

    def _prior(self, token: int) -> float:
        style = not any(chr(byte).isalnum() for byte in self._vocabulary.piece(token))
        return _STYLE if style else _VALUE

    def _join(self, bits: Int32Array, last: int) -> int:
        """Return the token that models mostly take between two parts of JSON; -1 for none."""
        before = self._vocabulary.piece(last)[-1:]
        if before and before in _OPEN:
            candidates = self._beginnings
        elif self._comma < 0 or not _allowed(bits, self._comma):  # or a list may go on
            candidates = self._closings
        else:
            return -1
        return next((token for token in candidates if _allowed(bits, token)), -1)

    def _single(self, piece: bytes) -> int:
        """Return the one token that spells this; -1 if there is none."""
        tokens = self._vocabulary.tokenize(piece, add_special=False).tolist()
        known = len(tokens) == 1 and self._vocabulary.piece(tokens[0]) == piece
        return tokens[0] if known else -1

    def _spell(self, forced: bytes, last: int) -> int:
        """Return the first token of forced bytes behind another token; -1 for none."""
        key = last, forced[:_LONGEST]
        token = self._spellings.get(key)
        if token is None:
            token = self._spellings[key] = self._first(*key)
            if len(self._spellings) > _SPELLINGS:
                self._spellings.popitem(last=False)
        return token

    def _first(self, last: int, forced: bytes) -> int:
        # How bytes are split depends on those before; a token that would join both was not chosen.
        before = self._vocabulary.piece(last)
        try:
            tokens = self._vocabulary.tokenize(before + forced, add_special=False).tolist()
            if len(tokens) > 1 and tokens[0] == last:
                return self._checked(tokens[1], forced)
            tokens = self._vocabulary.tokenize(forced, add_special=False).tolist()
        except (BackendError, UsageError):
            return -1
        return self._checked(tokens[0], forced) if tokens else -1

    def _checked(self, token: int, forced: bytes) -> int:
        """Return the token if it spells the next bytes: some tokenizers add a space."""
        piece = self._vocabulary.piece(token)
        return token if piece and forced.startswith(piece) else -1


def _allowed(bits: Int32Array, token: int) -> bool:
    return bool(bits[token >> 5] >> (token & 31) & 1)
