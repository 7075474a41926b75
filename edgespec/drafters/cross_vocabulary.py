"""A model of another tokenizer family as drafter, and what lies between the two vocabularies.

Tokens are the same if their bytes are. The target's committed text is another matter: its tokens
end where a draft's own tokenizer would not have cut, after "hel", say, of a "hello" that is one
token to it. With every token that is committed the last few of the draft's are therefore split
anew, so that the draft always reads the text as it has learned to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, Vocabulary
from edgespec.control.controller import DraftBudget
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.protocol import DETERMINISTIC, ContextDrafter, Proposal, draft_token
from edgespec.errors import PairingError
from edgespec.sampling.filters import make_workspace
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.acceptance import DrawSettings

__all__ = ["CrossVocabularyDrafter", "RetokenizedText", "SharedTokens", "share_tokens"]

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
        """Yield tokens before the last few at which a word begins or continues, latest first."""
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
        """Return whether splitting can start here: tokenizers cut before words."""
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
        """Return where each token begins; unknown from where they do not add up to the text."""
        offsets = []
        for token in tokens:
            piece = self._draft.piece(token, special=True)
            if self._text[start : start + len(piece)] != piece:
                break  # broken UTF-8, or a character that the tokenizer replaces
            offsets.append(start)
            start += len(piece)
        return offsets + [_UNKNOWN] * (len(tokens) - len(offsets))


def _whole_characters(text: bytearray) -> int:
    """Return the length without an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue  # inside a character
        wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(text) - back if wanted > back else len(text)
    return len(text)


class CrossVocabularyDrafter(ContextDrafter):
    """Drafts with a GGUF model whose vocabulary is not the target's.

    The draft reads the committed text in its own tokens. What it says of tokens that both
    vocabularies have, by their bytes, becomes a row of logits in the target's ids, with -inf for
    all others. Filters and draws are then those of any draft, and q is what they leave of that
    row: the distribution that really produced the proposal, so that verification is exact.

    Its cache holds a prefix of the committed text's tokens; what retokenizing changed is cut off.

    Args:
        context: an open context of the draft; closed with the drafter.
        target: the target's vocabulary.
        shared: the tokens that both have.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    name = "model"

    def __init__(
        self,
        context: Context,
        target: Vocabulary,
        shared: SharedTokens,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        self.context = context
        self.stopping = stopping
        self._target, self._shared = target, shared
        self._text = RetokenizedText(target, context.model.vocabulary)
        self._cached: list[int] = []  # the draft's tokens in its cache
        self._draft_token = np.full(target.size, -1, np.int32)
        self._draft_token[shared.target] = shared.draft
        self._logits: Float32Array = np.full(target.size, -np.inf, np.float32)
        self._q: Float32Array = np.zeros((longest, target.size), np.float32)
        self._workspace = make_workspace(target.size, context.capacity + longest)
        self._settings: DrawSettings | None = None

    def begin(self, settings: DrawSettings) -> None:
        """Take over the target's filters."""
        self._settings = settings

    def rate(self, budget: DraftBudget, length: int) -> float:
        """Return the expected tokens per second of a block begun behind `length` tokens."""
        # What it has not read is known in the target's tokens only: about as many.
        return self.stopping.rate(budget, max(0, length - 1 - self._text.length))

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Draw tokens one after the other, while that pays; none inside a character.

        Raises:
            CancelledError: `cancel` was called.
            NumericalError: the draft's logits are NaN or +inf.
        """
        return self.extend(history, length, budget, 0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` one-hot proposals that already stand in the history."""
        assert self._settings is not None, "begin was not called"
        if given:  # they have not been read as text
            self.stopping.begin(budget._replace(limit=given), 0, given)
            return Proposal(given)
        self._follow(history, length)
        tokens = self._text.tokens
        room = self.context.capacity - len(tokens)
        usable = bool(tokens) and self._text.whole
        limit = max(0, min(budget.limit, room)) if usable else 0
        self.stopping.begin(budget._replace(limit=limit), len(tokens) - 1 - self.context.length, 0)
        pending = tokens[self.context.length :]
        count = 0
        while self.stopping.another():
            token = self._draw(pending, history, length + count, count)
            if token < 0:
                break  # a bias forbids all that the two share
            history[length + count] = token
            count += 1
            pending = [int(self._draft_token[token])]
        greedy = is_greedy(self._settings.arguments)
        return Proposal(self.stopping.size, DETERMINISTIC if greedy else self._q)

    def _draw(self, pending: list[int], history: Int32Array, length: int, row: int) -> int:
        """Draw one token behind ``history[:length]``; leave its q in this row; -1 for none."""
        assert self._settings is not None
        started = perf_counter()
        self._evaluate(pending)
        self.stopping.timed(len(pending), perf_counter() - started)
        token, confidence = draft_token(
            self._logits, history, length, self._settings, self._q[row], self._workspace
        )
        if token >= 0:
            self.stopping.add(confidence)
        return token

    def commit(self, history: Int32Array, length: int) -> None:
        """Follow the committed text and cut the cache back to what still holds of it."""
        self._follow(history, length)

    def rewind(self, length: int) -> None:
        """Drop the text behind the first `length` tokens of the target's."""
        self._text.rewind(length)

    def _follow(self, history: Int32Array, length: int) -> None:
        self._text.rewind(length)
        self._text.follow(history, length)
        tokens = self._text.tokens
        # One token at least has to be evaluated, for its logits.
        limit = min(len(self._cached), len(tokens) - 1)
        same = min(self._text.unchanged, limit)
        while same < limit and self._cached[same] == tokens[same]:
            same += 1
        self.context.truncate(max(same, 0))
        del self._cached[self.context.length :]

    def _evaluate(self, pending: list[int]) -> None:
        """Append to the draft's cache, and write its logits in the target's ids."""
        self._cached += pending  # before the call: what it leaves in the cache is a prefix of it
        logits = self.context.evaluate(np.array(pending, np.int32), 1)[0]
        if not np.isfinite(logits.max()):
            raise self.broken()
        self._logits[self._shared.target] = logits[self._shared.draft]
