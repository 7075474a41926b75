"""Drafts in files: of a reduced vocabulary, EAGLE-3 or Medusa heads; a target's own MTP layers.

A draft of a reduced vocabulary is an ordinary GGUF with ``tokenizer.ggml.model = "none"``, its
number of tokens in ``<architecture>.vocab_size``, and these keys:

- ``edgespec.draft_to_target``: int32 for each of its tokens, the target's id; -1 for a token that
  is never proposed.
- ``edgespec.unknown_token``: a token whose entry is -1. The draft reads it in place of every
  target token that it does not have, so that it can continue a text with such tokens.
- ``edgespec.target_vocabulary_size`` and ``edgespec.target_tokens_sha256``, both optional: the
  target it was made for. The latter is the SHA-256, in hexadecimal, of the strings of the target's
  ``tokenizer.ggml.tokens`` as in a GGUF: for each string its length, as 8 bytes with the lowest
  first, and its bytes.

An EAGLE-3 head is llama.cpp's architecture ``eagle3``. Layers for multi-token prediction stand
behind those that a text goes through; ``<architecture>.nextn_predict_layers`` is their number.

Medusa heads are the architecture ``medusa``, which llama.cpp does not know, with the first key
above and those for its target; ``medusa.embedding_length``, the width of the target's states; and
``medusa.head_count``, n. Of a state x, head i makes y = x + silu(W_i x + b_i); then, if there is an
A, y = A_i y; and its logits are O_i y. The tensors, the width first as in a GGUF:

- ``medusa.residual.weight``: W, (width, width, n)
- ``medusa.residual.bias``: b, float32 (n * width,)
- ``medusa.project.weight``: A, (width, width, n); optional
- ``output.weight``: O, (width, tokens, n), or (width, tokens) for one that all heads share

Each may state its quality: ``edgespec.alpha_greedy`` and ``edgespec.alpha_sampled``, float32, are
the acceptance of the first, second, third ... proposal of a block if all before it were accepted,
on text that it was not trained on, at temperature 0 and 1. ``edgespec.alpha_tasks_greedy`` and
``edgespec.alpha_tasks_sampled`` are the same in answers to edgespec's own tasks, and are preferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from edgespec._types import AnyArray, Int32Array, Int64Array
from edgespec.gguf.reader import MalformedError, Metadata

__all__ = [
    "EagleHead",
    "HeldOut",
    "MTPLayers",
    "MedusaHeads",
    "ReducedVocabulary",
    "foreign_draft",
    "read_eagle",
    "read_held_out",
    "read_medusa",
    "read_mtp",
    "read_reduced",
]

_EAGLE, _MEDUSA = "eagle3", "medusa"
_TABLE = "edgespec.draft_to_target"
_UNKNOWN = "edgespec.unknown_token"
_MAX_VOCABULARY = 1 << 22
_MAX_WIDTH = 1 << 20
_MAX_LAYERS = 512
_FEATURE_LAYERS = 3
_ONE_LAYER = frozenset(
    (
        "bailingmoe3",
        "cohere2moe",
        "deepseek2",
        "deepseek32",
        "glm-dsa",
        "glm4moe",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
    )
)
"""Architectures of which the pinned llama.cpp runs one MTP layer; it ends the process on two."""
_MORE_LAYERS = frozenset(("hy_v3", "mimo2", "step35"))
_FOREIGN_ARCHITECTURES = {
    "dflash": "a DFlash draft",
    "gemma4-assistant": "a Gemma 4 assistant",
}
_FOREIGN_TENSORS = {
    "markov_w1": "a DSpark draft",
    "medusa": "Medusa heads",
    "hydra": "Hydra heads",
    "dflash": "a DFlash draft",
    "dspark": "a DSpark draft",
}
_MAX_POSITIONS = 64
_MAX_HEADS = 16
_LANES = 8
_MULTIPLIED = frozenset(
    GGMLQuantizationType[name]
    for name in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)
"""Types of Medusa heads' matrices."""


@dataclass(frozen=True, eq=False)
class ReducedVocabulary:
    """Some of a target's tokens.

    Attributes:
        target_ids: int32 (draft tokens,), each token's id in the target; -1 if it has none.
        unknown: the draft's token that stands for all other tokens of the target.
        target_size: the target's number of tokens, if the file states it.
        target_checksum: the checksum of their texts, if the file states it.
    """

    target_ids: Int32Array
    unknown: int
    target_size: int | None
    target_checksum: str | None

    @property
    def known(self) -> int:
        """Number of the target's tokens that it can propose."""
        return int(np.count_nonzero(self.target_ids >= 0))


@dataclass(frozen=True, eq=False)
class EagleHead:
    """What an EAGLE-3 head needs of its target.

    Attributes:
        layers: the target's layers whose inputs it reads.
        target_width: their width.
        target_ids: int64 (draft tokens,), what it can propose; None for every token.
        borrows_embedding, borrows_output: whether it uses the target's matrix because it has none.
    """

    layers: tuple[int, ...]
    target_width: int
    target_ids: Int64Array | None
    borrows_embedding: bool
    borrows_output: bool


@dataclass(frozen=True, eq=False)
class MedusaHeads:
    """Heads that each predict one token ahead, from the target's last hidden state.

    Attributes:
        count: how many there are.
        target_width: of the state.
        target_ids: int32 (tokens,), what they can propose.
        projected: whether each has a matrix between its residual block and the output.
        shared_output: whether all have the same output matrix.
        target_size, target_checksum: as of a `ReducedVocabulary`.
    """

    count: int
    target_width: int
    target_ids: Int32Array
    projected: bool
    shared_output: bool
    target_size: int | None
    target_checksum: str | None


@dataclass(frozen=True)
class MTPLayers:
    """Layers of a target that predict further tokens.

    Attributes:
        count: how many there are; the first is used.
        size_bytes: of their tensors.
        unusable: why they cannot be used, in words; None if they can.
    """

    count: int
    size_bytes: int
    unusable: str | None


@dataclass(frozen=True)
class HeldOut:
    """Acceptance by position on held-out text, as a draft's file states it."""

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]


def read_held_out(data: Metadata) -> HeldOut | None:
    """Return what a file states about its own acceptance.

    Raises MalformedError if that is not a list of shares.
    """
    for kind in ("alpha_tasks", "alpha"):
        found = [_shares(data, f"edgespec.{kind}_{name}") for name in ("greedy", "sampled")]
        if all(found):
            return HeldOut(*found)
    return None


def read_reduced(data: Metadata, arch: str) -> ReducedVocabulary | None:
    """Return the reduced vocabulary of a file; None if it has none.

    Raises MalformedError if the table contradicts the vocabulary or itself.
    """
    if _TABLE not in data or arch in (_EAGLE, _MEDUSA):
        return None
    if data.text("tokenizer.ggml.model") != "none":
        raise MalformedError(f"it has {_TABLE} and a tokenizer of its own")
    count = data.required(f"{arch}.vocab_size", 1, _MAX_VOCABULARY)
    table = _table(data)
    if len(table) != count:
        raise MalformedError(f"{_TABLE} has {len(table):,} entries for {count:,} tokens")
    if int(table.min()) < -1:
        raise MalformedError(f"{_TABLE} has the entry {int(table.min())}")
    _check_ids(_TABLE, table[table >= 0], _MAX_VOCABULARY)
    unknown = data.required(_UNKNOWN, 0, count - 1)
    if table[unknown] != -1:
        raise MalformedError(f"{_UNKNOWN} is {unknown}, which stands for a token of the target")
    return ReducedVocabulary(table, unknown, *_made_for(data))


def _table(data: Metadata) -> Int32Array:
    table = data.numbers(_TABLE)
    if table is None or table.dtype != np.int32:
        raise MalformedError(f"{_TABLE} is not a list of 32-bit integers")
    return table


def _made_for(data: Metadata) -> tuple[int | None, str | None]:
    """Return the target's number of tokens and the checksum of their texts, if they are stated."""
    checksum = data.text("edgespec.target_tokens_sha256")
    return (
        data.integer("edgespec.target_vocabulary_size", 1, _MAX_VOCABULARY),
        checksum.lower() if checksum else None,
    )


def read_medusa(data: Metadata, arch: str, tensors: Sequence[Any]) -> MedusaHeads | None:
    """Return the facts of a file that has Medusa heads; None if it has none.

    Raises MalformedError if a tensor is missing or has another shape or type than it should have.
    """
    if arch != _MEDUSA:
        return None
    count = data.required(f"{arch}.head_count", 1, _MAX_HEADS)
    width = data.required(f"{arch}.embedding_length", 8, _MAX_WIDTH)
    if width % _LANES:
        raise MalformedError(f"its width of {width} is not a multiple of {_LANES}")
    table = _table(data)
    _check_ids(_TABLE, table, _MAX_VOCABULARY)
    by_name = {str(tensor.name): tensor for tensor in tensors}
    _check_shape(by_name, "medusa.residual.weight", (width, width, count))
    _check_shape(by_name, "medusa.residual.bias", (count * width,))
    if by_name["medusa.residual.bias"].tensor_type != GGMLQuantizationType.F32:
        raise MalformedError("medusa.residual.bias is not of type F32")
    projected = "medusa.project.weight" in by_name
    if projected:
        _check_shape(by_name, "medusa.project.weight", (width, width, count))
    output = by_name.get("output.weight")
    shared = output is not None and len(output.shape) == 2
    _check_shape(by_name, "output.weight", (width, len(table), *([] if shared else [count])))
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.tensor_type not in _MULTIPLIED:
            raise MalformedError(f"{tensor.name} is of type {tensor.tensor_type.name}")
    return MedusaHeads(count, width, table, projected, shared, *_made_for(data))


def read_eagle(
    data: Metadata, arch: str, tensors: Sequence[Any], width: int, vocabulary_size: int
) -> EagleHead | None:
    """Return the facts of a file that is an EAGLE-3 head; None if it is not one.

    Raises MalformedError if llama.cpp would refuse the file or crash on it.
    """
    if arch != _EAGLE:
        return None
    by_name = {str(tensor.name): tensor for tensor in tensors}
    layers = data.numbers(f"{arch}.target_layers")
    if layers is None or layers.dtype.kind not in "iu" or len(layers) != _FEATURE_LAYERS:
        raise MalformedError(f"{arch}.target_layers does not name {_FEATURE_LAYERS} layers")
    if int(layers.min()) < 0 or int(layers.max()) > _MAX_LAYERS:
        raise MalformedError(f"{arch}.target_layers has an entry out of range")
    data.required(f"{arch}.block_count", 1, 1)
    if data.integer(f"{arch}.embedding_length_out", 0, _MAX_WIDTH) not in (None, 0, width):
        raise MalformedError(f"{arch}.embedding_length_out is not its width of {width}")
    keys, values = (
        data.integer(f"{arch}.attention.{name}_length", 1, _MAX_WIDTH) for name in ("key", "value")
    )
    if keys != values:
        raise MalformedError("its keys and values have different lengths")
    target_width = data.required(f"{arch}.target_hidden_size", 1, _MAX_WIDTH)
    _check_shape(by_name, "fc.weight", (_FEATURE_LAYERS * target_width, width))
    target_ids = _target_ids(by_name, vocabulary_size)
    count = vocabulary_size if target_ids is None else len(target_ids)
    borrows_output = "output.weight" not in by_name
    if not borrows_output:
        _check_shape(by_name, "output.weight", (width, count))
    elif target_ids is not None:
        raise MalformedError("it has a table d2t and no tensor output.weight")
    return EagleHead(
        tuple(int(layer) for layer in layers),
        target_width,
        target_ids,
        "token_embd.weight" not in by_name,
        borrows_output,
    )


def read_mtp(
    data: Metadata, arch: str, tensors: Sequence[Any], width: int, layers: int
) -> MTPLayers | None:
    """Return the facts of a target's MTP layers; None if it has none.

    Raises MalformedError if there is nothing else in the file, or llama.cpp would refuse them.
    """
    count = data.integer(f"{arch}.nextn_predict_layers", 0, layers - 1) or 0
    if count == 0:
        return None
    by_name = {str(tensor.name): tensor for tensor in tensors}
    if not any(name.startswith("blk.0.") for name in by_name):
        raise MalformedError("it has nothing but the MTP layers of another file")
    first = layers - count
    parts = ("eh_proj", "enorm", "hnorm")
    names = [f"blk.{first}.nextn.{part}.weight" for part in parts]
    behind = [
        tensor for name, tensor in by_name.items() if name.startswith(_prefixes(first, layers))
    ]
    missing = [name for name in names if name not in by_name]
    unusable = None
    if arch not in _ONE_LAYER | _MORE_LAYERS:
        unusable = f"llama.cpp cannot run those of {arch} models"
    elif missing:
        unusable = "their weights are not in the file"
    elif count > 1 and arch in _ONE_LAYER:
        unusable = f"llama.cpp can run one of {arch} models, and not {count}"
    else:
        _check_shape(by_name, names[0], (2 * width, width))
        _check_shape(by_name, names[1], (width,))
        _check_shape(by_name, names[2], (width,))
    return MTPLayers(count, sum(int(tensor.n_bytes) for tensor in behind), unusable)


def _prefixes(first: int, end: int) -> tuple[str, ...]:
    return tuple(f"blk.{layer}." for layer in range(first, end))


def foreign_draft(arch: str, tensors: Sequence[Any]) -> str | None:
    """Return in words what published draft a file is or holds that edgespec cannot use, if any."""
    names = [str(tensor.name).lower().split(".")[0] for tensor in tensors]
    for part, what in _FOREIGN_TENSORS.items():
        if any(name.startswith(part) for name in names):
            return what
    return _FOREIGN_ARCHITECTURES.get(arch)


def _target_ids(by_name: dict[str, Any], size: int) -> Int64Array | None:
    table = by_name.get("d2t")
    if table is None:
        return None
    if table.tensor_type != GGMLQuantizationType.I64 or len(table.shape) != 1:
        raise MalformedError("its table d2t is not a list of 64-bit integers")
    ids: Int64Array = np.array(table.data, np.int64)
    _check_ids("d2t", ids, size)
    return ids


def _check_ids(name: str, ids: AnyArray, size: int) -> None:
    """Check that ids are distinct, in range, and at least one."""
    if len(ids) == 0:
        raise MalformedError(f"{name} names no token")
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        raise MalformedError(f"{name} names a token that does not exist")
    if len(np.unique(ids)) != len(ids):
        raise MalformedError(f"{name} names a token twice")


def _check_shape(by_name: dict[str, Any], name: str, shape: tuple[int, ...]) -> None:
    tensor = by_name.get(name)
    if tensor is None:
        raise MalformedError(f"it has no tensor {name}")
    found = tuple(int(extent) for extent in tensor.shape)
    if found != shape:
        raise MalformedError(
            f"{name} is {' x '.join(map(str, found))}, and should be {' x '.join(map(str, shape))}"
        )


def _shares(data: Metadata, key: str) -> tuple[float, ...]:
    values = data.numbers(key)
    if values is None:
        return ()
    shares = tuple(float(value) for value in values[:_MAX_POSITIONS])
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise MalformedError(f"{key} has entries that are not between 0 and 1")
    return shares
