"""Read what a GGUF says of its model, and check it before native code sees the file.

llama.cpp refuses most malformed files, but some abort the process or divide by zero. What
`read_header` returns is complete, in range, and agrees with the tensors.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gguf import GGMLQuantizationType, LlamaFileType, TokenType

from edgespec._types import AnyArray
from edgespec.errors import ModelFileError
from edgespec.gguf.checks import (
    check_experts,
    check_key_heads,
    check_rotation,
    check_tensor_kinds,
    check_texts,
    check_windows,
)
from edgespec.gguf.draft_metadata import (
    EagleHead,
    HeldOut,
    MedusaHeads,
    MTPLayers,
    ReducedVocabulary,
    foreign_draft,
    read_eagle,
    read_held_out,
    read_medusa,
    read_mtp,
    read_reduced,
)
from edgespec.gguf.reader import (
    BoundedReader,
    MalformedError,
    Metadata,
    damaged,
    open_gguf,
    split_strings,
)

__all__ = ["GGUFHeader", "Tensor", "read_header"]

_MAX_LAYERS = 512  # llama.cpp's own limit
_MAX_WIDTH = 1 << 20
_MAX_CONTEXT = 1 << 31
_MAX_SPLITS = 1000
_GUESSED = 1024  # a flag that converters set in general.file_type
_ARCHITECTURE = re.compile(r"[\w.-]{1,64}", re.ASCII)
_ENCODERS = frozenset(
    (
        *("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert"),
        *("modern-bert", "eurobert", "gemma-embedding", "llama-embed"),
    )
)
_OF_NO_USE = frozenset(("t5encoder", "clip", "wavtokenizer-dec"))
_POOLINGS = ("none", "mean", "cls", "last", "rank")  # by llama.cpp's numbers


class Tensor(NamedTuple):
    """A tensor of the file: its ggml type by number, and its sizes, the width first."""

    name: str
    kind: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GGUFHeader:
    """The facts of one model file.

    ``head_count_kv`` has an entry for each layer, 0 if the layer has no attention; ``size_bytes``,
    ``tensor_bytes`` and ``parameter_count`` cover all parts of a split model. ``reduced``,
    ``eagle`` and ``medusa`` are for drafts of one target; a reduced vocabulary has no token texts,
    and Medusa heads are no model: what they have nothing of is 0 or empty. ``state_bytes`` is what
    state-space layers keep of a text, however long; ``mtp`` are the target's own layers that
    predict further tokens. ``held_out`` is what a draft's file states about its own acceptance,
    ``unsaid`` what a tokenizer needs and the file lacks, so that llama.cpp guesses it.
    """

    path: Path
    size_bytes: int
    architecture: str
    name: str
    quantization: str
    parameter_count: int
    tensor_bytes: int
    context_length: int
    embedding_length: int
    block_count: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    sliding_window: int | None
    vocabulary_size: int
    tokenizer_model: str
    tokenizer_pre: str
    bos_token_id: int | None
    eos_token_id: int | None
    eot_token_id: int | None
    chat_template: str | None
    tool_template: str | None
    reduced: ReducedVocabulary | None = field(repr=False)
    eagle: EagleHead | None = field(repr=False)
    medusa: MedusaHeads | None = field(repr=False)
    held_out: HeldOut | None = field(repr=False)
    _token_block: bytes = field(repr=False)
    _token_types: AnyArray | None = field(repr=False, compare=False)
    tensors: tuple[Tensor, ...] = field(default=(), repr=False)
    state_bytes: int = 0
    mtp: MTPLayers | None = field(default=None, repr=False)
    unsaid: tuple[str, ...] = ()
    pooling: str = "none"
    encoder: bool = False
    _extents: tuple[tuple[Path, int], ...] = field(default=(), repr=False, compare=False)

    @property
    def drafts_only(self) -> bool:
        """Whether it is of use only as a draft, and only for the target that it was made for."""
        return bool(self.reduced or self.eagle or self.medusa)

    @property
    def embeds(self) -> bool:
        """Whether it is a model for embeddings, and not for generating text."""
        return self.encoder or self.pooling != "none"

    @property
    def embedding_pooling(self) -> str:
        """How to make one vector of a text's where nobody says more: as the file says, or mean."""
        return self.pooling if self.pooling in ("mean", "cls", "last") else "mean"

    def tokens(self) -> list[str]:
        """Return every token's text as the file has it; undecodable bytes as lone surrogates."""
        return self._tokens

    def token_types(self) -> list[int]:
        """Return every token's type, as in `gguf.TokenType`; all normal if the file has none."""
        if self._token_types is None:
            return [int(TokenType.NORMAL)] * self.vocabulary_size
        return [int(kind) for kind in self._token_types]

    def same_tokens(self, other: GGUFHeader) -> bool:
        """Return whether both files have exactly the same token texts."""
        return self._token_block == other._token_block

    @cached_property
    def tokens_sha256(self) -> str:
        """Checksum of the token texts as in the file, each preceded by its length."""
        return hashlib.sha256(self._token_block).hexdigest()

    @cached_property
    def facts_sha256(self) -> str:
        """Checksum of all that the file, or its parts, hold before the weights."""
        digest = hashlib.sha256(f"{self.size_bytes}".encode())
        for path, extent in self._extents:
            with path.open("rb") as file:
                digest.update(file.read(extent))
        return digest.hexdigest()

    @cached_property
    def _tokens(self) -> list[str]:
        return [str(text, "utf-8", "surrogateescape") for text in split_strings(self._token_block)]


def read_header(path: str | os.PathLike[str], *, embedding: bool = False) -> GGUFHeader:
    """Read and check the header of a GGUF model for text generation, or for embeddings too.

    Raises ModelFileError, in one line that says what is wrong and what to do, if the file is
    missing, unreadable, not a GGUF, truncated, damaged, not the first part of a split model, not a
    generative model, without a tokenizer, or would make llama.cpp misbehave.
    """
    path = Path(path)
    reader = open_gguf(path)
    try:
        paths = _parts(path, Metadata(reader))
        readers = [reader, *(open_gguf(part) for part in paths[1:])]
        return _header(paths, Metadata(reader), readers, embedding=embedding)
    except MalformedError as error:
        raise damaged(path, error) from None


def _header(
    paths: Sequence[Path], data: Metadata, readers: Sequence[BoundedReader], *, embedding: bool
) -> GGUFHeader:
    path = paths[0]
    arch, pooling, encoder = _architecture(path, data, embedding=embedding)
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    medusa = read_medusa(data, arch, tensors)
    if medusa is not None:
        return _heads_only(path, data, tensors, medusa)
    _refuse_foreign(path, arch, tensors)
    reduced = read_reduced(data, arch)
    block, count, kinds = (
        (b"", len(reduced.target_ids), None)
        if reduced
        else _vocabulary(path, data, embeds=encoder or pooling != "none")
    )
    width = data.required(f"{arch}.embedding_length", 1, _MAX_WIDTH)
    layers = data.required(f"{arch}.block_count", 1, _MAX_LAYERS)
    heads, heads_kv = _heads(data, arch, layers)
    eagle = read_eagle(data, arch, tensors, width, count)
    if eagle is None or not eagle.borrows_embedding:
        _check_embedding(tensors, width, count)
    head_width = _head_width(data, arch, width, heads)
    _check_numbers(data, arch)
    check_rotation(data, arch, head_width)
    check_experts(data, arch, layers)
    windowed = data.integer(f"{arch}.attention.key_length_swa", 1, _MAX_WIDTH) or head_width
    check_key_heads(heads_kv, (head_width, windowed), tensors)
    check_windows(data, arch, layers)
    check_tensor_kinds(tensors)
    return GGUFHeader(
        path=path,
        size_bytes=sum(part.stat().st_size for part in paths),
        architecture=arch,
        name=data.text("general.name") or path.stem,
        quantization=_quantization(data, tensors),
        parameter_count=sum(int(tensor.n_elements) for tensor in tensors),
        tensor_bytes=sum(int(tensor.n_bytes) for tensor in tensors),
        context_length=data.required(f"{arch}.context_length", 1, _MAX_CONTEXT),
        embedding_length=width,
        block_count=layers,
        head_count=heads,
        head_count_kv=heads_kv,
        key_length=head_width,
        value_length=data.integer(f"{arch}.attention.value_length", 1, _MAX_WIDTH) or head_width,
        sliding_window=data.integer(f"{arch}.attention.sliding_window", 0, _MAX_CONTEXT) or None,
        vocabulary_size=count,
        tokenizer_model=data.text("tokenizer.ggml.model") or "",
        tokenizer_pre=data.text("tokenizer.ggml.pre") or "default",
        bos_token_id=data.token("tokenizer.ggml.bos_token_id", count),
        eos_token_id=data.token("tokenizer.ggml.eos_token_id", count),
        eot_token_id=data.token("tokenizer.ggml.eot_token_id", count),
        chat_template=data.text("tokenizer.chat_template"),
        tool_template=data.text("tokenizer.chat_template.tool_use"),
        reduced=reduced,
        eagle=eagle,
        medusa=None,
        state_bytes=_state_bytes(data, arch, tensors),
        mtp=read_mtp(data, arch, tensors, width, layers),
        held_out=read_held_out(data),
        unsaid=() if reduced else _unsaid(data),
        pooling=pooling,
        encoder=encoder,
        _token_block=block,
        _token_types=kinds,
        tensors=_facts_of(tensors),
        _extents=tuple(
            (part, int(reader.data_offset)) for part, reader in zip(paths, readers, strict=True)
        ),
    )


def _facts_of(tensors: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(item.name, int(item.tensor_type), tuple(int(extent) for extent in item.shape))
        for item in tensors
    )


def _heads_only(
    path: Path, data: Metadata, tensors: Sequence[Any], medusa: MedusaHeads
) -> GGUFHeader:
    """Return the facts of a file with Medusa heads, which llama.cpp never sees."""
    return GGUFHeader(
        path=path,
        size_bytes=path.stat().st_size,
        architecture="medusa",
        name=data.text("general.name") or path.stem,
        quantization=_quantization(data, tensors),
        parameter_count=sum(int(tensor.n_elements) for tensor in tensors),
        tensor_bytes=sum(int(tensor.n_bytes) for tensor in tensors),
        context_length=0,
        embedding_length=medusa.target_width,
        block_count=0,
        head_count=0,
        head_count_kv=(),
        key_length=0,
        value_length=0,
        sliding_window=None,
        vocabulary_size=len(medusa.target_ids),
        tokenizer_model="none",
        tokenizer_pre="default",
        bos_token_id=None,
        eos_token_id=None,
        eot_token_id=None,
        chat_template=None,
        tool_template=None,
        reduced=None,
        eagle=None,
        medusa=medusa,
        held_out=read_held_out(data),
        _token_block=b"",
        _token_types=None,
        tensors=_facts_of(tensors),
    )


def _architecture(path: Path, data: Metadata, *, embedding: bool) -> tuple[str, str, bool]:
    """Return the architecture, its pooling, and whether it is an encoder.

    Raises:
        ModelFileError: it cannot continue a text, and embeddings are not wanted either.
    """
    arch = data.text("general.architecture")
    if not arch:
        raise MalformedError("it does not name its architecture (general.architecture)")
    if not _ARCHITECTURE.fullmatch(arch):  # it becomes part of keys, and of what is printed
        raise MalformedError(f"its architecture is called {arch[:40]!r}")
    number = max(0, data.integer(f"{arch}.pooling_type", -1, 100) or 0)
    encoder = arch in _ENCODERS or data.flag(f"{arch}.attention.causal") is False
    if arch in _OF_NO_USE:
        raise ModelFileError(
            f"{path} cannot generate text (its {arch} model is for encoding only): choose a "
            "language model"
        )
    if (encoder or number) and not embedding:
        raise ModelFileError(
            f"{path} cannot generate text (its {arch} model is for embeddings): `edgespec serve` "
            "and edgespec.load_embedder use it, or choose a language model"
        )
    if number >= len(_POOLINGS):
        raise MalformedError(f"{arch}.pooling_type is {number}, which is not known")
    if data.text("general.type") in ("adapter", "mmproj", "imatrix"):
        raise ModelFileError(f"{path} is no model by itself: give the model it belongs to")
    return arch, _POOLINGS[number], encoder


def _refuse_foreign(path: Path, arch: str, tensors: Sequence[Any]) -> None:
    """Name a draft of a kind that cannot be used, alone or in its target's file."""
    found = foreign_draft(arch, tensors)
    if found is not None:
        raise ModelFileError(
            f"{path} holds {found}, which edgespec cannot use: choose a file without, and another "
            "--draft"
        )


def _vocabulary(path: Path, data: Metadata, *, embeds: bool) -> tuple[bytes, int, AnyArray | None]:
    """Return the token texts as one block, their number, and their types."""
    model = data.text("tokenizer.ggml.model")
    tokens = data.strings("tokenizer.ggml.tokens")
    if model in (None, "none", "no_vocab") or tokens is None or tokens[0] == 0:
        raise ModelFileError(f"{path} has no tokenizer: choose a file that includes one")
    count, block = tokens
    data.strings("tokenizer.ggml.merges")
    kinds = _beside(data, "tokenizer.ggml.token_type", count, "iu")
    check_texts(model, block, _beside(data, "tokenizer.ggml.scores", count, "f"))
    if model == "bert" and not embeds:
        raise MalformedError("its tokenizer (bert) is one of encoders")
    if model == "bert":
        _check_marks(data, count)
    return block, count, kinds


def _check_marks(data: Metadata, count: int) -> None:
    """Check the tokens that this tokenizer puts around a text, and for words it does not know."""
    usual = {"bos": 101, "eos": 102, "unknown": 100, "seperator": 102}
    if data.token("tokenizer.ggml.cls_token_id", count) is not None:
        usual.pop("bos")
    for name, default in usual.items():
        key = f"tokenizer.ggml.{name}_token_id"
        if data.token(key, count) is None and default >= count:
            raise MalformedError(f"{key} is missing")


def _unsaid(data: Metadata) -> tuple[str, ...]:
    """Return in words what the tokenizer needs and the file does not say."""
    ends = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    lacks = {
        "which token ends a text": not any(key in data for key in ends),
        "how texts are split (tokenizer.ggml.pre)": data.text("tokenizer.ggml.model") == "gpt2"
        and "tokenizer.ggml.pre" not in data,
        "which tokens are control tokens": "tokenizer.ggml.token_type" not in data,
    }
    return tuple(what for what, missing in lacks.items() if missing)


def _beside(data: Metadata, key: str, count: int, kind: str) -> AnyArray | None:
    """Return an array with one 4-byte number per token: llama.cpp reads as many unchecked."""
    values = data.numbers(key)
    if values is not None and (values.dtype.kind not in kind or values.dtype.itemsize != 4):
        raise MalformedError(f"{key} has the wrong type")
    if values is not None and len(values) != count:
        raise MalformedError(f"{key} has {len(values):,} entries for {count:,} tokens")
    return values


def _heads(data: Metadata, arch: str, layers: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of query heads, and of KV heads in each layer."""
    key = f"{arch}.attention.head_count"
    queries = data.per_layer(key, layers, _MAX_WIDTH) or (0,) * layers
    recurrent = f"{arch}.ssm.state_size" in data or f"{arch}.wkv.head_size" in data
    if max(queries) == 0 and not recurrent:
        raise MalformedError(f"{key} must be at least 1")
    keys = data.per_layer(f"{key}_kv", layers, _MAX_WIDTH) or queries
    for layer, (query, kv) in enumerate(zip(queries, keys, strict=True)):
        if query and kv and query % kv:
            raise MalformedError(
                f"layer {layer} has {query} heads, not a multiple of {kv} KV heads"
            )
    if not any(keys) and not recurrent:
        raise MalformedError(f"{key}_kv must be at least 1")
    return max(queries), keys


def _state_bytes(data: Metadata, arch: str, tensors: Sequence[Any]) -> int:
    """Return the bytes of the states of Mamba layers and gated delta nets, which are float32."""
    inner, state, kernel, groups = (
        data.integer(f"{arch}.ssm.{name}", 0, _MAX_WIDTH) or 0
        for name in ("inner_size", "state_size", "conv_kernel", "group_count")
    )
    layers = sum(str(tensor.name).endswith(".ssm_conv1d.weight") for tensor in tensors)
    window = max(0, kernel - 1) * (inner + 2 * groups * state)
    return 4 * layers * (inner * state + window)


def _head_width(data: Metadata, arch: str, width: int, heads: int) -> int:
    given = data.integer(f"{arch}.attention.key_length", 1, _MAX_WIDTH)
    if given is not None:
        return given
    if heads and width % heads:
        raise MalformedError(f"its width of {width} is not a multiple of its {heads} heads")
    return width // heads if heads else 0


def _check_embedding(tensors: Sequence[Any], width: int, count: int) -> None:
    embedding = next((item for item in tensors if item.name == "token_embd.weight"), None)
    if embedding is None:
        raise MalformedError("it has no tensor token_embd.weight")
    shape = [int(extent) for extent in embedding.shape]
    if shape != [width, count]:
        raise MalformedError(
            f"token_embd.weight is {' x '.join(map(str, shape))}, where width and vocabulary say "
            f"{width} x {count}"
        )


def _check_numbers(data: Metadata, arch: str) -> None:
    """Check values that llama.cpp uses unchecked."""
    data.finite(f"{arch}.rope.freq_base")
    data.finite(f"{arch}.rope.freq_base_swa")
    data.finite(f"{arch}.rope.scale_linear", zero=True)
    data.finite(f"{arch}.rope.scaling.factor", zero=True)
    data.finite(f"{arch}.attention.layer_norm_rms_epsilon")
    data.finite(f"{arch}.attention.layer_norm_epsilon")


def _quantization(data: Metadata, tensors: Sequence[Any]) -> str:
    """Return the quantization's usual name, like Q4_K_M; else the commonest tensor type."""
    declared = data.integer("general.file_type", 0, 1 << 31)
    if declared is not None:
        try:
            kind = LlamaFileType(declared & ~_GUESSED)
            return str(kind.name).removeprefix("MOSTLY_").removeprefix("ALL_")
        except ValueError:
            pass  # newer than the gguf package
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        sizes[tensor.tensor_type] = sizes.get(tensor.tensor_type, 0) + int(tensor.n_bytes)
    return str(GGMLQuantizationType(max(sizes, key=lambda kind: sizes[kind])).name)


def _parts(path: Path, data: Metadata) -> list[Path]:
    """Return the parts of a model whose first part, or whole, is *path*."""
    count = data.integer("split.count", 0, _MAX_SPLITS) or 1
    if count == 1:
        return [path]
    number = data.required("split.no", 0, count - 1)
    ending = f"-{number + 1:05d}-of-{count:05d}.gguf"
    if not path.name.endswith(ending):
        raise ModelFileError(f"{path} is part {number + 1} of {count}: its name must end {ending}")
    parts = [
        path.with_name(f"{path.name.removesuffix(ending)}-{part:05d}-of-{count:05d}.gguf")
        for part in range(1, count + 1)
    ]
    if number:
        raise ModelFileError(f"{path} is part {number + 1} of {count}: give the first, {parts[0]}")
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelFileError(f"{path} needs the other parts beside it: {missing[0]} is missing")
    return parts
