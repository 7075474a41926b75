"""llguidance: which tokens may come next, as bits, in microseconds, and which are likely to.

Nothing is forced: the bits are all tokens whose bytes continue the text that the grammar allows,
however the tokenizer would split that text. So p is the model's own over what is allowed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.errors import BackendError, GrammarError, UsageError
from edgespec.grammars.texts import LIMITS, reason_of
from edgespec.sampling.penalties import allowed_set

__all__ = ["Foresight", "Guide", "Likely", "Matcher"]

_MAX_CHARACTERS = 1 << 19
_CACHED = 256
_UNFORCED = '\n%llguidance {"no_forcing": true}'
_LONGEST_PIECE = 32
_SPECIAL = b"\xff"  # marks tokens that are no text; no UTF-8 contains this byte


class Matcher:
    """A grammar along one text. One thread uses it at a time."""

    def __init__(self, matcher: LLMatcher, end: int) -> None:
        self._matcher, self._end = matcher, end

    def allowed_prefix(self, tokens: list[int]) -> int:
        """Return how many of these tokens may come, one after the other."""
        return self._matcher.validate_tokens(tokens)

    def consume(self, tokens: list[int]) -> None:
        """Advance over tokens.

        Raises:
            GrammarError: one of them is not allowed, or the grammar is too complex here.
        """
        if not self._matcher.consume_tokens(tokens):
            self._fail()

    def roll_back(self, count: int) -> None:
        """Take the last tokens back."""
        if count and not self._matcher.rollback(count):
            self._fail()

    def write_bits(self, row: Int32Array) -> None:
        """Write which tokens may come next: token t is bit t % 32 of word t // 32.

        Raises:
            GrammarError: none may, or the grammar is too complex here.
        """
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            self._fail()

    def accepts(self) -> bool:
        """Return whether the text may end here."""
        return self._matcher.is_accepting()

    def stopped(self) -> bool:
        """Return whether nothing may follow but the end."""
        return self._matcher.is_stopped()

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Return whether these tokens make the text whole."""
        if not tokens:
            return self.accepts()
        return self._matcher.validate_tokens([*tokens, self._end]) > len(tokens)

    def forced_bytes(self) -> bytes:
        """Return the bytes that have to come next, as far as there is only one way."""
        return self._matcher.compute_ff_bytes()

    def copy(self) -> Matcher:
        """Return an independent copy of the state."""
        return Matcher(self._matcher.deep_copy(), self._end)

    def _fail(self) -> None:
        reason = reason_of(self._matcher.get_error())
        raise GrammarError(f"the grammar cannot be followed any further: {reason}")


class Guide:
    """A vocabulary as the library sees it, and the grammars that were prepared for it.

    Any thread may use it while the model is open.

    Args:
        vocabulary: of the model.

    Attributes:
        words: int32 words of a row of bits.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._pieces: list[bytes] = []
        self._spelled: dict[bytes, int] = {}
        self._prepared: OrderedDict[str, Matcher] = OrderedDict()
        # The library adds an end token where there is none.
        self.words = (vocabulary.size + (not vocabulary.end_tokens) + 31) // 32

    def start(self, text: str) -> Matcher:
        """Return the start state of a grammar in the library's language.

        Raises:
            GrammarError: it does not compile, or no text of this vocabulary obeys it.
        """
        with self._lock:
            known = self._prepared.get(text)
            if known is not None:
                self._prepared.move_to_end(text)
                return known.copy()
        prepared = self._prepare(text)
        with self._lock:
            self._prepared[text] = prepared
            while len(self._prepared) > _CACHED:
                self._prepared.popitem(last=False)
            return prepared.copy()

    def spell(self, data: bytes) -> list[int] | None:
        """Return tokens that have these bytes, whatever the tokenizer would choose, or None."""
        self._library_tokenizer()
        found, at = [], 0
        while at < len(data):
            ends = range(min(len(data), at + _LONGEST_PIECE), at, -1)
            end = next((end for end in ends if data[at:end] in self._spelled), None)
            if end is None:
                return None
            found.append(self._spelled[data[at:end]])
            at = end
        return found

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        return self._vocabulary.end_tokens

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token has in a text; none if it ends it, or is no text."""
        if not self._pieces:
            self._library_tokenizer()
        piece = self._pieces[token]
        return b"" if piece.startswith(_SPECIAL) else piece

    def fewest(self, data: bytes) -> list[int] | None:
        """Return the fewest tokens that have these bytes, or None."""
        self._library_tokenizer()
        spelled, size = self._spelled, len(data)
        ends = [0] * size + [size]  # where the token that begins at each place ends
        counts: list[float] = [inf] * size + [0]
        for at in range(size - 1, -1, -1):
            for end in range(at + 1, min(size, at + _LONGEST_PIECE) + 1):
                if counts[end] + 1 < counts[at] and data[at:end] in spelled:
                    counts[at], ends[at] = counts[end] + 1, end
        if counts[0] == inf:
            return None
        found, at = [], 0
        while at < size:
            found.append(spelled[data[at : ends[at]]])
            at = ends[at]
        return found

    def single_bytes(self) -> Int32Array:
        """Return the token of each byte, -1 where it has none: int32 (256,)."""
        self._library_tokenizer()
        tokens = [self._spelled.get(bytes((byte,)), -1) for byte in range(256)]
        return np.array(tokens, np.int32)

    def _prepare(self, text: str) -> Matcher:
        if len(text) > _MAX_CHARACTERS:
            raise GrammarError(f"the grammar is longer than {_MAX_CHARACTERS} characters")
        tokenizer = self._library_tokenizer()
        matcher = LLMatcher(tokenizer, text + _UNFORCED, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(f"the grammar does not compile: {reason_of(matcher.get_error())}")
        return Matcher(matcher, tokenizer.eos_token)

    def _library_tokenizer(self) -> LLTokenizer:
        with self._building:
            if self._tokenizer is None:
                ends, tokens = sorted(self._vocabulary.end_tokens), _Tokens(self._vocabulary)
                self._pieces = tokens.tokens
                self._spelled = {piece: token for token, piece in enumerate(tokens.tokens)}
                # The names are the library's.
                self._tokenizer = LLTokenizer(tokens, eos_token=ends or None)  # type: ignore[arg-type]
            return self._tokenizer


class _Tokens:
    """What the library reads of a vocabulary, by the names that it knows."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, vocabulary: Vocabulary) -> None:
        ends = vocabulary.end_tokens
        self.eos_token_id = min(ends, default=None)
        self.tokens = [self._bytes(vocabulary, token, ends) for token in range(vocabulary.size)]

    def __call__(self, text: str) -> list[int]:
        """Refuse: it would be asked how to split bytes that are forced, and none are."""
        raise NotImplementedError

    @staticmethod
    def _bytes(vocabulary: Vocabulary, token: int, ends: Any) -> bytes:
        piece = vocabulary.piece(token)
        if piece and token not in ends:
            return piece
        return _SPECIAL + vocabulary.piece(token, special=True)


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
