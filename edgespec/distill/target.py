"""What a draft takes from its target: rows of its matrices, and the tokens it may propose.

A draft starts with these matrices and is compared with them; its tokens are those that the
target's answers consist of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from edgespec._types import Float32Array, Int32Array, Int64Array
from edgespec.distill.corpus import Corpus
from edgespec.errors import UsageError
from edgespec.gguf.header import GGUFHeader

__all__ = ["DraftVocabulary", "TargetWeights", "choose_vocabulary", "known_vocabulary", "tokens_of"]

_CLOSE = 0.98


class TargetWeights:
    """Rows of a GGUF's matrices, dequantized on request.

    Raises:
        UsageError: the file is one of several parts.
    """

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if int(self._value("split.count", 1)) > 1:
            raise UsageError(f"{path.name} is one of several parts: merge them with gguf-split")
        self.architecture = str(self._value("general.architecture", ""))
        self._softcap = float(self.value("final_logit_softcapping", 0.0))

    def value(self, key: str, default: Any = None) -> Any:
        """Return a key of the architecture's, like "rope.freq_base"."""
        return self._value(f"{self.architecture}.{key}", default)

    def field(self, key: str) -> Any:
        """Return a key's value and type as gguf has them; None if there is no such key."""
        return self._reader.fields.get(key)

    @property
    def keys(self) -> list[str]:
        """All keys."""
        return list(self._reader.fields)

    def embeddings(self, tokens: Int32Array) -> Float32Array:
        """Return input rows: float32 (n, width)."""
        return self._rows("token_embd.weight", tokens)

    def output_rows(self, tokens: Int32Array) -> Float32Array:
        """Return output rows: float32 (n, width)."""
        tied = "output.weight" not in self._tensors
        return self._rows("token_embd.weight" if tied else "output.weight", tokens)

    def final_norm(self, width: int) -> Float32Array:
        """Return the weights of the norm before the output matrix; ones if there are none."""
        found = self._tensors.get("output_norm.weight")
        if found is None:
            return np.ones(width, np.float32)
        return np.array(dequantize(found.data, found.tensor_type), np.float32)

    def logits(self, hidden: Float32Array, rows: Float32Array) -> Float32Array:
        """Return the target's logits of some tokens: float32 (n, rows).

        Args:
            hidden: float32 (n, width), the states that its output matrix is applied to.
            rows: `output_rows` of those tokens.
        """
        return self.capped(hidden @ rows.T)

    def capped(self, logits: Any) -> Any:
        """Bound logits as some architectures do; they are of NumPy or PyTorch."""
        if not self._softcap:
            return logits
        tanh = np.tanh if isinstance(logits, np.ndarray) else type(logits).tanh
        return self._softcap * tanh(logits / self._softcap)

    def agrees(self, hidden: Float32Array, logits: Float32Array) -> bool:
        """Return whether `logits` of a state (width,) are llama.cpp's logits (n_vocab,)."""
        tokens = np.linspace(0, len(logits) - 1, min(len(logits), 512)).astype(np.int32)
        ours = self.logits(hidden[None], self.output_rows(tokens))[0]
        theirs = logits[tokens]
        spread = float(np.std(theirs)) or 1.0
        alike = np.corrcoef(ours, theirs)[0, 1] > _CLOSE if len(tokens) > 1 else True
        return bool(alike and np.sqrt(np.mean((ours - theirs) ** 2)) < (1 - _CLOSE) * 10 * spread)

    def _rows(self, name: str, tokens: Int32Array) -> Float32Array:
        found = self._tensors[name]
        return np.array(dequantize(found.data[tokens], found.tensor_type), np.float32)

    def _value(self, key: str, default: Any) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()


@dataclass(frozen=True)
class DraftVocabulary:
    """A draft's tokens, in the order of the target's ids.

    Attributes:
        target_ids: int32 (n,), the target's id of each, ascending.
        target_size: number of the target's tokens.
        coverage: share of held-out answers' tokens that are among them.
    """

    target_ids: Int32Array
    target_size: int
    coverage: float

    @property
    def to_draft(self) -> Int32Array:
        """int32 (target_size,): the draft's id of each of the target's tokens, or -1."""
        table = np.full(self.target_size, -1, np.int32)
        table[self.target_ids] = np.arange(len(self.target_ids))
        return table


def choose_vocabulary(
    corpus: Corpus, size: int, target_size: int, needed: Sequence[int]
) -> DraftVocabulary:
    """Choose the most frequent tokens of the answers, and those that are needed in any case.

    If the answers have too few tokens, the lowest ids follow: tokenizers number common ones first.

    Args:
        size: how many to choose; at most `target_size` are.
        needed: special tokens and those of the chat template.
    """
    rank = _counts(corpus, target_size, held_out=False).astype(np.float64)
    rank[list(needed)] = np.inf
    # A stable sort: of equally frequent tokens the lower ids.
    chosen = np.sort(np.argsort(-rank, kind="stable")[: min(size, target_size)])
    return known_vocabulary(corpus, chosen.astype(np.int32), target_size)


def known_vocabulary(corpus: Corpus, target_ids: Int32Array, target_size: int) -> DraftVocabulary:
    """Return the vocabulary of tokens chosen before, with its coverage of this text."""
    held = _counts(corpus, target_size, held_out=True)
    total = int(held.sum())
    coverage = float(held[target_ids].sum() / total) if total else 1.0
    return DraftVocabulary(target_ids, target_size, coverage)


def tokens_of(draft: GGUFHeader) -> Int32Array:
    """Return the target's ids of a draft file's tokens: int32 (n,)."""
    if draft.reduced is not None:
        ids = draft.reduced.target_ids
        return ids[ids >= 0]
    if draft.eagle is not None and draft.eagle.target_ids is not None:
        return draft.eagle.target_ids.astype(np.int32)
    return np.arange(draft.vocabulary_size, dtype=np.int32)


def _counts(corpus: Corpus, size: int, *, held_out: bool) -> Int64Array:
    """Count how often the answers have each token."""
    counts = np.zeros(size, np.int64)
    for conversation in corpus.part(held_out=held_out):
        answer = corpus.rows("tokens", conversation)[conversation.prompt :]
        counts += np.bincount(answer, minlength=size)
    return counts
