"""Which of the target's tokens a draft may propose: those that its answers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec._types import Int32Array, Int64Array
from edgespec.distill.store import Corpus
from edgespec.gguf.header import GGUFHeader

__all__ = ["DraftVocabulary", "choose_vocabulary", "known_vocabulary", "tokens_of"]


@dataclass(frozen=True)
class DraftVocabulary:
    """Tokens by the draft's ids, which rise with the target's.

    Attributes:
        target_ids: int32 (n,), the target's id of each.
        target_size: how many the target has.
        coverage: share of the tokens of held-out answers that are among them.
    """

    target_ids: Int32Array
    target_size: int
    coverage: float

    @property
    def to_draft(self) -> Int32Array:
        """int32 (target_size,): the draft's id, or -1."""
        table = np.full(self.target_size, -1, np.int32)
        table[self.target_ids] = np.arange(len(self.target_ids))
        return table


def choose_vocabulary(
    corpus: Corpus, size: int, target_size: int, needed: Sequence[int]
) -> DraftVocabulary:
    """The most frequent tokens of the answers, and what is needed in any case.

    Where the answers have fewer, the lowest ids follow: tokenizers number common tokens first.

    Args:
        size: how many, no more than `target_size`.
        needed: special tokens and those of the chat template.
    """
    rank = _counts(corpus, target_size, held_out=False).astype(np.float64)
    rank[list(needed)] = np.inf
    # A stable sort: of equally frequent tokens the lower ids.
    chosen = np.sort(np.argsort(-rank, kind="stable")[: min(size, target_size)])
    return known_vocabulary(corpus, chosen.astype(np.int32), target_size)


def known_vocabulary(corpus: Corpus, target_ids: Int32Array, target_size: int) -> DraftVocabulary:
    """Tokens that were chosen before, and how well they cover this text."""
    held = _counts(corpus, target_size, held_out=True)
    total = int(held.sum())
    coverage = float(held[target_ids].sum() / total) if total else 1.0
    return DraftVocabulary(target_ids, target_size, coverage)


def tokens_of(draft: GGUFHeader) -> Int32Array:
    """The target's ids that a draft's file has: int32 (n,)."""
    if draft.reduced is not None:
        ids = draft.reduced.target_ids
        return ids[ids >= 0]
    if draft.eagle is not None and draft.eagle.target_ids is not None:
        return draft.eagle.target_ids.astype(np.int32)
    return np.arange(draft.vocabulary_size, dtype=np.int32)


def _counts(corpus: Corpus, size: int, *, held_out: bool) -> Int64Array:
    """How often the answers have each token."""
    counts = np.zeros(size, np.int64)
    for conversation in corpus.part(held_out=held_out):
        answer = corpus.rows("tokens", conversation)[conversation.prompt :]
        counts += np.bincount(answer, minlength=size)
    return counts
