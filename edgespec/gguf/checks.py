"""What llama.cpp asserts instead of refusing: each ends the process, or keeps it for ever."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind

from edgespec._types import AnyArray
from edgespec.gguf.reader import MalformedError, Metadata, split_strings

__all__ = [
    "check_experts",
    "check_key_heads",
    "check_rotation",
    "check_tensor_kinds",
    "check_texts",
    "check_windows",
]

_LONGEST_TOKEN = 4096  # bytes; some tokenizers recurse for each
_MAX_COUNT = 1 << 20
_SCALINGS = ("none", "linear", "yarn", "longrope")
_ESCAPED = re.compile(rb"(?:[^\\]|\\x[0-9A-Fa-f]{2}|\\[^x])*", re.DOTALL)
_ESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
_NUMBERS_ONLY = frozenset((Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64))
_INTERMEDIATE = frozenset((Kind.Q8_1, Kind.Q8_K))  # of a multiplication, never of a file
_TABLES = re.compile(r"d2t|t2d|.*tid2eid.*")
_STATE_SPACE = re.compile(r".*\.(ssm_a|ssm_d|(ssm_conv1d|shortconv\.conv)\.weight)")


def check_texts(model: str, block: bytes, scores: AnyArray | None) -> None:
    """Check the texts of a vocabulary, as far as its tokenizer depends on them.

    Args:
        model: the tokenizer's name, ``tokenizer.ggml.model``.
        block: the texts as `split_strings` takes them.
        scores: one for each token, or None.

    Raises:
        MalformedError: llama.cpp would end the process, or never end.
    """
    texts = split_strings(block)
    longest = max(map(len, texts))
    if longest > _LONGEST_TOKEN:
        raise MalformedError(f"it has a token of {longest:,} bytes")
    named = [text for text in texts if text]
    known = set(named)
    if len(known) < len(named):
        raise MalformedError(f"{len(named) - len(known)} of its tokens occur twice")
    if scores is not None and np.isnan(scores).any():
        raise MalformedError("the scores of its tokens are not numbers")
    if model in ("llama", "plamo2"):
        lacking = [byte for byte in range(256) if b"<0x%02X>" % byte not in known]
        if model == "llama":
            lacking = [byte for byte in lacking if bytes([byte]) not in known]
        if lacking:
            raise MalformedError(f"its vocabulary has no token for the byte {lacking[0]}")
    elif model == "rwkv":
        _check_escapes(named)


def _check_escapes(texts: Sequence[bytes]) -> None:
    """Check that each is a whole Python literal, and that no text leads to a dead end."""
    for text in texts:
        if not _ESCAPED.fullmatch(text):
            raise MalformedError(f"its token {text[:20]!r} ends inside an escape sequence")
    plain = {re.sub(rb"\\(x..|.)", _unescape, text, flags=re.DOTALL) for text in texts}
    alone = {text for text in plain if len(text) == 1}
    lacking = {text[:1] for text in plain} - alone
    if lacking - {b""}:
        raise MalformedError(f"its vocabulary has no token for the byte {max(lacking)[0]}")


def _unescape(match: re.Match[bytes]) -> bytes:
    text = match[1]
    return bytes([int(text[1:], 16)]) if text[:1] == b"x" else _ESCAPES.get(text, text)


def check_tensor_kinds(tensors: Sequence[Any]) -> None:
    """Check that tensors have types which llama.cpp can compute with.

    Raises:
        MalformedError: a type that it has no operation for.
    """
    for tensor in tensors:
        kind, name = tensor.tensor_type, tensor.name
        if _TABLES.fullmatch(name):
            continue
        small = len(tensor.shape) == 1 or _STATE_SPACE.fullmatch(name)
        if kind in _NUMBERS_ONLY or kind in _INTERMEDIATE or (small and kind != Kind.F32):
            raise MalformedError(f"tensor {name} has the type {kind.name}")


def check_rotation(data: Metadata, arch: str, head_width: int) -> None:
    """Check how many dimensions of a head are rotated, and how positions are scaled.

    Args:
        head_width: of its keys; 0 for a model without attention.

    Raises:
        MalformedError: it cannot be computed.
    """
    scaling = data.text(f"{arch}.rope.scaling.type")
    if scaling is not None and scaling not in _SCALINGS:
        raise MalformedError(f"{arch}.rope.scaling.type is {scaling[:40]!r}")
    windowed = data.integer(f"{arch}.attention.key_length_swa", 1, _MAX_COUNT) or head_width
    for key, width in (("dimension_count", head_width), ("dimension_count_swa", windowed)):
        rotated = data.integer(f"{arch}.rope.{key}", 0, _MAX_COUNT)
        if rotated is None and key == "dimension_count":
            rotated = width
        if width and rotated is not None and (not 0 < rotated <= width or rotated % 2):
            raise MalformedError(f"{rotated} of {width} dimensions cannot be rotated")
    sections = data.numbers(f"{arch}.rope.dimension_sections")
    if arch in _SECTIONED and (sections is None or not (sections[:3] > 0).any()):
        raise MalformedError(f"{arch}.rope.dimension_sections says that no dimension is rotated")


_SECTIONED = frozenset(("qwen2vl", "paddleocr", "qwen3vl", "qwen3vlmoe"))
"""Architectures whose positions have several parts, each of which rotates some dimensions."""
_OF_EXPERTS = frozenset(("smallthinker", "qwen2moe", "qwen3moe", "olmoe"))
"""Architectures that are nothing without experts."""
_KEYS = re.compile(r"blk\.(\d+)\.attn_k\.weight")


def check_key_heads(counts: Sequence[int], widths: Collection[int], tensors: Sequence[Any]) -> None:
    """Check counts of KV heads that differ between layers against the tensors of keys.

    Args:
        counts: for each layer.
        widths: that heads may have.
        tensors: of the file.

    Raises:
        MalformedError: a layer has other keys than its count says.
    """
    if len(set(counts)) == 1:
        return
    for tensor in tensors:
        found = _KEYS.fullmatch(tensor.name)
        count = counts[int(found[1])] if found and int(found[1]) < len(counts) else 0
        if count and int(tensor.shape[-1]) not in {count * width for width in widths}:
            raise MalformedError(f"{tensor.name} has not the keys of {count} heads")


def check_experts(data: Metadata, arch: str, layers: int) -> None:
    """Check the counts of experts, their groups, and the layers that predict further tokens.

    Raises:
        MalformedError: they do not fit each other.
    """
    experts = data.integer(f"{arch}.expert_count", 0, _MAX_COUNT) or 0
    counts = data.per_layer(f"{arch}.expert_used_count", layers, _MAX_COUNT) or (0,)
    used = max(counts)
    if used > experts or ((experts or arch in _OF_EXPERTS) and not used):
        raise MalformedError(f"it uses {used} of {experts} experts")
    groups = data.integer(f"{arch}.expert_group_count", 0, _MAX_COUNT) or 0
    chosen = data.integer(f"{arch}.expert_group_used_count", 0, _MAX_COUNT) or 0
    alone = groups <= 1 and groups < max(experts, 1)
    if not alone and (experts <= groups or experts % groups or not 0 < chosen < groups):
        raise MalformedError(f"it uses {chosen} of {groups} groups of {experts} experts")
    further = data.integer(f"{arch}.nextn_predict_layers", 0, _MAX_COUNT) or 0
    if further >= layers:
        raise MalformedError(f"{further} of its {layers} layers predict further tokens")


def check_windows(data: Metadata, arch: str, layers: int) -> None:
    """Check that some layers have the sliding window that the file speaks of.

    Raises:
        MalformedError: none has.
    """
    key = f"{arch}.attention.sliding_window_pattern"
    if not data.integer(f"{arch}.attention.sliding_window", 0, 1 << 31) or key not in data:
        return
    pattern = data.pattern(key, layers)
    if pattern == 1 or (isinstance(pattern, tuple) and not any(pattern)):
        raise MalformedError(f"{key} says that no layer has the window")
