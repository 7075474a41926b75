"""A target's weights for training, and drafts as GGUF files: written and read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from edgespec._types import AnyArray, Float32Array, Int32Array, Int64Array
from edgespec.distill.corpus import Corpus
from edgespec.errors import UsageError
from edgespec.files import replacing
from edgespec.gguf.header import GGUFHeader

if TYPE_CHECKING:  # they need PyTorch
    from edgespec.distill.draft import Draft
    from edgespec.distill.train import Acceptance

__all__ = [
    "FORMATS",
    "DraftVocabulary",
    "Provenance",
    "TargetWeights",
    "choose_vocabulary",
    "known_vocabulary",
    "read_draft",
    "tokens_of",
    "write_draft",
]

FORMATS = ("Q8_0", "Q5_0", "Q4_0")
"""Formats that are tried; the better one is kept."""

_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


@dataclass(frozen=True)
class Provenance:
    """Where a draft comes from; its file says so.

    Attributes:
        target_name, target_sha256: the target's file.
        target_tokens_sha256: of the target's token texts.
        data: what it was trained on, in words.
        corpus_tokens: number of tokens of answers in the corpus.
        tokens_seen: number of tokens trained on, repetitions included.
        coverage: share of held-out answers' tokens that it can propose.
        greedy, sampled: held-out acceptance by position, see `train.Acceptance`.
        tasks: the same in answers to edgespec's own tasks, if that was measured.
        recipe: everything else that is needed to make it again.
    """

    target_name: str
    target_sha256: str
    target_tokens_sha256: str
    data: str
    corpus_tokens: int
    tokens_seen: int
    coverage: float
    greedy: list[float]
    sampled: list[float]
    recipe: dict[str, Any]
    tasks: Acceptance | None = None


def write_draft(draft: Draft, path: Path, file_format: str, provenance: Provenance) -> None:
    """Write a file that llama.cpp loads; replace an older one in one step.

    Args:
        file_format: of the matrices: "F32", "F16", "Q8_0", "Q5_0" or "Q4_0". A matrix whose rows
            are not a multiple of a block is written as F16.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path, alone=True) as partial:
        writer = GGUFWriter(partial, draft.architecture)
        writer.add_name(f"{draft.kind} draft for {provenance.target_name}")
        writer.add_layer_norm_rms_eps(draft.epsilon)
        writer.add_file_type(int(_FILE_TYPES[file_format]))
        draft.describe(writer)
        _add_provenance(writer, draft.kind, provenance)
        for name, tensor in draft.tensors().items():
            _add_tensor(writer, name, tensor, GGMLQuantizationType[file_format])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def read_draft(draft: Draft, path: Path, *, frozen: bool = True) -> None:
    """Load the weights of a file into a network of the same shape.

    Args:
        frozen: also those that are the target's, for the file's vocabulary.

    Raises:
        UsageError: the file has another shape.
    """
    found = {
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in GGUFReader(path).tensors
        if tensor.tensor_type != GGMLQuantizationType.I64
    }
    tensors = draft.tensors()
    if not frozen:
        found.update({name: tensors[name] for name in draft.frozen})
    for name, ours in tensors.items():
        if ours.dtype == np.float32 and (name not in found or found[name].shape != ours.shape):
            raise UsageError(
                f"{path.name} is not shaped like the {draft.kind} drafts that are made here "
                f"({name}): start without it"
            )
    draft.take(found)


def _add_provenance(writer: GGUFWriter, kind: str, provenance: Provenance) -> None:
    writer.add_string("edgespec.kind", kind)
    writer.add_string("edgespec.target_name", provenance.target_name)
    writer.add_string("edgespec.target_sha256", provenance.target_sha256)
    writer.add_string("edgespec.target_tokens_sha256", provenance.target_tokens_sha256)
    writer.add_string("edgespec.data", provenance.data)
    writer.add_uint64("edgespec.corpus_tokens", provenance.corpus_tokens)
    writer.add_uint64("edgespec.tokens_seen", provenance.tokens_seen)
    writer.add_float32("edgespec.coverage", provenance.coverage)
    writer.add_array("edgespec.alpha_greedy", [float(a) for a in provenance.greedy])
    writer.add_array("edgespec.alpha_sampled", [float(a) for a in provenance.sampled])
    if provenance.tasks is not None:
        for name, shares in provenance.tasks._asdict().items():
            writer.add_array(f"edgespec.alpha_tasks_{name}", shares)
    writer.add_string("edgespec.recipe", json.dumps(provenance.recipe, sort_keys=True))


def _add_tensor(
    writer: GGUFWriter, name: str, tensor: AnyArray, kind: GGMLQuantizationType
) -> None:
    if tensor.ndim < 2 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, tensor)
        return
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % block:
        kind = GGMLQuantizationType.F16
    if kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, tensor.astype(np.float16))
    else:
        writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)


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
