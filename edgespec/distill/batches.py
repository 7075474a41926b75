"""Rows of training text: conversations end to end, cut to one length, in a seeded order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgespec._types import BoolArray, Float32Array, Int64Array
from edgespec.distill.corpus import Conversation, Corpus

__all__ = ["Batch", "Batches"]


class Batch(NamedTuple):
    """Some rows of text, (rows, length) each.

    Attributes:
        tokens: int64, the target's ids.
        segments: int64, the conversation of the row that a token belongs to; -1 after the last.
        positions: int64, in the conversation.
        judged: bool, whether a token of an answer follows in the same row.
        hidden: float32 (rows, length, width).
        layers: float32 (rows, length, layers * width).
        top: int64, the target's most likely next token.
        normalizer: float32, of its logits.
    """

    tokens: Int64Array
    segments: Int64Array
    positions: Int64Array
    judged: BoolArray
    hidden: Float32Array
    layers: Float32Array
    top: Int64Array
    normalizer: Float32Array


class Batches:
    """Endless batches: all conversations again and again, in a new order each time.

    The rows of a cursor depend on the corpus and the seed alone, so that an interrupted training
    can continue where it stopped.

    Args:
        corpus: has the text.
        conversations: those to use.
        rows, length: of a batch.
        seed: of the orders.
    """

    def __init__(
        self,
        corpus: Corpus,
        conversations: Sequence[Conversation],
        rows: int,
        length: int,
        seed: int = 0,
    ) -> None:
        self._corpus, self._conversations = corpus, list(conversations)
        self._rows, self._length, self._seed = rows, length, seed
        self._lengths = np.array([c.stop - c.start for c in self._conversations], np.int64)
        self._epoch = -1
        self._order = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        self.batches = -(-int(self._lengths.sum()) // (rows * length))

    def batch(self, cursor: int) -> Batch:
        """Return the batch at a cursor, which counts from 0 over all repetitions."""
        epoch, index = divmod(cursor, self.batches)
        self._arrange(epoch)
        first = index * self._rows
        rows = [self._row(first + i) for i in range(self._rows)]
        return Batch(*(np.stack(arrays) for arrays in zip(*rows, strict=True)))

    def _arrange(self, epoch: int) -> None:
        if epoch != self._epoch:
            random = np.random.default_rng((self._seed, epoch))
            self._order = random.permutation(len(self._conversations))
            self._ends = np.cumsum(self._lengths[self._order])
            self._epoch = epoch

    def _row(self, row: int) -> Batch:
        start, length = row * self._length, self._length
        facts = self._corpus.facts
        width, layered = facts.width, facts.width * len(facts.layers)
        out = Batch(
            np.zeros(length, np.int64),
            np.full(length, -1, np.int64),
            np.zeros(length, np.int64),
            np.zeros(length, np.bool_),
            np.zeros((length, width), np.float32),
            np.zeros((length, layered), np.float32),
            np.zeros(length, np.int64),
            np.zeros(length, np.float32),
        )
        place = int(np.searchsorted(self._ends, start, side="right"))
        filled = 0
        while filled < length and place < len(self._order):
            conversation = self._conversations[self._order[place]]
            begins = int(self._ends[place] - self._lengths[self._order[place]])
            skip = start + filled - begins
            filled += self._copy(out, conversation, filled, skip, place)
            place += 1
        return out

    def _copy(self, out: Batch, source: Conversation, filled: int, skip: int, number: int) -> int:
        """Append a conversation to a row; return how many tokens fitted."""
        whole = source.stop - source.start
        count = min(whole - skip, self._length - filled)
        here, there = slice(filled, filled + count), slice(skip, skip + count)
        for name in ("tokens", "hidden", "layers", "top", "normalizer"):
            getattr(out, name)[here] = self._corpus.rows(name, source)[there]
        out.segments[here] = number
        positions = np.arange(skip, skip + count)
        out.positions[here] = positions
        out.judged[here] = (positions >= source.prompt - 1) & (positions < whole - 1)
        out.judged[filled + count - 1] = False  # the next token is not in this row
        return count
