"""Published Medusa heads, as FasterDecoding/Medusa saves them, made a draft of their target.

Of each head i the file has a residual block, ``medusa_head.{i}.0.linear.weight`` and ``.bias``, and
an output over the target's vocabulary, ``medusa_head.{i}.1.weight``; or the same without
``medusa_head.``. Safetensors is a length, a header in JSON, and numbers; the header is hostile
until it was checked. PyTorch is not needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from edgespec._types import AnyArray, Float32Array, Int32Array
from edgespec.distill.corpus import Corpus, known_facts
from edgespec.distill.target import choose_vocabulary
from edgespec.errors import EdgespecError, PairingError, UsageError
from edgespec.files import replacing
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.registry.cache import sha256_of

__all__ = ["convert_heads", "read_safetensors"]

_MOST_HEADER = 16 << 20
_MOST_HEADS = 16
_FORMAT = GGMLQuantizationType.Q8_0
_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class _Stored:
    """A tensor of a file, mapped."""

    kind: str
    values: AnyArray

    def floats(self, rows: Int32Array | None = None) -> Float32Array:
        """Return all of it, or some rows, as float32."""
        values = self.values if rows is None else self.values[rows]
        if self.kind == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


def convert_heads(source: Path, target: Path, output: Path, vocabulary: int, work: Path) -> str:
    """Write published heads as a draft of a target.

    Args:
        source: a .safetensors file.
        vocabulary: how many tokens they are to propose: those most frequent in the text of a work
            folder, if it has some, else those of the lowest ids.
        work: a folder that `distill` wrote text to, or will.

    Returns:
        A line that says what was written.

    Raises:
        UsageError: the file is damaged, or has no such heads.
        PairingError: they belong to another target.
    """
    header = read_header(target)
    heads = _heads_of(source, read_safetensors(source))
    width, size = header.embedding_length, header.vocabulary_size
    for head in heads:
        found = head["0.linear.weight"].values.shape[1]
        if found != width:
            raise PairingError(
                f"the heads of {source.name} do not fit: they read hidden states of width "
                f"{found:,}, the target's have {width:,}"
            )
        if len(head["1.weight"].values) < size:
            raise PairingError(
                f"the heads of {source.name} do not fit: they have "
                f"{len(head['1.weight'].values):,} tokens, the target {size:,}"
            )
    ids = _tokens(header, vocabulary, work)
    _write(header, source, output, heads, ids)
    return (
        f"Wrote {output}: {len(heads)} heads of {source.name}, for {len(ids):,} of {size:,} "
        f"tokens, {output.stat().st_size / 1e6:.1f} MB."
    )


def read_safetensors(path: Path) -> dict[str, _Stored]:
    """Map the floating-point tensors of a file.

    Raises:
        UsageError: it cannot be read, or is damaged.
    """
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    try:
        return _tensors_of(data)
    except ValueError as error:
        raise UsageError(f"{path} is no usable safetensors file: {error}") from None


def _tensors_of(data: AnyArray) -> dict[str, _Stored]:
    """Check the header against the file; ValueError if it makes no sense."""
    if len(data) < 8:
        raise ValueError("it is too short")
    length = int(data[:8].view("<u8")[0])
    if length > min(len(data) - 8, _MOST_HEADER):
        raise ValueError("its header does not fit into it")
    try:
        listed = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON") from None
    if not isinstance(listed, dict):
        raise ValueError("its header lists no tensors")
    listed.pop("__metadata__", None)
    found = {name: _tensor(name, facts, data[8 + length :]) for name, facts in listed.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _tensor(name: str, facts: Any, data: AnyArray) -> _Stored | None:
    if not isinstance(facts, dict):
        raise ValueError(f"{name!r} is not described")
    kind: Any = facts.get("dtype")
    shape: Any = facts.get("shape")
    offsets: Any = facts.get("data_offsets")
    if not isinstance(kind, str) or kind not in _TYPES:
        return None
    if not (_integers(shape) and _integers(offsets) and len(offsets) == 2):
        raise ValueError(f"{name!r} has no shape or place")
    begin, end = offsets
    if end > len(data) or end - begin != math.prod(shape) * _TYPES[kind].itemsize:
        raise ValueError(f"{name!r} does not lie where it says")
    # Its place may be at no multiple of its type's size.
    return _Stored(kind, data[begin:end].view(_TYPES[kind]).reshape(shape))


def _integers(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 48 for v in values)


_PARTS = {"0.linear.weight": 2, "0.linear.bias": 1, "1.weight": 2}
"""Of a head, with their dimensions."""


def _heads_of(path: Path, tensors: Mapping[str, _Stored]) -> list[dict[str, _Stored]]:
    prefix = "medusa_head." if any(name.startswith("medusa_head.") for name in tensors) else ""
    heads: list[dict[str, _Stored]] = []
    while f"{prefix}{len(heads)}.0.linear.weight" in tensors:
        heads.append(_head(path, tensors, f"{prefix}{len(heads)}."))
        if len(heads) > _MOST_HEADS:
            raise UsageError(f"{path.name} has more than {_MOST_HEADS} heads")
    if not heads:
        raise UsageError(
            f"{path.name} has no Medusa heads: it has no tensor medusa_head.0.0.linear.weight"
        )
    return heads


def _head(path: Path, tensors: Mapping[str, _Stored], prefix: str) -> dict[str, _Stored]:
    if f"{prefix}1.linear.weight" in tensors:
        raise UsageError(f"the heads of {path.name} have several residual blocks: one is read")
    head = {}
    for part, dimensions in _PARTS.items():
        tensor = tensors.get(prefix + part)
        if tensor is None:
            raise UsageError(f"{path.name} has no tensor {prefix}{part}")
        if tensor.values.ndim != dimensions:
            raise UsageError(f"{prefix}{part} of {path.name} has the wrong shape")
        head[part] = tensor
    width = len(head["0.linear.bias"].values)
    square = head["0.linear.weight"].values.shape == (width, width)
    if not square or head["1.weight"].values.shape[1] != width:
        raise UsageError(f"the matrices of {prefix[:-1]} in {path.name} do not fit each other")
    return head


def _tokens(header: GGUFHeader, wanted: int, work: Path) -> Int32Array:
    """Return the target's ids of the tokens to keep, ascending."""
    size, facts = header.vocabulary_size, known_facts(work / "text")
    if wanted >= size:
        return np.arange(size, dtype=np.int32)
    needed = [header.bos_token_id, header.eos_token_id, header.eot_token_id]
    special = sorted({token for token in needed if token is not None})
    if facts is not None and facts.target == sha256_of(header.path):
        with suppress(EdgespecError):
            return choose_vocabulary(Corpus(work / "text", facts), wanted, size, special).target_ids
    lowest = np.setdiff1d(np.arange(size, dtype=np.int32), special)[: wanted - len(special)]
    return np.sort(np.concatenate((lowest, np.array(special, np.int32)))).astype(np.int32)


def _write(
    header: GGUFHeader,
    source: Path,
    output: Path,
    heads: list[dict[str, _Stored]],
    ids: Int32Array,
) -> None:
    width = header.embedding_length
    aligned = width % gguf.GGML_QUANT_SIZES[_FORMAT][0] == 0
    kind = _FORMAT if aligned else GGMLQuantizationType.F16

    def stacked(part: str, rows: Int32Array | None = None) -> AnyArray:
        return np.stack([quantize(head[part].floats(rows), kind) for head in heads])

    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output, alone=True) as partial:
        writer = gguf.GGUFWriter(partial, "medusa")
        writer.add_name(f"medusa draft for {header.name}")
        writer.add_embedding_length(width)
        writer.add_uint32("medusa.head_count", len(heads))
        writer.add_array("edgespec.draft_to_target", ids.tolist())
        writer.add_uint32("edgespec.target_vocabulary_size", header.vocabulary_size)
        writer.add_string("edgespec.target_tokens_sha256", header.tokens_sha256)
        writer.add_string("edgespec.kind", "medusa")
        writer.add_string("edgespec.target_name", header.name)
        writer.add_string("edgespec.target_sha256", sha256_of(header.path))
        writer.add_string("edgespec.data", f"converted from {source.name}")
        bias = np.concatenate([head["0.linear.bias"].floats() for head in heads])
        writer.add_tensor("medusa.residual.bias", bias)
        writer.add_tensor("medusa.residual.weight", stacked("0.linear.weight"), raw_dtype=kind)
        writer.add_tensor("output.weight", stacked("1.weight", ids), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
