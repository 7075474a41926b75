"""llguidance: which tokens may come next, as bits, in microseconds.

Nothing is forced: the bits are all tokens whose bytes continue the text that the grammar allows,
however the tokenizer would split that text. So p is the model's own over what is allowed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.errors import GrammarError
from edgespec.grammars.texts import LIMITS, reason_of

__all__ = ["Guide", "Matcher"]

_MAX_CHARACTERS = 1 << 19
_CACHED = 256
_UNFORCED = '\n%llguidance {"no_forcing": true}'
_LONGEST_PIECE = 32
_SPECIAL = b"\xff"  # marks tokens that are no text; no UTF-8 contains this byte


class Matcher:
    """A grammar along one text. One thread uses it at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

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

    def forced_bytes(self) -> bytes:
        """Return the bytes that have to come next, as far as there is only one way."""
        return self._matcher.compute_ff_bytes()

    def copy(self) -> Matcher:
        """Return an independent copy of the state."""
        return Matcher(self._matcher.deep_copy())

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

    def _prepare(self, text: str) -> Matcher:
        if len(text) > _MAX_CHARACTERS:
            raise GrammarError(f"the grammar is longer than {_MAX_CHARACTERS} characters")
        matcher = LLMatcher(self._library_tokenizer(), text + _UNFORCED, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(f"the grammar does not compile: {reason_of(matcher.get_error())}")
        return Matcher(matcher)

    def _library_tokenizer(self) -> LLTokenizer:
        with self._building:
            if self._tokenizer is None:
                ends, tokens = sorted(self._vocabulary.end_tokens), _Tokens(self._vocabulary)
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
