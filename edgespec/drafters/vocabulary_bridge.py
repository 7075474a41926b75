"""Between two vocabularies: which tokens both have, and one's text in the other's tokens.

Tokens are the same if their bytes are. The target's committed text is another matter: its tokens
end where a draft's own tokenizer would not have cut, after "hel", say, of a "hello" that is one
token to it. With every token that is committed the last few of the draft's are therefore split
anew, so that the draft always reads the text as it has learned to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.errors import PairingError

__all__ = ["RetokenizedText", "SharedTokens", "share_tokens"]

_MARGIN = 8  # tokens at the end that new text may change
_REACH = 64  # tokens before those in which a place to start from is looked for
_TRIES = 4
_AGREE = 2  # tokens that have to come out the same again at the place started from
_UNKNOWN = -1

_LEAST_COVERAGE = 0.5
_SAMPLE = """\
The lock keeper writes the level of the river into his book every evening at six o'clock. In
spring, when the snow melts, it rises by almost two metres; by August you can walk across. "Why do
you still write it down?" asked the girl. He laughed: because his father did, and nobody had told
him to stop. To find the average of a list, add its numbers and divide the sum by how many there
are. For example, the average of 12, 15, 20 and 33 is 80 / 4 = 20.

1. Preheat the oven to 180 degrees.
2. Mix 250 g of flour with a pinch of salt, then stir in the eggs, one after the other.

def average(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

for (int i = 0; i < count; i++) { printf("%d\\n", items[i]); }
{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}

Der Fluss ist im Frühling höher als im Herbst. La rivière est plus basse en été. El río crece en
primavera. Река поднимается весной. 春になると川の水が増える。
"""


@dataclass(frozen=True)
class SharedTokens:
    """Pairs of token ids that stand for the same bytes.

    Attributes:
        target, draft: int32 (n,), the ids of each pair in the two vocabularies.
        coverage: the share of the target's tokens of an ordinary text that are among them.
    """

    target: Int32Array
    draft: Int32Array
    coverage: float

    def __str__(self) -> str:
        return (
            f"{len(self.target):,} tokens have the same bytes in both, "
            f"{self.coverage:.0%} of those in an ordinary text"
        )


def share_tokens(target: Vocabulary, draft: Vocabulary) -> SharedTokens:
    """Pair the tokens of two vocabularies by their bytes; control tokens are left out.

    Raises:
        PairingError: they share too little for proposals to be of use.
    """
    ours, theirs = target.by_bytes, draft.by_bytes
    pairs = sorted((token, theirs[text]) for text, token in ours.items() if text in theirs)
    known = {token for token, _ in pairs}
    sample = target.tokenize(_SAMPLE, add_special=False).tolist()
    shared = SharedTokens(
        np.array([token for token, _ in pairs], np.int32),
        np.array([token for _, token in pairs], np.int32),
        sum(token in known for token in sample) / len(sample),
    )
    if shared.coverage < _LEAST_COVERAGE:
        raise PairingError(
            f"the draft does not fit: its tokenizer is another one, and only {shared}, where "
            f"{_LEAST_COVERAGE:.0%} are needed: take one of the target's family, or --draft ngram"
        )
    return shared


class RetokenizedText:
    """The text of a growing sequence of the target's tokens, in the draft's.

    Attributes:
        length: how many of the target's tokens are in it.
        tokens: the draft's tokens for all whole characters of the text.
        unchanged: so many tokens at the front are as they were before the last `follow`.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target, self._draft = target, draft
        # The draft has its own token, or none, for the beginning of a text.
        self._opening = target.bos if target.adds_bos else None
        # Some tokenizers put a space before a text: to them the text then starts with it.
        self._pads = b"".join(map(draft.piece, draft.tokenize("x", add_special=False))) == b" x"
        self._start = 1 if draft.adds_bos and draft.bos is not None else 0
        self.tokens: list[int] = [draft.bos] if self._start and draft.bos is not None else []
        self._offsets: list[int] = [_UNKNOWN] * self._start  # in the text, of each token
        self._text = bytearray(b" " if self._pads else b"")
        self._ends = [len(self._text)]  # of the text after each of the target's tokens
        self._split = 0  # bytes that `tokens` stand for
        self.unchanged = self._start

    @property
    def length(self) -> int:
        """Number of the target's tokens."""
        return len(self._ends) - 1

    @property
    def whole(self) -> bool:
        """Whether the text does not end inside a character."""
        return _whole_characters(self._text) == len(self._text)

    def follow(self, history: Int32Array, length: int) -> None:
        """Make it the text of ``history[:length]``, which goes on from what was there."""
        for token in history[self.length : length].tolist():
            if self.length > 0 or token != self._opening:
                self._text += self._target.piece(token, special=True)
            self._ends.append(len(self._text))
        self.unchanged = len(self.tokens)
        end = _whole_characters(self._text)
        if end != self._split:
            self._retokenize(end)
            self._split = end

    def rewind(self, length: int) -> None:
        """Drop all but the first `length` of the target's tokens; `follow` has to come next."""
        if length >= self.length:
            return
        del self._ends[length + 1 :]
        del self._text[self._ends[-1] :]
        while len(self.tokens) > self._start and not (0 <= self._offsets[-1] < len(self._text)):
            self.tokens.pop()
            self._offsets.pop()
        self._split = _UNKNOWN

    def _retokenize(self, end: int) -> None:
        """Split the text up to `end`, from the last place where that gives the same as before."""
        for index in self._places():
            tokens = self._tokenize(self._offsets[index], end)
            if tokens[:_AGREE] == self.tokens[index : index + _AGREE]:
                break
        else:
            index = self._start
            tokens = self._tokenize(0, end)
        offset = self._offsets[index] if index > self._start else 0
        self.unchanged = min(self.unchanged, index)
        del self.tokens[index:]
        del self._offsets[index:]
        self.tokens += tokens
        self._offsets += self._offsets_of(tokens, offset)

    def _places(self) -> Iterator[int]:
        """Tokens before the last few at which a word begins or goes on, latest first."""
        found = 0
        newest = len(self.tokens) - _MARGIN
        for index in range(newest, max(newest - _REACH, self._start), -1):
            offset = self._offsets[index]
            if offset != _UNKNOWN and self._is_place(offset):
                yield index
                found += 1
                if found == _TRIES:
                    return

    def _is_place(self, offset: int) -> bool:
        """Splitting can start here: tokenizers cut before words, and merge inside them locally."""
        first = self._text[offset : offset + 1]
        if self._pads or first == b" ":
            return first == b" " and self._text[offset + 1 : offset + 2].isalpha()
        character = bytes(self._text[offset : offset + 4]).decode("utf-8", "ignore")[:1]
        return first.isalpha() or (first[0] >= 0xC0 and character.isalpha())

    def _tokenize(self, start: int, end: int) -> list[int]:
        text = self._text[start + self._pads : end].decode("utf-8", "replace")
        # A tokenizer that pads does so behind each control token too; then they are mere text.
        tokens = self._draft.tokenize(text, add_special=False, parse_special=not self._pads)
        split: list[int] = tokens.tolist()
        return split

    def _offsets_of(self, tokens: list[int], start: int) -> list[int]:
        """Where each token begins; unknown from where they do not add up to the text."""
        offsets = []
        for token in tokens:
            piece = self._draft.piece(token, special=True)
            if self._text[start : start + len(piece)] != piece:
                break  # broken UTF-8, or a character that the tokenizer replaces
            offsets.append(start)
            start += len(piece)
        return offsets + [_UNKNOWN] * (len(tokens) - len(offsets))


def _whole_characters(text: bytearray) -> int:
    """Length of the text without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue  # inside a character
        wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(text) - back if wanted > back else len(text)
    return len(text)
